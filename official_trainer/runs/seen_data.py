"""What there is to see of the data of an experiment: its examples, their schema, how fast they are read, what is slow.

Owns: reading some of each data section, without a model. Does not own: how it is shown (`cli/verbs/data.py`), building
the data (`engine/train_iterator.py`).

Each part is measured for half a second, so they say which part is slow, not how fast a run will be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, Problem
from official_trainer.engine import process
from official_trainer.engine.train_iterator import BuilderOptions, DatasetBuilder
from official_trainer.garden import to_garden
from official_trainer.inputs.source import as_array, flat
from official_trainer.lazy import tf
from official_trainer.runs.build import task_of
from official_trainer.runs.job import Job
from official_trainer.user_code import during

_SECONDS = 0.5  # of each part
_READ = 64  # examples at a time
_ROWS = 3
_TRIED = 16  # examples, to find as many good ones


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of examples: its path, dtype and shape, and its values in the first ones."""

    path: str
    dtype: str
    shape: Sequence[int | None]
    values: Sequence[Any] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenData:
    """A data section.

    Attributes:
      section: its path.
      examples: how many there are; None if that is unknown.
      in_source: the fields of an example as the source has it; empty without a source of random access.
      in_batch: the fields that `build_inputs` yields, without the dimension of the batch.
      examples_per_second: of the whole pipeline, without a model.
      parts: of a thread that does one part alone; empty without a source of random access.
      num_bad: examples of those that were read which were left out.
    """

    section: str
    examples: int | None
    in_source: Sequence[Field]
    in_batch: Sequence[Field]
    examples_per_second: float
    parts: Mapping[str, float]
    num_bad: int

    @property
    def slowest(self) -> str:
        """The part that takes longest; empty if all are quicker than the pipeline that they are in."""
        name = min(self.parts, key=lambda part: self.parts[part], default="")
        return name if name and self.parts[name] < 2 * self.examples_per_second else ""


def look(job: Job, names: Sequence[str]) -> Iterator[SeenData]:
    """Yields what there is to see of data sections.

    Raises:
      ConfigError: there is no such section, or the experiment has several tasks.
      DataError: the data cannot be used.
    """
    if hasattr(job.config.task, "task_routines"):
        what = "holds several tasks, and data is shown of one"
        raise ConfigError([Problem(what, "task", fix="name an experiment that has one task")])
    process.configure_process(job.config.runtime)
    with tempfile.TemporaryDirectory(prefix="official-trainer-") as folder, during("building the task"):
        config = to_garden.with_garden_objects(job.config)
        task = task_of(dataclasses.replace(job, model_dir=folder), config)
        for name in names:
            if (section := getattr(config.task, name, None)) is None:
                raise ConfigError([Problem("is not set, so there is nothing to show", f"task.{name}", fix="set it")])
            yield _seen(task, section, name, job.config.runtime.seed)


def _seen(task: Any, section: Any, name: str, seed: int) -> SeenData:
    path = f"task.{name}"
    options = BuilderOptions()
    builder = DatasetBuilder(
        task, section, training=name == "train_data", seed=seed, section=path, options=options
    ).separate()
    with builder.errors_explained():
        builder.build()
        dataset, context = builder.of_pipeline, builder.context
        assert context is not None
        batches = iter(dataset)
        first = next(batches, None)
        in_batch = [] if first is None else [_of_batch(*each) for each in flat(first)]
        rate = _rate(lambda: _size(next(batches, None)))
        if not rate:  # there was one batch
            batches = iter(dataset)
            rate = _rate(lambda: _size(next(batches, None)))
        source = next((each for each in context.sources if each.section == path), None)
        parts = {} if source is None else _parts(source)
    return SeenData(
        section=path,
        examples=context.examples_per_epoch,
        in_source=[] if source is None else _of_source(source.reader.source),
        in_batch=in_batch,
        examples_per_second=rate,
        parts=parts,
        num_bad=len(options.bad_records.take(before=None)),
    )


def _of_batch(path: str, leaf: Any) -> Field:
    values = leaf.numpy()[:_ROWS] if isinstance(leaf, tf.Tensor) else ()  # not of ragged and sparse ones
    return Field(path, leaf.dtype.name, leaf.shape[1:].as_list(), values)


def _of_source(source: Any) -> list[Field]:
    """Returns the fields of the first good examples, before transforms."""
    found: list[dict[str, Any]] = []
    for index in range(min(len(source), _TRIED)):
        with contextlib.suppress(Exception):  # a bad one is an error of the pipeline, or left out there
            found.append({path: as_array(leaf, path) for path, leaf in flat(source[index])})
    first = found[0] if found else {}
    return [
        Field(path, str(array.dtype), array.shape, [each[path] for each in found[:_ROWS] if path in each])
        for path, array in first.items()
    ]


def _parts(source: Any) -> dict[str, float]:
    """Returns how many examples a thread does in a second, of each part alone."""
    reader, count = source.reader, source.examples
    import numpy as np

    size, place, done = min(_READ, count), np.random.RandomState(0), 0
    seconds, rows = dict[str, float](), np.arange(0)
    while sum(seconds.values()) < _SECONDS and done < count:
        # Groups are decoded as a whole, so those that follow each other are read, as in training.
        rows = (done + np.arange(size)) % count if reader.source.groups else place.randint(0, count, size)
        try:
            spent = reader.seconds(rows.tolist())
        except Exception:  # one of them is bad
            bad = {each.index for each in reader.read(rows, rows)[1]}
            rows = np.array([row for row in rows if row not in bad], np.int64)
            spent = reader.seconds(rows.tolist()) if len(rows) else {}
        seconds = {part: seconds.get(part, 0.0) + spent.get(part, 0.0) for part in {**seconds, **spent}}
        done += size
    rates = {part: done / max(spent, 1e-9) for part, spent in seconds.items()}
    if source.parse is not None and len(rows):
        records = tf.data.Dataset.from_tensor_slices(reader.read(rows, rows)[0][0]).repeat()
        batches = iter(source.parse(records).batch(len(rows)))
        rates["parse_fn"] = _rate(lambda: _size(next(batches)))
    return rates


def _rate(do: Callable[[], int]) -> float:
    """Returns how many examples `do`, which returns their number, does in a second; it ends with 0."""
    start, examples = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < _SECONDS and (done := do()):
        examples += done
    return examples / max(spent, 1e-9)


def _size(batch: Any) -> int:
    return 0 if batch is None else int(tf.nest.flatten(batch)[0].shape[0])
