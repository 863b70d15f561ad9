"""N7: the rules that the schema's own sections add to the types of their fields."""

import dataclasses

import pytest

from official_trainer.config import Config, ConfigError, ExperimentConfig, TrainerConfig, resolve
from tests.support.config.sample import resolved


def test_configurations_that_keep_the_rules():
    config = resolved(
        "trainer.optimizer_config.optimizer=adam",
        "trainer.optimizer_config.learning_rate={type: stepwise, stepwise: {boundaries: [5], values: [1, 0.1]}}",
        "trainer.optimizer_config.warmup={type: linear, linear: {warmup_steps: 10}}",
        "task.train_data={tfds_name: mnist, tfds_split: 'train[:90%]'}",
        "runtime={mixed_precision_dtype: float16, loss_scale: dynamic}",
    ).config
    assert config.trainer.optimizer_config.learning_rate.get().values == (1.0, 0.1)
    assert config.trainer.optimizer_config.warmup.get().warmup_steps == 10
    assert config.runtime.loss_scale == "dynamic"
    assert resolve(ExperimentConfig(), sets=["trainer.train_epochs=3"]).config.trainer.train_epochs == 3


def test_steps_of_the_command_line_and_epochs_of_the_code():
    """N7: who has set the other is said, and what keeps those of the command line works."""
    base = ExperimentConfig(trainer=TrainerConfig(train_epochs=3))
    with pytest.raises(ConfigError) as caught:
        resolve(base, experiment="digits", sets=["trainer.train_steps=400"])
    said = (
        "set train_epochs=null to count steps, or train_steps=0 to count epochs (train_epochs is set by experiment dig"
    )
    assert said in str(caught.value) and str(caught.value).startswith(
        "--set: trainer.train_epochs: cannot be set toget"
    )
    found = resolve(base, experiment="digits", sets=["trainer.train_steps=400", "trainer.train_epochs=null"])
    assert found.config.trainer.train_steps == 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halves(Config):
    left: int = 1
    right: int = 1

    def problems(self):
        if self.left != self.right:
            yield "right", "must be as long as the other half", "left"


def test_the_line_of_the_field_that_the_user_has_set_is_shown():
    """N7: a rule says which fields it is about; the words of its message do not count."""
    with pytest.raises(ConfigError) as caught:
        resolve(Halves(), sets=["left=2"])
    assert str(caught.value).splitlines() == [
        "--set: right: must be as long as the other half",
        "      | --set=left=2",
        "      |            ^",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(Halves(), sets=["left=x"])
    assert [problem.path for problem in caught.value.problems] == ["left"]
