"""All that a report shows, as one object of JSON: what the page reads, and nothing of it is markup.

Owns: which runs are highlighted at first, and what the parts of the page hold. Does not own: the parts themselves
(`words.py`, `curves.py`), how they are drawn (`static/`), the file (`page.py`).
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

from official_trainer.config.text import flow, short_names
from official_trainer.reports import curves, gathered, words
from official_trainer.reports.gathered import NO_RUNS, Gathered, Ranked
from official_trainer.tracking.jsonl import encode

_HIGHLIGHTED, _ALL_HIGHLIGHTED = 6, 8
_MOST_COLUMNS, _MOST_FIELDS = 12, 200


def of(found: Gathered, *, now_seconds: float) -> dict[str, Any]:
    """Returns the content of a report.

    Args:
      found: the runs.
      now_seconds: the Unix time.
    """
    runs, chosen = found.runs, highlighted(found.runs)
    made, version = datetime.datetime.fromtimestamp(now_seconds, datetime.UTC), "from a source tree"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("official-trainer")
    accounts = [gathered.account(each, now_seconds=now_seconds) for each in runs]
    charts, about_curves = curves.chart(runs, chosen, found.metric)
    title = runs[0].name if len(runs) == 1 else "Sweep" if found.sweep is not None else f"{len(runs):,} runs"
    experiments = {each.run.recorded.experiment for each in runs} - {None}
    title += f" of {experiments.pop()}" if len(runs) > 1 and len(experiments) == 1 else ""
    fields = list(dict.fromkeys(path for each in runs for path in each.differs))
    names, counts = short_names(fields), collections.Counter(path for each in runs for path in each.differs)
    columns = sorted(fields, key=lambda path: -counts[path])[:_MOST_COLUMNS]
    about_runs, whole_config, about_sweep = "", None, ""
    about_config = f"The first {_MOST_FIELDS} of {len(fields):,} fields." if len(fields) > _MOST_FIELDS else ""
    if any(each.run.curves.by_split for place, each in enumerate(runs) if place not in chosen):
        about_runs = (
            f"{len(chosen)} are highlighted in the charts, the best and those that still run; "
            "tick others in the table to see them there."
        )
    if len(runs) == 1:
        about_config = "Each value with what set it: a default of the experiment, a file, or a flag."
        config = runs[0].run.config
        texts = {path: (flow(config[path]), config.origin(path)) for path in config}
        whole_config = {path: f"{text}  # {origin}" if origin else text for path, (text, origin) in texts.items()}
    if found.sweep is not None:
        metrics = [
            f"{name} ({'higher' if way == 'max' else 'lower'} is better)"
            for name, way in found.sweep["metrics"].items()
        ]
        about_sweep = f"Trials are compared by {' and '.join(metrics)}."
    return {
        "title": title,
        "made": f"{', '.join(found.paths)} · {made:%d %B %Y, %H:%M} UTC",
        "made_by": f"official-trainer {version}",
        "summary": words.summary(found, accounts),
        "facts": words.facts(found, accounts),
        "metric": found.metric and {"name": found.metric, "direction": found.direction},
        "runs": [
            _run(place, each, account, found) for place, (each, account) in enumerate(zip(runs, accounts, strict=True))
        ],
        "runs_about": about_runs,
        "fields": [{"path": path, "name": names[path]} for path in fields if path in columns],
        "config_fields": fields[:_MOST_FIELDS],
        "config_about": about_config,
        "config": whole_config,
        "highlighted": chosen,
        "charts": charts,
        "curves_about": about_curves,
        "checkpoints": checkpoints(runs, chosen, found.folder),
        "checkpoints_about": f"Paths are below {found.folder}.",
        "sweep": found.sweep,
        "sweep_about": about_sweep,
    }


def checkpoints(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> list[dict[str, Any]]:
    """Returns the newest, the best and the named checkpoints of some runs, as JSON takes them."""
    rows: list[dict[str, Any]] = []
    for place in chosen:
        held = runs[place].run.checkpoints
        continued = [each for each in held if each.kind == "latest"]
        for each in [*continued[-1:], *(each for each in held if each.kind != "latest")]:
            is_best = each.kind == "best" and each.step == runs[place].best_step
            kind = f"{each.kind}, {each.note}" if each.note else each.kind
            numbers = {"value": runs[place].best if is_best else None, "size_bytes": each.size_bytes or None}
            path = os.path.relpath(each.prefix, folder)
            rows.append({"run": place, "kind": kind, "step": each.step, **numbers, "path": path})
    return rows


def highlighted(runs: Sequence[Ranked]) -> list[int]:
    """Returns the places of the runs that are in colour at first: all of a few, of many the best and those that run."""
    with_curves = [place for place, each in enumerate(runs) if each.run.curves.by_split]
    if len(with_curves) <= _ALL_HIGHLIGHTED:
        return with_curves or list(range(min(len(runs), _ALL_HIGHLIGHTED)))
    running = [place for place in with_curves if runs[place].status == "running"]
    return sorted({*with_curves[:_HIGHLIGHTED], *running[: _ALL_HIGHLIGHTED - _HIGHLIGHTED]})


def _run(place: int, each: Ranked, account: dict[str, Any] | None, found: Gathered) -> dict[str, Any]:
    recorded = each.run.recorded
    return {
        "id": place,
        "rank": place,
        "name": each.name,
        "directory": each.run.directory,
        "experiment": recorded.experiment,
        "status": each.status,
        "is_best": found.best is not None and each.best == found.best.best,
        "step": recorded.step,
        "end_step": recorded.end_step,
        "best": each.best if each.best is None else encode(each.best),
        "best_step": each.best_step,
        "final": each.final if each.final is None else encode(each.final),
        "started": recorded.started_seconds,
        "seconds": recorded.duration_seconds,
        "speed": recorded.examples_per_second,
        "differs": dict(each.differs),
        "notes": list(recorded.notes if recorded.status in NO_RUNS else each.run.notes),
        "error": words.error_of(each) if each.status not in ("done", "running") else None,
        "time": account,
        "clock": curves.clock(each),
        "epoch_steps": curves.epoch_steps(each),
    }
