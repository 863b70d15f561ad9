"""N7: the rules that the schema's own sections add to the types of their fields."""

import dataclasses

import pytest

from official_trainer.config import Config, ConfigError, ExperimentConfig, TrainerConfig, resolve
from tests.support.config.sample import problems, resolved

OPTIMIZATION = "trainer.optimizer_config"
ADAM = f"{OPTIMIZATION}.optimizer=adam"
STEPWISE = f"{OPTIMIZATION}.learning_rate=stepwise"
STEP_COSINE = f"{OPTIMIZATION}.learning_rate=step_cosine_with_offset"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ["task.train_data={input_path: a, tfds_name: b, tfds_split: c}"],
            "task.train_data.tfds_name: cannot be set together with input_path; keep one of the two",
        ),
        (["task.train_data.tfds_name=x"], "tfds_split: is needed with tfds_name, for example tfds_split: train"),
        (["task.train_data.tfds_split=x"], "task.train_data.tfds_split: has no effect without tfds_name"),
        (
            ["trainer.train_epochs=3"],
            "trainer.train_epochs: cannot be set together with train_steps=100; set train_epochs=null to count steps, "
            "or train_steps=0 to count epochs",
        ),
        (["trainer.validation_steps=0"], "trainer.validation_steps: must be -1 (all data) or at least 1"),
        (["trainer.train_tf_function=off"], "train_tf_while_loop: needs train_tf_function; set train_tf_while_loop=f"),
        (
            ["trainer.eval_tf_function=off", "trainer.eval_tf_while_loop=on"],
            "trainer.eval_tf_while_loop: needs eval_tf_function; set eval_tf_while_loop=false too",
        ),
        (
            ["trainer.best_checkpoint_eval_metric=x", "trainer.best_checkpoint_export_subdir="],
            "trainer.best_checkpoint_export_subdir: must name a folder when best_checkpoint_eval_metric is set",
        ),
        (["runtime.loss_scale=dynamic"], "loss_scale: has no effect unless mixed_precision_dtype is float16"),
        (["runtime={enable_xla: on, run_eagerly: on}"], "runtime.enable_xla: cannot be combined with run_eagerly"),
        (["runtime.enable_xla=maybe"], "runtime.enable_xla: must be true or false, got 'maybe'"),
        (
            ["runtime={all_reduce_alg: nccl, distribution_strategy: off}"],
            "runtime.all_reduce_alg: nccl has no effect with distribution_strategy=off",
        ),
        (
            [ADAM, f"{OPTIMIZATION}.optimizer.adam={{clipnorm: 1, clipvalue: 1, global_clipnorm: 1}}"],
            "adam.global_clipnorm: cannot be combined with clipnorm and clipvalue; keep one",
        ),
        ([STEPWISE], "learning_rate.stepwise.boundaries: must be set when learning_rate.type is stepwise"),
        (
            [STEPWISE, f"{OPTIMIZATION}.learning_rate.stepwise={{boundaries: [5, 2], values: [1, 2, 3]}}"],
            "learning_rate.stepwise.boundaries: must rise, got [5, 2]",
        ),
        (
            [STEPWISE, f"{OPTIMIZATION}.learning_rate.stepwise={{boundaries: [5], values: [1]}}"],
            "learning_rate.stepwise.values: must hold 2 rates for 1 boundaries, got 1",
        ),
        (
            [STEP_COSINE, f"{OPTIMIZATION}.learning_rate.step_cosine_with_offset={{boundaries: [0], values: [1, 2]}}"],
            "learning_rate.step_cosine_with_offset.values: must hold 1 rates for 1 boundaries, got 2",
        ),
        ([f"{OPTIMIZATION}.warmup=linear"], "warmup.linear.warmup_steps: must be set when warmup.type is linear"),
    ],
)
def test_rules(sets, said):
    """N7: every rule across fields, with its fix, at the user's own words."""
    found = problems(*sets)
    assert said in found[0]
    assert found[0].startswith("--set: ")


def test_configurations_that_keep_the_rules():
    config = resolved(
        ADAM,
        STEPWISE,
        f"{OPTIMIZATION}.learning_rate.stepwise={{boundaries: [5], values: [1, 0.1]}}",
        f"{OPTIMIZATION}.warmup={{type: linear, linear: {{warmup_steps: 10}}}}",
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
