"""All that a page shows, as one object of JSON: what its script reads, and nothing of it is markup.

Owns: which runs are in colour at first, and what the sections of the page hold. Does not own: the runs and their order
(`gathered.py`), the summary (`facts.py`), charts (`curves.py`), how all is drawn (`static/`), the file (`page.py`).
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config.text import flow, short_names
from official_trainer.reports import curves, facts, gathered
from official_trainer.reports.gathered import Gathered, Ranked
from official_trainer.tracking.jsonl import encode

_HIGHLIGHTED, _ALL_HIGHLIGHTED = 6, 8
_MOST_COLUMNS, _MOST_FIELDS = 12, 200


def of(paths: Sequence[str], *, now_seconds: float) -> dict[str, Any]:
    """Returns the content of a page.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunError: a folder is not there or cannot be listed, or there is no run.
    """
    found = gathered.gather(paths, now_seconds=now_seconds)
    runs, chosen = found.runs, highlighted(found.runs)
    times = [gathered.account(run) for run in runs]
    charts, about_curves = curves.chart(runs, chosen, found.metric)
    made, version = datetime.datetime.fromtimestamp(now_seconds, datetime.UTC), "from a source tree"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("official-trainer")
    has_others = any(run.run.curves.by_split for place, run in enumerate(runs) if place not in chosen)
    return {
        "title": _title(found),
        "made": f"{', '.join(found.paths)} · {made:%d %B %Y, %H:%M} UTC",
        "made_by": f"official-trainer {version}",
        "facts": list(facts.facts(found, times)),
        "remarks": list(facts.remarks(found, times)),
        "metric": found.metric and {"name": found.metric, "direction": found.direction},
        "runs": [_run(place, run, time) for place, (run, time) in enumerate(zip(runs, times, strict=True))],
        "runs_about": "Tick a run to see it in the charts." if has_others else "",
        **_fields(runs),
        "highlighted": chosen,
        "charts": charts,
        "curves_about": about_curves,
        "checkpoints": _checkpoints(runs, chosen, found.folder),
        "checkpoints_about": f"Paths are below {found.folder}.",
        "sweep": found.sweep and _sweep(found.sweep),
    }


def _title(found: Gathered) -> str:
    if len(found.runs) == 1:
        return found.runs[0].name
    what = f"{len(found.runs):,} runs" if found.sweep is None else "Sweep"
    experiments = {run.run.recorded.experiment for run in found.runs} - {None}
    return f"{what} of {experiments.pop()}" if len(experiments) == 1 else what


def highlighted(runs: Sequence[Ranked]) -> list[int]:
    """Returns the places of the runs that are in colour at first: all of a few, of many the best and those that run."""
    with_curves = [place for place, run in enumerate(runs) if run.run.curves.by_split]
    if len(with_curves) <= _ALL_HIGHLIGHTED:
        return with_curves or list(range(min(len(runs), _ALL_HIGHLIGHTED)))
    running = [place for place in with_curves if runs[place].run.status == "running"]
    return sorted({*with_curves[:_HIGHLIGHTED], *running[: _ALL_HIGHLIGHTED - _HIGHLIGHTED]})


def _run(place: int, run: Ranked, time: dict[str, Any] | None) -> dict[str, Any]:
    recorded = run.run.recorded
    error = recorded.record.get("error")
    return {
        "id": place,
        "name": run.name,
        "directory": recorded.directory,
        "experiment": recorded.experiment,
        "status": recorded.status,
        "step": recorded.step,
        "end_step": recorded.end_step,
        "best": None if run.best is None else encode(run.best),
        "best_step": run.best_step,
        "final": None if run.final is None else encode(run.final),
        "started": recorded.started_seconds,
        "seconds": recorded.duration_seconds,
        "speed": recorded.examples_per_second,
        "differs": dict(run.differs),
        "notes": list(run.run.notes),
        "error": error if isinstance(error, str) and error.strip() and recorded.status != "done" else None,
        "time": time,
    }


def _fields(runs: Sequence[Ranked]) -> dict[str, Any]:
    """Returns the fields in which configs differ, those of most runs first; of a single run its whole config."""
    counts = collections.Counter(path for run in runs for path in run.differs)
    fields, names = [path for path, _ in counts.most_common()], short_names(counts)
    about, whole = "", None
    if len(fields) > _MOST_FIELDS:
        about = f"The first {_MOST_FIELDS} of {len(fields):,} fields."
    if len(runs) == 1:
        about = "Each value with what set it: a default of the experiment, a file, or a flag."
        config = runs[0].run.config
        whole = [[path, flow(config[path]), config.origin(path)] for path in config]
    return {
        "fields": [{"path": path, "name": names[path]} for path in fields[:_MOST_COLUMNS]],
        "config_fields": fields[:_MOST_FIELDS],
        "config_about": about,
        "config": whole,
    }


def _checkpoints(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> list[dict[str, Any]]:
    """Returns the newest, the best and the named checkpoints of some runs."""
    rows: list[dict[str, Any]] = []
    for place in chosen:
        held = runs[place].run.checkpoints
        continued = [checkpoint for checkpoint in held if checkpoint.kind == "latest"]
        for checkpoint in [*continued[-1:], *(other for other in held if other.kind != "latest")]:
            is_best = checkpoint.kind == "best" and checkpoint.step == runs[place].best_step
            kind = f"{checkpoint.kind}, {checkpoint.note}" if checkpoint.note else checkpoint.kind
            numbers = {"value": runs[place].best if is_best else None, "size_bytes": checkpoint.size_bytes or None}
            path = os.path.relpath(checkpoint.prefix, folder)
            rows.append({"run": place, "kind": kind, "step": checkpoint.step, **numbers, "path": path})
    return rows


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
