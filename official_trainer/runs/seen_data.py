"""What there is to see of the data of an experiment: how many examples, their fields, the first ones, their speed.

Owns: reading some, or all, of each data section, without a model. Does not own: how it is shown (`cli/verbs/data.py`),
building the data (`engine/train_iterator.py`).
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from official_trainer.config import ConfigError, Problem
from official_trainer.inputs import DataError, InputContext
from official_trainer.inputs.context import call_build_inputs, with_training_flag
from official_trainer.inputs.source import flat
from official_trainer.lazy import tf
from official_trainer.runs import run
from official_trainer.runs.job import Job, check_ready, say_place
from official_trainer.user_code import during

_SECONDS = 0.5  # that reading is measured
_SHOWN = 3  # examples

T = TypeVar("T")
Field: TypeAlias = tuple[str, str, Sequence[int | None], Sequence[Any]]
"""A field of examples: its path, dtype and shape, and its values in the first ones."""


@dataclasses.dataclass(frozen=True)
class SeenData:
    """A data section.

    Attributes:
      section: its path.
      examples: how many there are; None if that is unknown.
      fields: of an example, as `build_inputs` puts it into a batch.
      speed: examples a second, without a model.
    """

    section: str
    examples: int | None
    fields: Sequence[Field]
    speed: float


def read(job: Job, names: Sequence[str], reader: Callable[[Any, Any, str], T]) -> Iterator[T]:
    """Yields what a function of the task, a data section and its path returns: `look`, or `scan`.

    Raises:
      ConfigError: there is no such section, as in an experiment of several tasks.
      DataError: the data cannot be used.
    """
    check_ready(job)
    run.import_tensorflow(quiet=job.quiet)
    from official_trainer.engine import process
    from official_trainer.garden import to_garden
    from official_trainer.runs.build import task_of

    process.configure_process(job.config.runtime)
    with run.gin_in_force(job), tempfile.TemporaryDirectory(prefix="official-trainer-") as folder:
        config = to_garden.with_garden_objects(job.config)
        task = task_of(dataclasses.replace(job, model_dir=folder), config)
        for name in names:
            if (section := getattr(config.task, name, None)) is None:
                what, fix = "is not set, so there is nothing to show", "set it; of several tasks, try each alone"
                raise ConfigError([Problem(what, f"task.{name}", fix=fix)])
            try:
                with during(f"reading {name}", task=task, method="build_inputs"):
                    result = reader(task, section, f"task.{name}")
            except DataError as error:
                say_place(error, job)
                raise
            yield result


def look(task: Any, section: Any, path: str) -> SeenData:
    """Reads the first batches of a data section."""
    from official_trainer.engine.train_iterator import DatasetBuilder

    builder = DatasetBuilder(task, section, training=path == "task.train_data", seed=0, section=path).separate()
    with builder.errors_explained():
        builder.build()
        batches, context = iter(builder.of_pipeline), builder.context
        fields = [_field(*path_and_leaf) for path_and_leaf in flat(next(batches, {}))]
        speed = _speed(batches) or _speed(iter(builder.of_pipeline))  # if there was one batch
        return SeenData(path, None if context is None else context.examples_per_epoch, fields, speed)


def scan(task: Any, section: Any, path: str, *, report: Callable[[str], object]) -> tuple[str, int]:
    """Reads all examples of a data section; returns its path, and how many cannot be read.

    `report` is called with the place of each of these, and what is wrong with it.

    Raises:
      ConfigError: a pipeline has no examples by number and no record files.
    """
    context = InputContext()
    context.section = path
    failed: DataError | None = None
    try:
        call_build_inputs(task, with_training_flag(section, path == "task.train_data"), context)
    except DataError as error:  # of the first example, which the scan names too
        failed = error
    if failed is None and context.scan is None:
        what = "has no examples by their number and no record files, so there is nothing to scan"
        raise ConfigError([Problem(what, path, fix="scan the other section alone, with --split")])
    count = 0
    for said in context.scan() if context.scan is not None else ():
        report(f"{path}: {said}")
        count += 1
    if failed is not None and not count:
        raise failed
    return path, count


def _field(path: str, leaf: Any) -> Field:
    values = leaf.numpy()[:_SHOWN] if isinstance(leaf, tf.Tensor) else ()  # not of ragged and sparse ones
    return path, leaf.dtype.name, leaf.shape[1:].as_list(), values


def _speed(batches: Iterator[Any]) -> float:
    """Returns how many examples come in a second."""
    start, examples = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < _SECONDS and (batch := next(batches, None)) is not None:
        examples += int(tf.nest.flatten(batch)[0].shape[0])
    return examples / max(spent, 1e-9)
