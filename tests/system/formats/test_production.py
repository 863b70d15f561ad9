"""docs/guides/production.md: its files have the form of Compose and Kubernetes, and their health checks check."""

import itertools
import subprocess

import kubernetes_validate
import pytest
import yaml

from tests import ROOT
from tests.support.docs.pages import blocks
from tests.support.formats.server import serving_at

PAGE = (ROOT / "docs" / "guides" / "production.md").relative_to(ROOT)
FILES = {block.path: [*yaml.safe_load_all(block.text)] for block in blocks(PAGE) if block.path}
COMPOSE = FILES["deploy/compose.yaml"][0]
KUBERNETES = {path: documents for path, documents in FILES.items() if path != "deploy/compose.yaml"}
READY = {"tensorflow-serving": "/v1/models/digits/metadata", "triton": "/v2/health/ready"}


@pytest.mark.parametrize(("path", "release"), [*itertools.product(KUBERNETES, ("1.34", "1.37"))])
def test_schemas_take_every_object(path, release):
    """N47: of Kubernetes, strictly."""
    assert len(KUBERNETES) == 2
    assert [each["kind"] for each in KUBERNETES[path]] == ["Deployment", "Service"]
    for each in KUBERNETES[path]:
        kubernetes_validate.validate(each, release, strict=True)


@pytest.mark.parametrize("path", KUBERNETES)
def test_a_service_finds_the_pods_and_their_health(path):
    """N47: labels, ports, what says that a model is loaded, and the image that Compose starts."""
    deployment, service = KUBERNETES[path]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (port,) = service["spec"]["ports"]
    assert ports[port["targetPort"]] == port["port"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": READY[container["name"]], "port": "http"}
    assert container["livenessProbe"].keys() & {"httpGet", "tcpSocket"}
    (volume,) = pod["spec"]["volumes"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"]]
    compose = COMPOSE["services"][container["name"]]
    assert compose["image"] == container["image"] and ":" in container["image"]
    assert f"127.0.0.1:{port['port']}:{port['port']}" in compose["ports"]


def test_each_service_of_compose_is_checked():
    """N47: with a command that asks for the model, and time to stop."""
    assert COMPOSE["services"].keys() == READY.keys()
    for name, service in COMPOSE["services"].items():
        check = service["healthcheck"]
        assert check["test"][0] == "CMD" and READY[name] in check["test"][-1]
        assert {"interval", "timeout", "retries", "start_period"} <= check.keys()
        assert service["stop_grace_period"] == "30s" and service["restart"] == "unless-stopped"


def test_the_check_without_curl_sees_a_model_and_its_absence(exported, tmp_path):
    """N47: run on a server that answers as TensorFlow Serving does."""
    _, *command = COMPOSE["services"]["tensorflow-serving"]["healthcheck"]["test"]

    def check(port, name="digits"):
        words = [word.replace("8501", str(port)).replace("models/digits", f"models/{name}") for word in command]
        return subprocess.run(words, capture_output=True, check=False).returncode

    with serving_at(exported[1], tmp_path, "--name=digits") as started:
        assert check(started.port) == 0
        assert check(started.port, "none") != 0
    assert check(started.port) != 0
