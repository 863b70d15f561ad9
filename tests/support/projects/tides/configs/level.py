"""How high the water stands in an hour, from the hours before."""

import dataclasses

from official.core import config_definitions as cfg
from official.core import exp_factory
from official.modeling import hyperparams, optimization


@dataclasses.dataclass
class Dense(hyperparams.Config):
    units: int = 8


@dataclasses.dataclass
class Recurrent(hyperparams.Config):
    units: int = 4
    go_backwards: bool = False


@dataclasses.dataclass
class Encoder(hyperparams.OneOfConfig):
    type: str | None = "dense"
    dense: Dense = dataclasses.field(default_factory=Dense)
    recurrent: Recurrent = dataclasses.field(default_factory=Recurrent)


@dataclasses.dataclass
class LevelData(cfg.DataConfig):
    hours: int = 12
    stations: tuple[str, ...] = ("north", "south")


@dataclasses.dataclass
class LevelConfig(cfg.TaskConfig):
    model: Encoder = dataclasses.field(default_factory=Encoder)
    train_data: LevelData = dataclasses.field(default_factory=lambda: LevelData(is_training=True, global_batch_size=16))
    validation_data: LevelData = dataclasses.field(
        default_factory=lambda: LevelData(is_training=False, global_batch_size=16, drop_remainder=False)
    )


@exp_factory.register_config_factory("tide_level")
def tide_level() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
        task=LevelConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=400,
            steps_per_loop=20,
            summary_interval=20,
            checkpoint_interval=100,
            validation_interval=100,
            best_checkpoint_export_subdir="best",
            best_checkpoint_eval_metric="error",
            best_checkpoint_metric_comp="lower",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.02}},
                }
            ),
        ),
        restrictions=["task.train_data.is_training != None", "task.train_data.hours == task.validation_data.hours"],
    )
