"""How a value becomes JSON, for a message between the processes of a run or a file, and comes back.

Owns: which values can be sent and written, and their form. Does not own: sending (`multi_worker.py`), files
(`trees.py`).

Reading one makes numbers, text, arrays and tensors, never an object of another class and never a call, because nothing
proves who has sent it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf

if TYPE_CHECKING:
    import numpy as np


_MAX_TEXT_BYTES = 1 << 30
"""Of an array of text. Its dtype gives each text the same length, so few characters could ask for any memory."""


class UnsendableError(UserError, TypeError):
    """A value cannot be sent to the other processes of a run, nor written to a file."""


class UnreadableError(UserError, ValueError):
    """What another process of the run has sent is no message of this version."""

    exit_code = ExitCode.CONFIG


def encode(value: Any) -> bytes:
    """Returns the message of a value: None, numbers, text, bytes, arrays, tensors, and lists, tuples and dicts of them.

    Raises:
      UnsendableError: the value has a part of another class.
    """
    return json.dumps(describe(value), separators=(",", ":"), allow_nan=False).encode()


def decode(message: bytes, sender: str) -> Any:
    """Returns the value of a message, equal in value, class and dtype; arrays can be written to.

    Args:
      message: what `encode` returned in another process.
      sender: the name of that process.

    Raises:
      UnreadableError: it is no message.
    """
    try:
        return rebuild(json.loads(message))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(
            f"what {sender} has sent is no message of this version of official-trainer; start all processes with the "
            "same version, and keep other programs away from their ports"
        ) from error


def describe(value: Any, path: str = "") -> Any:
    """Returns what strict JSON has of a value: the value as it is, or a list of the name of a form and its parts.

    Args:
      value: as for `encode`.
      path: of the value inside of another, for messages.

    Raises:
      UnsendableError: the value has a part of another class.
    """
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return _describe_array(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(float(value))]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    if isinstance(value, Mapping):
        return ["dict", *([describe(k, path), describe(v, f"{path}[{k!r}]")] for k, v in value.items())]
    if isinstance(value, tuple | list):
        form = "tuple" if isinstance(value, tuple) else "list"
        return [form, *(describe(part, path) for part in value)]
    if isinstance(value, tf.RaggedTensor):
        return ["ragged", *(describe(part, path) for part in (value.flat_values, *value.nested_row_splits))]
    if isinstance(value, tf.SparseTensor):
        return ["sparse", *(describe(part, path) for part in (value.indices, value.values, value.dense_shape))]
    if isinstance(value, tf.Tensor):
        return ["tensor", describe(value.numpy(), path)]
    raise _unsendable(type(value).__name__, path)


def rebuild(described: Any) -> Any:
    """Returns the value of what `describe` returned.

    Raises:
      ValueError: it has not returned that.
    """
    try:
        return _rebuild(described)
    except (TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _describe_array(value: np.ndarray | np.generic, path: str) -> Any:
    import numpy as np

    form, array = "scalar" if isinstance(value, np.generic) else "array", np.asarray(value)
    if array.dtype.kind in "OSU":  # text has no fixed size
        return [form, array.dtype.str, list(array.shape), *(describe(v, path) for v in array.ravel().tolist())]
    name = array.dtype.name
    try:
        if np.dtype(name) != array.dtype:
            raise _unsendable(f"array of {array.dtype}", path)
    except TypeError as error:
        raise _unsendable(f"array of {array.dtype}", path) from error
    return [form, name, list(array.shape), _text(array.tobytes())]


def _unsendable(what: str, path: str) -> UnsendableError:
    return UnsendableError(
        f"{path + ': ' if path else ''}a value of class {what} cannot be sent to the other workers, nor written to a "
        "file; use tensors, arrays, numbers and text, in lists, tuples and dicts"
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _rebuild(described: Any) -> Any:
    if not isinstance(described, list):
        return described
    form, *parts = described
    if form in ("array", "scalar"):
        array = _rebuild_array(parts[0], parts[1], parts[2:])
        return array[()] if form == "scalar" else array
    if form == "dict":
        return {_rebuild(key): _rebuild(value) for key, value in parts}
    return _FORMS[form]([_rebuild(part) for part in parts])


_FORMS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "bytes": lambda parts: _bytes(parts[0]),
    "float": lambda parts: float(parts[0]),
    "tensor": lambda parts: tf.constant(parts[0]),
    "sparse": lambda parts: tf.SparseTensor(*parts),
    "ragged": lambda parts: tf.RaggedTensor.from_nested_row_splits(parts[0], parts[1:]),
}


def _rebuild_array(name: str, shape: list[int], items: list[Any]) -> np.ndarray:
    import numpy as np

    try:
        dtype = np.dtype(name)
    except TypeError:  # one of TensorFlow's that is not NumPy's own, such as bfloat16
        dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    if dtype.kind in "OSU":
        if dtype.itemsize * len(items) > _MAX_TEXT_BYTES:
            raise ValueError(f"an array of text has more than {_MAX_TEXT_BYTES} bytes")
        array = np.empty(len(items), dtype)
        array[:] = [_rebuild(item) for item in items]
        return array.reshape(shape)
    return np.frombuffer(bytearray(_bytes(items[0])), dtype).reshape(shape)
