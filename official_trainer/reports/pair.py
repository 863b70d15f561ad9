"""Two runs beside each other: all that differs between them, and the step at which their numbers part.

Owns: which facts of two runs are compared. Does not own: reading runs (`runs/`), the layout of differing fields
(`config/compare.py`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import compare
from official_trainer.config.compare import Contrast
from official_trainer.reports.entries import Entry
from official_trainer.reports.recorded_curves import Curves
from official_trainer.runs import recorded
from official_trainer.runs.recorded import RecordedRun
from official_trainer.shown import printable, without_secrets
from official_trainer.tracking import git_state
from official_trainer.tracking.jsonl import encode, strict
from official_trainer.tracking.monitored import show

_MOST_FILES, _MOST_LINES = 20, 60
_REVISION = re.compile(r"[0-9a-f]{7,64}(-dirty)?")
_LONGEST_NAME = 16
_NOT_COMPARED = ("time",)
"""Splits whose numbers always differ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """What differs between two runs.

    Attributes:
      names: what they are called.
      facts: status, steps, versions, devices, data layout, code: name and both values of those that differ; None where
        one is not known.
      config: the fields that differ, with what set each; None if the config of one is not known.
      code: the files that differ between the commits, as `git diff --stat` has them; or why that is not known.
      changes: what differs in them, and what was not committed when the runs started: `title`, `text` as `git diff` has
        it (at most about 256 KiB of it), and `source`, the command or the file that has the whole.
      metrics: of each metric that both recorded, its value at the last step that both have, and that step.
      parting: where their numbers part: the first `step` at which a `metric` that both recorded there differs, its
        value `before` and `after`, and `equal_until`, the last step before it at which all is equal; None if all is.
      shared_steps: how many steps both have recorded.
      notes: of either run, what went wrong and what is not known.
    """

    names: tuple[str, str]
    facts: Sequence[tuple[str, Any, Any]]
    config: Sequence[Contrast] | None
    code: Sequence[str]
    changes: Sequence[Mapping[str, str]]
    metrics: Mapping[str, tuple[int, float, float]]
    parting: Mapping[str, Any] | None
    shared_steps: int
    notes: Sequence[str]


def of(before: Entry, after: Entry, workspace: str | None) -> Pair:
    """Compares two runs.

    Args:
      before: the first.
      after: the second.
      workspace: the folder in which git is asked about the commits; None asks nothing. It is not taken from the runs,
        whose files may come from others.
    """
    runs = (before.run.recorded, after.run.recorded)
    metrics, parting, steps = _metrics(before.run.curves, after.run.curves)
    code, changes = _code(before, after, workspace)
    return Pair(
        names=(before.name, after.name),
        facts=[fact for fact in _facts(*runs) if fact[1] != fact[2]],
        config=compare.contrasts(*(compare.sides_of_lines(run.config, run.experiment) for run in runs))
        if all(run.config for run in runs)
        else None,
        code=code,
        changes=changes,
        metrics=metrics,
        parting=parting,
        shared_steps=steps,
        notes=[f"{entry.name}: {note}" for entry in (before, after) for note in entry.notes],
    )


def _facts(before: RecordedRun, after: RecordedRun) -> Iterator[tuple[str, Any, Any]]:
    yield "experiment", before.experiment, after.experiment
    yield "status", before.status, after.status
    yield "step", recorded.steps_text(before), recorded.steps_text(after)
    yield "restarts", before.record.get("restarts"), after.record.get("restarts")
    yield "took", recorded.duration_text(before.duration_seconds), recorded.duration_text(after.duration_seconds)
    yield "git revision", before.record.get("git_revision"), after.record.get("git_revision")
    found = [run.record.get("devices") for run in (before, after)]
    devices = [", ".join(map(str, each)) if isinstance(each, list) else None for each in found]
    yield "devices", devices[0], devices[1]
    for name, title in (("versions", "version of"), ("input", "data layout:")):
        both = [value if isinstance(value := run.record.get(name), dict) else {} for run in (before, after)]
        for key in dict.fromkeys([*both[0], *both[1]]):
            yield f"{title} {key}", both[0].get(key), both[1].get(key)


def _code(before: Entry, after: Entry, workspace: str | None) -> tuple[list[str], list[dict[str, str]]]:
    """Returns what is to say of the code of two runs, and the changes of it: also those that no commit has."""
    revisions = [str(entry.run.record.get("git_revision")) for entry in (before, after)]
    if not all(map(_REVISION.fullmatch, revisions)):
        return [], []
    said, changes = list[str](), list[dict[str, str]]()
    for entry, revision in zip((before, after), revisions, strict=True):
        path = files.join(entry.run.directory, files.CODE_FILE)
        if not revision.endswith(git_state.DIRTY):
            continue
        try:
            with files.open_file(path, "rb") as file:
                text = file.read(2 * git_state.LIMIT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            is_there = not isinstance(error, FileNotFoundError)
            why = f"cannot be read: {files.reason_of(error)}" if is_there else "are not known"
            said.append(f"{entry.name} was started with changes that were not committed, and which {why}")
        else:
            title = f"not committed, {entry.name}"
            changes.append({"title": title, "text": without_secrets(text), "source": path})
    if len(changes) == 2 and changes[0]["text"] == changes[1]["text"]:
        changes = [{**changes[0], "title": "not committed, the same in both"}]
    commits = [each.removesuffix(git_state.DIRTY) for each in revisions]
    if commits[0] == commits[1] or workspace is None:
        return said, changes
    shown = f"git diff {commits[0][:10]} {commits[1][:10]}"
    stat = git_state.ask(workspace, *git_state.DIFF, "--stat=78", *commits, "--")
    if stat is None:
        return [*said, f"the repository here lacks one of them; {shown} shows more"], changes
    changed = stat.rstrip().splitlines()
    cut = [f" … {len(changed) - _MOST_FILES} more files"] if len(changed) > _MOST_FILES + 1 else []
    files_changed = changed if not cut else [*changed[: _MOST_FILES - 1], *cut, changed[-1]]
    text = git_state.ask(workspace, *git_state.DIFF, *commits, "--") or ""
    title = f"{commits[0][:10]} → {commits[1][:10]}"
    changes.insert(0, {"title": title, "text": without_secrets(text), "source": shown})
    return [*said, *map(printable, files_changed)], changes


def _metrics(before: Curves, after: Curves) -> tuple[dict[str, tuple[int, float, float]], dict[str, Any] | None, int]:
    last: dict[str, tuple[int, float, float]] = {}
    parting: dict[str, Any] | None = None
    shared: set[int] = set()
    for split, curves in before.by_split.items():
        for name, curve in curves.items():
            other = after.get(split, name)
            if other is None or split in _NOT_COMPARED:
                continue
            theirs = dict(zip(other.steps, other.values, strict=True))
            both = [(s, v, theirs[s]) for s, v in zip(curve.steps, curve.values, strict=True) if s in theirs]
            if not both:
                continue
            shared |= {step for step, _, _ in both}
            last[f"{split}/{name}"] = both[-1]
            first = next((each for each in both if not _is_same(each[1], each[2])), None)
            if first is not None and (parting is None or first[0] < parting["step"]):
                parting = {"step": first[0], "metric": f"{split}/{name}", "before": first[1], "after": first[2]}
    if parting is not None:
        parting["equal_until"] = max((step for step in shared if step < parting["step"]), default=None)
    return last, parting, len(shared)


def _is_same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def as_text(pair: Pair) -> Iterator[str]:
    """Yields the lines for a terminal, of 80 columns where names allow it."""
    yield f"--- {pair.names[0]}"
    yield f"+++ {pair.names[1]}"
    code, parting = list(pair.code), pair.parting
    for change in pair.changes:
        found = [printable(line).expandtabs(4) for line in change["text"].splitlines()]
        code += ["", f"{printable(change['title'])}:", "", *(f"  {line}" for line in found[:_MOST_LINES])]
        if len(found) > _MOST_LINES:
            code.append(f"  … {len(found) - _MOST_LINES:,} more lines: {printable(change['source'])}")
    part = f"nowhere: all numbers of the {pair.shared_steps} steps that both recorded are equal, every bit"
    if not pair.shared_steps:
        part = "not known: they recorded nothing at the same step"
    elif parting is not None:
        last = parting["equal_until"]
        before = "the first that both recorded" if last is None else f"equal up to step {last}"
        values = f"{encode(parting['before'])} and {encode(parting['after'])}"
        part = f"at step {parting['step']} ({before}): {parting['metric']} {values}"
    for name, body in (
        ("Run", _facts_text(pair.facts)),
        ("Config", ["not known"] if pair.config is None else compare.text(pair.config) or ["no field differs"]),
        ("Code", code),
        ("Metrics at the last step that both recorded", _metrics_text(pair)),
        ("Where they part", [part]),
        ("Notes", pair.notes),
    ):
        if body:
            yield from ("", name, "", *(f"  {line}".rstrip() for line in body))


def _facts_text(facts: Sequence[tuple[str, Any, Any]]) -> list[str]:
    words = [
        [name, *("not known" if each in (None, "") else printable(str(each)).replace("\n", " ") for each in both)]
        for name, *both in facts
    ]
    name_width = max((len(name) for name, _, _ in words), default=0)
    width = max((len(before) for _, before, _ in words if len(before) <= 24), default=0)
    result = []
    for name, before, after in words:
        if len(before) <= width and len(after) <= 78 - name_width - width - 6:
            result.append(f"{name.ljust(name_width)}  {before.ljust(width)}  →  {after}")
        else:
            result += [name, f"  - {before}", f"  + {after}"]
    return result


def _metrics_text(pair: Pair) -> list[str]:
    names = pair.names if max(map(len, pair.names)) <= _LONGEST_NAME else ("---", "+++")
    rows = [("", "step", *names, "difference")]
    for metric, (step, before, after) in pair.metrics.items():
        difference = after - before
        signed = f"{difference:+.3g}" if math.isfinite(difference) else str(encode(difference))
        word = "0" if _is_same(before, after) else signed
        rows.append((metric, str(step), show(before, 6), show(after, 6), word))
    if len(rows) == 1:
        return ["no metric was recorded by both at the same step"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)][1:] for row in rows]
    return ["  ".join([row[0].ljust(widths[0]), *cells]) for row, cells in zip(rows, numbers, strict=True)]


def as_json(pair: Pair) -> dict[str, Any]:
    """Returns all of it for programs; values that are not finite are texts."""
    found: dict[str, Any] = strict(
        {
            "before": pair.names[0],
            "after": pair.names[1],
            "facts": [dict(zip(("name", "before", "after"), fact, strict=True)) for fact in pair.facts],
            "differences": pair.config and [each.as_json() for each in pair.config],
            "code": pair.code,
            "changes": pair.changes,
            "metrics": [
                {"metric": metric, "step": step, "before": before, "after": after}
                for metric, (step, before, after) in pair.metrics.items()
            ],
            "parting": pair.parting,
            "shared_steps": pair.shared_steps,
            "notes": pair.notes,
        }
    )
    return found
