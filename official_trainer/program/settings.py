"""The sections of an experiment's config that a Program takes: which fields `fit` uses, and which it refuses.

Owns: the fields of `TrainerConfig` and `RuntimeConfig` that have a meaning for a Program, and the config of a call.
Does not own: what the fields do (the engine), or Keras's arguments (`program.py`).

`fit` decides about a field at its default. A field that repeats an argument of Keras is refused, so that nothing is set
in two places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer import config as configuration
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    OptimizationConfig,
    Resolved,
    RuntimeConfig,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.distributed import strategy
from official_trainer.engine import process
from official_trainer.lazy import keras, tf
from official_trainer.program.data import ArgumentError

EXPERIMENT = "Program"
NEVER = 2**62  # an interval that no run gets to

_BUILDS = "it takes effect during building; give Program a function that builds the model, in place of the model"
_ALONE = "fit runs in one process; use train.py with an experiment"

_ARGUMENTS = {
    "trainer.train_steps": "give fit(epochs=…)",
    "trainer.train_epochs": "give fit(epochs=…)",
    "trainer.on_data_end": "give fit(steps_per_epoch=…)",
    "trainer.summary_interval": "fit writes a summary at the end of each epoch; give fit(steps_per_epoch=…)",
    "trainer.validation_interval": "give fit(validation_freq=…)",
    "trainer.validation_steps": "give fit(validation_steps=…)",
    "trainer.continuous_eval_timeout": "fit does not wait for checkpoints of another process; leave it out",
    "trainer.train_tf_function": "give compile(run_eagerly=True)",
    "trainer.train_tf_while_loop": "give compile(run_eagerly=True)",
    "trainer.eval_tf_function": "give compile(run_eagerly=True)",
    "trainer.eval_tf_while_loop": "give compile(run_eagerly=True)",
    "trainer.optimizer_config.optimizer": "give compile(optimizer=…)",
    "trainer.optimizer_config.learning_rate": "give compile(optimizer=…)",
    "trainer.optimizer_config.warmup": "give compile(optimizer=…)",
    "runtime.run_eagerly": "give compile(run_eagerly=True)",
    "runtime.seed": "give Program(seed=…)",
    "runtime.worker_hosts": _ALONE,
    "runtime.task_index": _ALONE,
    "runtime.rendezvous_timeout_seconds": _ALONE,
    "runtime.collective_timeout_seconds": _ALONE,
    "runtime.tpu": _ALONE,
}
"""Fields that repeat an argument, or have no effect in `fit`; and what to use instead."""

_OF_BUILDING = (
    "distribution_strategy",
    "num_gpus",
    "num_logical_cpus",
    "all_reduce_alg",
    "num_packs",
    "mixed_precision_dtype",
    "loss_scale",
    "enable_op_determinism",
)
"""Fields of the runtime that take effect while a model is built."""

_WITHOUT_DIRECTORY = (
    "steps_per_loop",
    "gradient_accumulation_steps",
    "max_traces",
    "optimizer_config",
    "export",
    "runtime.enable_xla",
)
"""Fields that need no run directory, in addition to those above; without one, only an export that does nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the calls of a Program have in common.

    Attributes:
      base: the config, without the fields that each call sets.
      model_dir: the run directory; empty for none.
      experiment: the name of the experiment.
      saves_each_epoch: whether there is a checkpoint after each epoch, whatever the interval in `base`.
    """

    base: ExperimentConfig
    model_dir: str = ""
    experiment: str = EXPERIMENT
    saves_each_epoch: bool = False

    @classmethod
    def of(
        cls, trainer: TrainerConfig | None, runtime: RuntimeConfig | None, *, seed: int, model_dir: str, builds: bool
    ) -> Settings:
        """Returns checked settings; `builds` is whether the model is still to be built.

        Raises:
          ArgumentError: a field repeats an argument, or has no meaning here.
          ConfigError: values are wrong.
        """
        runtime, usual = runtime or RuntimeConfig(), TrainerConfig()
        given = {f"runtime.{name}": each for name, each in _changed(runtime, RuntimeConfig())}
        given |= {f"trainer.{name}": each for name, each in _changed(trainer or usual, usual)}
        for path, value in given.items():
            if why := next(_objections(path, has_directory=bool(model_dir), builds=builds), None):
                what = path if dataclasses.is_dataclass(value) or isinstance(value, tuple) else f"{path}={value!r}"
                raise ArgumentError(f"{what}: {why}")
        if runtime.distribution_strategy in ("multi_worker_mirrored", "parameter_server", "tpu"):
            raise ArgumentError(f"runtime.distribution_strategy={runtime.distribution_strategy}: {_ALONE}")
        trainer = trainer or TrainerConfig(export=ExportConfig(at_end=False))
        saves_each_epoch = trainer.checkpoint_interval == usual.checkpoint_interval
        trainer = trainer.replace(on_data_end="stop")  # as Keras, which warns
        base = ExperimentConfig(task=task_config(), trainer=trainer, runtime=runtime.replace(seed=seed))
        settings = cls(base=base, model_dir=model_dir, saves_each_epoch=saves_each_epoch)
        settings.config({"checkpoint_interval": 1} if saves_each_epoch else {})
        return settings

    @property
    def trainer(self) -> TrainerConfig:
        """The section of that name."""
        return self.base.trainer

    @property
    def runtime(self) -> RuntimeConfig:
        """The section of that name."""
        return self.base.runtime

    def check_validation(self, is_given: bool) -> None:
        """Refuses a best checkpoint without validation data; an experiment may have one for its other modes.

        Raises:
          ArgumentError: there is no validation data.
        """
        name = self.trainer.best_checkpoint_eval_metric
        if name and not is_given and self.experiment == EXPERIMENT:
            raise ArgumentError(
                f"trainer.best_checkpoint_eval_metric={name!r}: there is no evaluation with this metric; give "
                "fit(validation_data=…)"
            )

    def build(self, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, called in the scope of the strategy, on the devices of the runtime section.

        Raises:
          DeviceError: the devices are not there.
        """
        process.configure_process(self.runtime)
        with strategy.build_strategy(self.runtime).scope():
            return make()

    def optimizer(self, optimizer: Any) -> Any:
        """Returns an optimizer with the configured loss scale; Keras itself adds a dynamic one."""
        scale = self.runtime.loss_scale
        if scale in (None, "dynamic"):
            return optimizer
        inner = keras.optimizers.get(optimizer)
        return keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=scale)

    def call(
        self, *, end_step: int, epoch_steps: int | None, validation_steps: int | None, is_traced: bool
    ) -> Mapping[str, Any]:
        """Returns the fields of the trainer that follow from a call, for `config`.

        Args:
          end_step: the last step of training.
          epoch_steps: steps of an epoch; None outside of `fit`.
          validation_steps: batches of an evaluation; None for the number in the settings.
          is_traced: whether steps are traced.
        """
        fields: dict[str, Any] = {
            "train_steps": end_step,
            "train_epochs": None,
            "summary_interval": NEVER,
            "validation_interval": NEVER,
            "validation_steps": validation_steps or self.trainer.validation_steps,
        }
        if self.trainer.steps_per_loop == TrainerConfig().steps_per_loop:
            fields["steps_per_loop"] = NEVER
        if self.saves_each_epoch:
            fields["checkpoint_interval"] = epoch_steps or 1
        tracing = ("train_tf_function", "train_tf_while_loop", "eval_tf_function", "eval_tf_while_loop")
        return fields | dict.fromkeys(tracing, is_traced)

    def config(self, call: Mapping[str, Any], *, enable_xla: bool = False) -> Any:
        """Returns the config of a call.

        Args:
          call: the result of `call`.
          enable_xla: whether `compile` enables XLA.

        Raises:
          ConfigError: values are wrong, or contradict each other.
        """
        trainer = self.trainer.replace(**call)
        runtime = self.runtime.replace(enable_xla=enable_xla or self.runtime.enable_xla)
        return self.resolved(self.base.replace(trainer=trainer, runtime=runtime)).config

    def resolved(self, config: ExperimentConfig) -> Resolved:
        """Returns a config as a job takes it."""
        return configuration.resolve(config, experiment=self.experiment)


def task_config() -> TaskConfig:
    """Returns the section of a task that is a model in memory."""
    return TaskConfig(train_data=DataConfig(is_training=True), validation_data=DataConfig(is_training=False))


def check_micro_batches(count: int, sizes: Mapping[str, int], *, compiles: bool) -> None:
    """Refuses batches that micro-batches cannot share.

    Args:
      count: micro-batches of a batch, over all replicas.
      sizes: sizes of the batches by description; empty if they are unknown before the batches are read.
      compiles: whether XLA compiles the step, which then cannot check sizes.

    Raises:
      ArgumentError: names the batch.
    """
    if compiles and not sizes:
        raise ArgumentError(
            "trainer.gradient_accumulation_steps: XLA can divide batches into micro-batches only if their size is "
            "known; batch the dataset with drop_remainder=True, or compile without jit_compile and runtime.enable_xla"
        )
    for what, size in sizes.items():
        if size % count:
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            shared = f"{count // replicas} micro-batches" + (f" on each of {replicas} replicas" if replicas > 1 else "")
            raise ArgumentError(
                f"trainer.gradient_accumulation_steps: {shared} cannot share the {size} examples of {what}; choose a "
                f"batch_size and a number of examples that are multiples of {count}"
            )


def _changed(section: Any, default: Any) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a section that are not at their defaults; those of the optimizer's one by one."""
    for field in dataclasses.fields(section):
        value, usual = getattr(section, field.name), getattr(default, field.name)
        if isinstance(value, OptimizationConfig):
            yield from ((f"{field.name}.{name}", each) for name, each in _changed(value, usual))
        elif value != usual:
            yield field.name, value


def _objections(path: str, *, has_directory: bool, builds: bool) -> Iterator[str]:
    """Yields the reasons to refuse a field, the most important first."""
    section, _, name = path.partition(".")
    if path in _ARGUMENTS:
        yield _ARGUMENTS[path]
    if section == "runtime" and name in _OF_BUILDING:
        if not builds:
            yield _BUILDS
        return
    free = path in _WITHOUT_DIRECTORY or (section == "trainer" and name.partition(".")[0] in _WITHOUT_DIRECTORY)
    if not has_directory and (not free or name == "export"):
        yield "it needs a run directory; give Program(model_dir=…)"
