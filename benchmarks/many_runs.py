"""Run directories as `digits_mlp` leaves them, as many as wanted, without training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

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


def write(folder: Path, count: int, num_summaries: int) -> None:
    """Writes run directories with a config, a record, and rows of metrics of three splits."""
    draw = random.Random(0)
    for number in range(count):
        path = folder / f"run_{number:03}"
        path.mkdir(parents=True)
        rate, dropout = 10 ** draw.uniform(-4, -1), round(draw.uniform(0, 0.5), 3)
        best = 0.98 - 0.03 * abs(math.log10(rate) + 2.5)
        rows = _rows(10 * num_summaries, rate, best, draw)
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (path / "params.yaml").write_text(PARAMS.format(dropout=dropout, rate=rate))
        (path / "run.json").write_text(json.dumps(_record(str(number), 10 * num_summaries, best)))
        (path / "status.json").write_text(json.dumps({"phase": "done", "step": 10 * num_summaries, "exit_code": 0}))


def _rows(end: int, rate: float, best: float, draw: random.Random) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for step in range(10, end + 1, 10):
        about = {"step": step, "time": STARTED + step / 100}
        accuracy, loss = best * (1 - math.exp(-step / 500)), 2.3 * math.exp(-step / 400) + draw.random() / 20
        numbers = {"training_loss": loss, "batch_loss": loss * 1.1, "smoothed_loss": loss, "learning_rate": rate}
        rows.append({**about, "split": "train", "accuracy": accuracy, **numbers})
        rows.append({**about, "split": "time", "examples_per_second": 8e4 * draw.random(), "wall_seconds": 1.0})
        if step % 100 == 0:
            rows.append({**about, "split": "validation", "accuracy": accuracy, "validation_loss": loss})
    return rows


def _record(run_id: str, end: int, best: float) -> dict[str, object]:
    return {
        **{"run_id": run_id, "experiment": "digits_mlp", "mode": "train_and_eval", "status": "done"},
        **{"started": "2026-09-21T13:33:20+00:00", "finished": "2026-09-21T13:34:20+00:00", "restarts": 0},
        **{"steps": {"start": 0, "current": end, "end": end}, "error": None},
        "best": {"metric": "accuracy", "value": best, "step": end},
        "final_metrics": {"accuracy": best, "validation_loss": 0.1},
    }
