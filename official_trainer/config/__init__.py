"""The configuration: typed, layered, frozen, with the origin of each value. Does not import TensorFlow.

Owns: everything between what a user writes (YAML, flags, an experiment's Python) and one `ExperimentConfig`.
Does not own: which experiments there are (`tasks/registry.py`), or what the fields do.
"""

from official_trainer.config.components import ActionConfig, TrackerConfig
from official_trainer.config.declaration import (
    Above,
    Between,
    Config,
    Fraction,
    FrozenDict,
    NonNegative,
    NonNegativeFloat,
    OneOf,
    Positive,
    PositiveFloat,
)
from official_trainer.config.dump import digest, dump, flat
from official_trainer.config.errors import ConfigError, Origin, Problem, not_a_choice
from official_trainer.config.explain import explain
from official_trainer.config.layers import resolve
from official_trainer.config.multitask import (
    MultiEvalExperimentConfig,
    MultiTaskConfig,
    MultiTaskExperimentConfig,
    MultiTaskTrainerConfig,
    TaskRoutine,
    TaskSamplingConfig,
)
from official_trainer.config.optimization import OptimizationConfig
from official_trainer.config.overrides import format_override
from official_trainer.config.provenance import Resolved
from official_trainer.config.schema import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    RuntimeConfig,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config.text import flow
from official_trainer.config.when import When

__all__ = [
    "Above",
    "ActionConfig",
    "Between",
    "Config",
    "ConfigError",
    "DataConfig",
    "ExperimentConfig",
    "ExportConfig",
    "Fraction",
    "FrozenDict",
    "MultiEvalExperimentConfig",
    "MultiTaskConfig",
    "MultiTaskExperimentConfig",
    "MultiTaskTrainerConfig",
    "NonNegative",
    "NonNegativeFloat",
    "OneOf",
    "OptimizationConfig",
    "Origin",
    "Positive",
    "PositiveFloat",
    "Problem",
    "Resolved",
    "RuntimeConfig",
    "TaskConfig",
    "TaskRoutine",
    "TaskSamplingConfig",
    "TrackerConfig",
    "TrainerConfig",
    "When",
    "digest",
    "dump",
    "explain",
    "flat",
    "flow",
    "format_override",
    "not_a_choice",
    "resolve",
]
