"""The sections of an experiment's config that a Program takes: which fields `fit` uses, and which it refuses.

Owns: the fields of `TrainerConfig` and `RuntimeConfig` that have a meaning for a Program, and the config of a call.
Does not own: what the fields do (the engine), or Keras's arguments (`program.py`).

`fit` decides about a field at its default. A field that repeats an argument of Keras is refused, so that nothing is set
in two places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
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
from official_trainer.lazy import keras
from official_trainer.program.data import ArgumentError
from official_trainer.program.epochs import Epochs
from official_trainer.runs.recorded import PROGRAM

TASK = TaskConfig(train_data=DataConfig(is_training=True), validation_data=DataConfig(is_training=False))
"""The section of a task that is a model in memory."""
NEVER = 2**62  # an interval that no run gets to

_TRACING = ("train_tf_function", "train_tf_while_loop", "eval_tf_function", "eval_tf_while_loop")

_OF_ARGUMENTS = (
    *("trainer.train_steps", "trainer.train_epochs", "trainer.summary_interval", "trainer.on_data_end"),
    *("trainer.validation_interval", "trainer.validation_steps", "trainer.continuous_eval_timeout"),
    *(f"trainer.optimizer_config.{name}" for name in ("optimizer", "learning_rate", "warmup")),
    *(f"trainer.{name}" for name in _TRACING),
    *(f"runtime.{name}" for name in ("seed", "run_eagerly", "enable_xla", "loss_scale", "tpu")),
    *("runtime.worker_hosts", "runtime.task_index"),
    *("runtime.rendezvous_timeout_seconds", "runtime.collective_timeout_seconds"),
)
"""Fields that arguments of Program, `compile` and `fit` say; and those of several processes, of which `fit` is one."""

_OF_BUILDING = (
    *("distribution_strategy", "num_gpus", "num_logical_cpus", "all_reduce_alg", "num_packs"),
    *("mixed_precision_dtype", "enable_op_determinism"),
)
"""Fields of the runtime that take effect while a model is built."""

_WITHOUT_DIRECTORY = ("steps_per_loop", "gradient_accumulation_steps", "max_traces", "optimizer_config")
"""Fields that need no run directory, in addition to those above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the calls of a Program have in common.

    Attributes:
      base: the config, without the fields that each call sets.
      model_dir: the run directory; empty for none.
      saves_each_epoch: whether there is a checkpoint after each epoch, whatever the interval in `base`.
    """

    base: ExperimentConfig
    model_dir: str = ""
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
        usual = TrainerConfig()
        runtime = runtime or RuntimeConfig()
        for path in [*_changed("runtime", runtime, RuntimeConfig()), *_changed("trainer", trainer or usual, usual)]:
            name = path.split(".")[1]
            if path in _OF_ARGUMENTS:
                raise ArgumentError(
                    f"{path}: leave it out; arguments of Program, compile and fit say it in one process"
                )
            if path.startswith("runtime.") and name in _OF_BUILDING:
                if not builds:
                    raise ArgumentError(
                        f"{path}: it takes effect during building; give Program a function that builds the model, in "
                        "place of the model"
                    )
            elif not model_dir and name not in _WITHOUT_DIRECTORY:
                raise ArgumentError(f"{path}: it needs a run directory; give Program(model_dir=…)")
        if runtime.distribution_strategy in ("multi_worker_mirrored", "parameter_server", "tpu"):
            raise ArgumentError(
                f"runtime.distribution_strategy={runtime.distribution_strategy}: fit runs in one process; use train.py "
                "with an experiment"
            )
        trainer = trainer or TrainerConfig(export=ExportConfig(at_end=False))
        saves_each_epoch = trainer.checkpoint_interval == usual.checkpoint_interval
        trainer = trainer.replace(on_data_end="stop")  # as Keras, which warns
        base = ExperimentConfig(task=TASK, trainer=trainer, runtime=runtime.replace(seed=seed))
        settings = cls(base=base, model_dir=model_dir, saves_each_epoch=saves_each_epoch)
        settings.resolved(base.replace(trainer=trainer.replace(checkpoint_interval=1)) if saves_each_epoch else base)
        return settings

    def build(self, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, called in the scope of the strategy, on the devices of the runtime section.

        Raises:
          DeviceError: the devices are not there.
        """
        process.configure_process(self.base.runtime)
        with strategy.build_strategy(self.base.runtime).scope():
            return make()

    def config(
        self, model: keras.Model, epochs: Epochs | None = None, validation_steps: int | None = None
    ) -> ExperimentConfig:
        """Returns the config of a call.

        Args:
          model: compiled.
          epochs: the epochs of `fit`; None for a call that does not train.
          validation_steps: batches of an evaluation; None for all.

        Raises:
          ConfigError: values are wrong, or contradict each other.
        """
        fields: dict[str, Any] = {
            "train_steps": 0 if epochs is None else epochs.end_step,
            "train_epochs": None,
            "summary_interval": NEVER,
            "validation_interval": NEVER,
            "validation_steps": validation_steps or -1,
            **dict.fromkeys(_TRACING, not model.run_eagerly),
        }
        if self.base.trainer.steps_per_loop == TrainerConfig().steps_per_loop:
            fields["steps_per_loop"] = NEVER
        if self.saves_each_epoch:
            fields["checkpoint_interval"] = 1 if epochs is None else epochs.steps
        runtime = self.base.runtime.replace(enable_xla=bool(model.jit_compile))
        return self.resolved(self.base.replace(trainer=self.base.trainer.replace(**fields), runtime=runtime)).config

    def resolved(self, config: ExperimentConfig) -> Resolved:
        """Returns a config as a job takes it."""
        return configuration.resolve(config, experiment=PROGRAM)


def _changed(path: str, section: Any, default: Any) -> Iterator[str]:
    """Yields the paths of the fields of a section that are not at their defaults, in that of the optimizer too."""
    for field in dataclasses.fields(section):
        value, usual = getattr(section, field.name), getattr(default, field.name)
        if isinstance(value, OptimizationConfig):
            yield from _changed(f"{path}.{field.name}", value, usual)
        elif value != usual:
            yield f"{path}.{field.name}"
