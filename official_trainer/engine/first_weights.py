"""The first weights of a fresh run: a Task's `initialize`, and how many variables it has changed.

Owns: which checkpoint `init_checkpoint` names while `initialize` runs, the count of the variables that have new values,
and the refusal of a run in which none has. Does not own: finding the checkpoint (`checkpoints/init_checkpoint.py`), or
reading it: `initialize` does, by our default (`checkpoints/restore.py`) or as Model Garden's tasks and a user's do.

TensorFlow does not tell which variables it has restored, and `expect_partial` accepts none at all. So checksums are
compared, before and after. A variable that the checkpoint holds with the value that it had, such as the zeros of a
bias, does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from official_trainer.checkpoints import init_checkpoint, manifest
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.matching import VariableSpec, saved_specs
from official_trainer.errors import UserError, text_of
from official_trainer.lazy import tf
from official_trainer.shown import first_few, shorten
from official_trainer.tasks import initial_weights
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.multi_task.task import parts_in, sub_model
from official_trainer.tasks.task import Task
from official_trainer.tasks.variables import flatten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What came from one checkpoint.

    Attributes:
      field: of the config, which names it.
      path: of the checkpoint, without suffix; or of what else the Task has read.
      restored: number of variables that have new values.
      variables: number of all variables of the model, and of other models that the Task holds.
      values: number of values that the checkpoint holds; None in a format that only the Task can read.
    """

    field: str
    path: str
    restored: int
    variables: int
    values: int | None

    def __str__(self) -> str:
        holds = "" if self.values is None else f", which holds {self.values} values"
        return f"{self.field}: {self.restored} of {self.variables} variables have new values from {self.path}{holds}"


def initialize(task: Any, model: Any, strategy: tf.distribute.Strategy) -> tuple[Restored, ...]:
    """Calls a Task's `initialize`; returns what it has restored from each `init_checkpoint` that is set.

    Args:
      task: the Task; each of several tasks may have a checkpoint of its own.
      model: its model, which has its variables.
      strategy: that they were created under.

    Raises:
      CheckpointError: a checkpoint is not there, is damaged or does not fit, or no variable has a new value.
    """
    named = [(init_checkpoint.FIELD, task, model)]
    for number, part in enumerate(parts_in(task)):
        field = f"task.task_routines[{number}].task_config.init_checkpoint"
        named.append((field, part.task, sub_model(model, part.name)))
    sources = [_Source(*source, strategy) for source in named if _path_of(source[1])]
    with contextlib.ExitStack() as stack:
        for source in sources:
            stack.enter_context(source.named())
        try:
            task.initialize(model)
        except (AssertionError, ValueError, IndexError, tf.errors.OpError) as error:
            if isinstance(error, UserError) or not sources or not _is_of_reading(error):
                raise
            raise CheckpointError("\n".join(source.failed(error) for source in sources)) from error
    return tuple(source.result() for source in sources)


def _path_of(task: Any) -> Any:
    return getattr(getattr(task, "task_config", None), "init_checkpoint", None) or ""


def _is_of_reading(error: BaseException) -> bool:
    """Whether an error comes from TensorFlow's reader of checkpoints, or from its `Checkpoint`."""
    reading = tf.train.Checkpoint.__module__.rpartition(".")[0], tf.compat.v1.train.NewCheckpointReader.__module__
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.startswith(reading) for module in modules)


class _Source:
    """What one `init_checkpoint` names, and the variables that may come from it."""

    def __init__(self, field: str, task: Any, model: Any, strategy: tf.distribute.Strategy) -> None:
        """Finds the checkpoint, and notes the values of the variables.

        Raises:
          CheckpointError: there is none, and nothing else that the Task may read in its own way.
        """
        self._field, self._task, self._strategy = field, task, strategy
        self._given = _path_of(task)
        self._path = os.path.expanduser(str(self._given))
        self._specs: Mapping[str, VariableSpec] | None = None
        self._problem: CheckpointError | None = None
        try:
            if initial_weights.is_file_of_keras(model, self._path):
                self._specs = initial_weights.open_values(model, self._path).specs
            else:
                self._path = init_checkpoint.find(self._path, field)
                self._specs = saved_specs(self._path)
        except CheckpointError as error:
            if not init_checkpoint.is_other_format(self._path):
                raise
            told = str(error).startswith(field)
            self._problem = error if told else CheckpointError(f"{field}: {error}")
        others = [value for value in vars(task).values() if "Model" in kerases.kinds(value)]  # such as a teacher
        variables = [variable for owner in (*others, model) for variable in flatten(owner).values()]
        self._variables = list({id(variable): variable for variable in variables}.values())
        self._before = self._checksums()

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """For a block in which the config names the checkpoint itself, if TensorFlow would find another, or none."""
        if self._given == self._path or tf.train.latest_checkpoint(self._given) == self._path:
            yield
            return
        # Not by methods of the config: Model Garden's is locked, and ours is frozen.
        values = vars(self._task.task_config)
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
        changed = sum(now != before for now, before in zip(self._checksums(), self._before, strict=True))
        # Ours has counted what it has read. A value may be the same: a frozen backbone's, made from the same seed.
        if not changed and type(self._task).initialize is not Task.initialize:
            raise self._problem or CheckpointError(
                f"{self._field}: {self._path} restores none of the {len(self._variables)} variables of the model: "
                f"{self._reader} changed none of them. {self._content()}"
            )
        return Restored(
            field=self._field,
            path=self._path,
            restored=changed,
            variables=len(self._variables),
            values=None if self._specs is None else len(self._specs),
        )

    def failed(self, error: Exception) -> str:
        """Returns the message about an error of reading a checkpoint."""
        if self._problem is not None:
            return str(self._problem)
        if (damage := manifest.damage_of_values(self._path)) is not None:
            return f"{self._field}: {self._path} is damaged: {damage}."
        has_modules = hasattr(self._task.task_config, "init_checkpoint_modules")
        modules = f", or set {self._field}_modules to what this one holds" if has_modules else ""
        # What TensorFlow says, without its objects, of which it shows some with their values.
        reason = shorten(re.split(r"[\n\[<]|\. Showing ", text_of(error), maxsplit=1)[0].strip().rstrip(":."), 200)
        return (
            f"{self._field}: {self._path} does not fit what {self._reader} restores: {reason}.\n"
            f"{self._content()} The model has {len(self._variables)} variables.\n"
            f"Name a checkpoint that holds what it restores{modules}."
        )

    @property
    def _reader(self) -> str:
        return f"{type(self._task).__name__.lstrip('_')}.initialize"

    def _content(self) -> str:
        """Returns what the checkpoint holds, in words."""
        specs = self._specs or {}
        if not any("/.ATTRIBUTES/" in key or "/vars/" in key for key in specs):
            names = first_few(list(specs))
            return (
                f"It has no object graph: TensorFlow 1 wrote it, by names: {names}. Convert it with TensorFlow 2 first."
            )
        counts = Counter(key.partition("/")[0] for key in specs)
        return f"It holds {len(specs)} values: {first_few([f'{name} ({n})' for name, n in counts.most_common()])}."

    def _checksums(self) -> list[int]:
        return [self._checksum(variable) for variable in self._variables]

    def _checksum(self, variable: tf.Variable) -> int:
        # Of this process's first replica: what only all replicas together know would have to be communicated.
        value = np.asarray(self._strategy.experimental_local_results(variable)[0].numpy())
        return zlib.crc32(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
