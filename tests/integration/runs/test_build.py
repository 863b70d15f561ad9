"""What is refused where a job is built, because only the model tells."""

import pytest

from official_trainer import Task, register_config_factory, registry
from official_trainer import config as configuration
from official_trainer.config import ConfigError, ExperimentConfig, TaskConfig
from official_trainer.runs import build
from official_trainer.runs.job import Job, check_ready


class OfEither(Task):
    """Its module says nothing of its Keras."""

    def build_model(self):
        keras = __import__(self.task_config.init_checkpoint)
        return keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])


@register_config_factory("of_either", task_cls=OfEither)
def of_either():
    return ExperimentConfig(task=TaskConfig(init_checkpoint="keras"))


def job_of(keras):
    sets = [f"task.init_checkpoint={keras}", "runtime.distribution_strategy=parameter_server"]
    resolved = configuration.resolve(registry.get_config("of_either"), experiment="of_either", sets=sets)
    return Job(experiment="of_either", resolved=resolved, model_dir="d", mode="eval")


def test_a_strategy_that_the_model_lacks_is_refused_before_a_step():
    """N40: where `import keras` is not in the experiment's module; an evaluation does without the strategy."""
    check_ready(job_of("keras"))
    with pytest.raises(ConfigError) as refused:
        build.build(job_of("keras"))
    (problem,) = refused.value.problems
    assert "parameter_server is for models of tf_keras, and this experiment's is of Keras 3; use" in problem.message
    assert build.build(job_of("tf_keras")).model.count_params() == 2
