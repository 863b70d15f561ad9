import json
import math
import sys
import threading
import types

import pytest

from official_trainer.tracking import run_metrics
from official_trainer.tracking.record import RunRecord
from official_trainer.tracking.run_metrics import RunMetrics

LAUNCH = {"experiment": "digits", "mode": "train", "argv": [], "imports": [], "config_digest": "abc"}
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


def began(place, clock=lambda: 1100.0, **arguments):
    metrics = RunMetrics(place, clock=clock, **arguments)
    metrics.rewind(0)
    metrics.begin()
    return metrics


def test_what_the_record_of_a_run_says(place):
    """N48, N49: phase, steps, the last checkpoint, saves, restarts, progress, a slow worker; memory."""
    recorded(place)
    record = recorded(place, now=2000)
    record.set_span(20, 400)
    record.note(slow_worker={"worker": 1, "phase": "input", "cost": 0.25})
    record.checkpoint(40)
    record.phase("evaluate", 50)
    found = told(began(place))
    run_id = run_id_of(place)
    assert found.pop(("memory_bytes",)) > 1e6
    assert ("run_info", run_id, "train", "digits", place.directory, "run") == next(
        key[:-1] for key in found if key[0] == "run_info"
    )
    assert {key: value for key, value in found.items() if key[0] != "run_info"} == {
        ("phase", "evaluate"): 1,
        ("step",): 50,
        ("end_step",): 400,
        ("saves_total",): 1,
        ("last_checkpoint_step",): 40,
        ("last_checkpoint_timestamp_seconds",): 2000,
        ("last_progress_timestamp_seconds",): 2000,
        ("start_timestamp_seconds",): 1000,
        ("restarts_total",): 1,
        ("slow_worker_ratio", "1", "input"): 0.25,
    }


def test_each_sample_says_its_run(place):
    """N48: by its name and the beginning of its id: several runs of one name can be in one folder."""
    recorded(place)
    metrics = began(place)
    run_id = run_id_of(place)
    assert {labels["run"] for _, labels, _ in metrics.samples()} == {f"run-{run_id[:8]}"} == {metrics.label}


def test_where_the_time_went(place):
    """N48: speed without the start, waiting, goodput of a summary and of the run, and the time that is left."""
    now = [1100.0]
    recorded(place).set_span(0, 400)
    metrics = began(place, clock=lambda: now[0])
    more = {"model_flops_per_second": 4e12, "mfu": 0.4}
    metrics.log(
        "time", 100, {**ROW, **more, "examples_per_second": 50.0, "input_fraction": 0.2, "step_seconds_p50": 0.03}
    )
    found = told(metrics)
    assert found["steps_per_second",] == 100 / 5
    assert found["examples_per_second",] == 50
    assert (found["model_flops_per_second",], found["mfu_ratio",]) == (4e12, 0.4)
    assert found["input_wait_ratio",] == 0.2
    assert found["step_seconds", "50"] == 0.03
    assert found["goodput_ratio", "summary"] == 0.4
    assert found["goodput_ratio", "run"] == 4 / 100
    assert found["remaining_seconds",] == 400 / 20
    now[0] = 1200.0
    metrics.log("time", 150, {"wall_seconds": 5.0, "steps_seconds": 5.0, "start_seconds": 0.0})
    found = told(metrics)
    assert found["steps_per_second",] == 10
    assert found["goodput_ratio", "summary"] == 1
    assert found["goodput_ratio", "run"] == 9 / 200
    assert {key[1]: value for key, value in found.items() if key[0] == "time_seconds_total"} == {
        "start": 4, "tracing": 1, "steps": 9, "input": 1,
    }  # fmt: skip
    assert ("input_wait_ratio",) not in found, "it is not known of this summary"


def test_goodput_of_a_run_counts_what_a_kill_lost(place):
    """N48: time of earlier processes is what the record has of it; time between them, and what was lost, is none."""
    record = recorded(place)
    record.note(time={"attempts": [], "total": {"seconds": {"steps": 60.0, "input": None}}})
    recorded(place, now=1500)
    metrics = began(place, clock=lambda: 1600.0)
    metrics.log("time", 100, {"wall_seconds": 50.0, "steps_seconds": 40.0})
    assert told(metrics)["goodput_ratio", "run"] == 100 / 600


def test_speed_after_a_restart_counts_the_steps_of_this_process(place):
    """N48."""
    metrics = began(place)
    metrics.rewind(1000)
    metrics.log("time", 1100, ROW)
    assert told(metrics)["steps_per_second",] == 20


def test_a_summary_without_time_or_steps_has_no_speed(place):
    """N48: after a rollback; the speed before it is the newest."""
    metrics = began(place)
    metrics.log("time", 0, {"wall_seconds": 0.0})
    assert not {key[0] for key in told(metrics)} & {"steps_per_second", "goodput_ratio"}
    metrics.log("time", 100, ROW)
    metrics.log("time", 50, ROW)
    assert told(metrics)["steps_per_second",] == 20


def test_the_newest_number_of_each_metric(place):
    """N48: those that are not finite too."""
    metrics = began(place)
    metrics.log("train", 10, {"training_loss": 0.5})
    metrics.log("validation", 10, {"dev/accuracy": 0.9})
    metrics.log("train", 20, {"training_loss": math.inf})
    found = {key: value for key, value in told(metrics).items() if key[0] == "metric"}
    assert found == {("metric", "train", "training_loss"): math.inf, ("metric", "validation", "dev/accuracy"): 0.9}


def test_metrics_without_end_are_bounded_and_that_is_said_once(place, caplog):
    """N48: a name with a step in it would fill the memory, here and in Prometheus."""
    metrics = began(place)
    metrics.log("train", 1, {"loss": 1.0})
    for step in range(3):
        metrics.log("train", step, {f"loss at {step} of {n}": 0.0 for n in range(600)})
    metrics.log("train", 9, {"loss": 2.0})
    found = [key for key in told(metrics) if key[0] == "metric"]
    assert len(found) == run_metrics.MAX_METRICS
    assert told(metrics)["metric", "train", "loss"] == 2
    assert [record.getMessage() for record in caplog.records] == [
        "only 1000 metrics of the run are told; those with later names are left out"
    ]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"steps": 3, "saves": "x", "restarts": true, "time": [1]}'])
def test_a_damaged_record_is_not_told(place, text):
    """N48: and is no error; what the tracker got is told."""
    for name in ("run.json", "status.json"):
        with open(f"{place.directory}/{name}", "w") as file:
            file.write(text)
    metrics = began(place)
    metrics.log("train", 10, {"loss": 0.5})
    assert {name for name, *_ in told(metrics)} == {"metric", "run_info", "memory_bytes"}
    assert metrics.label == "run"


def test_a_record_that_cannot_be_read_is_asked_again(place):
    """N48: once it answers, it is told."""
    answers = [OSError("gone"), ({}, {"saves": 7}, [])]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    metrics = RunMetrics(place, read=read)
    assert ("saves_total",) not in told(metrics)
    metrics._state.forget()  # a second later
    assert told(metrics)["saves_total",] == 7
    assert told(metrics)["saves_total",] == 7, "kept for a second"


def test_a_file_system_that_hangs_costs_one_thread(place, monkeypatch):
    """N48: later questions do not wait for it, and the rest is told."""
    monkeypatch.setattr(run_metrics, "_READ_SECONDS", 0.01)
    goes_on, calls = threading.Event(), []

    def read():
        calls.append(1)
        assert goes_on.wait(60)
        return {}, {"saves": 7}, []

    metrics = RunMetrics(place, read=read)
    metrics.log("train", 10, {"loss": 0.5})
    for _ in range(5):
        assert {name for name, *_ in told(metrics)} == {"metric", "run_info"}
    assert calls == [1]
    call = metrics._state._call
    goes_on.set()
    assert call.wait(60)
    assert told(metrics)["saves_total",] == 7


def test_how_the_run_ended_is_its_last_phase(place):
    """N48: the record says so only after the trackers are closed."""
    recorded(place).phase("train", 10)
    metrics = began(place)
    metrics.end("preempted")
    assert ("phase", "preempted") in told(metrics)


def test_memory_of_gpus_is_what_tensorflow_says(place, monkeypatch):
    """N48: of a TensorFlow that is imported, and has GPUs; one that fails costs these samples alone."""
    devices = [types.SimpleNamespace(name=f"/device:GPU:{n}") for n in range(2)]
    infos = {"GPU:0": {"current": 5, "peak": 9}, "GPU:1": {"current": 6, "peak": 8}}
    experimental = types.SimpleNamespace(get_memory_info=infos.__getitem__)
    config = types.SimpleNamespace(list_logical_devices=lambda kind: devices, experimental=experimental)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    found = {key: value for key, value in told(began(place)).items() if key[0] == "gpu_memory_bytes"}
    assert found == {
        ("gpu_memory_bytes", device, kind): value for device, each in infos.items() for kind, value in each.items()
    }
    infos.clear()
    assert "memory_bytes" in {name for name, *_ in told(began(place))}
