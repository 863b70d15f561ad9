"""All combinations of a space, for the samplers that visit each of them once.

Owns: which combinations there are, and in which order they are visited.
Does not own: what a combination is checked against (`refusals.py`).

Optuna's own `GridSampler` and `BruteForceSampler` choose by the trials that they know of, so two processes may choose
the same combination. Here trial N has combination N, whatever other processes do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from official_trainer.config import ConfigError, Problem, Resolved, fields
from official_trainer.sweeps.distributions import INTEGERS, Dimension, Value
from official_trainer.sweeps.settings import user_origin
from official_trainer.sweeps.space import Space

MOST_COMBINATIONS = 10_000


def combinations(space: Space, seed: int, sampler: str, settings: Resolved) -> tuple[Mapping[str, Value], ...]:
    """Returns all combinations of a space, in an order that depends on the seed.

    Args:
      space: what is drawn.
      seed: of the sweep.
      sampler: its name, for messages.
      settings: a resolved `SweepConfig`, for places.

    Raises:
      ConfigError: there is no end of them, or no reasonable one.
    """
    problems = [
        Problem(
            f"is no list of values, which {sampler} needs",
            f"space.{each.of_list or each.path}",
            fix="write choice(a, b, …), int(low, high, step) or float(low, high, step), or another sampler",
            origin=user_origin(settings, fields.path_of(("space", each.of_list or each.path))),
        )
        for each in space.dimensions
        if (each.kind != "choice" and each.step is None) or each.kind == "logint"
    ]
    if problems:
        raise ConfigError(problems)
    found: list[Mapping[str, Value]] = []
    for each in _below(space.dimensions, {}):
        found.append(each)
        if len(found) > MOST_COMBINATIONS:
            what = f"has more than {MOST_COMBINATIONS:,} combinations, which {sampler} would all visit"
            raise ConfigError([Problem(what, "space", fix="take larger steps, fewer fields, or another sampler")])
    place = {id(each): hashlib.sha256(f"{seed}/{index}".encode()).digest() for index, each in enumerate(found)}
    return tuple(sorted(found, key=lambda each: place[id(each)]))


def _below(dimensions: tuple[Dimension, ...], drawn: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    if not dimensions:
        yield drawn
        return
    first, rest = dimensions[0], dimensions[1:]
    if not all(drawn.get(path) in values for path, values in first.needs):
        yield from _below(rest, drawn)
        return
    for value in _values(first):
        yield from _below(rest, {**drawn, first.path: value})


def _values(each: Dimension) -> Iterator[Value]:
    if each.kind == "choice":
        yield from each.choices
        return
    assert each.step is not None
    for index in range(round((each.high - each.low) / each.step) + 1):
        value = each.low + index * each.step
        yield int(value) if each.kind in INTEGERS else each.settled(float(value))
