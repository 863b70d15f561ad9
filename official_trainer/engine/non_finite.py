"""Values that are not finite: in which feature and row of a batch they are, or where in a step the first one arises.

Owns: these sentences, and the report on a step: its batch and statistics of every tensor, in the files
`non_finite/step-N/{report.json, batch.npz}` of a run directory. Does not own: noticing the failure (`loop.py`), what
follows from it (`recovery.py`).
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from official_trainer import files, user_code
from official_trainer.config.errors import line_of_code
from official_trainer.inputs.context import leaves
from official_trainer.lazy import tf
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.returned import model_of
from official_trainer.tracking.jsonl import encode

Result = TypeVar("Result")

MAX_REPLAYED = 50
"""So many batches are run again, one operation after the other, to find where a loss becomes what it is."""

_logger = logging.getLogger(__name__)

_MOST_TENSORS = 3
_KINDS: Mapping[str, Callable[[Any], Any]] = {"nan": np.isnan, "inf": np.isposinf, "-inf": np.isneginf}
_KEYS = re.compile(r"\['([^']*)'\]")
_IN_LAYER = re.compile(r"received by layer '([^']+)'")
_FOUND = re.compile(r'executing op "(\w+)".*Tensor had (.+?) values', re.DOTALL)

ExampleAt = Callable[[int], int | None]
"""Returns which example is in a row of a batch, if that is known."""


def in_batch(
    parts: Sequence[Any], example_at: ExampleAt = lambda row: None, *, allowed: Collection[str] = ()
) -> list[str]:
    """Returns a line for each tensor of a batch that holds a value that is not finite: its path, and the rows.

    Args:
      parts: the batch of each replica, in order.
      example_at: of the rows of the whole batch.
      allowed: names of tensors that are left out: `age` for `features['age']`, or `labels`.
    """
    found, first = [], 0
    for number, part in enumerate(parts):
        for path, value in _named(part):
            array = None if {path, *_KEYS.findall(path)} & {*allowed} else _floating(value)
            if array is not None and not np.isfinite(array).all():
                replica = f", on replica {number}" if len(parts) > 1 else ""
                found.append(_sentence(path, value, array, first, example_at) + replica)
        first += _rows(part)
    more = [f"and {len(found) - _MOST_TENSORS} more tensors"] if len(found) > _MOST_TENSORS else []
    return found[:_MOST_TENSORS] + more


def _sentence(path: str, value: Any, array: np.ndarray, first: int, example_at: ExampleAt) -> str:
    bad = ~np.isfinite(array)
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    count, kinds = int(bad.sum()), [name for name, is_kind in _KINDS.items() if is_kind(array).any()]
    shape = ",".join("?" if size is None else str(size) for size in value.shape)
    text = f"{path} {value.dtype.name}[{shape}]: {count} value{' is' if count == 1 else 's are'} {' or '.join(kinds)}"
    columns = set(np.nonzero(bad)[-1]) if bad.ndim > 1 and bad.shape[-1] > 1 else set[int]()
    text += f" in column {min(columns)}" if len(columns) == 1 else ""
    if len(rows) == len(bad) > 1:
        return f"{text}, in all {len(rows)} rows"
    examples = [example_at(first + int(row)) for row in rows[:3]]
    of = "" if None in examples else f": example{'s' if len(rows) > 1 else ''} {first_few(list(map(str, examples)))}"
    return f"{text}, in row{'s' if len(rows) > 1 else ''} {first_few([str(first + row) for row in rows])}{of}"


def _rows(part: Any) -> int:
    """Returns how many examples a replica has of a batch."""
    return max((int(value.shape[0] or 0) for _, value in _named(part)), default=0)


def _changing_nothing(function: Callable[..., Result]) -> Callable[..., Result]:
    """Has the state of a trainer as it was after `function(trainer, …)`, whose steps may change more than weights."""

    @functools.wraps(function)
    def call(trainer: Any, *arguments: Any) -> Result:
        with trainer.checkpoint_state.preserved():
            return function(trainer, *arguments)

    return call


@_changing_nothing
def first_bad_batch(trainer: Any, good_step: int, failed_step: int) -> int | None:
    """Returns the first step after `good_step`, up to `failed_step`, whose loss a value of its batch makes not finite.

    Of the first `MAX_REPLAYED` that have such a value; a model may mask it.
    """
    batches, num_tried, model = trainer.train_iterator.batches(good_step), 0, None
    for step, batch in zip(range(good_step + 1, failed_step + 1), batches, strict=False):
        parts = trainer.strategy.experimental_local_results(batch)
        if in_batch(parts) and num_tried < MAX_REPLAYED:
            model, num_tried = model or _finite_model(trainer), num_tried + 1
            step_on = None if model is None else functools.partial(_step_of, trainer, model=model)
            if any(_is_to_blame(part, step_on) for part in parts):
                return step
    return None


def _is_to_blame(part: Any, step_on: Callable[[Any], Callable[[], Any]] | None) -> bool:
    """Whether numbers of a step on a replica's batch are not finite, and are with 0 for each value that is not.

    Where no step can be tried, because there is no model with finite weights, such a value is to blame.
    """
    finite = _finite(part)
    if finite is part or step_on is None:
        return finite is not part
    return not _gives_finite(step_on(part)) and _gives_finite(step_on(finite))


def _finite(part: Any) -> Any:
    """Returns a replica's batch with 0 for each value that is not finite; the same object if there is none."""

    def of(value: tf.Tensor) -> tf.Tensor:
        has_others = value.dtype.is_floating or value.dtype.is_complex
        return tf.where(tf.math.is_finite(tf.abs(value)), value, tf.zeros_like(value)) if has_others else value

    return tf.nest.map_structure(of, part, expand_composites=True) if in_batch([part]) else part


def _finite_model(trainer: Any) -> Any:
    """Returns the model of a run, or a new one if its weights are not finite any more; None if there is none."""
    return _new_model(trainer) if trainer.checkpoint_state.non_finite_weights() else trainer.model


def _new_model(trainer: Any) -> Any:
    """Returns a model with first weights; None with other processes, or if the task cannot make two."""
    if not trainer.process_group.is_alone:
        return None
    try:
        with trainer.strategy.scope():
            model = model_of(trainer.task)
        trainer.task.initialize(model)
    except Exception:  # a task's methods may raise anything
        return None
    return model


@_changing_nothing
def origin(trainer: Any, step: int, model: Any = None) -> list[str]:
    """Runs the batch of a step again, and returns lines on where the first value that is not finite arises.

    Those of the batch itself, with the method that yields it; else of the first operation. Nothing changes.

    Args:
      trainer: of the run.
      step: whose batch it is.
      model: to run it on; None for the trainer's, in the state before the step.
    """
    iterator = trainer.train_iterator
    number = iterator.position.start_step(step - 1)
    batches = iterator.batches(step - 2 if number > 0 else step - 1)
    local = trainer.strategy.experimental_local_results
    before = local(next(batches, None)) if number > 0 else ()
    batch = next(batches, None)
    parts = () if batch is None else local(batch)
    model = _finite_model(trainer) if model is None else model
    step_on = functools.partial(_step_of, trainer, model=model or trainer.model)
    if any(_is_to_blame(part, None if model is None else step_on) for part in parts):
        if iterator.dataset is not None:  # the caller's
            return in_batch(parts)
        first = number * getattr(iterator.builder.params, "global_batch_size", 0)
        lines = in_batch(parts, iterator.builder.example_from(first))
        return [*lines, *_yields(iterator.builder.source, trainer.task)]
    search = _Search(trainer.task)
    for part in (*before[:1], *parts):
        lines = search(step_on(_finite(part)))
        if lines and not any(part is each for each in before):
            return lines
    return []


def origin_in_new_model(trainer: Any, good_step: int, failed_step: int) -> list[str]:
    """Returns what `origin` does for the first of several steps that fails with the weights of a new model.

    For a run that cannot go back, because it has no checkpoint: its weights are not finite any more.
    """
    if (model := _new_model(trainer)) is None:
        return []
    for step in range(good_step + 1, min(failed_step, good_step + MAX_REPLAYED) + 1):
        if lines := origin(trainer, step, model):
            return [f"with the first weights of a model, the batch of step {step} does it:", *lines]
    return []


def warn_of_evaluation(context: Any, each: Any, num_examples: int) -> None:
    """Warns of an evaluation whose loss is not finite, once for each set, with the feature or operation behind it.

    Args:
      context: the `StepContext`.
      each: the `ValidationSet`.
      num_examples: how many of its examples were evaluated.
    """
    loss = float(each.loss.result()) if each.loss.count.numpy() > 0 else 0.0
    if math.isfinite(loss) or each.is_explained:
        return
    each.is_explained = True
    can_read = context.options.explains_loss and context.process_group.is_alone and context.workers is None
    lines = _in_evaluation(context.strategy, each, num_examples) if can_read else []
    _logger.warning("%s", "\n  ".join([f"{each.phase(context.step)}: {each.loss.name} is {loss}", *lines]))


def _in_evaluation(strategy: tf.distribute.Strategy, each: Any, num_examples: int) -> list[str]:
    """Reads a validation set again, and returns lines on the first value that is not finite, as `origin` does."""
    read, search, num_tried = 0, _Search(each.task), 0

    def step_on(part: Any) -> Callable[[], Any]:
        return functools.partial(each.task.validation_step, part, model=each.model, metrics=[])

    for number, batch in enumerate(tf.nest.map_structure(iter, each.dataset)):
        parts = strategy.experimental_local_results(batch)
        lines = in_batch(parts, each.builder.example_from(read))
        num_tried += bool(lines)
        is_to_blame = num_tried <= MAX_REPLAYED and any(_is_to_blame(part, step_on) for part in parts)
        lines = [*lines, *_yields(each.builder.source, each.task)] if is_to_blame else []
        for part in parts if number < MAX_REPLAYED and not lines else ():
            lines = lines or search(step_on(_finite(part)))
        if lines:
            return [f"in batch {number + 1}:", *lines]
        read += sum(_rows(part) for part in parts)
        if read >= num_examples:
            break
    return []


def first_operation(task: Any, run: Callable[[], Any]) -> list[str]:
    """Returns lines on the first operation of a step whose result is not finite: what it belongs to, and the line.

    Args:
      task: whose step it is.
      run: runs the step, eagerly.
    """
    error = _outcome(run, checks_numbers=True)
    return _lines_on(error, task) if isinstance(error, tf.errors.InvalidArgumentError) else []


def _outcome(run: Callable[[], Any], *, checks_numbers: bool = False) -> Any:
    """Runs a step eagerly; returns what it returns, or its error.

    `checks_numbers` is whether the first operation whose result is not finite is an error.
    """
    was_eager = tf.config.functions_run_eagerly()
    if checks_numbers:  # a function that was traced before has no checks, one traced now keeps them
        tf.config.run_functions_eagerly(True)
        tf.debugging.enable_check_numerics()
    try:
        return run()
    except Exception as error:  # a task's step may raise anything
        return error
    finally:
        if checks_numbers:
            tf.debugging.disable_check_numerics()
            tf.config.run_functions_eagerly(was_eager)


def _gives_finite(run: Callable[[], Any]) -> bool:
    """Whether a step ends without an error, and all numbers that it returns are finite."""
    found = _outcome(run)
    arrays = [_floating(value) for _, value in _leaves(found) if hasattr(value, "dtype")]
    return not isinstance(found, Exception) and all(np.isfinite(array).all() for array in arrays if array is not None)


class _Search:
    """Looks for the first operation in the steps on several batches, in those alone whose numbers are not finite.

    What an operation gives in a step whose numbers are finite, such as the -inf of a mask, is not the cause.
    """

    def __init__(self, task: Any) -> None:
        """Takes the task whose steps they are."""
        self._task = task
        self._in_finite: list[str] | None = None

    def __call__(self, run: Callable[[], Any]) -> list[str]:
        """Returns lines on the first operation of a step; none if the numbers of the step are finite."""
        if _gives_finite(run):
            if self._in_finite is None:
                self._in_finite = first_operation(self._task, run)
            return []
        lines = first_operation(self._task, run)
        if not lines or lines != self._in_finite:
            return lines
        said = f"{lines[0].partition(': ')[2]}, where the loss is finite, too"
        return [f"{said}: this hides the cause; a large number in its place, such as -1e4, would show it", *lines[1:]]


def _lines_on(error: Exception, task: Any) -> list[str]:
    found = _FOUND.search(str(error))
    if found is None:
        return []
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename.endswith("backprop.py") for frame in frames):
        what = "the loss is finite, its gradient is not"
    elif layer := _IN_LAYER.search(str(error)):  # Keras leaves its own frames out
        if found[1] == "ReadVariableOp":
            return [f"a variable of layer {layer[1]!r} is {found[2].lower()} before the step"]
        what = f"the batch is finite, the outputs of the model are not, from layer {layer[1]!r} on"
    else:
        what = "the outputs of the model are finite, the loss is not"
    what = f"{what}: {found[1]} gives {found[2].lower()}"
    own = [frame for frame in frames if user_code.is_users(frame.filename, type(task).__module__)]
    if not own:
        return [what]
    last = own[-1]
    return [f"{what}, at {line_of_code(last.filename, last.lineno or 1).brief} in {last.name}", f"  {last.line}"]


def _yields(source: str, task: Any) -> list[str]:
    """Returns `source yields them, at experiments/x.py:12`, without a line that is unknown; empty for data of `fit`."""
    code = getattr(inspect.unwrap(type(task).build_inputs), "__code__", None)
    if code is None:
        return [f"{source} yields them"]
    is_ours = user_code.is_ours(code.co_filename)
    return [] if is_ours else [f"{source} yields them, at {user_code.line_of_code(code)}"]


def _step_of(trainer: Any, part: Any, model: Any, recorder: _Recorder | None = None) -> Callable[[], Any]:
    """Returns a function that runs the task's step on a replica's batch without an update, as with one replica."""
    recorder = recorder or _Recorder(trainer.optimizer)
    return lambda: (trainer.task.train_step(part, model=model, optimizer=recorder, metrics=[]), recorder.gradients)


def write_report(model_dir: str, trainer: Any, step: int, *, is_culprit: bool) -> str:
    """Writes a report and returns the directory it is in.

    Args:
      model_dir: the run directory.
      trainer: the trainer of the run.
      step: the step that failed, or at which the failure was found.
      is_culprit: whether it is known that the batch of this step fails. Then the batch is saved, and, if the trainer is
        in the state just before it, run once more to get its gradients, without an update.
    """
    directory = files.join(model_dir, "non_finite", f"step-{step}")
    files.make_dirs(directory)
    weights = {variable.name: variable for variable in kerases.of(trainer.model).variables(trainer.model)}
    report: dict[str, Any] = {"step": step, "weights": _describe(weights)}
    if is_culprit:
        parts = trainer.strategy.experimental_local_results(next(trainer.train_iterator.batches(step - 1)))
        tensors = {f"replica_{i}/{name}": value for i, part in enumerate(parts) for name, value in _leaves(part)}
        arrays: dict[str, Any] = {name.replace("/", "."): _as_array(value) for name, value in tensors.items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        files.write_bytes_atomically(files.join(directory, "batch.npz"), buffer.getvalue(), durable=False)
        report["batch"] = _describe(tensors)
        if int(trainer.global_step.numpy()) == step - 1:
            part, recorder = next((part for part in parts if in_batch([part])), parts[0]), _Recorder(trainer.optimizer)
            found = _outcome(_step_of(trainer, part, trainer.model, recorder))
            if isinstance(found, Exception):
                report["not_run_again"] = f"{type(found).__name__}: {found}"
            else:
                report |= {"logs": _describe(dict(_leaves(found[0]))), "gradients": _describe(recorder.gradients)}
    files.write_text_atomically(files.join(directory, "report.json"), json.dumps(report, indent=1) + "\n")
    return directory


class _Recorder:
    """Replaces the optimizer in a step that must change nothing: keeps the gradients that the step passes to it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.gradients: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> None:
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                self.gradients[variable.name] = tf.convert_to_tensor(gradient)


def _leaves(structure: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested tensors with a path each: `0/image`."""
    if isinstance(structure, Mapping):
        items: Any = structure.items()
    elif isinstance(structure, tuple | list):
        items = enumerate(structure)
    else:
        yield prefix or "value", structure
        return
    for name, value in items:
        yield from _leaves(value, f"{prefix}/{name}" if prefix else str(name))


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "to_tensor"):  # ragged
        value = value.to_tensor()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    tensor = tf.convert_to_tensor(value)
    # NumPy has no such type, and takes its values for bytes.
    return np.asarray(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor)


def _named(part: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a replica's batch, each with its path: `features['age']`."""
    is_pair = isinstance(part, tuple) and len(part) == 2
    for name, value in zip(("features", "labels"), part, strict=True) if is_pair else (("batch", part),):
        yield from ((path, leaf) for path, leaf in leaves(value, name) if hasattr(leaf, "dtype"))


def _floating(value: Any) -> np.ndarray | None:
    """Returns the values of a tensor whose type has some that are not finite; None for any other tensor."""
    if value.dtype.is_complex:
        return np.abs(_as_array(value))
    return _as_array(value) if value.dtype.is_floating else None


def _describe(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns shape, dtype, how many values are not finite, and the range of those that are, for each tensor."""
    described: dict[str, dict[str, Any]] = {}
    for name, value in tensors.items():
        array = _as_array(value)
        described[name] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
            continue
        array = array.astype(np.float64)
        finite = array[np.isfinite(array)]
        described[name]["not_finite"] = int(array.size - finite.size)
        if finite.size:
            described[name] |= {"min": encode(float(finite.min())), "max": encode(float(finite.max()))}
            described[name]["mean_absolute"] = encode(float(np.abs(finite).mean()))
    return described
