"""All that a page shows, as one object of JSON: what its script reads, and nothing of it is markup.

Owns: the order of the runs, which of them are in colour at first, what the sections of the page hold, and the account
of time over all processes of a run, with goodput. Does not own: charts (`curves.py`), how all is drawn (`static/`), the
file (`page.py`), measuring time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import collections
import datetime
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config.text import flow, short_names
from official_trainer.reports import curves, measures, opened
from official_trainer.reports.measures import Direction, Measure
from official_trainer.reports.opened import NoRunError, OpenedRun
from official_trainer.runs.recorded import LONGEST_SECONDS, RecordedRun, duration_text, is_step
from official_trainer.tracking import EVALUATION
from official_trainer.tracking.jsonl import encode
from official_trainer.tracking.monitored import show
from official_trainer.tracking.record import PRUNED

_BETTER = {"max": "higher is better", "min": "lower is better"}
_MOST_HIGHLIGHTED = 8
_MOST_COLUMNS = 5  # which fit beside the others into a window of 1,200 pixels


def of(paths: Sequence[str], *, now_seconds: float) -> dict[str, Any]:
    """Returns the content of a page.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunError: a folder is not there or cannot be listed, or there is no run.
    """
    runs = opened.open_all(*paths, now_seconds=now_seconds)
    if all(run.status is None for run in runs):
        raise NoRunError(f"no run in {', '.join(paths)}; name run directories, a folder of them, or a sweep")
    summaries = [measures.sweep_summary(path) for path in paths]
    summary = summaries[0] if len(paths) == 1 else None
    metric, direction = next(iter(measures.deciding(runs, summaries).items()), (None, None))
    pairs = [(run, _run(run, metric, direction)) for run in runs]
    pairs.sort(key=lambda pair: _rank(pair[1], direction))
    runs = [run for run, _ in pairs]
    rows = [{"id": index, **row} for index, (_, row) in enumerate(pairs)]
    with_curves = [index for index, run in enumerate(runs) if run.curves.by_split]
    highlighted = (with_curves or [*range(len(runs))])[:_MOST_HIGHLIGHTED]
    charts, about_curves = curves.chart(runs, metric)
    folder = os.path.commonpath([os.path.abspath(os.path.dirname(row["directory"])) for row in rows])
    now = datetime.datetime.fromtimestamp(now_seconds, datetime.UTC)
    fields = _fields(runs)
    return {
        "title": _title(rows, is_sweep=summary is not None),
        "made": f"{', '.join(paths)} · {now:%d %B %Y, %H:%M} UTC",
        "facts": list(_facts(rows, metric, direction, summary and summary["counts"])),
        "metric": metric and {"name": metric, "direction": direction},
        "runs": rows,
        "runs_about": _about_runs(len(fields["config_fields"]), has_grey=len(with_curves) > len(highlighted)),
        **fields,
        "highlighted": highlighted,
        "charts": charts,
        "curves_about": about_curves,
        "checkpoints": [row for index in highlighted for row in _checkpoints(runs[index], rows[index], folder)],
        "checkpoints_about": f"Paths are below {folder}.",
        "sweep": summary and _sweep(summary),
    }


def _run(run: OpenedRun, metric: str | None, direction: Direction | None) -> dict[str, Any]:
    """Returns what the page shows of a run; `best` and `final` are values of the metric that decides."""
    recorded, curve = run.recorded, run.curves.get(EVALUATION, metric or "")
    best, final = (None if metric is None else Measure(metric, at, direction).of(run) for at in ("best", "last"))
    return {
        "name": run.name,
        "directory": recorded.directory,
        "experiment": recorded.experiment,
        "status": recorded.status or "",
        "is_pruned": recorded.record.get("stopped_early") == PRUNED,
        "step": recorded.step,
        "end_step": recorded.end_step,
        "best": None if best is None else encode(best),
        "best_step": curve.steps[curve.values.index(best)] if curve is not None and best in curve.values else None,
        "final": None if final is None else encode(final),
        "seconds": recorded.duration_seconds,
        "speed": recorded.examples_per_second,
        "differs": dict(run.differs),
        "notes": run.notes,
        "time": _account(recorded),
    }


def _rank(row: Mapping[str, Any], direction: Direction | None) -> tuple[bool, float]:
    """Returns what sorts the best run first, and last those without a value."""
    best = row["best"] if isinstance(row["best"], float) and math.isfinite(row["best"]) else None
    return best is None, (best or 0.0) * (-1 if direction == "max" else 1)


def _about_runs(num_fields: int, *, has_grey: bool) -> str:
    """Returns what is said above the table of runs: what it leaves out, and how a run comes into the charts."""
    left_out = num_fields - _MOST_COLUMNS
    fields = f"Of {num_fields} fields that differ it has {_MOST_COLUMNS}; all are below." if left_out > 0 else ""
    return " ".join(filter(None, [fields, "Tick a run to see it in the charts." if has_grey else ""]))


def _title(rows: Sequence[Mapping[str, Any]], *, is_sweep: bool) -> str:
    if len(rows) == 1:
        return str(rows[0]["name"])
    what = "Sweep" if is_sweep else f"{len(rows):,} runs"
    experiments = {row["experiment"] for row in rows} - {None}
    return f"{what} of {experiments.pop()}" if len(experiments) == 1 else what


def _fields(runs: Sequence[OpenedRun]) -> dict[str, Any]:
    """Returns the fields in which configs differ, those of most runs first; of a single run its whole config."""
    counts = collections.Counter(path for run in runs for path in run.differs)
    fields, names = [path for path, _ in counts.most_common()], short_names(counts)
    about = ""
    config: list[list[str]] | None = None
    if len(runs) == 1:
        about = "Each value with what set it: a default of the experiment, a file, or a flag."
        config = [[path, flow(value), runs[0].origin(path)] for path, value in runs[0].config.items()]
    return {
        "fields": [{"path": path, "name": names[path]} for path in fields[:_MOST_COLUMNS]],
        "config_fields": fields,
        "config_about": about,
        "config": config,
    }


def _checkpoints(run: OpenedRun, row: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    """Returns the newest, the best and the named checkpoints of a run."""
    newest = [checkpoint for checkpoint in run.checkpoints if checkpoint.role == "latest"][-1:]
    return [
        {
            "run": row["id"],
            "role": f"{checkpoint.role}, {checkpoint.note}" if checkpoint.note else checkpoint.role,
            "step": checkpoint.step,
            "size_bytes": checkpoint.size_bytes or None,
            "path": os.path.relpath(checkpoint.prefix, folder),
        }
        for checkpoint in [*newest, *(checkpoint for checkpoint in run.checkpoints if checkpoint.role != "latest")]
    ]


def _sweep(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a sweep, and how many trials have no result to draw, by their states."""
    shares = summary["importance"] or {}
    names = short_names(shares)
    compared = [trial for trial in summary["trials"] if trial["state"] == "complete" and trial["value"] is not None]
    numbers = {trial["number"] for trial in compared}
    left_out = collections.Counter(trial["state"] for trial in summary["trials"] if trial["number"] not in numbers)
    return {
        "metric": summary["metric"],
        "direction": summary["direction"],
        "best": summary["best"],
        "importance": [[names[path], share] for path, share in shares.items()],
        "trials": [[trial["number"], encode(trial["value"])] for trial in compared],
        "left_out": [f"{count} {state}" for state, count in left_out.items()],
    }


def _facts(
    rows: Sequence[Mapping[str, Any]], metric: str | None, direction: Direction | None, trials: Mapping[str, int] | None
) -> Iterator[tuple[str, str, str]]:
    """Yields numbers about all runs, each with what it is and a remark.

    Args:
      rows: the runs as the page has them, the best first.
      metric: that decides which run is the best; None if none does.
      direction: which of its values are better.
      trials: of a sweep, how many there are by state.
    """
    states = trials or dict(collections.Counter(row["status"] or "no run" for row in rows).most_common())
    if len(rows) == 1:
        end = f" of {rows[0]['end_step']:,}" if rows[0]["end_step"] else ""
        yield "Status", rows[0]["status"], f"step {rows[0]['step'] or 0:,}{end}"
    else:
        listed = ", ".join(f"{count} {state}" for state, count in states.items())
        yield "Runs" if trials is None else "Trials", f"{sum(states.values()):,}", listed
    best = next((row for row in rows if row["best"] is not None and not row["is_pruned"]), None)
    if best is not None and direction is not None:
        step = [] if best["best_step"] is None else [f"step {best['best_step']:,}"]
        name = [best["name"]] if len(rows) > 1 else []
        yield f"Best {metric}", show(float(best["best"])), ", ".join([_BETTER[direction], *step, *name])
    times = [row["time"] for row in rows if row["time"] is not None]
    seconds = sum(sum(time["seconds"].values()) for time in times)
    if seconds > 0:
        kept = sum((time["goodput"] or 0.0) * sum(time["seconds"].values()) for time in times)
        yield "Time", duration_text(seconds), f"{100 * kept / seconds:.0f} % in steps that count"


def _account(run: RecordedRun) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `seconds` has those of each phase; in `between` no process ran, or one was killed and these are after its last
    record. `goodput` is the share of all of it that went into steps whose results were kept: steps that were repeated
    after a kill count once.
    """
    total = _mapping(_mapping(run.record.get("time")).get("total"))
    seconds = {
        name: float(value)
        for name, value in _mapping(total.get("seconds")).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
    }
    if not seconds:
        return None
    trained, all_seconds = total.get("steps"), sum(seconds.values())
    kept = min(1.0, run.step / trained) if is_step(trained) and trained > 0 and run.step is not None else 1.0
    return {
        "seconds": seconds,
        "goodput": round(seconds.get("steps", 0.0) * kept / all_seconds, 4) if all_seconds > 0 else None,
        "restarts": restarts if is_step(restarts := total.get("restarts")) else 0,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
