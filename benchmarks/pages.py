"""`compare` and `report` over 500 runs: seconds of the commands, and megabytes of the page."""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from pathlib import Path

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave

NUM_RUNS, NUM_SUMMARIES, EVALUATION_EVERY = 500, 200, 10
LIMIT_SECONDS, LIMIT_MEGABYTES = 3.0, 8.0
COMPARE_SECONDS = 1.0
STARTED = 1_790_000_000

PARAMS = """\
# experiment: digits_mlp
task:
  model:
    mlp:
      dropout: {dropout}
trainer:
  train_steps: 2000
  best_checkpoint_eval_metric: accuracy
  best_checkpoint_metric_comp: higher
  optimizer_config:
    learning_rate:
      cosine:
        initial_learning_rate: {rate}
"""


def write_runs(folder: Path, count: int, num_summaries: int = NUM_SUMMARIES) -> None:
    """Writes run directories as `digits_mlp` leaves them, with seven metrics of three splits."""
    draw = random.Random(0)
    for number in range(count):
        place = folder / f"run_{number:03}"
        place.mkdir(parents=True)
        rate = 10 ** draw.uniform(-4, -1)
        dropout, end = round(draw.uniform(0, 0.5), 3), 10 * num_summaries
        top, rows = 0.98 - 0.03 * abs(math.log10(rate) + 2.5), []
        for step in range(10, end + 1, 10):
            about = {"step": step, "time": STARTED + step / 100}
            accuracy, loss = top * (1 - math.exp(-step / 500)), 2.3 * math.exp(-step / 400) + draw.random() / 20
            numbers = {"training_loss": loss, "batch_loss": loss * 1.1, "smoothed_loss": loss, "learning_rate": rate}
            rows.append({**about, "split": "train", "accuracy": accuracy, **numbers})
            rows.append({**about, "split": "time", "examples_per_second": 8e4 * draw.random(), "wall_seconds": 1.0})
            if step % (10 * EVALUATION_EVERY) == 0:
                rows.append({**about, "split": "validation", "accuracy": accuracy, "validation_loss": loss})
        (place / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        write_record(place, str(number), end, rate=rate, dropout=dropout, best=top)


def write_record(
    place: Path, run_id: str, end: int, *, rate: float = 0.001, dropout: float = 0.1, best: float = 0.9
) -> None:
    """Writes the config and the record of a run that has reached step `end`."""
    (place / "params.yaml").write_text(PARAMS.format(dropout=dropout, rate=rate))
    record = {
        **{"run_id": run_id, "experiment": "digits_mlp", "mode": "train_and_eval", "status": "done"},
        **{"started": "2026-09-21T13:33:20+00:00", "finished": "2026-09-21T13:34:20+00:00", "restarts": 0},
        **{"steps": {"start": 0, "current": end, "end": end}, "error": None},
        "best": {"metric": "accuracy", "value": best, "step": end},
        "final_metrics": {"accuracy": best, "validation_loss": 0.1},
    }
    (place / "run.json").write_text(json.dumps(record))
    (place / "status.json").write_text(json.dumps({"phase": "done", "step": end, "exit_code": 0}))


def compare(rounds: int) -> list[Comparison]:
    """Writes the report in each round, after one that warms the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder) / "runs", NUM_RUNS)
        output = Path(folder) / "report.html"
        command = [sys.executable, "-m", "official_trainer", "report", f"{folder}/runs", f"--output={output}"]

        def measure() -> dict[str, float]:
            seconds = processes.run(command).wall_seconds
            return {"seconds": seconds, "megabytes": output.stat().st_size / 1e6}

        name = f"report of {NUM_RUNS} runs"
        interleave({name: measure}, rounds=1)
        found = interleave({name: measure}, rounds)
    return [
        Comparison(
            title=title,
            unit=unit,
            digits=1,
            values=found[key],
            targets=[Target(name=name, at_most=limit)],
        )
        for title, key, unit, limit in (
            ("command", "seconds", "s", LIMIT_SECONDS),
            ("file", "megabytes", "MB", LIMIT_MEGABYTES),
        )
    ]


def compare_runs(rounds: int) -> list[Comparison]:
    """Prints the table in each round, after one that warms the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder) / "runs", NUM_RUNS)
        command = [sys.executable, "-m", "official_trainer", "compare", f"{folder}/runs"]
        name = f"compare of {NUM_RUNS} runs"
        variants = {name: lambda: {"seconds": processes.run(command).wall_seconds}}
        interleave(variants, rounds=1)
        values = interleave(variants, rounds)["seconds"]
    targets = [Target(name=name, at_most=COMPARE_SECONDS)]
    return [Comparison(title="a table of runs", unit="s", digits=2, values=values, targets=targets)]
