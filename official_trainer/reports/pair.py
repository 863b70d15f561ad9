"""Two runs beside each other: all that differs between them, and the step at which their numbers part.

Owns: which facts of two runs are compared. Does not own: reading runs (`opened.py`), the layout of differing fields
(`config/compare.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from official_trainer.cli import terminal
from official_trainer.config import compare
from official_trainer.reports.opened import OpenedRun
from official_trainer.runs import recorded
from official_trainer.runs.recorded import RecordedRun
from official_trainer.shown import printable
from official_trainer.tracking.monitored import show

_WIDTH = 78
_NOT_COMPARED = "time"
"""The split whose numbers always differ."""


def differences(before: OpenedRun, after: OpenedRun) -> Iterator[str]:
    """Yields what differs between two runs as lines for a terminal, of 80 columns where names allow it.

    These are status, steps, versions, devices, data layout and revision; the fields of the config; the metrics at the
    last step that both recorded; the first step at which a metric differs in any bit.
    """
    names = [before.name, after.name]
    yield f"--- {names[0]}"
    yield f"+++ {names[1]}"
    columns = names if max(map(len, names)) <= 16 else ["---", "+++"]
    facts = [
        [name, *map(_fact, values)]
        for name, *values in _facts(before.recorded, after.recorded)
        if len({*map(str, values)}) > 1
    ]
    metrics, parting = _metrics(before, after)
    numbers = ["no metric was recorded by both at the same step"]
    if metrics:
        numbers = terminal.table(["", "step", *columns, "difference"], metrics, numbers=range(1, 5), fit=_WIDTH)
    sections = {
        "Run": terminal.table(["", *columns], facts, fit=_WIDTH) if facts else [],
        "Config": _fields(before.recorded, after.recorded),
        "Metrics at the last step that both recorded": numbers,
        "Where they part": [parting],
        "Notes": [f"{run.name}: {note}" for run in (before, after) for note in run.notes],
    }
    for title, body in sections.items():
        if body:
            yield from ("", title, "", *(f"  {line}".rstrip() for line in body))


def _facts(before: RecordedRun, after: RecordedRun) -> Iterator[tuple[str, Any, Any]]:
    yield "experiment", before.experiment, after.experiment
    yield "status", before.status, after.status
    yield "step", recorded.steps_text(before), recorded.steps_text(after)
    yield "took", recorded.duration_text(before.duration_seconds), recorded.duration_text(after.duration_seconds)
    for name in ("restarts", "git_revision", "devices"):
        yield name.replace("_", " "), before.record.get(name), after.record.get(name)
    for name, title in (("versions", "version of"), ("input", "data layout:")):
        both = [value if isinstance(value := run.record.get(name), dict) else {} for run in (before, after)]
        for key in dict.fromkeys([*both[0], *both[1]]):
            yield f"{title} {key}", both[0].get(key), both[1].get(key)


def _fact(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "not known" if value in (None, "") else printable(text)


def _fields(*runs: RecordedRun) -> list[str]:
    if not all(run.config for run in runs):
        return ["not known"]
    differing = compare.differences(*(compare.written_sides(run.config, run.comments, run.experiment) for run in runs))
    return compare.text(differing) or ["no field differs"]


def _metrics(before: OpenedRun, after: OpenedRun) -> tuple[list[list[str]], str]:
    """Returns the last numbers that both have, as rows, and where the numbers of the two part."""
    both = before.metrics.merge(after.metrics, on=["split", "name", "step"], suffixes=("_before", "_after"))
    both = both[both["split"] != _NOT_COMPARED]
    both["metric"] = both["split"] + "/" + both["name"]
    differs = both["value_before"].ne(both["value_after"]) & both[["value_before", "value_after"]].notna().any(axis=1)
    both["difference"] = (both["value_after"] - both["value_before"]).map("{:+.3g}".format).where(differs, "0")
    last = [
        [printable(row.metric), str(row.step), show(row.value_before, 6), show(row.value_after, 6), row.difference]
        for row in both.groupby("metric", sort=False).tail(1).itertuples()
    ]
    if both.empty:
        return last, "not known: they recorded nothing at the same step"
    if not differs.any():
        steps = both["step"].nunique()
        return last, f"nowhere: all numbers of the {steps} steps that both recorded are equal, every bit"
    first = both[differs].sort_values("step", kind="stable").iloc[0]
    equal = both["step"][both["step"] < first["step"]]
    since = "the first that both recorded" if equal.empty else f"equal up to step {equal.max()}"
    values = f"{first['value_before']} and {first['value_after']}"
    return last, f"at step {first['step']} ({since}): {first['metric']} {values}"
