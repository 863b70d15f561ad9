"""All that a page shows, as one object of JSON: what its script reads, and nothing of it is markup.

Owns: the order of the runs, which of them are in colour at first, and what the sections of the page hold. Does not own:
the summary (`facts.py`), charts (`curves.py`), how all is drawn (`static/`), the file (`page.py`).
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import importlib.metadata
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config.text import flow, short_names
from official_trainer.reports import curves, entries, facts, measures, sweep_figures
from official_trainer.reports.entries import Entry
from official_trainer.reports.measures import Measure
from official_trainer.reports.opened import NoRunError
from official_trainer.reports.sweep_figures import Direction
from official_trainer.runs.recorded import is_step
from official_trainer.tracking import EVALUATION
from official_trainer.tracking.jsonl import encode

_HIGHLIGHTED, _ALL_HIGHLIGHTED = 6, 8
_MOST_COLUMNS, _MOST_FIELDS = 12, 200
_NO_RUNS = ("empty", "no run")


def of(paths: Sequence[str], *, now_seconds: float) -> dict[str, Any]:
    """Returns the content of a page.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunError: a folder is not there or cannot be listed, or there is no run.
    """
    runs = _runs_in(paths, now_seconds)
    summaries = [sweep_figures.summary(path) for path in paths]
    summary = summaries[0] if len(paths) == 1 else None
    metric, direction = next(iter(measures.deciding(runs, summaries).items()), (None, None))
    pairs = [(entry, _run(entry, metric, direction)) for entry in runs]
    pairs.sort(key=lambda pair: _rank(pair[1], direction))
    runs, rows = [entry for entry, _ in pairs], [{"id": index, **row} for index, (_, row) in enumerate(pairs)]
    chosen = _highlighted(runs)
    charts, about_curves = curves.chart(runs, chosen, metric)
    folder = os.path.commonpath([os.path.abspath(os.path.dirname(row["directory"])) for row in rows])
    now, version = datetime.datetime.fromtimestamp(now_seconds, datetime.UTC), "from a source tree"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("official-trainer")
    has_others = any(entry.run.curves.by_split for index, entry in enumerate(runs) if index not in chosen)
    return {
        "title": _title(rows, is_sweep=summary is not None),
        "made": f"{', '.join(paths)} · {now:%d %B %Y, %H:%M} UTC",
        "made_by": f"official-trainer {version}",
        "facts": list(facts.facts(rows, metric, direction, summary and summary["counts"])),
        "remarks": list(facts.remarks(runs, rows, is_best_known=metric is not None and direction is not None)),
        "metric": metric and {"name": metric, "direction": direction},
        "runs": rows,
        "runs_about": "Tick a run to see it in the charts." if has_others else "",
        **_fields(runs),
        "highlighted": chosen,
        "charts": charts,
        "curves_about": about_curves,
        "checkpoints": [row for index in chosen for row in _checkpoints(runs[index], rows[index], folder)],
        "checkpoints_about": f"Paths are below {folder}.",
        "sweep": summary and _sweep(summary),
    }


def _runs_in(paths: Sequence[str], now_seconds: float) -> list[Entry]:
    runs = entries.find(paths, now_seconds=now_seconds)
    if all(entry.run.status in _NO_RUNS for entry in runs):
        what = ", ".join(paths)
        why = "they hold none" if len(paths) > 1 else "it holds other files" if os.listdir(paths[0]) else "it is empty"
        raise NoRunError(f"no run in {what}: {why}; name run directories, a folder of them, or a sweep")
    return runs


def _run(entry: Entry, metric: str | None, direction: Direction | None) -> dict[str, Any]:
    """Returns what the page shows of a run; `best` and `final` are values of the metric that decides."""
    recorded, curve = entry.run.recorded, entry.run.curves.get(EVALUATION, metric or "")
    best, final = (None if metric is None else Measure(metric, at, direction).of(entry) for at in ("best", "last"))
    held, best_step = recorded.record.get("best"), None
    if best is not None and best is recorded.best:
        best_step = held.get("step") if isinstance(held, Mapping) else None
    elif curve is not None and best in curve.values:
        best_step = curve.steps[curve.values.index(best)]
    error = recorded.record.get("error")
    return {
        "name": entry.name,
        "directory": recorded.directory,
        "experiment": recorded.experiment,
        "status": recorded.status,
        "step": recorded.step,
        "end_step": recorded.end_step,
        "best": None if best is None else encode(best),
        "best_step": best_step if is_step(best_step) else None,
        "final": None if final is None else encode(final),
        "started": recorded.started_seconds,
        "seconds": recorded.duration_seconds,
        "speed": recorded.examples_per_second,
        "differs": dict(entry.differs),
        "notes": list(entry.run.notes),
        "error": error if isinstance(error, str) and error.strip() and recorded.status != "done" else None,
        "time": facts.account(recorded),
    }


def _rank(row: Mapping[str, Any], direction: Direction | None) -> tuple[Any, ...]:
    """Returns what sorts the best run first; then come those without a value, by name, and folders without a run."""
    best = row["best"] if isinstance(row["best"], float) and math.isfinite(row["best"]) else None
    name = [part.zfill(9) if part.isdecimal() else part for part in row["name"].replace("_", " ").split()]
    return best is None, (best or 0.0) * (-1 if direction == "max" else 1), row["status"] in _NO_RUNS, name


def _title(rows: Sequence[Mapping[str, Any]], *, is_sweep: bool) -> str:
    if len(rows) == 1:
        return str(rows[0]["name"])
    what = "Sweep" if is_sweep else f"{len(rows):,} runs"
    experiments = {row["experiment"] for row in rows} - {None}
    return f"{what} of {experiments.pop()}" if len(experiments) == 1 else what


def _highlighted(runs: Sequence[Entry]) -> list[int]:
    """Returns the places of the runs that are in colour at first: all of a few, of many the best and those that run."""
    with_curves = [index for index, entry in enumerate(runs) if entry.run.curves.by_split]
    if len(with_curves) <= _ALL_HIGHLIGHTED:
        return with_curves or list(range(min(len(runs), _ALL_HIGHLIGHTED)))
    running = [index for index in with_curves if runs[index].run.status == "running"]
    return sorted({*with_curves[:_HIGHLIGHTED], *running[: _ALL_HIGHLIGHTED - _HIGHLIGHTED]})


def _fields(runs: Sequence[Entry]) -> dict[str, Any]:
    """Returns the fields in which configs differ, those of most runs first; of a single run its whole config."""
    counts = collections.Counter(path for entry in runs for path in entry.differs)
    fields, names = [path for path, _ in counts.most_common()], short_names(counts)
    about, whole = "", None
    if len(fields) > _MOST_FIELDS:
        about = f"The first {_MOST_FIELDS} of {len(fields):,} fields."
    if len(runs) == 1:
        about = "Each value with what set it: a default of the experiment, a file, or a flag."
        run = runs[0].run
        whole = [[path, flow(value), run.origin(path)] for path, value in run.config.items()]
    return {
        "fields": [{"path": path, "name": names[path]} for path in fields[:_MOST_COLUMNS]],
        "config_fields": fields[:_MOST_FIELDS],
        "config_about": about,
        "config": whole,
    }


def _checkpoints(entry: Entry, row: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    """Returns the newest, the best and the named checkpoints of a run."""
    held = entry.run.checkpoints
    newest = [checkpoint for checkpoint in held if checkpoint.role == "latest"][-1:]
    return [
        {
            "run": row["id"],
            "role": f"{checkpoint.role}, {checkpoint.note}" if checkpoint.note else checkpoint.role,
            "step": checkpoint.step,
            "value": row["best"] if checkpoint.role == "best" and checkpoint.step == row["best_step"] else None,
            "size_bytes": checkpoint.size_bytes or None,
            "path": os.path.relpath(checkpoint.prefix, folder),
        }
        for checkpoint in [*newest, *(checkpoint for checkpoint in held if checkpoint.role != "latest")]
    ]


def _sweep(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a sweep, and how many trials have no result to draw, by their states."""
    shares = summary["importance"] or {}
    names = short_names(shares)
    compared = [trial for trial in summary["trials"] if trial["state"] == "complete" and trial["values"]]
    numbers = {trial["number"] for trial in compared}
    left_out = collections.Counter(trial["state"] for trial in summary["trials"] if trial["number"] not in numbers)
    return {
        "objectives": summary["objectives"],
        "best": summary["best"],
        "importance": [[names[path], share] for path, share in shares.items()],
        "trials": [[trial["number"], *map(encode, trial["values"])] for trial in compared],
        "left_out": [f"{count} {state}" for state, count in left_out.items()],
    }
