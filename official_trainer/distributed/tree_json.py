"""How a tree of values becomes JSON, for a message between the processes of a run or a file, and comes back.

Owns: which values can be sent and written, and their form. Does not own: sending (`multi_worker.py`), files and what a
tree is (`trees.py`).

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

_FORMAT = "official-trainer tree, version 1"
_MAX_TEXT_BYTES = 1 << 30
"""Of an array of text. Its dtype gives each text the same length, so few characters could ask for any memory."""


class UnsendableError(UserError, TypeError):
    """A value cannot be sent to the other processes of a run, nor written to a file."""


class TreeError(UserError, ValueError):
    """A text, a file or a message holds no tree, or the processes of a run hold different ones."""

    exit_code = ExitCode.CONFIG


def to_json(tree: Any) -> str:
    """Returns a tree as strict JSON, from which `from_json` makes the same: every bit, class, dtype and shape.

    What is not finite (NaN, infinities), 64-bit integers, bfloat16, bytes and text are no exceptions. A variable is
    written as the array it holds, a mapping of any class as a dict, a named tuple as a tuple.

    Args:
      tree: of variables, tensors, arrays, numbers, text, bytes and None.

    Raises:
      UnsendableError: names a value of another class.
      TreeError: the tree contains itself.

    Example:
      >>> import numpy as np
      >>> from official_trainer import trees
      >>> trees.from_json(trees.to_json({"mean": np.array([0.5, np.nan]), "best": (3, None)}))
      {'mean': array([0.5, nan]), 'best': (3, None)}
    """
    try:
        content = {"format": _FORMAT, "tree": _describe(tree)}
        return json.dumps(content, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise TreeError("the tree is nested too deeply, or contains itself") from None


def from_json(text: str | bytes) -> Any:
    """Returns the tree of a text that `to_json` has made; it makes values only, whatever the text holds.

    Values are equal in class, dtype and every bit; arrays can be written to.

    Raises:
      TreeError: the text is none of those.

    Example:
      >>> from official_trainer import trees
      >>> trees.from_json(trees.to_json([float("inf"), (2**62, None), b"bytes"]))
      [inf, (4611686018427387904, None), b'bytes']
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'it is no JSON object with "format": "{_FORMAT}"')
        return _rebuild(content["tree"])
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise TreeError(f"the text is no tree that trees.to_json has made: {error}") from error


def without_variable(value: Any) -> Any:
    """Returns the array that a variable holds; any other value as it is."""
    return value.numpy() if hasattr(value, "assign") and hasattr(value, "numpy") else value


def _describe(value: Any, path: str = "") -> Any:
    """Returns what strict JSON has of a value: the value as it is, or a list of the name of a form and its parts.

    Args:
      value: as for `to_json`.
      path: of the value inside of another, for the text of errors.
    """
    import numpy as np

    value = without_variable(value)
    if isinstance(value, np.ndarray | np.generic):
        return _describe_array(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(float(value))]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return ["bytes", _text(value)]
    if isinstance(value, Mapping):
        return ["dict", *([_describe(k, path), _describe(v, f"{path}[{k!r}]")] for k, v in value.items())]
    if isinstance(value, tuple | list):
        form = "tuple" if isinstance(value, tuple) else "list"
        return [form, *(_describe(part, path) for part in value)]
    if isinstance(value, tf.RaggedTensor):
        return ["ragged", *(_describe(part, path) for part in (value.flat_values, *value.nested_row_splits))]
    if isinstance(value, tf.SparseTensor):
        return ["sparse", *(_describe(part, path) for part in (value.indices, value.values, value.dense_shape))]
    if isinstance(value, tf.Tensor):
        return ["tensor", _describe(value.numpy(), path)]
    raise _unsendable(type(value).__name__, path)


def _describe_array(value: np.ndarray | np.generic, path: str) -> Any:
    import numpy as np

    form, array = "scalar" if isinstance(value, np.generic) else "array", np.asarray(value)
    if array.dtype.kind in "OSU":  # text has no fixed size
        return [form, array.dtype.str, list(array.shape), *(_describe(v, path) for v in array.ravel().tolist())]
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
    form, *items = described
    if form in ("array", "scalar"):
        array = _rebuild_array(items[0], items[1], items[2:])
        return array[()] if form == "scalar" else array
    if form == "dict":
        return {_rebuild(key): _rebuild(value) for key, value in items}
    return _FORMS[form]([_rebuild(item) for item in items])


_FORMS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "bytes": lambda items: _bytes(items[0]),
    "float": lambda items: float(items[0]),
    "tensor": lambda items: tf.constant(items[0]),
    "sparse": lambda items: tf.SparseTensor(*items),
    "ragged": lambda items: tf.RaggedTensor.from_nested_row_splits(items[0], items[1:]),
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
