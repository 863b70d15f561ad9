"""Batches of several tasks in one dataset: one of each task in every element, or one task's at a time.

Owns: their structure, and where each task's data stands when a run goes on. Does not own: a task's own batches (its
`build_inputs`), which task comes when (`sampler.py`).
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
"""Keys of an element that is one task's: its number, once for each example; batches by name, of the others empty."""

_CHOICES_AT_ONCE = 128
_PREFETCHED = 2


@dataclasses.dataclass(frozen=True)
class TrainData:
    """The data sections of several tasks, where the engine asks for one.

    Attributes:
      sections: each task's `train_data`, by its name.
    """

    sections: Mapping[str, Any]

    @property
    def input_path(self) -> tuple[str, ...]:
        """The files of all tasks."""
        paths = [getattr(section, "input_path", "") or () for section in self.sections.values()]
        return tuple(path for found in paths for path in ([found] if isinstance(found, str) else found))


def batches_of(
    tasks: Mapping[str, Any], params: TrainData, context: InputContext, sampler: TaskSampler | None
) -> tf.data.Dataset:
    """Returns batches by name, all in each element; or with a sampler, elements with `CHOSEN` and `BATCHES`.

    Every task's data begins where it was: after as many of its batches as there were steps for it. What a task's data
    ends with is followed by its beginning.

    Args:
      tasks: Tasks by name.
      params: their data sections.
      context: where the pipeline stands.
      sampler: which task each step is for; None if it is for all.
    """
    step, seed = context.start_step, context.seed
    starts = [step] * len(tasks) if sampler is None else sampler.counts(seed, step)
    contexts = {name: context.at(start) for name, start in zip(tasks, starts, strict=True)}
    datasets = {name: _begun(task, params.sections[name], contexts[name]) for name, task in tasks.items()}
    context.holds_several_batches = True
    context.order_depends_on_pipelines = any(own.order_depends_on_pipelines for own in contexts.values())
    if sampler is None:
        return tf.data.Dataset.zip(datasets)
    per_step = context.elements_per_step
    elements = tf.data.Dataset.range(step * per_step, 2**62).batch(_CHOICES_AT_ONCE)

    @tf.autograph.experimental.do_not_convert
    def choose(numbers: tf.Tensor) -> tf.Tensor:
        return sampler.choose(numbers // per_step, seed)

    chosen = elements.map(choose).unbatch()
    return tf.data.Dataset.choose_from_datasets(_labelled(datasets), chosen).prefetch(_PREFETCHED)


def _begun(task: Any, section: Any, context: InputContext) -> tf.data.Dataset:
    """Returns the data of one task from where `context` says."""
    dataset = inputs.call_build_inputs(task, inputs.with_training_flag(section, True), context)
    if context.starts_at_step:
        return dataset
    batches = context.start_step * context.elements_per_step
    return inputs.skip(dataset.repeat(), batches)


def _labelled(datasets: Mapping[str, tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Returns datasets whose elements have one structure: whose it is, and batches for all, but for one empty."""
    specs = {name: dataset.element_spec for name, dataset in datasets.items()}
    with tf.init_scope(), tf.device("CPU:0"):
        empty = {name: tf.nest.map_structure(_empty, spec) for name, spec in specs.items()}

    def labelled(number: int, name: str) -> tf.data.Dataset:
        def label(*parts: Any) -> dict[str, Any]:
            batch = tf.nest.pack_sequence_as(specs[name], tf.nest.flatten(parts))
            size = tf.shape(tf.nest.flatten(batch)[0])[0]
            return {CHOSEN: tf.fill([size], number), BATCHES: {**empty, name: batch}}

        return datasets[name].map(tf.autograph.experimental.do_not_convert(label))

    return [labelled(number, name) for number, name in enumerate(specs)]


def _empty(spec: Any) -> Any:
    """Returns what fits a spec and holds no example."""
    if isinstance(spec, tf.TensorSpec):
        return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
    if type(spec).__name__ == "NoneTensorSpec":  # no public name
        return None
    raise DataError(
        f"a batch of several tasks holds a {type(spec).__name__}, which interleaving cannot leave empty; use "
        "trainer.trainer_type=joint, or make it a dense tensor in build_inputs"
    )
