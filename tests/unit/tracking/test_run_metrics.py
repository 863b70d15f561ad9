import json
import math
import sys
import types

import pytest

from official_trainer.tracking import run_metrics
from official_trainer.tracking.record import RunRecord
from official_trainer.tracking.run_metrics import RunMetrics

LAUNCH = {"experiment": "digits", "mode": "train", "argv": [], "config_digest": "abc"}
ROW = {"wall_seconds": 10.0, "start_seconds": 4.0, "tracing_seconds": 1.0, "steps_seconds": 4.0, "input_seconds": 1.0}


def recorded(place, now=1000):
    record = RunRecord(place.directory, LAUNCH, clock=lambda: now)
    record.start()
    return record


def run_id_of(place):
    with open(f"{place.directory}/run.json") as file:
        return json.load(file)["run_id"]


def told(metrics):
    """What is told, by name and labels, without the label `run`."""
    return {(name, *(value for label, value in labels.items() if label != "run")): value
            for name, labels, value in metrics.samples()}  # fmt: skip


def began(place):
    metrics = RunMetrics(place)
    metrics.rewind(0)
    metrics.begin()
    return metrics


def test_what_the_record_of_a_run_says(place):
    """N48: phase, steps, the last checkpoint, restarts, progress."""
    recorded(place)
    record = recorded(place, now=2000)
    record.set_span(20, 400)
    record.checkpoint(40)
    record.phase("evaluate", 50)
    values = told(began(place))
    (info,) = [key for key in values if key[0] == "run_info"]
    assert {"train", "digits", place.directory, "run", run_id_of(place)} < set(info)
    assert {key: value for key, value in values.items() if key != info} == {
        ("phase", "evaluate"): 1,
        ("step",): 50,
        ("end_step",): 400,
        ("last_checkpoint_step",): 40,
        ("last_checkpoint_timestamp_seconds",): 2000,
        ("last_progress_timestamp_seconds",): 2000,
        ("start_timestamp_seconds",): 1000,
        ("restarts_total",): 1,
    }


def test_each_sample_says_its_run(place):
    """N48: by its name and the beginning of its id: several runs of one name can be in one folder."""
    recorded(place)
    run_id = run_id_of(place)
    assert {labels["run"] for _, labels, _ in began(place).samples()} == {f"run-{run_id[:8]}"}


def test_where_the_time_went(place):
    """N48: speed without the start, waiting, goodput, and the time that is left."""
    recorded(place).set_span(20, 400)
    metrics = began(place)
    metrics.log("time", 100, {**ROW, "examples_per_second": 50.0, "input_fraction": 0.2})
    values = told(metrics)
    assert values["steps_per_second",] == 100 / 5
    assert values["examples_per_second",] == 50
    assert values["input_wait_ratio",] == 0.2
    assert values["goodput_ratio",] == 0.4
    assert values["remaining_seconds",] == 380 / 20
    metrics.log("time", 150, {"wall_seconds": 5.0, "steps_seconds": 5.0, "start_seconds": 0.0})
    values = told(metrics)
    assert (values["steps_per_second",], values["goodput_ratio",]) == (10, 1)
    assert ("input_wait_ratio",) not in values, "it is not known of this summary"


def test_speed_counts_the_steps_of_this_process(place):
    """N48: after a restart, and after a rollback, where the speed before it is the newest."""
    metrics = began(place)
    metrics.log("time", 0, {"wall_seconds": 0.0})
    assert not {key[0] for key in told(metrics)} & {"steps_per_second", "goodput_ratio"}
    metrics.rewind(1000)
    metrics.log("time", 1100, ROW)
    assert told(metrics)["steps_per_second",] == 20
    metrics.log("time", 1050, ROW)
    assert told(metrics)["steps_per_second",] == 20


def test_the_newest_number_of_each_metric(place):
    """N48: those that are not finite too."""
    metrics = began(place)
    metrics.log("train", 10, {"training_loss": 0.5})
    metrics.log("validation", 10, {"dev/accuracy": 0.9})
    metrics.log("train", 20, {"training_loss": math.inf})
    values = {key: value for key, value in told(metrics).items() if key[0] == "metric"}
    assert values == {("metric", "train", "training_loss"): math.inf, ("metric", "validation", "dev/accuracy"): 0.9}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"steps": 3, "restarts": true, "updated": [1], "run_id": 3}'])
def test_a_damaged_record_is_not_told(place, text):
    """N48: and is no error; what the tracker got is told."""
    for name in ("run.json", "status.json"):
        with open(f"{place.directory}/{name}", "w") as file:
            file.write(text)
    metrics = began(place)
    metrics.log("train", 10, {"loss": 0.5})
    assert {name for name, *_ in told(metrics)} == {"metric", "run_info"}
    assert {labels["run"] for _, labels, _ in metrics.samples()} == {"run"}


def test_the_most_memory_of_gpus_is_what_tensorflow_says(monkeypatch):
    """N16: of a TensorFlow that is imported, and has GPUs; one that fails costs these numbers alone."""
    devices = [types.SimpleNamespace(name=f"/device:GPU:{n}") for n in range(2)]
    infos = {"GPU:0": {"current": 5, "peak": 9}, "GPU:1": {"current": 6, "peak": 8}}
    experimental = types.SimpleNamespace(get_memory_info=infos.__getitem__)
    config = types.SimpleNamespace(list_logical_devices=lambda device_type: devices, experimental=experimental)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    peaks = run_metrics.peak_memory(of_gpus=True)
    assert peaks.pop("process") > 1e6
    assert peaks == {"GPU:0": 9, "GPU:1": 8}
    infos.clear()
    assert set(run_metrics.peak_memory(of_gpus=True)) == set(run_metrics.peak_memory(of_gpus=False)) == {"process"}
