"""Several tasks as one: trained jointly or interleaved by the same Trainer and loop as any other, evaluated one by one.

Owns: `MultiTask`, its step, its metrics by task, finding a task's part in a model. Does not own: its batches
(`data.py`), which step is for which task (`sampler.py`), evaluation (`engine/evaluation.py`).

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.config import ConfigError, Problem
from official_trainer.config.multitask import named_twice
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import InputContext
from official_trainer.lazy import keras, tf
from official_trainer.tasks import contract, registry
from official_trainer.tasks.multi_task.data import BATCHES, CHOSEN, TrainData, batches_of
from official_trainer.tasks.multi_task.sampler import TaskSampler
from official_trainer.tasks.task import Task, scaled_loss, split_inputs, total_loss, update

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One of several tasks.

    Attributes:
      name: its name in logs and in the model.
      task: a Task, ours or Model Garden's. It builds inputs, metrics and losses, processes metrics and has steps; its
        `build_model` is not called. Its data is in its `task_config`.
      weight: of its loss, or of its share of the steps.
      eval_steps: batches of an evaluation, -1 for all; None for the number that `Trainer.evaluate` gets.
    """

    name: str
    task: Any
    weight: float = 1.0
    eval_steps: int | None = None


def parts_of(routines: Sequence[Any], logging_dir: str | None = None) -> list[Part]:
    """Returns the tasks of `task_routines`, or of `eval_tasks`, built from their configs.

    Raises:
      ContractError: a method of one takes other arguments than it is called with.
    """
    parts = [
        Part(
            name=routine.name,
            task=registry.get_task_cls(routine.task_config)(routine.task_config, logging_dir, routine.name),
            weight=routine.task_weight,
            eval_steps=routine.eval_steps,
        )
        for routine in routines
    ]
    for part in parts:
        contract.check_task(part.task, uncalled=["build_model", "create_optimizer"])
    return parts


class SubTasksError(UserError, LookupError):
    """A model lacks the part of a task."""

    exit_code = ExitCode.CONFIG


class MultiTask(Task):
    """Several Tasks that train one model together.

    Subclasses say which model, in one of two ways:

    - `build_models()` returns a Keras model for each task, by its name; they share the layers that both contain.
    - `build_model()` returns one Keras model for all, or something with `sub_tasks`, a mapping of name → model, such as
      Model Garden's `MultiTaskBaseModel`.

    Joint training (`trainer.trainer_type=joint`) takes a batch of each task in every step and updates once, by the sum
    of the tasks' losses times their weights. Each loss includes what that task's model adds with `add_loss`. In
    interleaved training each step is one task's own `train_step`; `trainer.task_sampler` configures how often.

    Training data that ends is repeated, each task's by itself.

    Attributes:
      parts: the tasks, by their names.

    Example:
      Two tasks share a layer; each has its own Task for data, losses and metrics.

      >>> import dataclasses
      >>> from official_trainer import MultiTask, Task, register_task_cls
      >>> from official_trainer.config import MultiTaskConfig, TaskConfig, TaskRoutine
      >>> from official_trainer.lazy import keras
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class DigitConfig(TaskConfig):
      ...     num_classes: int = 10
      >>> @register_task_cls(DigitConfig)
      ... class DigitTask(Task):
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
      >>> class DigitsTasks(MultiTask):
      ...     def build_models(self):
      ...         image = keras.Input([8, 8, 1])
      ...         x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(image))
      ...         return {
      ...             name: keras.Model(image, keras.layers.Dense(part.task.task_config.num_classes)(x))
      ...             for name, part in self.parts.items()
      ...         }
      >>> digit = TaskRoutine(task_name="digit", task_config=DigitConfig(), task_weight=3.0)
      >>> parity = TaskRoutine(task_name="parity", task_config=DigitConfig(num_classes=2))
      >>> task = DigitsTasks(MultiTaskConfig(task_routines=(digit, parity)))
      >>> {name: model.output_shape for name, model in task.build_model().sub_tasks.items()}
      {'digit': (None, 10), 'parity': (None, 2)}
    """

    def __init__(
        self,
        params: Any,
        logging_dir: str | None = None,
        name: str | None = None,
        *,
        parts: Sequence[Part] | None = None,
    ) -> None:
        """Takes the tasks in `parts`, or builds those of `params.task_routines`.

        Raises:
          ConfigError: there is no task, two have the same name, or a weight is not positive.
        """
        super().__init__(params, logging_dir, name)
        parts = parts_of(params.task_routines, logging_dir) if parts is None else parts
        problems = [] if parts else [Problem("names no task", "task.task_routines", fix="add at least one TaskRoutine")]
        problems += [Problem(what, path) for path, what in named_twice("task.task_routines", parts)]
        for number, part in enumerate(parts):
            if not part.weight > 0:
                path = f"task.task_routines[{number}].task_weight"
                problems.append(Problem("must be greater than 0", path, got=str(part.weight)))
        if problems:
            raise ConfigError(problems)
        self.parts = {part.name: part for part in parts}
        self._sampler: TaskSampler | None = None

    def configure(self, trainer_config: Any) -> None:
        """Takes `trainer_type` and `task_sampler` of the `trainer` section; the Trainer calls this first.

        Raises:
          ConfigError: it is the section of a single task.
        """
        if not hasattr(trainer_config, "trainer_type"):
            what = "has no task_sampler, which interleaving needs; make it a MultiTaskTrainerConfig"
            raise ConfigError([Problem(what, "trainer")])
        if trainer_config.trainer_type == "joint":
            self._sampler = None
        else:
            weights = {name: part.weight for name, part in self.parts.items()}
            self._sampler = TaskSampler.of(trainer_config.task_sampler, weights)

    @property
    def train_data(self) -> TrainData:
        """The tasks' data sections for training."""
        return TrainData({name: part.task.task_config.train_data for name, part in self.parts.items()})

    # What to build.

    def build_model(self) -> Any:
        """Returns the model of `build_models()`."""
        from official_trainer.tasks.multi_task.model import MultiTaskModel

        return MultiTaskModel(self.build_models())

    def build_models(self) -> Mapping[str, keras.Model]:
        """Returns a new, built model for each task, by its name."""
        raise NotImplementedError(f"{type(self).__name__} must define build_models(), or build_model()")

    def initialize(self, model: Any) -> None:
        """Gives a fresh run its first weights.

        They come from `init_checkpoint`, as for any task; then each task's own `initialize` is called with its model,
        and the model's, if it has one.
        """
        super().initialize(model)
        for name, part in self.parts.items():
            part.task.initialize(sub_model(model, name))
        if hasattr(model, "initialize"):
            model.initialize()

    def build_metrics(self, training: bool = True) -> list[Any]:
        """Returns the training metrics of each task, under its name; evaluations build those of each task."""
        from official_trainer.tasks.metrics import TaskMetrics

        if not training:
            return []
        return [TaskMetrics(name, part.task.build_metrics(training=True)) for name, part in self.parts.items()]

    def build_signatures(self, model: Any) -> dict[str, Any]:
        """Returns the serving functions of each task: its default under the task's name, others as `name_other`."""
        from official_trainer.tasks import export

        signatures = {}
        for name, part in self.parts.items():
            # Model Garden's tasks have none.
            build = getattr(part.task, "build_signatures", None) or functools.partial(
                export.default_signatures, part.task
            )
            try:
                of_task = build(sub_model(model, name))
            except export.NoSignaturesError as error:
                _logger.warning("no signature for the task '%s' is exported: %s", name, error)
                continue
            for key, function in of_task.items():
                signatures[name if key == "serving_default" else f"{name}_{key}"] = function
        return signatures

    def build_actions(self, trainer: Any) -> Sequence[Any]:
        """Returns the actions of all tasks."""
        # Model Garden's tasks have none.
        builders = [getattr(part.task, "build_actions", None) for part in self.parts.values()]
        return [action for build in builders if build is not None for action in build(trainer)]

    # Batches.

    def build_inputs(self, params: TrainData, input_context: Any = None) -> tf.data.Dataset:
        """Returns the batches of all tasks: one of each, by name, in joint training.

        In interleaved training, an element has the number of its task, and empty batches for the others.
        """
        context = InputContext.adopt(input_context)
        tasks = {name: part.task for name, part in self.parts.items()}
        return batches_of(tasks, params, context, self._sampler)

    def examples_of_steps(self, stop: int, num_steps: int, seed: int) -> int:
        """Returns how many examples the `num_steps` batches before batch `stop` of the data hold."""
        sizes = [section.global_batch_size for section in self.train_data.sections.values()]
        counts = [num_steps] * len(sizes)
        if self._sampler is not None:
            counts = self._sampler.counts(seed, stop, stop - num_steps)
        return sum(size * count for size, count in zip(sizes, counts, strict=True))

    # Steps.

    @property
    def dispatches(self) -> bool:
        """Whether a step is for one task only, which `dispatch` finds."""
        return self._sampler is not None

    def dispatch(self, strategy: tf.distribute.Strategy, batch: Mapping[str, Any], run: Callable[[Any], Any]) -> Any:
        """Calls `run` with the batch of the task that the step is for; in cross-replica context.

        Not within a replica, because replicas cannot talk to each other inside of a branch.

        Args:
          strategy: distributes the batch.
          batch: with the batches of all tasks, all but one of them empty.
          run: runs a step over the replicas.

        Returns:
          What `run` returns; None if this is traced.
        """
        if tf.executing_eagerly():
            return run(self._chosen(batch, strategy.experimental_local_results(batch[CHOSEN])[0]))
        chosen = strategy.experimental_local_results(batch[CHOSEN])[0][0]

        def step_of(name: str) -> tf.Tensor:
            run({name: batch[BATCHES][name]})
            return tf.constant(0)  # a branch has to return something

        tf.switch_case(tf.cast(chosen, tf.int32), [functools.partial(step_of, name) for name in self.parts])
        return None

    def _chosen(self, batch: Mapping[str, Any], chosen: tf.Tensor) -> dict[str, Any]:
        """Returns the batch of the task that the step is for, by its name; not traced."""
        name = list(self.parts)[int(chosen[0])]
        return {name: batch[BATCHES][name]}

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> dict[str, Any]:
        """Runs one update, with the batches of all tasks or of one.

        Args:
          inputs: batches by the tasks' names; or an element of `build_inputs`, if this is not traced.
          model: of all tasks.
          optimizer: of all tasks.
          metrics: of `build_metrics`.

        Returns:
          Logs; the loss is the weighted sum, or the loss of the step's task. In interleaved training they also have
          what the task's own step returned beside its loss, under the task's name.
        """
        from official_trainer.tasks.numbers import beside_loss, names_of

        by_task = {metric.name: metric for metric in metrics or () if metric.name in self.parts}
        if self._sampler is None:
            return self._joint_step(inputs, model, optimizer, by_task)
        ((name, batch),) = (self._chosen(inputs, inputs[CHOSEN]) if CHOSEN in inputs else inputs).items()
        task, measured = self.parts[name].task, by_task.get(name)
        of_task = None if measured is None else measured.metrics
        logs = task.train_step(batch, model=sub_model(model, name), optimizer=optimizer, metrics=of_task)
        if measured is not None:
            measured.loss.update_state(logs[task.loss])
        return {self.loss: logs[task.loss], name: beside_loss(task, logs, names_of(of_task or []))}

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        """Always raises: each task is evaluated by itself, on its own data."""
        raise NotImplementedError(
            "validation_dataset: several tasks cannot be evaluated on one dataset; each has its own, in its "
            "task_config.validation_data"
        )

    def _joint_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        losses, outputs = {}, {}
        with tf.GradientTape() as tape:
            for name, part in self.parts.items():
                model_of_task = sub_model(model, name)
                features, labels = split_inputs(inputs[name])
                outputs[name] = model_of_task(features, training=True)
                losses[name] = total_loss(part.task, labels, outputs[name], model_of_task)
            loss = tf.add_n([part.weight * losses[name] for name, part in self.parts.items()])
            scaled = scaled_loss(loss, optimizer)
        if update(tape, scaled, model, optimizer):
            for name, part in self.parts.items():
                if hasattr(part.task, "after_step"):  # Model Garden's tasks have none
                    part.task.after_step(sub_model(model, name))
        for name, measured in metrics.items():
            measured.loss.update_state(losses[name])
            if measured.metrics:
                self.parts[name].task.process_metrics(measured.metrics, split_inputs(inputs[name])[1], outputs[name])
        return {self.loss: loss}


def sub_model(model: Any, name: str) -> Any:
    """Returns the part of `model` for a task: one of its `sub_tasks`, or the model itself if it has none.

    Raises:
      SubTasksError: the task has no part; names the tasks that have one.
    """
    sub_tasks = getattr(model, "sub_tasks", None)
    if sub_tasks is None:
        return model
    if name not in sub_tasks:
        raise SubTasksError(
            f"the task {name!r} has no model: the sub_tasks of {type(model).__name__} are {', '.join(sub_tasks)}"
        )
    return sub_tasks[name]


def is_built(model: Any) -> bool:
    """Whether a model, or each of its sub-models, has its variables."""
    sub_tasks = getattr(model, "sub_tasks", None)
    return all(getattr(sub_task, "built", True) for sub_task in ([model] if sub_tasks is None else sub_tasks.values()))


def parts_in(task: Any) -> list[Part]:
    """Returns the parts of a `MultiTask`; an empty list for a single task."""
    return list(task.parts.values()) if isinstance(task, MultiTask) else []


def train_section(task: Any, config: Any) -> Any:
    """Returns the argument of `task.build_inputs` for training: a section of the config, or those of several tasks."""
    return task.train_data if isinstance(task, MultiTask) else getattr(config.task, "train_data", None)


def check_sections(config: Any, task: Any, needs_train_data: bool, needs_validation_data: bool) -> None:
    """Refuses a config without the sections that a Trainer of `task` reads; several tasks have their own sections.

    Raises:
      AttributeError: names the missing section.
    """
    for name in ("trainer", "task"):
        if not hasattr(config, name):
            raise AttributeError(f"the config has no section {name!r}, which the Trainer needs")
    if isinstance(task, MultiTask):
        task.configure(config.trainer)
        return
    for name, needed in (("train_data", needs_train_data), ("validation_data", needs_validation_data)):
        if needed and not hasattr(config.task, name):
            raise AttributeError(f"the config has no section 'task.{name}'; add it, or pass a dataset to the Trainer")
