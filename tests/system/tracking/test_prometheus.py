"""The tracker `prometheus`: its address; and the files of `launch/observability`, read by Prometheus's own tool."""

import json
import re
import shutil
import subprocess
import urllib.request

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="NOT TESTED: pip install 'official-trainer[prometheus]'")

from official_trainer.processes.local import free_ports
from official_trainer.tracking import Outcome, Trackers
from official_trainer.tracking.prometheus import PrometheusConfig
from official_trainer.tracking.run_metrics import HELP
from official_trainer.tracking.threads import ThreadedTracker, TrackerError
from tests import ROOT

FILES = ROOT / "launch" / "observability"
HAS_PROMTOOL = shutil.which("promtool") is not None
real = pytest.mark.skipif(
    not HAS_PROMTOOL, reason="PROMETHEUS IS NOT TESTED: apt-get install -y --no-install-recommends prometheus"
)


def queries():
    """Returns the queries of the dashboard, with its variables filled in, and of the rules."""
    board = json.loads((FILES / "grafana.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    shown = [target["expr"] for target in (*targets, *board["annotations"]["list"])]
    filled = [query.replace("$run", ".*").replace("$__rate_interval", "1m") for query in shown]
    return filled + [rule["expr"] for rule in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]]


def began(place, on_error="warn", **fields):
    """A tracker as a run has it, when training has begun."""
    tracker = PrometheusConfig(**fields).build(place)
    told = Trackers([ThreadedTracker(tracker, name="prometheus", on_error=on_error)])
    told.rewind(0)
    told.describe("digits", {})
    told.flush()
    return told


def named_in(caplog):
    """The address that the log names."""
    (address,) = [found[1] for said in caplog.messages if (found := re.search(r"can scrape this run at (\S+)", said))]
    caplog.clear()
    return address


def scraped(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]")])
def test_a_free_port_is_named_and_answers_while_the_run_runs(place, caplog, address, host):
    """N48: of one interface or of all."""
    caplog.set_level("INFO", logger="official_trainer")
    told = began(place, port=0, address=address)
    url = named_in(caplog)
    assert url.startswith(f"http://{host}:")
    told.log("validation", 10, {"dev/accuracy": 0.5, "loss": float("nan")})
    told.log("time", 10, {"wall_seconds": 2.0, "steps_seconds": 1.0, "input_fraction": 0.5})
    told.flush()
    text = scraped(url)
    assert 'official_trainer_metric{name="dev/accuracy",run="run",split="validation"} 0.5' in text
    if HAS_PROMTOOL:  # names, types, units and help as Prometheus wants them
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    told.end(Outcome())
    told.close()
    with pytest.raises(OSError, match="refused"):
        scraped(url)


def test_a_port_that_is_taken_costs_the_run_one_warning(place, caplog):
    """N48: and with `on_error: fail` it ends the run."""
    (port,) = free_ports(1)
    first = began(place, port=port)
    said = f"port {port} of 127.0.0.1 is taken, perhaps by another run of this machine; name another trainer.trackers "
    second = began(place, port=port)
    second.log("train", 10, {"loss": 0.5})
    second.close()
    (failed, lost) = caplog.messages
    assert failed.startswith("tracker prometheus failed in describe; the run continues")
    assert f"{said}port, or 0 for a free one" in failed
    assert "1 of 5 calls were lost" in lost
    with pytest.raises(TrackerError, match=said):
        began(place, port=port, on_error="fail")
    with pytest.raises(TrackerError, match=r"port 0 of 192.0.2.1 is not to be had: Cannot assign requested address"):
        began(place, port=0, address="192.0.2.1", on_error="fail")
    assert "official_trainer_run_info" in scraped(f"http://127.0.0.1:{port}/metrics"), "the first goes on"
    first.close()


def test_an_evaluation_by_itself_opens_nothing(place, caplog):
    """N48: it describes no run; the run that trains has the port."""
    caplog.set_level("INFO", logger="official_trainer")
    told = Trackers([PrometheusConfig(port=0).build(place)])
    told.rewind(0)
    told.log("validation", 10, {"accuracy": 0.5})
    told.end(Outcome())
    told.close()
    assert caplog.messages == []


def test_dashboard_and_rules_use_names_that_are_told():
    """N48: and each name is in one of them, or it would be told for nothing."""
    used = {name for query in queries() for name in re.findall(r"\bofficial_trainer_(\w+)", query)}
    assert used == HELP.keys()
    tested = set(re.findall(r"official_trainer_(\w+)\{", (FILES / "alerts_test.yml").read_text()))
    assert tested <= HELP.keys()


@real
@pytest.mark.parametrize(
    "words",
    [["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)
def test_promtool_takes_the_files(words):
    """N48: each rule fires when it should, and not when it should not."""
    done = subprocess.run(["promtool", *words], cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@real
def test_promtool_takes_the_queries_of_the_dashboard(tmp_path):
    """N48: each is one that Prometheus understands."""
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


def test_the_guide_has_each_name():
    """N48: with its words."""
    page = (ROOT / "docs/guides/operate.md").read_text()
    missing = [name for name, text in HELP.items() if f"| `official_trainer_{name}` | {text} |" not in page]
    assert not missing, "\n".join(f"| `official_trainer_{name}` | {HELP[name]} |" for name in missing)
