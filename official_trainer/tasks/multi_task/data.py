"""Batches of several tasks in one dataset: one of each task in every element, or one task's at a time.

Owns: their structure, and the position of each task's data when a run continues. Does not own: a task's own batches
(its `build_inputs`), which step is for which task (`sampler.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_trainer import inputs
from official_trainer.inputs import DataError, InputContext
from official_trainer.lazy import tf
from official_trainer.tasks.multi_task.sampler import TaskSampler

CHOSEN, BATCHES = "chosen", "batches"
"""Keys of an element for one task: the task's number, once for each example; batches by name, empty for other tasks."""

_CHOICES_AT_ONCE = 128
_PREFETCHED = 2


@dataclasses.dataclass(frozen=True)
class TrainData:
    """The data sections of several tasks, where the engine expects one section.

    Attributes:
      sections: each task's `train_data`, by its name.
    """

    sections: Mapping[str, Any]

    @property
    def input_path(self) -> tuple[str, ...]:
        """The files of all tasks."""
        of_sections = [getattr(section, "input_path", "") or () for section in self.sections.values()]
        return tuple(path for paths in of_sections for path in ([paths] if isinstance(paths, str) else paths))


def batches_of(
    tasks: Mapping[str, Any], params: TrainData, context: InputContext, sampler: TaskSampler | None
) -> tf.data.Dataset:
    """Returns batches by name, all in each element; or with a sampler, elements with `CHOSEN` and `BATCHES`.

    Every task's data continues at its own position: after as many batches as the task has had steps. Data that ends
    is repeated.

    Args:
      tasks: Tasks by name.
      params: their data sections.
      context: the position of the pipeline.
      sampler: chooses the task of each step; None if each step is for all.
    """
    step, seed = context.start_here(), context.seed
    starts = [step] * len(tasks) if sampler is None else sampler.counts(seed, step)
    order_depends_on_pipelines = False
    datasets: dict[str, tf.data.Dataset] = {}
    for number, (name, task) in enumerate(tasks.items()):
        of_task = context.at(starts[number])
        of_task.section = f"task.task_routines[{number}].task_config.train_data"
        dataset = inputs.call_build_inputs(task, inputs.with_training_flag(params.sections[name], True), of_task)
        if not of_task.starts_here:
            dataset = inputs.skip(dataset.repeat(), of_task.start_step * of_task.elements_per_step)
        datasets[name] = dataset
        order_depends_on_pipelines |= of_task.order_depends_on_pipelines
    context.holds_several_batches, context.order_depends_on_pipelines = True, order_depends_on_pipelines
    if sampler is None:
        return tf.data.Dataset.zip(datasets)
    per_step = context.elements_per_step
    elements = tf.data.Dataset.range(step * per_step, 2**62).batch(_CHOICES_AT_ONCE)

    @tf.autograph.experimental.do_not_convert
    def choose(numbers: tf.Tensor) -> tf.Tensor:
        return sampler.choose(numbers // per_step, seed)

    chosen = elements.map(choose).unbatch()
    return tf.data.Dataset.choose_from_datasets(_labelled(datasets), chosen).prefetch(_PREFETCHED)


def _labelled(datasets: Mapping[str, tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Returns datasets whose elements have one structure: `CHOSEN`, and `BATCHES` that are empty for other tasks."""
    specs = {name: dataset.element_spec for name, dataset in datasets.items()}
    with tf.init_scope(), tf.device("CPU:0"):
        empty = {name: tf.nest.map_structure(_empty, spec) for name, spec in specs.items()}

    def labelled(number: int, name: str) -> tf.data.Dataset:
        def label(*components: Any) -> dict[str, Any]:
            batch = tf.nest.pack_sequence_as(specs[name], tf.nest.flatten(components))
            size = tf.shape(tf.nest.flatten(batch)[0])[0]
            return {CHOSEN: tf.fill([size], number), BATCHES: {**empty, name: batch}}

        return datasets[name].map(tf.autograph.experimental.do_not_convert(label))

    return [labelled(number, name) for number, name in enumerate(specs)]


def _empty(spec: Any) -> Any:
    """Returns a value of a spec without examples."""
    if isinstance(spec, tf.TensorSpec):
        return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
    if type(spec).__name__ == "NoneTensorSpec":  # no public name
        return None
    raise DataError(
        f"a batch of several tasks holds a {type(spec).__name__}, which interleaving cannot leave empty; use "
        "trainer.trainer_type=joint, or make it a dense tensor in build_inputs"
    )
