"""What Kubeflow Trainer is told of a run, and that the percentage of a job never goes back."""

import json
import math

import pytest

from official_trainer.config import ConfigError, resolve
from official_trainer.tracking.kubeflow import KubeflowConfig, Progress, is_asked_for, status_of


def samples(step, end_step=200, **more):
    numbers = {"step": step, "end_step": end_step, **more}
    return [(name, {}, float(value)) for name, value in numbers.items()]


def metric(name, value, split="train"):
    return "metric", {"split": split, "name": name}, value


def percent(place, step, *, job="a", end_step=200, is_done=False):
    return status_of(samples(step, end_step), Progress(place, job), is_done=is_done)["progressPercentage"]


def test_what_the_platform_gets(place):
    """N50: in its words and types."""
    found = [*samples(50, remaining_seconds=12.7), metric("loss", 0.1234567), metric("dev/top", 1, "validation")]
    status = status_of(found, Progress(place, "a"), is_done=False)
    time = status.pop("lastUpdatedTime")
    assert (len(time), time[10], time[-1]) == (20, "T", "Z")
    named = [{"name": "train/loss", "value": "0.123457"}, {"name": "validation/dev/top", "value": "1"}]
    assert status == {"progressPercentage": 25, "estimatedRemainingSeconds": 12, "metrics": named}


def test_what_the_platform_would_refuse_is_left_out(place):
    """N50: more than 256 metrics, names of more than 64 bytes, numbers above 32 bits; NaN is a text."""
    many = [metric(f"m{number}", math.nan) for number in range(300)]
    found = [*samples(1, remaining_seconds=1e12), metric("ä" * 40, 1.0), *many]
    status = status_of(found, Progress(place, "a"), is_done=False)
    assert status["estimatedRemainingSeconds"] == 2**31 - 1
    assert [each["name"] for each in status["metrics"]] == [f"train/m{number}" for number in range(256)]
    assert {each["value"] for each in status["metrics"]} == {"nan"}


def test_a_run_that_does_not_say_how_far_it_is(place, tmp_path):
    """N50: before the record is written, and without an end."""
    for found in ([], samples(5, 0), [metric("loss", 1.0)]):
        assert status_of(found, Progress(place, "a"), is_done=False) is None
    assert list(tmp_path.iterdir()) == []


def test_all_is_said_only_of_a_run_that_is_done(place):
    """N50: at the last step there is still an evaluation and an export; one that stops early is done too."""
    assert percent(place, 200) == 99
    assert percent(place, 120, is_done=True) == 100


def test_the_percentage_never_goes_back(place):
    """N50: another process goes on from an earlier checkpoint; a rollback; another job begins anew."""
    told = Progress(place, "a")
    assert [told.percent(wanted) for wanted in (10, 30, 20, 31)] == [10, 30, 30, 31]
    assert percent(place, 20) == 31
    assert percent(place, 80) == 40
    assert percent(place, 20, job="b") == 10


def test_a_percentage_is_on_record_before_it_is_posted(place, tmp_path, monkeypatch):
    """N50: a kill between the two leaves the higher one; what cannot be recorded is not posted."""
    told = Progress(place, "a")
    told.percent(10)
    assert json.loads((tmp_path / "kubeflow.json").read_text()) == {"job": "a", "percent": 10}
    with monkeypatch.context() as patched:
        patched.setattr("official_trainer.files.write_text_atomically", lambda *words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            told.percent(11)
        assert told.percent(9) == 10
    (tmp_path / "kubeflow.json").write_text('{"job": "a"}')
    with pytest.raises(KeyError):
        Progress(place, "a").percent(50)


def test_when_the_platform_asks():
    """N50: all three variables; a trial of a sweep has an empty address."""
    given = {f"KUBEFLOW_TRAINER_SERVER_{name}": "x" for name in ("URL", "TOKEN", "CA_CERT")}
    assert is_asked_for(given)
    for name in given:
        assert not is_asked_for({**given, name: ""})
        assert not is_asked_for({key: value for key, value in given.items() if key != name})


def test_how_often():
    assert resolve(KubeflowConfig(), params_overrides=["post_seconds: null"]).config.post_seconds is None
    with pytest.raises(ConfigError, match="post_seconds"):
        resolve(KubeflowConfig(), params_overrides=["post_seconds: 0"])
