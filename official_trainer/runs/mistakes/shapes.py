"""The shapes and dtypes that were in hand when the user's code failed: of the batch, outputs, labels and others.

Owns: where these values are found, in the variables of the frames, and their lines in the report. Does not own: how a
shape is written (`engine/traces.py`), the batch, which is noted (`user_code.py`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.engine.traces import signature_of
from official_trainer.runs.mistakes.frames import Frame
from official_trainer.user_code import is_ours

_NAMES = {
    "outputs": ("outputs", "model_outputs", "y_pred", "logits", "predictions"),
    "labels": ("labels", "y_true", "label", "y", "targets"),
}
"""What tasks call the outputs of the model and the labels of the batch; ours call them by the first names."""

_OF_STEPS = {"inputs", "features", "global_step"}
_OF_AUTOGRAPH = {"do_return", "retval_"}
_MOST_OTHERS = 4
_LONGEST = 40
_MOST_BITS = 128


def lines(running: Sequence[types.FrameType], shown: Sequence[Frame], notes: Mapping[str, Any]) -> list[str]:
    """Returns the lines about shapes: `outputs: float32[8,1]`.

    Args:
      running: frames of the error that hold values, outermost first.
      shown: the frames that the report names.
      notes: on the error.
    """
    found = {"batch": notes["batch"]} if notes.get("batch") else {}
    if found:
        for what, names in _NAMES.items():
            values = (described(frame.f_locals.get(name)) for frame in running for name in names)
            value = next(filter(None, values), "")  # of the outermost variable with one of the names
            if value and value != found["batch"].rpartition(", labels ")[2]:
                found[what] = value
    if others := _others(running, shown[-1].function if shown else "", found):
        found["variables"] = others
    metrics = (frame.f_locals.get("metric") for frame in reversed(running))
    updated = next((each for each in metrics if hasattr(each, "update_state") and hasattr(each, "name")), None)
    if updated is not None:
        found["metric"] = f"{updated.name} ({type(updated).__name__})"
    return [f"{what}: {value}" for what, value in found.items()]


def _others(running: Sequence[types.FrameType], function: str, found: Mapping[str, str]) -> str:
    """Returns the other variables of the user's innermost frame: shapes of tensors, and short values."""
    names = {function, f"tf__{function}"}  # the latter as AutoGraph has converted it
    own = [frame for frame in running if frame.f_code.co_name in names and not is_ours(frame.f_code.co_filename)]
    if not own:
        return ""
    known = {*_NAMES["outputs"], *_NAMES["labels"], *_OF_STEPS} if "batch" in found else set()
    hidden = known | _OF_AUTOGRAPH
    values = {name: value for name, value in own[-1].f_locals.items() if name not in hidden and name[0] != "_"}
    shown = [f"{name} {text}" for name, value in values.items() if (text := described(value) or _short(value))]
    return ", ".join(shown[:_MOST_OTHERS])


def _short(value: Any) -> str:
    """Returns a number or a short text; empty for anything else."""
    if type(value) not in (bool, int, float, str) or (type(value) is int and value.bit_length() > _MOST_BITS):
        return ""  # a class of the user's may fail to show a value, and Python a number of thousands of digits
    return f"= {value!r}" if len(str(value)) <= _LONGEST else ""


def described(value: Any) -> str:
    """Returns the shapes of tensors, also nested; empty for anything else."""
    if isinstance(value, Mapping):
        return signature_of(value) if value and all(map(described, value.values())) else ""
    if isinstance(value, tuple | list):
        return signature_of(value) if value and all(map(described, value)) else ""
    try:
        return signature_of(value) if hasattr(value, "shape") and hasattr(value, "dtype") else ""
    except Exception:  # of a placeholder, which has no value yet
        return ""
