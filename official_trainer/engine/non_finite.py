"""Values that are not finite: in which feature and row of a batch they are; and the batch of a step whose loss is not.

Owns: these sentences, and the file `non_finite/step-N/batch.npz` of a run directory. Does not own: which step it is
(`train_steps.py` counts it), noticing the failure (`loop.py`), what follows from it (`recovery.py`).
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer import files, user_code
from official_trainer.inputs.context import leaves
from official_trainer.lazy import tf
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases

_ADVICE = (
    "either updates are too large (lower the learning rate, for which official-trainer find-lr suggests a value, or "
    "clip the gradients), or the loss is not finite for some outputs: tf.debugging.enable_check_numerics() in the "
    "experiment's module, with runtime.run_eagerly=true, names the operation"
)
"""What to do about a loss that is not finite where the batch is."""

_MAX_TENSORS, _MAX_RATES = 3, 100
_SORTS: Mapping[str, Callable[[Any], Any]] = {"nan": np.isnan, "inf": np.isposinf, "-inf": np.isneginf}
_KEYS = re.compile(r"\['([^']*)'\]")

ExampleAt = Callable[[int], int | None]
"""Returns which example is in a row of a batch, if that is known."""


def in_batch(
    replica_batches: Sequence[Any], example_at: ExampleAt = lambda row: None, *, allowed: Collection[str] = ()
) -> list[str]:
    """Returns a line for each tensor of a batch that holds a value that is not finite: its path, and the rows.

    Args:
      replica_batches: the batch of each replica, in order.
      example_at: of the rows of the whole batch.
      allowed: names of tensors that are left out: `age` for `features['age']`, or `labels`.
    """
    lines, first_row = [], 0
    for replica, batch in enumerate(replica_batches):
        tensors = dict(_named(batch))
        for path, value in tensors.items():
            array = None if {path, *_KEYS.findall(path)} & {*allowed} else _floating(value)
            if array is not None and not np.isfinite(array).all():
                on_replica = f", on replica {replica}" if len(replica_batches) > 1 else ""
                lines.append(_sentence(path, value, array, first_row, example_at) + on_replica)
        first_row += max((int(value.shape[0] or 0) for value in tensors.values()), default=0)
    more = [f"and {len(lines) - _MAX_TENSORS} more tensors"] if len(lines) > _MAX_TENSORS else []
    return lines[:_MAX_TENSORS] + more


def _sentence(path: str, value: Any, array: np.ndarray, first_row: int, example_at: ExampleAt) -> str:
    bad = ~np.isfinite(array)
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    count, sorts = int(bad.sum()), [name for name, is_sort in _SORTS.items() if is_sort(array).any()]
    shape = ",".join("?" if size is None else str(size) for size in value.shape)
    text = f"{path} {value.dtype.name}[{shape}]: {count} value{' is' if count == 1 else 's are'} {' or '.join(sorts)}"
    columns = set(np.nonzero(bad)[-1]) if bad.ndim > 1 and bad.shape[-1] > 1 else set[int]()
    text += f" in column {min(columns)}" if len(columns) == 1 else ""
    if len(rows) == len(bad) > 1:
        return f"{text}, in all {len(rows)} rows"
    examples = [example_at(first_row + int(row)) for row in rows[:3]]
    of = "" if None in examples else f": example{'s' if len(rows) > 1 else ''} {first_few(list(map(str, examples)))}"
    return f"{text}, in row{'s' if len(rows) > 1 else ''} {first_few([str(first_row + row) for row in rows])}{of}"


def batch_of_step(trainer: Any, step: int) -> Sequence[Any]:
    """Returns the batch of each replica of this process that a step trained on; none where it cannot be read again.

    A tf.data service does not deliver it twice, and with workers no step of this process has it.
    """
    if trainer.context.workers is not None:
        return ()
    batch = next(trainer.train_iterator.batches(step - 1), None)
    return () if batch is None else trainer.strategy.experimental_local_results(batch)


def explain(trainer: Any, step: int, replica_batches: Sequence[Any]) -> list[str]:
    """Returns lines on the batch of a step: its values that are not finite, and what yields them; else advice."""
    iterator = trainer.train_iterator
    if iterator.dataset is not None:  # the caller's
        return in_batch(replica_batches) or [advice(trainer, step - 2, step - 1)]
    first = iterator.position.start_step(step - 1) * getattr(iterator.builder.params, "global_batch_size", 0)
    lines = in_batch(replica_batches, iterator.builder.example_from(first))
    return [*lines, *_yields(iterator.builder.source, trainer.task)] if lines else [advice(trainer, step - 2, step - 1)]


def advice(trainer: Any, since: int, until: int) -> str:
    """Returns that a learning rate was not finite, or else what may be done where the batch is.

    Args:
      trainer: its optimizer is asked for the rates, if it has one.
      since: the step before the first update that may be the cause.
      until: the last such update; at most the last hundred are looked at.
    """
    optimizer = trainer.optimizer
    rate: Any = None if optimizer is None else kerases.of(optimizer).rate(optimizer)
    for step in range(max(0, since, until - _MAX_RATES), until) if callable(rate) else ():
        if not np.isfinite(value := float(rate(tf.constant(step, tf.int64)))):
            return f"the learning rate of step {step + 1} is {value:g}, and the weights with it: correct its schedule"
    return _ADVICE


def _yields(source: str, task: Any) -> list[str]:
    """Returns `source yields them, at experiments/x.py:12`, without a line that is unknown; empty for data of `fit`."""
    code = getattr(inspect.unwrap(type(task).build_inputs), "__code__", None)
    if code is None:
        return [f"{source} yields them"]
    is_ours = user_code.is_ours(code.co_filename)
    return [] if is_ours else [f"{source} yields them, at {user_code.line_of_code(code)}"]


def dump(model_dir: str, step: int, replica_batches: Sequence[Any]) -> str:
    """Writes the batch of a step and returns the directory it is in.

    Args:
      model_dir: the run directory.
      step: the step whose loss is not finite.
      replica_batches: its batch on each replica.
    """
    directory = files.join(model_dir, "non_finite", f"step-{step}")
    files.make_dirs(directory)
    named = [(replica, *item) for replica, batch in enumerate(replica_batches) for item in _named(batch)]
    arrays: dict[str, Any] = {
        f"replica_{replica}.{path}".replace("/", "."): _as_array(value) for replica, path, value in named
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    files.write_bytes_atomically(files.join(directory, "batch.npz"), buffer.getvalue(), durable=False)
    return directory


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "to_tensor"):  # ragged
        value = value.to_tensor()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    tensor = tf.convert_to_tensor(value)
    # NumPy has no such type, and takes its values for bytes.
    return np.asarray(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor)


def _named(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a replica's batch, each with its path: `features['age']`."""
    is_pair = isinstance(batch, tuple) and len(batch) == 2
    for name, value in zip(("features", "labels"), batch, strict=True) if is_pair else (("batch", batch),):
        yield from ((path, leaf) for path, leaf in leaves(value, name) if hasattr(leaf, "dtype"))


def _floating(value: Any) -> np.ndarray | None:
    """Returns the values of a tensor whose type has some that are not finite; None for any other tensor."""
    if value.dtype.is_complex:
        return np.abs(_as_array(value))
    return _as_array(value) if value.dtype.is_floating else None
