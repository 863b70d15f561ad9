"""In what a program may differ from the checkpoint that it continues from, and with which values that begins.

Owns: which variables a pattern means, and slots and averages of weights that are trained from here on and were frozen
before, or the other way round. Does not own: pairing variables (`matching.py`), reading them, the refusal
(`restore.py`), whether the config may change (`runs/resume/config_changes.py`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_trainer.checkpoints.matching import SLOT, RestoreReport, VariableSpec
from official_trainer.lazy import tf


def allows(pattern: str, spec: VariableSpec) -> bool:
    """Whether a pattern (shell style) matches the path of a variable, with or without its first part, or its name.

    That of a weight also matches its slots and its average.
    """
    variable, is_slot, slot = spec.key.partition(SLOT)
    names = [spec.key, spec.key.partition("/")[2], spec.name, f"{slot}/{variable}" if is_slot else ""]
    names += [spec.weight, spec.weight.partition("/")[2]]
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def suggested(specs: Sequence[VariableSpec]) -> str:
    """Returns patterns that match variables, for a message: `model/head/*, optimizer/*`."""
    keys = {spec.key for spec in specs}
    named = [spec for spec in specs if not spec.is_of_weight or spec.weight not in keys]
    return ", ".join(dict.fromkeys(map(_suggestion, named)))


def _suggestion(spec: VariableSpec) -> str:
    if spec.is_of_weight or spec.key.startswith("optimizer/"):
        return "average/*" if spec.key.startswith("average/") else "optimizer/*"
    name = spec.name if "/" in spec.name else spec.key
    return f"{name.rpartition('/')[0]}/*"


def is_by_position(spec: VariableSpec) -> bool:
    """Whether it is a slot of an optimizer of tf_keras that is not legacy, which a checkpoint names by its position."""
    return spec.key.startswith("optimizer/") and "/_variables/" in spec.key


def of_other_weights(report: RestoreReport) -> list[VariableSpec]:
    """Returns the slots, and the averages, of weights that both sides have, where one side has none of them."""
    weights = {spec.key for spec in report.restored}
    both = [*report.restored, *(mismatch.live for mismatch in report.wrong_shape)]
    others = []
    for specs, other_side in ((report.missing, report.extra), (report.extra, report.missing)):
        held = {(spec.weight, spec.is_average) for spec in (*both, *other_side) if spec.is_of_weight}
        others += [s for s in specs if s.is_of_weight and s.weight in weights and (s.weight, s.is_average) not in held]
    return others


def begin_anew(keys: Iterable[str], live: Mapping[str, Any], initial: dict[str, Any]) -> None:
    """Gives variables that a checkpoint lacks the values with which they begin.

    These are their initial values, also where the checkpoint is read again after some steps of training, and for an
    average the value of its weight.

    Args:
      keys: of the variables.
      live: all variables, by key.
      initial: the initial values by key, which the first call notes.
    """
    import numpy as np

    for key in keys:
        variable, spec = live[key], VariableSpec(key)
        if spec.is_average:
            variable.assign(tf.convert_to_tensor(live[spec.weight]))
        elif key in initial:
            variable.assign(initial[key])
        else:
            value = np.asarray(variable.numpy())
            is_uniform = value.size > 0 and bool(np.all(value == value.flat[0]))  # as those of slots are
            initial[key] = np.broadcast_to(value.flat[0], value.shape) if is_uniform else value
