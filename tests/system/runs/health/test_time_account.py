"""Where the time of a run goes, by real clocks: slow data and slow steps are told apart."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer.runs.health.time_account import PARTS
from tests.support.slow_runs import do, recorded, time_rows


def test_a_slow_map_is_told_of(model_dir, capsys):
    """N16: the verdict, on the console and in the record, with parts that sum to the wall time."""
    do(model_dir, "task.input_seconds=0.04", quiet=False)
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("start: ")]  # is not always
    assert said[-4].startswith("finished at step 80")
    assert said[-3].startswith("saved there: ckpt-80, ")
    assert said[-2].startswith("time: ")
    assert said[-1].startswith("input-bound: ")
    assert not any("wall_seconds" in line for line in said)
    time = recorded(model_dir)["time"]
    (attempt,) = time["attempts"]
    assert attempt["verdict"] == said[-1]
    assert attempt["input_fraction"] > 0.5
    assert sum(attempt["seconds"].values()) == pytest.approx(attempt["wall_seconds"], rel=0.02)
    assert min(attempt["seconds"][part] for part in ("start", "tracing", "evaluation", "save", "export")) > 0
    assert attempt["traces"] == time["total"]["traces"] == {"train": 1, "eval": 1}
    assert attempt["trace_seconds"] > 0
    assert (attempt["steps"], attempt["examples"]) == (80, 800)
    assert attempt["peak_memory_bytes"] == time["total"]["peak_memory_bytes"]
    assert attempt["peak_memory_bytes"]["process"] > 2**20
    rows = time_rows(model_dir)
    assert [row["step"] for row in rows] == [20, 40, 60, 80]
    for name in ("examples_per_second", "step_seconds_p50", "step_seconds_p95", "wall_seconds"):
        assert all(row[name] > 0 for row in rows)
    assert rows[-1]["input_fraction"] > 0.5  # the first rows may have seen too little
    for row in rows:
        assert sum(row.get(f"{part}_seconds", 0.0) for part in PARTS) == pytest.approx(row["wall_seconds"], rel=0.02)
    board = EventAccumulator(f"{model_dir}/train").Reload()
    assert [event.step for event in board.Tensors("time/examples_per_second")] == [20, 40, 60, 80]


def test_slow_steps_are_not_the_inputs_fault(model_dir, capsys):
    """N16: no verdict where the device is what takes long."""
    do(model_dir, "task.step_seconds=0.02", quiet=False, mode="train")
    (attempt,) = recorded(model_dir)["time"]["attempts"]
    assert attempt["verdict"] is None
    assert attempt["input_fraction"] < 0.5
    assert "input-bound" not in capsys.readouterr().out
