"""Configs of straight lines."""

import dataclasses

from official.core import config_definitions as cfg
from official.core import exp_factory
from official.modeling import optimization


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    slope: float = 1.0
    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=True, global_batch_size=16)
    )
    validation_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=False, global_batch_size=32)
    )


def line(slope):
    """A straight line."""
    return cfg.ExperimentConfig(
        task=LineConfig(slope=slope),
        trainer=cfg.TrainerConfig(
            train_steps=8,
            steps_per_loop=4,
            summary_interval=4,
            checkpoint_interval=4,
            validation_interval=8,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                }
            ),
        ),
    )


for _name, _slope in (("flat", 0.5), ("steep", 3.0)):

    @exp_factory.register_config_factory(f"my_lines/{_name}")
    def _factory(slope=_slope):
        """A straight line."""
        return line(slope)
