"""How often TensorFlow traced the functions of a run, for which batches, and how long that took.

Owns: `Trace`, the count, and the error when there are too many. Does not own: the functions (`windows.py`,
`evaluation.py`), or where traces are reported (`loop.py`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert, engine_function

Kind = Literal["train", "eval"]

_SHOWN = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One time that TensorFlow ran a function in Python to make a graph of it.

    Attributes:
      kind: `train` or `eval`.
      number: how many of this kind there were in this process, this one included.
      signature: shapes and dtypes of a batch.
      seconds: how long it took in Python; the time that XLA then takes to compile is not included.
    """

    kind: Kind
    number: int
    signature: str
    seconds: float


class RetraceError(UserError, ValueError):
    """A function was traced too often, because batches keep having new shapes."""

    exit_code = ExitCode.DATA


class Traces:
    """Records each trace of the functions that it watches. What runs eagerly is not traced, and not counted."""

    def __init__(self, max_traces: int) -> None:
        """Takes the most traces of one kind that are allowed."""
        self._max_traces = max_traces
        self._traces: list[Trace] = []
        self._num_taken = 0

    def watched(self, kind: Kind, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, to be passed to `tf.function`.

        Args:
          kind: of its traces.
          function: its first argument is a batch, or an iterator; a user's method, or an `engine_function`.
        """

        def watched(inputs: Any, *others: Any) -> Any:
            with self.tracing(kind, inputs):
                return convert(function)(inputs, *others)

        watched.__name__ = getattr(function, "__name__", "watched")
        return engine_function(watched)

    @contextlib.contextmanager
    def tracing(self, kind: Kind, inputs: Any) -> Iterator[None]:
        """For the body of a function that TensorFlow traces for `inputs`: a batch, or an iterator."""
        began = time.monotonic()
        yield
        if not tf.executing_eagerly():  # as `runtime.run_eagerly`, or a debugger, has every function run
            seconds, number = time.monotonic() - began, self.count(kind) + 1
            self._traces.append(Trace(kind=kind, number=number, signature=signature_of(inputs), seconds=seconds))

    def count(self, kind: Kind) -> int:
        """Returns the number of traces of a kind."""
        return sum(trace.kind == kind for trace in self._traces)

    def seconds(self, kind: Kind) -> float:
        """Returns how long all traces of a kind took in Python."""
        return sum(trace.seconds for trace in self._traces if trace.kind == kind)

    def take(self) -> list[Trace]:
        """Returns the traces since the last call."""
        new = self._traces[self._num_taken :]
        self._num_taken = len(self._traces)
        return new

    def check(self, kind: Kind, *, functions: int = 1) -> None:
        """Refuses to continue after more than `max_traces` traces for each of `functions` functions.

        Raises:
          RetraceError: lists the batches of these traces.
        """
        if self.count(kind) <= self._max_traces * functions:
            return
        seen = collections.Counter(trace.signature for trace in self._traces if trace.kind == kind)
        shown = [f"\n  {text}" + (f" ({times} times)" if times > 1 else "") for text, times in seen.most_common(_SHOWN)]
        more = f"\n  and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else ""
        what, data = _WHAT[kind]
        raise RetraceError(
            f"{what} was traced {self.count(kind)} times, more often than trainer.max_traces={self._max_traces}"
            f"{f' for each of {functions} validation sets' if functions > 1 else ''}. "
            "TensorFlow makes a new graph for batches of a new shape, which takes as long as many steps. The batches:"
            f"{''.join(shown)}{more}\n"
            f"Give the batches of task.{data} few shapes: pad them or bucket them by length, and use drop_remainder; "
            "or leave the size that varies open in the dataset's element_spec. If no other shapes will come, raise "
            "trainer.max_traces."
        )


_WHAT = {"train": ("the training step", "train_data"), "eval": ("the evaluation step", "validation_data")}


def batch_of_block(blocks: Any) -> Any:
    """Returns the spec of a batch in a block `[steps, batch, …]`, or in those that an iterator yields."""
    blocks = getattr(blocks, "element_spec", blocks)
    return tf.nest.map_structure(lambda part: tf.TensorSpec(tf.TensorShape(part.shape)[1:], part.dtype), blocks)


def batch_signature(inputs: Any) -> str:
    """Returns the signature of batches: `features float32[8,4], labels int64[8]`, or whatever a batch is."""
    inputs = getattr(inputs, "element_spec", inputs)
    replicas = [len(part) for spec in tf.nest.flatten(inputs) if (part := getattr(spec, "_value_specs", ()))]
    if replicas:
        of_one = tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], inputs)
        return f"{batch_signature(of_one)}, on each of {replicas[0]} replicas"
    if isinstance(inputs, tuple) and len(inputs) == 2:
        return f"features {signature_of(inputs[0])}, labels {signature_of(inputs[1])}"
    return signature_of(inputs)


def signature_of(inputs: Any) -> str:
    """Returns shapes and dtypes of batches, or of what an iterator yields, as text: `(float32[?,28,28], int32[?])`."""
    if hasattr(inputs, "element_spec"):
        return signature_of(inputs.element_spec)
    if isinstance(inputs, Mapping):
        return f"{{{', '.join(f'{name}: {signature_of(value)}' for name, value in inputs.items())}}}"
    if isinstance(inputs, tuple | list):
        return f"({', '.join(map(signature_of, inputs))})"
    of_replicas = getattr(
        inputs, "values" if isinstance(inputs, tf.distribute.DistributedValues) else "_value_specs", None
    )
    if of_replicas:
        distinct = list(dict.fromkeys(map(signature_of, of_replicas)))
        return f"{len(of_replicas)} replicas of {' or '.join(distinct)}"
    if not hasattr(inputs, "shape") or not hasattr(inputs, "dtype"):
        return type(inputs).__name__
    shape = tf.TensorShape(inputs.shape)
    sizes = "..." if shape.rank is None else ",".join("?" if size is None else str(size) for size in shape)
    return f"{tf.as_dtype(inputs.dtype).name}[{sizes}]"
