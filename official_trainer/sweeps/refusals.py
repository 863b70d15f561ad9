"""Values that the experiment does not take together, such as a warmup that is longer than the training.

Owns: drawing others in their place, or recording them as pruned.
Does not own: drawing (`study.py`), why a config refuses values (`config/`).

Which values are drawn next depends on how often the draw was refused, and a refused draw leaves nothing behind: a
sweep that is killed in between draws the same.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from official_trainer.config import Problem
from official_trainer.sweeps.distributions import Value
from official_trainer.sweeps.trial import SweepError, Trial

MOST_ATTEMPTS = 100
"""So many draws for one trial may be refused."""
_MOST_SHOWN = 3


def accepted(
    draw: Callable[[int], Trial], refusal: Callable[[Mapping[str, Value]], Problem | None]
) -> Mapping[str, Value] | None:
    """Returns the first values that the experiment takes; None if very many draws were refused."""
    tried = (draw(attempt).values for attempt in range(MOST_ATTEMPTS))
    return next((values for values in tried if refusal(values) is None), None)


def drawn(
    number: int,
    draw: Callable[[int], Trial],
    refusal: Callable[[Mapping[str, Value]], Problem | None],
    *,
    prunes: bool,
) -> Trial:
    """Returns a new trial with values that the experiment takes; or if told so, a pruned one with others.

    Args:
      number: of the trial.
      draw: returns it; takes how often others were refused.
      refusal: returns why the experiment refuses values; None if it takes them.
      prunes: whether a trial with values that are refused is recorded as pruned.

    Raises:
      SweepError: very many draws were refused.
    """
    refused: collections.Counter[str] = collections.Counter()
    for attempt in range(MOST_ATTEMPTS):
        trial = draw(attempt)
        problem = refusal(trial.values)
        if problem is None:
            return trial
        if prunes:
            return dataclasses.replace(trial, state="pruned", reason=problem.message)
        refused[f"{problem.path}: {problem.what}"] += 1
    rules = "".join(f"\n  {count} of {MOST_ATTEMPTS}: {rule}" for rule, count in refused.most_common(_MOST_SHOWN))
    raise SweepError(
        f"the experiment refuses all of {MOST_ATTEMPTS} draws for trial {number}:{rules}\n"
        "Narrow the space in a new sweep, with another --model_dir; with on_refusal: prune, such draws are recorded as "
        "pruned"
    )
