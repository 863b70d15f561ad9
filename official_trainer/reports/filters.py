"""Conditions on runs: `trainer.train_steps>=500`, `optimizer.type=adam`, `status!=failed`.

Owns: their language, and the names of fields in it. Does not own: the fields (`runs/recorded.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from official_trainer.config import lines
from official_trainer.config.text import flow
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import nearest
from official_trainer.reports.measures import Entry
from official_trainer.shown import first_few

_CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

OWN: Mapping[str, Callable[[Entry], Any]] = {
    "run": lambda entry: entry.name,
    "experiment": lambda entry: entry.run.experiment,
    "status": lambda entry: entry.run.status,
    "step": lambda entry: entry.run.step,
    "took": lambda entry: entry.run.duration_seconds,
    "best": lambda entry: entry.run.best if isinstance(entry.run.best, float) else None,
}
"""What is known of each run beside its config; `took` in seconds."""


class FieldError(UserError, LookupError):
    """A field that no run has, or a condition that means nothing."""

    exit_code = ExitCode.CONFIG


def kept(entries: Sequence[Entry], conditions: Sequence[str]) -> list[Entry]:
    """Returns the runs that fulfil all conditions; a run that lacks a field fulfils `!=` alone.

    Raises:
      FieldError: a condition cannot be read, or no run has its field.
    """
    found = list(entries)
    for text in conditions:
        match = _CONDITION.fullmatch(text)
        if match is None or not match[3]:
            allowed = "write FIELD, one of = != < <= > >=, and a value; as in optimizer.type=adam"
            raise FieldError(f"--where={text}: {allowed}")
        name, sign, value = match.groups()
        field = path_of(name, entries, "--where")
        found = [entry for entry in found if _holds(value_of(entry, field), sign, lines.value(value), value)]
    return found


def path_of(name: str, entries: Iterable[Entry], flag: str) -> str:
    """Returns the field that a name means: one of `OWN`, a path, or the end of exactly one path of these runs.

    Raises:
      FieldError: no run has such a field, or several have this end.
    """
    if name in OWN:
        return name
    paths = list(dict.fromkeys(path for entry in entries for path in entry.run.config))
    if name in paths:
        return name
    ends = [path for path in paths if path.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise FieldError(f"{flag}={name}: several fields end so: {first_few(ends)}; write more of its path")
    depth = name.count(".") + 1
    near = nearest(name, [*OWN, *paths]) or nearest(name, {".".join(path.split(".")[-depth:]): None for path in paths})
    hint = f"; did you mean {near[0]}?" if near else f"; beside fields of configs there are {', '.join(OWN)}"
    raise FieldError(f"{flag}={name}: no run has such a field{hint}")


def value_of(entry: Entry, field: str) -> Any:
    """Returns what a run has in a field; None if it has no such field."""
    return OWN[field](entry) if field in OWN else lines.value(entry.run.config.get(field))


def _holds(value: Any, sign: str, wanted: Any, text: str) -> bool:
    if sign in ("=", "!="):
        is_equal = value == wanted or (isinstance(value, str) and value == text) or flow(value) == flow(wanted)
        return is_equal if sign == "=" else not is_equal
    numbers = [each for each in (value, wanted) if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == 2:
        return _COMPARISONS[sign](*numbers)
    if not isinstance(wanted, int | float):
        raise FieldError(f"{sign}{text}: only numbers are larger or smaller; use = or !=")
    return False
