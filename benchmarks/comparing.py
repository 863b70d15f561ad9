"""`compare` over 500 runs, each with a whole config and 300 rows of metrics: wall seconds of a process, start to exit.

Owns: the runs, written as runs write them. Does not own: other commands (`commands.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave
from official_trainer import config as configuration
from official_trainer.files import PARAMS_FILE
from official_trainer.tasks import registry
from official_trainer.tracking.record import RunRecord

NUM_RUNS = 500
STEPS, SUMMARY, EVALUATION = 2000, 10, 20
LIMIT_SECONDS = 0.5
TABLE, METRICS = "compare, the metric that decides", "compare --metrics, two that it has to read"


def write_runs(folder: Path, count: int) -> Path:
    """Writes runs of `digits_mlp` that differ in seed, learning rate and size of the model; returns their folder."""
    base = registry.get_config("digits_mlp", processes.ROOT)
    texts = {}
    for number in range(count):
        seed, rate, units = number % 5, number // 5 % 10, number // 50
        key = (rate, units)
        if key not in texts:
            schedule = "trainer.optimizer_config.learning_rate"
            sets = [f"task.model.mlp.hidden=[{8 * (units + 1)}]", f"{schedule}.type=constant", "runtime.seed=12345"]
            sets.append(f"{schedule}.constant.learning_rate={0.001 * (rate + 1):.3f}")
            resolved = configuration.resolve(base, experiment="digits_mlp", sets=sets)
            texts[key] = configuration.dump(resolved, origins=True)
        _write_run(folder / f"run-{number:03d}", texts[key].replace("seed: 12345", f"seed: {seed}"), number)
    return folder


def _write_run(folder: Path, params: str, number: int) -> None:
    folder.mkdir(parents=True)
    (folder / PARAMS_FILE).write_text(params)
    launch = {"mode": "train_and_eval", "argv": [], "imports": [], "config_digest": "0"}
    record = RunRecord(str(folder), {"experiment": "digits_mlp", **launch})
    record.start()
    record.set_span(0, STEPS)
    rows = []
    for step in range(SUMMARY, STEPS + 1, SUMMARY):
        loss = 2.0 / step + 0.001 * number
        train = {"accuracy": 1 - loss / 3, "training_loss": loss, "batch_loss": loss, "smoothed_loss": loss}
        rows.append({"step": step, "split": "train", "time": 1.79e9 + step, **train, "learning_rate": 0.001})
        if step % EVALUATION == 0:
            found = {"accuracy": 1 - loss / 2, "validation_loss": loss, "best_accuracy": 1 - loss / 2}
            rows.append({"step": step, "split": "validation", "time": 1.79e9 + step, **found})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    record.set_best("accuracy", rows[-1]["accuracy"], STEPS)
    record.finish(0, {name: rows[-1][name] for name in ("accuracy", "validation_loss")})


def compare(rounds: int, count: int = NUM_RUNS) -> list[Comparison]:
    """Measures both tables once in every round, after one round that warms the file cache."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_runs(Path(temporary) / "runs", count)
        words = {TABLE: [], METRICS: ["--metrics=accuracy:1000,validation_loss:min"]}

        def measure(extra: list[str]) -> dict[str, float]:
            command = [sys.executable, "-m", "official_trainer", "compare", str(folder), *extra]
            return {"seconds": processes.run(command).wall_seconds}

        variants = {name: (lambda extra=extra: measure(extra)) for name, extra in words.items()}
        interleave(variants, rounds=1)
        values = interleave(variants, rounds)["seconds"]
    target = [Target(name=TABLE, at_most=LIMIT_SECONDS)] if count == NUM_RUNS else []
    return [Comparison(title=f"a table of {count} runs", unit="s", digits=2, values=values, targets=target)]
