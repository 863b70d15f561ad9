"""The contract with a task's `build_inputs`: the context that it receives, and the check of what it returns.

Owns: `InputContext`, calling `build_inputs`, the errors of this package, the check of a dataset's elements, what is
known of a source.
Does not own: how any pipeline orders its examples (`order.py`), or which one reads which (`records.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf


class DataError(UserError, ValueError):
    """The data cannot be used: missing, empty, damaged or of the wrong structure.

    Attributes:
      field: the field of a data section that is wrong, as the path in the configuration once that is known; or empty.
      place: the file and line that set the field; empty if it is not known.
    """

    exit_code = ExitCode.DATA

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field, self.place = field, ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place, self.field, super().__str__())))


class ArraysError(DataError):
    """What the code that builds the data has read is not there, or does not belong together."""

    names_line = True


class BatchesError(DataError):
    """What `build_inputs` returned is no dataset of batches, which is a bug in the task."""

    exit_code = ExitCode.FAILED
    names_line = True


class BatchSizeError(UserError, ValueError):
    """A global batch that cannot be divided equally over the replicas."""

    exit_code = ExitCode.CONFIG

    def __init__(self, global_batch_size: int, num_replicas: int) -> None:
        self.global_batch_size = global_batch_size
        lower = global_batch_size // num_replicas * num_replicas
        higher = lower + num_replicas
        self.choices = f"{lower} or {higher}" if lower else str(higher)
        super().__init__(
            f"global_batch_size {global_batch_size} does not divide over {num_replicas} replicas; use {self.choices}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceInUse:
    """What a pipeline tells of the examples that it reads by their number.

    Attributes:
      section: path of the data section.
      examples: how many there are.
      fingerprint: returns a text that changes with the data; empty if nothing tells.
      order: the library that orders the examples, with its version; empty for this one.
    """

    section: str
    examples: int
    fingerprint: Callable[[], str]
    order: str

    def facts(self) -> dict[str, Any]:
        """Returns what says that the data is the same, for a checkpoint."""
        facts = {"examples": self.examples, "fingerprint": self.fingerprint(), "order": self.order}
        return {name: value for name, value in facts.items() if value != ""}


class InputContext:
    """The place of a pipeline in the job, and which batches it should yield, as `tf.distribute.InputContext` and more.

    A pipeline that begins with the batch of `start_step` by itself calls `start_here()`, and one that leaves out the
    batches between calls `stride_here()`. For others the engine reads over batches; reading a value changes nothing.

    Size: a field for each fact that a pipeline is told, or tells the engine.

    Attributes:
      num_input_pipelines: pipelines in the job, one for each host.
      input_pipeline_id: number of this one, from 0.
      num_replicas_in_sync: replicas that a global batch is divided over.
      start_step: global step whose batch has to come first.
      batch_stride: how many steps lie between the batches that are wanted, from `start_step` on.
      starts_here: whether the pipeline has called `start_here()`.
      strides_here: whether it has called `stride_here()`.
      seed: seed of the order of examples where the data section has none.
      order_depends_on_pipelines: whether the number of pipelines changes which examples are in a global batch; a
        pipeline may set it to False.
      order: the library that orders the examples, with its version; empty for this one. A pipeline may set it.
      holds_several_batches: whether an element holds batches of several tasks, of different sizes; a pipeline that sets
        it has checked them.
      served_by: address of the tf.data service that the batches come from; empty for none.
      section: path of the data section in the configuration, for messages; empty if it is in none.
      example_at: returns which example is at a position, counted over all epochs, if a value of it is not finite; else
        None. A pipeline may set it.
      find_record: returns which record of which file cannot be parsed; empty for none. A pipeline may set it.
      scan: yields what is wrong with each example or record that cannot be read, with its place; None if the pipeline
        cannot say. A pipeline sets it before it reads.
      sources: what pipelines over examples by their number have told of themselves, those of parts of a task too.
      failure: returns the error of an example that could not be read, behind TensorFlow's error; None without one. A
        pipeline that reads in Python sets it.

    Example:
      A pipeline of plain tf.data that starts at any step by itself:

      >>> from official_trainer.config import DataConfig
      >>> from official_trainer.inputs import InputContext
      >>> from official_trainer.lazy import tf
      >>> def build_inputs(params, input_context):
      ...     batch_size = input_context.get_per_replica_batch_size(params.global_batch_size)
      ...     first = input_context.start_here() * params.global_batch_size
      ...     return tf.data.Dataset.range(first, 10**9).batch(batch_size)
      >>> context = InputContext(num_replicas_in_sync=2, start_step=100)
      >>> next(iter(build_inputs(DataConfig(global_batch_size=8), context))).numpy().tolist()
      [800, 801, 802, 803]
    """

    def __init__(
        self,
        *,
        num_input_pipelines: int = 1,
        input_pipeline_id: int = 0,
        num_replicas_in_sync: int = 1,
        start_step: int = 0,
        seed: int = 0,
    ) -> None:
        """Describes one pipeline of a job.

        Args:
          num_input_pipelines: pipelines in the job, one for each host.
          input_pipeline_id: number of this one, from 0.
          num_replicas_in_sync: replicas that a global batch is divided over; every pipeline feeds the same number.
          start_step: global step whose batch comes first.
          seed: seed of the order of examples where the data section has none.
        """
        self.num_input_pipelines = num_input_pipelines
        self.input_pipeline_id = input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync
        self.start_step, self.batch_stride = start_step, 1
        self.starts_here = self.strides_here = False
        self.seed = seed
        self.order_depends_on_pipelines = True
        self.order = ""
        self.holds_several_batches = False
        self.served_by = ""
        self.section = ""
        self.example_at: Callable[[int], int | None] | None = None
        self.find_record: Callable[[], str] = lambda: ""
        self.scan: Callable[[], Iterator[str]] | None = None
        self.sources: list[SourceInUse] = []
        self.failure: Callable[[], DataError | None] = lambda: None
        self._is_built = False  # then the engine has read over the batches that the pipeline does not leave out
        self._examples_per_epoch: int | Callable[[], int] | None = None
        self._offered: tuple[Any, Any] = (None, None)  # a dataset of batches, and the same in blocks

    def with_stride(self, batch_stride: int) -> InputContext:
        """Returns a context that asks only for global batches `start_step`, `start_step + batch_stride` and so on."""
        assert self.num_replicas_in_sync == 1, "batches are left out for one replica"
        context = copy.copy(self)
        context.batch_stride = batch_stride
        return context

    def at(self, start_step: int) -> InputContext:
        """Returns the context of another pipeline at the same place of the job, for plain batches from a step on."""
        context = InputContext(start_step=start_step, seed=self.seed, **_position_in_job(self))
        context.sources = self.sources
        return context

    @classmethod
    def adopt(cls, input_context: Any) -> InputContext:
        """Returns `input_context` itself, or one with the values of TensorFlow's; None means a job of one pipeline."""
        if isinstance(input_context, cls):
            return input_context
        return cls() if input_context is None else cls(**_position_in_job(input_context))

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns how many examples of a global batch one replica processes.

        Raises:
          BatchSizeError: `global_batch_size` does not divide over the replicas.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise BatchSizeError(global_batch_size, self.num_replicas_in_sync)
        return global_batch_size // self.num_replicas_in_sync

    @property
    def elements_per_step(self) -> int:
        """Elements of the pipeline that a step takes, one for each replica that it feeds."""
        return max(1, self.num_replicas_in_sync // self.num_input_pipelines)

    def start_here(self) -> int:
        """Says that the pipeline begins with the batch of `start_step` by itself, and returns this step.

        Raises:
          BatchesError: `build_inputs` has returned its dataset before.
        """
        self._check_in_time("start_here", self.starts_here)
        self.starts_here = True
        return self.start_step

    def stride_here(self) -> int:
        """Says that the pipeline leaves out the batches between by itself, and returns `batch_stride`.

        Raises:
          BatchesError: `build_inputs` has returned its dataset before.
        """
        self._check_in_time("stride_here", self.strides_here)
        self.strides_here = True
        return self.batch_stride

    def _check_in_time(self, method: str, is_said: bool) -> None:
        if self._is_built and not is_said:
            what = f"input_context.{method}() is called too late, while batches are read, as in a generator"
            late = BatchesError(f"{what}; call it in build_inputs itself, and use the number that it returns")
            self.failure = lambda: late  # TensorFlow's error has only its text
            raise late

    def offer_blocks(self, batches: tf.data.Dataset, blocks: tf.data.Dataset) -> None:
        """Says that blocks `[steps, batch, …]` of the same batches cost a step less.

        They are used only if `build_inputs` returns the dataset `batches` itself, and not what it has made of it.
        """
        self._offered = batches, blocks

    def blocks_of(self, dataset: Any) -> tf.data.Dataset | None:
        """Returns the blocks that were offered for `dataset`, or None."""
        batches, blocks = self._offered
        return blocks if dataset is batches else None

    @property
    def examples_per_epoch(self) -> int | None:
        """Examples in one pass over the data, all pipelines together; None if the pipeline has not set it.

        The first read may count the records of files; read it only when the number is needed.
        """
        if callable(self._examples_per_epoch):
            self._examples_per_epoch = self._examples_per_epoch()
        return self._examples_per_epoch

    @examples_per_epoch.setter
    def examples_per_epoch(self, examples: int | Callable[[], int] | None) -> None:
        self._examples_per_epoch = examples

    @property
    def examples_counted(self) -> int | None:
        """The same, but None as long as records would have to be counted."""
        return None if callable(self._examples_per_epoch) else self._examples_per_epoch


def _position_in_job(context: Any) -> dict[str, Any]:
    return {n: getattr(context, n) for n in ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")}


def call_build_inputs(task: Any, params: Any, context: InputContext) -> Any:
    """Calls `task.build_inputs`, which need not have the parameter `input_context`, and returns its dataset.

    Raises:
      BatchesError: it is not a dataset of batches.
      ArraysError: a file is not there.
      DataError: a function of this package cannot read it; of a field, with the path of the field.
    """
    build_inputs = task.build_inputs
    options = {"input_context": context} if "input_context" in inspect.signature(build_inputs).parameters else {}
    try:
        dataset = build_inputs(params, **options)
    except FileNotFoundError as error:
        lost = ArraysError(f"{build_inputs.__qualname__}: {error}")
        raise lost.with_traceback(error.__traceback__) from error
    except DataError as error:
        if error.field and context.section and not error.field.startswith("task."):  # else of another call inside
            error.field = f"{context.section}.{error.field}"
        raise
    context._is_built = True
    if not context.holds_several_batches:
        check_element_structure(dataset, f"{type(task).__name__}.build_inputs")
    return dataset


def with_training_flag(params: Any, training: bool) -> Any:
    """Returns a data section with `is_training` filled in where it is None."""
    if getattr(params, "is_training", training) is None and hasattr(params, "replace"):
        return params.replace(is_training=training)
    return params


def check_element_structure(dataset: Any, where: str) -> None:
    """Checks that `dataset` yields batches: nests of tensors with the same examples in their first dimension.

    Args:
      dataset: what a task's `build_inputs` returned.
      where: what built it, for the message, such as `MyTask.build_inputs for train_data`.

    Raises:
      BatchesError: it yields something else.
    """
    caller = where if "build_inputs" in where else f"{where}: Task.build_inputs"
    if not hasattr(dataset, "element_spec"):
        got = "nothing; is a `return` missing?" if dataset is None else type(dataset).__name__
        raise BatchesError(f"{caller} must return a tf.data.Dataset of batches, but it returned {got}")
    batch_sizes: dict[str, int] = {}
    for path, spec in leaves(dataset.element_spec, "element"):
        shape: Any = getattr(spec, "shape", None)
        if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
            if type(spec).__name__ != "NoneTensorSpec":  # an empty place, as in (features, None); no public name
                raise BatchesError(f"{caller} must yield nests of tensors, but {path} is a {type(spec).__name__}")
        elif shape.rank == 0:
            raise BatchesError(
                f"{caller} must yield batches, but {path} is a single {spec.dtype.name} without a batch dimension. "
                "Batch the dataset, for example with .batch(input_context.get_per_replica_batch_size(…))"
            )
        elif shape.rank is not None and shape[0] is not None:
            batch_sizes[path] = shape[0]
    least = min(batch_sizes.values(), default=0)
    # Several views of an example are several rows, as in Model Garden's tasks for clips without labels.
    if any(size % least if least > 1 else size != least for size in batch_sizes.values()):
        sizes = ", ".join(f"{path} has {size}" for path, size in batch_sizes.items())
        raise BatchesError(
            f"{caller} must yield tensors with one common batch size, or with the same number of rows for each "
            f"example, but {sizes}"
        )


def leaves(structure: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields `(path, leaf)` for each leaf of nested tuples and dicts."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from leaves(value, f"{path}[{key!r}]")
    elif isinstance(structure, tuple):
        for index, value in enumerate(structure):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, structure
