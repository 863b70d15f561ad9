"""Progress that a run posts to Kubeflow Trainer: a server with TLS on loopback that answers, refuses, hangs or is down.

A run is killed three times while it posts; the marker `full` has 50 kills.
"""

import json
import random
import signal
import threading
from pathlib import Path

import pytest

from official_trainer.tracking import Outcome, Trackers, kubeflow
from official_trainer.tracking.kubeflow import KubeflowConfig
from official_trainer.tracking.threads import ThreadedTracker
from tests import ROOT
from tests.support.cases import full
from tests.support.forked import Command
from tests.support.prometheus import until
from tests.support.tracking.kubeflow import Platform


@pytest.fixture
def platform(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    with Platform(folder) as server:
        yield server


@pytest.fixture
def began(place, platform, monkeypatch):
    """Returns the tracker of a run that has trained half of its steps, as a run has it."""
    Path(place.directory, "run.json").write_text(json.dumps({"steps": {"current": 50, "end": 100}}))

    def begin(post_seconds=0.01, **environ):
        for name, value in {**platform.environ, **environ}.items():
            monkeypatch.setenv(name, value)
        told = Trackers([ThreadedTracker(KubeflowConfig(post_seconds=post_seconds).build(place), name="kubeflow")])
        told.rewind(0)
        told.describe("digits", {})
        told.log("train", 50, {"loss": 0.5})
        told.flush()
        return told

    return begin


def end(told, status="done"):
    told.end(Outcome(status=status))
    told.close()


def test_progress_and_metrics_are_posted(began, platform):
    """N50: to the address, with the token, checked by the certificate; the last time when the run is done."""
    told = began()
    until(lambda: len(platform.posted) >= 2, "two posts")
    assert platform.posted[0]["progressPercentage"] == 50
    assert {"name": "train/loss", "value": "0.5"} in platform.posted[1]["metrics"]
    end(told)
    assert platform.percents[-1] == 100
    assert platform.posted[-1]["estimatedRemainingSeconds"] == 0
    count = platform.requests
    told.close()
    assert platform.requests == count


def test_models_of_the_platform_take_what_is_posted(began, platform):
    """N50: as the body of its request."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="NOT TESTED: pip install kubeflow-trainer-api")
    end(began(), "preempted")
    (*_, status) = platform.posted
    body = {"trainerStatus": status}
    taken = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(body).to_dict()
    taken["trainerStatus"].pop("lastUpdatedTime")
    assert taken["trainerStatus"] == {key: value for key, value in status.items() if key != "lastUpdatedTime"}
    assert status["progressPercentage"] == 50


def test_a_token_that_was_replaced_is_read_again(began, platform, caplog):
    """N50: 401 costs one warning, and no error."""
    platform.token = "second"
    told = began()
    until(lambda: platform.requests >= 2, "a second try")
    platform.write_token("second")
    until(lambda: platform.posted, "a post")
    end(told)
    said = "the progress of this run was not posted to Kubeflow Trainer, and will be tried again: it answered 401"
    assert [message for message in caplog.messages if "Kubeflow" in message] == [said]
    assert platform.percents[-1] == 100


@pytest.mark.parametrize("wait", ["3600", "999999999999999"])
def test_a_platform_that_asks_to_wait_is_not_asked_again(began, platform, monkeypatch, wait):
    """N50: 429 with `Retry-After`, also at the end, where nothing waits longer than `LAST_SECONDS`."""
    monkeypatch.setattr(kubeflow, "LAST_SECONDS", 0.05)
    platform.answers = [(429, {"Retry-After": wait})]
    told = began()
    until(lambda: platform.requests, "a post")
    end(told)
    assert (platform.requests, platform.posted) == (1, [])


def test_a_short_wait_is_kept_and_then_posted(began, platform):
    """N50: the end of the run waits for it, as it is shorter than `LAST_SECONDS`."""
    platform.answers = [(429, {"Retry-After": "1"})]
    told = began(post_seconds=0.01)
    until(lambda: platform.requests, "a post")
    end(told)
    assert platform.percents[-1] == 100


@pytest.mark.parametrize("answer", [(503, {}), (429, {"Retry-After": "Fri, 27 Nov 2026 20:00:00 GMT"}), (500, {})])
def test_other_failures_are_tried_again_later(began, platform, answer):
    """N50: each pause is twice the one before; after a success it is the usual one."""
    platform.answers = [answer] * 3
    told = began()
    until(lambda: len(platform.posted) > 2, "posts")
    assert platform.requests >= 6
    end(told)


def test_a_platform_that_hangs_costs_the_end_of_a_run_a_moment(began, platform, monkeypatch):
    """N50: nothing else waits for it, and one thread at most."""
    monkeypatch.setattr(kubeflow, "LAST_SECONDS", 0.05)
    platform.hangs.set()
    told = began()
    until(lambda: platform.requests, "a post")
    for step in range(51, 2051):
        told.log("train", step, {"loss": 0.1})
    told.flush()
    assert sum(thread.name == "kubeflow-progress" for thread in threading.enumerate()) == 1
    end(told)
    assert (platform.requests, platform.posted) == (1, [])


def test_a_platform_that_is_down_or_another_one(began, platform, caplog, tmp_path):
    """N50: no one listens; a certificate of another authority; an address without TLS, which gets no token."""
    end(began(KUBEFLOW_TRAINER_SERVER_URL="https://127.0.0.1:1/x"))
    other = tmp_path / "other"
    other.mkdir()
    Platform(other)
    end(began(KUBEFLOW_TRAINER_SERVER_CA_CERT=str(other / "ca.crt")))
    end(began(KUBEFLOW_TRAINER_SERVER_URL="http://127.0.0.1:1/x"))
    end(began(KUBEFLOW_TRAINER_SERVER_TOKEN=str(tmp_path / "no-token")))
    said = [message for message in caplog.messages if "not posted to Kubeflow" in message]
    parts = ["refused", "certificate verify failed", "must begin with https://", "no-token"]
    for part, message in zip(parts, said, strict=True):
        assert part in message
    assert platform.posted == []


def test_it_is_switched_off(began, platform):
    """N50: by `post_seconds: null`; and an evaluation by itself posts nothing."""
    end(began(post_seconds=None))
    assert platform.requests == 0


def start(run_dir, folder, environ, steps, *sets):
    fields = [f"trainer.train_steps={steps}", "trainer.summary_interval=50"]
    words = ["--experiment=digits_mlp", "--mode=train", f"--model_dir={run_dir}", "trainer.export.at_end=false"]
    return Command(["train", *words, *fields, *sets], cwd=ROOT, folder=folder, env=environ)


OFTEN = "trainer.trackers=[{type: kubeflow, post_seconds: 0.1}]"


@pytest.mark.parametrize(("kills", "interval"), [(3, 5000), full((50, 15_000))])
def test_progress_never_goes_back(tmp_path, platform, kills, interval):
    """N50: a run that is killed anywhere goes on from an earlier checkpoint, and never posts less than before."""
    draw = random.Random(kills)
    environ = {**platform.environ, "JOBSET_UID": "one"}
    steps, has_lost = 10_000 * kills, 0

    def killed_at(percent):
        count = len(platform.posted)
        job = start(tmp_path / "run", tmp_path, environ, steps, OFTEN, f"trainer.checkpoint_interval={interval}")
        until(lambda: platform.percents[count:] and platform.percents[-1] >= percent, lambda: job.out + job.err)
        job.process.kill()
        job.process.join()
        assert job.process.exitcode == -signal.SIGKILL, f"{job.out}\n{job.err}"

    for _ in range(kills):
        killed_at(max(platform.percents, default=0) + draw.randint(0, 2))
        saved_step = json.loads((tmp_path / "run" / "run.json").read_text()).get("last_checkpoint_step") or 0
        has_lost += 100 * saved_step // steps < platform.percents[-1]
    killed_at(0)  # whatever is posted next
    assert platform.percents == sorted(platform.percents)
    assert has_lost, "no kill has cost progress, so nothing was shown"


def test_a_run_posts_without_a_section_where_the_platform_asks(tmp_path, platform):
    """N50: and not with `post_seconds: null`; the last post says that it is done."""
    off = "trainer.trackers=[{type: kubeflow, post_seconds: null}]"
    assert start(tmp_path / "off", tmp_path, platform.environ, 50, off).wait().code == 0
    assert platform.requests == 0
    assert start(tmp_path / "run", tmp_path, platform.environ, 50).wait().code == 0
    assert platform.percents[-1] == 100
    assert any(each["name"].startswith("train/") for each in platform.posted[-1]["metrics"])
