"""The first weights of a fresh run: a Task's `initialize`, and what it has restored.

Owns: which checkpoint `init_checkpoint` names while `initialize` runs, the count of the variables that come from it,
and the refusal of a run to which it gives none. Does not own: finding the checkpoint
(`checkpoints/init_checkpoint.py`), or reading it: `initialize` does, by our default (`checkpoints/restore.py`) or as
Model Garden's tasks and a user's do.

TensorFlow does not tell which variables it has restored, and `expect_partial` accepts none at all. So values are
compared, before and after, by checksums, one variable at a time. A variable counts as restored if

- `initialize` has changed it, and the checkpoint holds its new value: under its path, or anywhere in its shape; or
- it has the value that the checkpoint holds under its path, and that is no constant such as the zeros of a bias; or
- that is a constant, and all variables of a part of the model that was restored, such as `backbone`, have such values;
- or, where no variable counts so, `initialize` has changed it, and most of its numbers are in the checkpoint: values
  were transposed, split, or put into a larger table.

In a file of another format, which only the Task can read, nothing can be looked up: then what `initialize` has changed
counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from official_trainer.checkpoints import init_checkpoint, manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.matching import Matching, Mismatch, saved_specs
from official_trainer.errors import UserError, text_of
from official_trainer.lazy import tf
from official_trainer.shown import shorten
from official_trainer.tasks import initial_weights
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.multi_task.task import parts_in, sub_model
from official_trainer.tasks.variables import flatten

_MOST_NAMES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What came from one checkpoint.

    Attributes:
      field: of the config, which names it.
      path: of the checkpoint, without suffix; or of what else the Task has read.
      restored: number of variables that came from it.
      variables: number of all variables.
    """

    field: str
    path: str
    restored: int
    variables: int

    def __str__(self) -> str:
        return f"{self.field}: {self.restored} of {self.variables} variables restored from {self.path}"


def initialize(task: Any, model: Any, strategy: tf.distribute.Strategy) -> tuple[Restored, ...]:
    """Calls a Task's `initialize`; returns what it has restored from each `init_checkpoint` that is set.

    Args:
      task: the Task; each of several tasks may have a checkpoint of its own.
      model: its model, which has its variables.
      strategy: that they were created under.

    Raises:
      CheckpointError: a checkpoint is not there, is damaged or does not fit, or no variable came from it.
    """
    named = [(init_checkpoint.FIELD, task, model)]
    for number, part in enumerate(parts_in(task)):
        field = f"task.task_routines[{number}].task_config.init_checkpoint"
        named.append((field, part.task, sub_model(model, part.name)))
    sources = [_Source(*each, strategy) for each in named if _path_of(each[1])]
    with contextlib.ExitStack() as stack:
        for source in sources:
            stack.enter_context(source.named())
        try:
            task.initialize(model)
            return tuple(source.result() for source in sources)
        except (AssertionError, ValueError, IndexError, tf.errors.OpError) as error:
            checkpoints = [source for source in sources if not source.is_file_of_keras]
            if isinstance(error, UserError) or (read := _source_read_by(error, checkpoints)) is None:
                raise
            raise CheckpointError(read.failed(error)) from error


def _path_of(task: Any) -> Any:
    return getattr(getattr(task, "task_config", None), "init_checkpoint", None) or ""


def _source_read_by(error: BaseException, sources: Sequence[_Source]) -> _Source | None:
    """Returns the source whose Task was reading a checkpoint when an error came; None if it came from elsewhere."""
    found, is_of_reading = next(iter(sources), None), False
    # Every error of restoring a checkpoint comes through the reader, or the package of `Checkpoint`.
    reading = tf.train.Checkpoint.__module__.rpartition(".")[0], tf.compat.v1.train.NewCheckpointReader.__module__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = next((each for each in sources if each.task is frame.f_locals.get("self")), found)
        is_of_reading |= frame.f_globals.get("__name__", "").startswith(reading)
    return found if is_of_reading else None


class _Source:
    """What one `init_checkpoint` names, and the variables that may come from it.

    Attributes:
      task: whose config names it.
      is_file_of_keras: whether Keras 3 reads it.
    """

    def __init__(self, field: str, task: Any, model: Any, strategy: tf.distribute.Strategy) -> None:
        """Finds the checkpoint, and notes the values of the variables."""
        self._field, self.task, self._model, self._strategy = field, task, model, strategy
        self._given = _path_of(task)
        self._path, self._problem = os.path.expanduser(str(self._given)), None
        self.is_file_of_keras = initial_weights.is_file_of_keras(model, self._path)
        if not self.is_file_of_keras:
            try:
                self._path = init_checkpoint.find(self._path, field)
            except CheckpointError as error:
                if not init_checkpoint.is_other_format(self._path):
                    raise
                self._problem = error  # the Task may read it in its own way
        held = [each for each in vars(task).values() if "Model" in kerases.kinds(each)]  # such as a teacher
        self._names: dict[Any, str] = {}
        for each in (*held, model):  # a name is that of the model, where it has the variable
            self._names |= {variable.ref(): name for name, variable in flatten(each).items()}
        self._before = self._checksums()

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """For a block in which the config names the checkpoint itself, if TensorFlow would find another, or none."""
        if self._given == self._path or tf.train.latest_checkpoint(self._given) == self._path:
            yield
            return
        # Not by methods of the config: Model Garden's is locked, and ours is frozen.
        values = vars(self.task.task_config)
        values["init_checkpoint"] = self._path
        try:
            yield
        finally:
            values["init_checkpoint"] = self._given

    def result(self) -> Restored:
        """Returns what was restored.

        Raises:
          CheckpointError: nothing was.
        """
        if restored := len(self._restored()):
            return Restored(field=self._field, path=self._path, restored=restored, variables=len(self._names))
        raise self._problem or CheckpointError(
            f"{self._field}: {self._path} restores none of the {len(self._names)} variables of the model: "
            f"{self._reader} took nothing from it. {_Saved(self._path, self._opened())}"
        )

    def failed(self, error: Exception) -> str:
        """Returns the message about an error of `initialize`, with what it did not restore."""
        if self._problem is not None:
            return str(self._problem)
        if (damage := manifest.damage_of_values(self._path)) is not None:
            return f"{self._field}: {self._path} is damaged: {damage}."
        restored = self._restored()
        wrong = {each.live.name: str(each) for each in _pairs(self._path, self._model)[2]}
        others = {name: each for each, name in self._names.items() if each not in restored}
        lacking = [wrong[name] for name in others if name in wrong]  # first, as they may be the cause
        for name, each in others.items():
            if name not in wrong:
                lacking.append(f"{name} {each.deref().dtype.name} {list(each.deref().shape)}")
        has_modules = hasattr(self.task.task_config, "init_checkpoint_modules")
        modules = f", or set {self._field}_modules to what this one holds" if has_modules else ""
        # What TensorFlow says, without its objects, of which it shows some with their values.
        reason = shorten(re.split(r"[\n\[<]|\. Showing ", text_of(error), maxsplit=1)[0].strip().rstrip(":."), 200)
        return "\n".join(
            [
                f"{self._field}: {self._path} does not fit what {self._reader} restores: {reason}.",
                f"{_Saved(self._path, self._opened())} "
                f"{len(restored)} of {len(self._names)} variables were restored. Not restored:",
                *(f"  {line}" for line in lacking[:_MOST_NAMES]),
                *([f"  and {len(lacking) - _MOST_NAMES} more"] if len(lacking) > _MOST_NAMES else []),
                f"Name a checkpoint that holds what it restores{modules}.",
            ]
        )

    @property
    def _reader(self) -> str:
        return f"{type(self.task).__name__.lstrip('_')}.initialize"

    def _restored(self) -> set[Any]:
        """Returns the variables that come from the checkpoint."""
        after, opened = self._checksums(), self._opened()
        changed = {each for each, checksum in after.items() if checksum != self._before[each]}
        if self._problem is not None:
            return changed
        saved, (parts, keys) = _Saved(self._path, opened), self._pairs(opened)
        keys = {each: key for each, key in keys.items() if each in after}
        equal = {each for each, key in keys.items() if after[each] == saved.checksum(key, each.deref().dtype)}
        found = {each for each in equal if each in changed or not _is_constant(self._value(each))}
        found |= {each for each in changed - equal if saved.holds(after[each], each.deref())}
        for part in parts:
            inside = part & keys.keys()
            if inside <= equal and inside & found:
                found |= inside
        return found or {each for each in changed if saved.has_most_of(self._value(each))}

    def _opened(self) -> initial_weights.Source | None:
        """Returns the values of a checkpoint that is restored by names; None for others."""
        names = getattr(self.task.task_config, "init_checkpoint_names", None)
        try:
            if initial_weights.is_by_name(self._model, names):
                return initial_weights.open_source(self._model, self._path, names)
        except CheckpointError as error:  # the Task has read it in its own way
            self._problem = CheckpointError(f"{self._field}: {error}") if self.is_file_of_keras else self._problem
        return None

    def _pairs(self, opened: initial_weights.Source | None) -> tuple[list[set[Any]], dict[Any, str]]:
        if opened is None:
            return _pairs(self._path, self._model)[:2]
        own = {each.ref(): id(each) for each in flatten(self._model).values()}
        return [{*own}], {each: opened.keys[number] for each, number in own.items() if number in opened.keys}

    def _checksums(self) -> dict[Any, int]:
        return {each: _checksum(self._value(each)) for each in self._names}

    def _value(self, reference: Any) -> np.ndarray:
        # Of this process's first replica: what only all replicas together know would have to be communicated.
        return np.asarray(self._strategy.experimental_local_results(reference.deref())[0].numpy())


class _Saved:
    """The values of a checkpoint, each read when it is first compared."""

    def __init__(self, path: str, opened: initial_weights.Source | None) -> None:
        self._read = tf.compat.v1.train.NewCheckpointReader(path).get_tensor if opened is None else opened.read
        self._specs = saved_specs(path) if opened is None else opened.specs
        self._checksums: dict[tuple[str, Any], int | None] = {}
        self._keys_of_shape: dict[Any, list[str]] = defaultdict(list)
        for key, spec in self._specs.items():
            if "/.OPTIMIZER_SLOT/" not in key:
                self._keys_of_shape[spec.shape].append(key)

    def checksum(self, key: str, dtype: tf.DType) -> int | None:
        """Returns the checksum of a value as a variable of `dtype` holds it; None if it cannot be read."""
        if (key, dtype) not in self._checksums:
            try:
                value = np.asarray(self._read(key)).astype(dtype.as_numpy_dtype, copy=False)
                self._checksums[key, dtype] = _checksum(value)
            except (tf.errors.OpError, ValueError, IndexError):
                self._checksums[key, dtype] = None
        return self._checksums[key, dtype]

    def holds(self, checksum: int, variable: tf.Variable) -> bool:
        """Whether any value has the shape and the checksum of a variable."""
        keys = self._keys_of_shape[tuple(variable.shape)]
        return any(self.checksum(key, variable.dtype) == checksum for key in keys)

    def has_most_of(self, value: np.ndarray) -> bool:
        """Whether any values hold most of the numbers of a value, in any order; false for a constant."""
        if _is_constant(value) or not np.issubdtype(value.dtype, np.number):
            return False
        is_there = np.zeros(value.shape, bool)
        for key in (key for keys in self._keys_of_shape.values() for key in keys):
            with contextlib.suppress(tf.errors.OpError, ValueError, IndexError):
                saved = np.asarray(self._read(key))
                if np.issubdtype(saved.dtype, np.number):
                    is_there |= np.isin(value, saved.astype(value.dtype, copy=False))
        return bool(is_there.mean() > 0.5)

    def __str__(self) -> str:
        if not any("/.ATTRIBUTES/" in key or "/vars/" in key for key in self._specs):
            names = _first([*self._specs])
            return (
                f"It has no object graph: TensorFlow 1 wrote it, by names: {names}. Convert it with TensorFlow 2 first."
            )
        counts = Counter(key.partition("/")[0] for key in self._specs)
        return f"It holds {len(self._specs)} values: {_first([f'{name} ({n})' for name, n in counts.most_common()])}."


def _pairs(prefix: str, model: Any) -> tuple[list[set[Any]], dict[Any, str], Sequence[Mismatch]]:
    """Returns what a checkpoint and a model have in common.

    The variables of each part of the model that the checkpoint names, as references; of all variables that it holds
    under their paths, their keys; and those that it holds in another shape.
    """
    children = tf.train.TrackableView.children(model)
    items = {**children, **(getattr(model, "checkpoint_items", None) or {})}
    # The name under which the checkpoint holds the whole model: `model`, or the one with most of its parts.
    tops = {tuple(key.split("/")[:2]) for key in saved_specs(prefix)}
    counts = Counter(top[0] for top in tops if top[-1] in children and top[0] not in items)
    items["model" if counts["model"] or not counts else counts.most_common(1)[0][0]] = model
    try:
        matching = Matching(prefix, items)
    except CheckpointError:  # no object graph
        return [], {}, ()
    wrong = matching.report(items_only=True).wrong_shape
    keys = {live.ref(): key for live, key in matching.pairs if isinstance(live, tf.Variable)}
    named = [item for name, item in items.items() if name in matching.roots and hasattr(item, "variables")]
    return [{each.ref() for each in flatten(item).values()} for item in named], keys, wrong


def _checksum(value: np.ndarray) -> int:
    if value.dtype == object:  # texts
        return google_crc32c.value(repr(value.tolist()).encode())
    return google_crc32c.value(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def _is_constant(value: np.ndarray) -> bool:
    return bool((value == value.reshape(-1)[:1]).all())


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
