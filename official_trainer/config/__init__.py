"""The configuration: typed, layered, frozen, with the origin of each value. Does not import TensorFlow.

Owns: everything between what a user writes (YAML, flags, an experiment's Python) and one `ExperimentConfig`.
Does not own: which experiments there are (`tasks/registry.py`), or what the fields do.
"""

from official_trainer.config.components import ActionConfig as ActionConfig
from official_trainer.config.components import TrackerConfig as TrackerConfig
from official_trainer.config.declaration import Above as Above
from official_trainer.config.declaration import Between as Between
from official_trainer.config.declaration import Config as Config
from official_trainer.config.declaration import Fraction as Fraction
from official_trainer.config.declaration import FrozenDict as FrozenDict
from official_trainer.config.declaration import NonNegative as NonNegative
from official_trainer.config.declaration import NonNegativeFloat as NonNegativeFloat
from official_trainer.config.declaration import OneOf as OneOf
from official_trainer.config.declaration import Positive as Positive
from official_trainer.config.declaration import PositiveFloat as PositiveFloat
from official_trainer.config.dump import digest as digest
from official_trainer.config.dump import dump as dump
from official_trainer.config.dump import flat as flat
from official_trainer.config.errors import ConfigError as ConfigError
from official_trainer.config.errors import Origin as Origin
from official_trainer.config.errors import Problem as Problem
from official_trainer.config.errors import not_a_choice as not_a_choice
from official_trainer.config.explain import explain as explain
from official_trainer.config.layers import resolve as resolve
from official_trainer.config.multitask import MultiEvalExperimentConfig as MultiEvalExperimentConfig
from official_trainer.config.multitask import MultiTaskConfig as MultiTaskConfig
from official_trainer.config.multitask import MultiTaskExperimentConfig as MultiTaskExperimentConfig
from official_trainer.config.multitask import MultiTaskTrainerConfig as MultiTaskTrainerConfig
from official_trainer.config.multitask import TaskRoutine as TaskRoutine
from official_trainer.config.multitask import TaskSamplingConfig as TaskSamplingConfig
from official_trainer.config.optimization import OptimizationConfig as OptimizationConfig
from official_trainer.config.overrides import format_override as format_override
from official_trainer.config.provenance import Resolved as Resolved
from official_trainer.config.schema import DataConfig as DataConfig
from official_trainer.config.schema import ExperimentConfig as ExperimentConfig
from official_trainer.config.schema import ExportConfig as ExportConfig
from official_trainer.config.schema import RuntimeConfig as RuntimeConfig
from official_trainer.config.schema import TaskConfig as TaskConfig
from official_trainer.config.schema import TrainerConfig as TrainerConfig
from official_trainer.config.text import flow as flow
from official_trainer.config.when import When as When
