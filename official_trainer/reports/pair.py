"""Two runs beside each other: all that differs between them, and the step at which their numbers part.

Owns: which facts of two runs are compared. Does not own: reading runs (`runs/`), the layout of differing fields
(`config/compare.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.cli import terminal
from official_trainer.config import compare
from official_trainer.reports.entries import Entry
from official_trainer.runs import recorded
from official_trainer.runs.recorded import RecordedRun
from official_trainer.shown import printable
from official_trainer.tracking.jsonl import strict
from official_trainer.tracking.monitored import show

_WIDTH = 78
_NOT_COMPARED = "time"
"""The split whose numbers always differ."""


def as_json(before: Entry, after: Entry) -> dict[str, Any]:
    """Returns what differs between two runs, for programs; values that are not finite are texts.

    `facts` are status, steps, versions, devices, data layout and revision; `differences` the fields of the config, None
    if one is not known; `metrics` the values at the last step that both recorded; `parting` the first step at which a
    metric differs in any bit, and `equal_until`, the last step before it at which all is equal; None if all is.
    """
    metrics, parting, shared_steps = _metrics(before, after)
    fields = _fields(before, after)
    content: dict[str, Any] = strict(
        {
            "before": before.name,
            "after": after.name,
            "facts": [
                {"name": name, "before": ours, "after": theirs}
                for name, ours, theirs in _facts(before.run.recorded, after.run.recorded)
                if ours != theirs
            ],
            "differences": fields and [field.as_json() for field in fields],
            "metrics": metrics,
            "parting": parting,
            "shared_steps": shared_steps,
            "notes": [
                f"{entry.name}: {note}"
                for entry in (before, after)
                for note in dict.fromkeys([*entry.notes, *entry.run.curves.notes])
            ],
        }
    )
    return content


def _fields(before: Entry, after: Entry) -> list[compare.Contrast] | None:
    runs = (before.run.recorded, after.run.recorded)
    if not all(run.config for run in runs):
        return None
    return list(compare.contrasts(*(compare.sides_of_lines(run.config, run.experiment) for run in runs)))


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


def _metrics(before: Entry, after: Entry) -> tuple[list[dict[str, Any]], dict[str, Any] | None, int]:
    """Returns the last numbers that both have, the first that differ, and how many steps both have recorded."""
    both = before.run.metrics.merge(after.run.metrics, on=["split", "name", "step"])
    both = both[both["split"] != _NOT_COMPARED].rename(columns={"value_x": "before", "value_y": "after"})
    both["metric"] = both["split"] + "/" + both["name"]
    both = both[["metric", "step", "before", "after"]]
    last = both.groupby("metric", sort=False).tail(1).to_dict("records")
    differs = both[(both["before"] != both["after"]) & (both["before"].notna() | both["after"].notna())]
    if differs.empty:
        return last, None, both["step"].nunique()
    parting = differs.sort_values("step", kind="stable").to_dict("records")[0]
    equal = both["step"][both["step"] < parting["step"]]
    return last, {**parting, "equal_until": None if equal.empty else int(equal.max())}, both["step"].nunique()


def as_text(before: Entry, after: Entry) -> Iterator[str]:
    """Yields what differs between two runs as lines for a terminal, of 80 columns where names allow it."""
    content = as_json(before, after)
    names = [before.name, after.name]
    yield f"--- {names[0]}"
    yield f"+++ {names[1]}"
    parting, config = content["parting"], ["not known"]
    part = f"nowhere: all numbers of the {content['shared_steps']} steps that both recorded are equal, every bit"
    if not content["shared_steps"]:
        part = "not known: they recorded nothing at the same step"
    elif parting is not None:
        last = parting["equal_until"]
        since = "the first that both recorded" if last is None else f"equal up to step {last}"
        values = f"{parting['before']} and {parting['after']}"
        part = f"at step {parting['step']} ({since}): {parting['metric']} {values}"
    if content["differences"] is not None:
        sides = (
            compare.sides_of_lines(run.recorded.config, run.recorded.experiment) for run in (before.run, after.run)
        )
        config = compare.text(compare.contrasts(*sides)) or ["no field differs"]
    facts = [[fact["name"], *(_fact(fact[side]) for side in ("before", "after"))] for fact in content["facts"]]
    metrics = [_row(point) for point in content["metrics"]]
    columns = names if max(map(len, names)) <= 16 else ["---", "+++"]
    for name, body in (
        ("Run", terminal.table(["", *columns], facts, fit=_WIDTH) if facts else []),
        ("Config", config),
        (
            "Metrics at the last step that both recorded",
            terminal.table(["", "step", *columns, "difference"], metrics, numbers=range(1, 5), fit=_WIDTH)
            if metrics
            else ["no metric was recorded by both at the same step"],
        ),
        ("Where they part", [part]),
        ("Notes", content["notes"]),
    ):
        if body:
            yield from ("", name, "", *(f"  {line}".rstrip() for line in body))


def _fact(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "not known" if value in (None, "") else printable(text)


def _row(point: Mapping[str, Any]) -> list[str]:
    before, after = float(point["before"]), float(point["after"])
    difference = "0" if point["before"] == point["after"] else f"{after - before:+.3g}"
    return [printable(point["metric"]), str(point["step"]), show(before, 6), show(after, 6), difference]
