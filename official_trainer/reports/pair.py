"""Two runs beside each other: all that differs between them, and the step at which their numbers part.

Owns: which facts of two runs are compared. Does not own: reading runs (`runs/`), the layout of differing fields
(`config/contrast.py`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import contrast
from official_trainer.config.contrast import Contrast
from official_trainer.reports.measures import Entry
from official_trainer.reports.recorded_curves import Curves
from official_trainer.runs import recorded
from official_trainer.shown import printable, without_secrets
from official_trainer.tracking import git_state
from official_trainer.tracking.jsonl import encode, strict
from official_trainer.tracking.monitored import show

_MOST_FILES, _MOST_LINES = 20, 60
_REVISION = re.compile(r"[0-9a-f]{7,64}(-dirty)?")
_LONGEST_NAME = 16
_NOT_COMPARED = ("time",)
"""Splits whose numbers always differ."""


@dataclasses.dataclass(frozen=True)
class Fact:
    """Something that is known of both runs.

    Attributes:
      name: what it is.
      before: of the first run; None if it is not known.
      after: of the second run.
    """

    name: str
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class Parting:
    """The first step at which a metric that both recorded there differs.

    Attributes:
      step: the global step.
      metric: its split and name.
      before: its value in the first run.
      after: in the second.
      equal_until: the last step before it at which all is equal; None if they part at the first.
    """

    step: int
    metric: str
    before: float
    after: float
    equal_until: int | None


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference of the code.

    Attributes:
      title: between what.
      text: as `git diff` has it, at most about 256 KiB of it.
      source: the command that shows the whole, or the file that has it.
    """

    title: str
    text: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """What differs between two runs.

    Attributes:
      names: what they are called.
      facts: status, steps, versions, devices, data layout, code: those that differ.
      config: the fields that differ, with what set each.
      code: the files that differ between the commits, as `git diff --stat` has them; or why that is not known.
      changes: what differs in them, and what was not committed when the runs started.
      metrics: of each metric that both recorded, its value at the last step that both have, and that step.
      parting: where their numbers part; None if all that both recorded is equal.
      shared_steps: how many steps both have recorded.
      notes: of either run, what went wrong and what is not known.
    """

    names: tuple[str, str]
    facts: Sequence[Fact]
    config: Sequence[Contrast]
    code: Sequence[str]
    changes: Sequence[Change]
    metrics: Mapping[str, tuple[int, float, float]]
    parting: Parting | None
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
    curves, runs = (before.curves, after.curves), (before.run, after.run)
    facts = [fact for fact in _facts(before, after) if fact.before != fact.after]
    metrics, parting, steps = _metrics(*curves)
    notes = [f"{entry.name}: {note}" for entry in (before, after) for note in entry.notes]
    code, changes = _code(before, after, workspace)
    return Pair(
        names=(before.name, after.name),
        facts=facts,
        config=contrast.contrasts(*(contrast.sides_of_lines(run.config, run.experiment) for run in runs)),
        code=code,
        changes=changes,
        metrics=metrics,
        parting=parting,
        shared_steps=steps,
        notes=notes,
    )


def _facts(before: Entry, after: Entry) -> Iterator[Fact]:
    sides = before.run, after.run
    yield Fact("experiment", *(run.experiment for run in sides))
    yield Fact("status", *(run.status for run in sides))
    yield Fact("step", *(recorded.steps_text(run) for run in sides))
    yield Fact("restarts", *(run.record.get("restarts") for run in sides))
    yield Fact("took", *(recorded.duration_text(run.duration_seconds) for run in sides))
    yield Fact("git revision", *(run.record.get("git_revision") for run in sides))
    yield Fact("devices", *(_list(run.record.get("devices")) for run in sides))
    for name, title in (("versions", "version of"), ("input", "data layout:")):
        both = [value if isinstance(value := run.record.get(name), dict) else {} for run in sides]
        for key in dict.fromkeys([*both[0], *both[1]]):
            yield Fact(f"{title} {key}", both[0].get(key), both[1].get(key))


def _list(value: Any) -> str | None:
    return ", ".join(map(str, value)) if isinstance(value, list) else None


def _code(before: Entry, after: Entry, workspace: str | None) -> tuple[list[str], list[Change]]:
    """Returns what is to say of the code of two runs, and the changes of it."""
    revisions = [str(entry.run.record.get("git_revision")) for entry in (before, after)]
    if not all(map(_REVISION.fullmatch, revisions)):
        return [], []
    said, changes = _uncommitted(
        [entry for entry, each in zip((before, after), revisions, strict=True) if each.endswith(git_state.DIRTY)]
    )
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
    between = Change(f"{commits[0][:10]} → {commits[1][:10]}", without_secrets(text), shown)
    return [*said, *map(printable, files_changed)], [between, *changes]


def _uncommitted(changed: Sequence[Entry]) -> tuple[list[str], list[Change]]:
    """Returns what is to say of changes that no commit has, and those that the runs have recorded."""
    said: list[str] = []
    changes: list[Change] = []
    for entry in changed:
        path = files.join(entry.run.directory, files.CODE_FILE)
        try:
            with files.open_file(path, "rb") as file:
                text = file.read(2 * git_state.LIMIT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            is_there = not isinstance(error, FileNotFoundError)
            why = f"cannot be read: {files.reason_of(error)}" if is_there else "are not known"
            said.append(f"{entry.name} was started with changes that were not committed, and which {why}")
            continue
        changes.append(Change(f"not committed, {entry.name}", without_secrets(text), path))
    if len(changes) == 2 and changes[0].text == changes[1].text:
        changes = [dataclasses.replace(changes[0], title="not committed, the same in both")]
    return said, changes


def _metrics(before: Curves, after: Curves) -> tuple[dict[str, tuple[int, float, float]], Parting | None, int]:
    last: dict[str, tuple[int, float, float]] = {}
    parting: Parting | None = None
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
            if first is not None and (parting is None or first[0] < parting.step):
                parting = Parting(first[0], f"{split}/{name}", first[1], first[2], None)
    if parting is not None:
        earlier = max((step for step in shared if step < parting.step), default=None)
        parting = dataclasses.replace(parting, equal_until=earlier)
    return last, parting, len(shared)


def _is_same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def as_text(pair: Pair) -> Iterator[str]:
    """Yields the lines for a terminal, of 80 columns where names allow it."""
    yield f"--- {pair.names[0]}"
    yield f"+++ {pair.names[1]}"
    for name, body in (
        ("Run", _facts_text(pair.facts)),
        ("Config", contrast.text(pair.config) or ["no field differs"]),
        ("Code", [*pair.code, *(line for each in pair.changes for line in _change_text(each))]),
        ("Metrics at the last step that both recorded", _metrics_text(pair)),
        ("Where they part", [_parting_text(pair)]),
        ("Notes", pair.notes),
    ):
        if body:
            yield from ("", name, "", *(f"  {line}".rstrip() for line in body))


def _facts_text(facts: Sequence[Fact]) -> list[str]:
    shown = [(fact.name, _word(fact.before), _word(fact.after)) for fact in facts]
    name_width = max((len(name) for name, _, _ in shown), default=0)
    width = max((len(before) for _, before, _ in shown if len(before) <= 24), default=0)
    result = []
    for name, before, after in shown:
        if len(before) <= width and len(after) <= 78 - name_width - width - 6:
            result.append(f"{name.ljust(name_width)}  {before.ljust(width)}  → {after}".replace("  → ", "  →  "))
        else:
            result += [name, f"  - {before}", f"  + {after}"]
    return result


def _word(value: Any) -> str:
    return "not known" if value in (None, "") else printable(str(value)).replace("\n", " ")


def _metrics_text(pair: Pair) -> list[str]:
    names = pair.names if max(map(len, pair.names)) <= _LONGEST_NAME else ("---", "+++")
    rows = [("", "step", *names, "difference")]
    for metric, (step, before, after) in pair.metrics.items():
        difference = "0" if _is_same(before, after) else _signed(after - before)
        rows.append((metric, str(step), show(before, 6), show(after, 6), difference))
    if len(rows) == 1:
        return ["no metric was recorded by both at the same step"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)][1:] for row in rows]
    return ["  ".join([row[0].ljust(widths[0]), *cells]) for row, cells in zip(rows, numbers, strict=True)]


def _signed(difference: float) -> str:
    return f"{difference:+.3g}" if math.isfinite(difference) else str(encode(difference))


def _change_text(change: Change) -> Iterator[str]:
    yield from ("", f"{printable(change.title)}:", "")
    found = [printable(line).expandtabs(4) for line in change.text.splitlines()]
    yield from (f"  {line}" for line in found[:_MOST_LINES])
    if len(found) > _MOST_LINES:
        yield f"  … {len(found) - _MOST_LINES:,} more lines: {printable(change.source)}"


def _parting_text(pair: Pair) -> str:
    parting = pair.parting
    if not pair.shared_steps:
        return "not known: they recorded nothing at the same step"
    if parting is None:
        return f"nowhere: all numbers of the {pair.shared_steps} steps that both recorded are equal, every bit"
    last = parting.equal_until
    before = "the first that both recorded" if last is None else f"equal up to step {last}"
    return f"at step {parting.step} ({before}): {parting.metric} {encode(parting.before)} and {encode(parting.after)}"


def as_json(pair: Pair) -> dict[str, Any]:
    """Returns all of it for programs; values that are not finite are texts."""
    found: dict[str, Any] = strict(
        {
            "before": pair.names[0],
            "after": pair.names[1],
            "facts": [dataclasses.asdict(fact) for fact in pair.facts],
            "differences": [
                {"path": each.path, "before": contrast.as_json(each.before), "after": contrast.as_json(each.after)}
                for each in pair.config
            ],
            "code": pair.code,
            "changes": [dataclasses.asdict(each) for each in pair.changes],
            "metrics": [
                {"metric": metric, "step": step, "before": before, "after": after}
                for metric, (step, before, after) in pair.metrics.items()
            ],
            "parting": None if pair.parting is None else dataclasses.asdict(pair.parting),
            "shared_steps": pair.shared_steps,
            "notes": pair.notes,
        }
    )
    return found
