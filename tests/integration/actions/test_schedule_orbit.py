"""orbit's own actions, and Model Garden's, as they are: in a task, and on a trainer."""

import orbit
import pytest
from official.core import actions as garden_actions
from official.core import config_definitions

from official_trainer import files
from official_trainer.actions.action import Callback
from official_trainer.actions.replica_integrity import ReplicaIntegrityConfig
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.tracking import Trackers
from tests.support import toy


def test_an_export_file_manager_counts_on_after_a_restart(model_dir):
    """G1: orbit's default names; appended to a trainer."""
    trainer = toy.build()
    files.make_dirs(f"{model_dir}/model-0")  # of an earlier process
    manager = orbit.actions.ExportFileManager(f"{model_dir}/model", max_to_keep=5)
    trainer.actions.append(
        orbit.actions.ExportSavedModel(trainer.model, manager, trainer.task.build_signatures(trainer.model))
    )
    run_loop(model_dir, trainer)
    assert sorted(files.list_dir(model_dir)) == ["model-0", "model-1"]


class NoStore:
    """Keeps nothing: each run begins anew."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None if name in ("restore", "latest_step") else []


def run_loop(model_dir, trainer):
    config = trainer.config.trainer.replace(train_steps=4, summary_interval=2)
    trainer.use_config(trainer.config.replace(trainer=config))
    Loop(
        trainer=trainer,
        store=NoStore(),
        metric_writer=Trackers([]),
        due=DueSteps(config, "end"),
        actions=Schedule(trainer.actions),
        model_dir=model_dir,
    ).run()


def test_train_actions_see_each_summary(model_dir):
    """G1, G8: Model Garden's condition on a loss that has grown, with the numbers that it takes from the output."""
    trainer, outputs = toy.build(), []
    condition = garden_actions.RecoveryCondition(trainer.global_step, loss_upper_bound=1e-6, recovery_max_trials=1)
    trainer.actions.append(Callback(orbit.actions.ConditionalAction(condition, outputs.append), on="train"))
    with pytest.raises(
        ActionError, match="'ConditionalAction' failed in on_step at step 4: RuntimeError: The loss val"
    ):
        run_loop(model_dir, trainer)
    assert [set(output) >= {"training_loss", "learning_rate"} for output in outputs] == [True]


def test_model_gardens_own_choice_of_actions(model_dir):
    """G1: what its driver would add to an evaluation is nothing here: the engine averages and saves that itself."""
    trainer = toy.build(toy.experiment(ema=EMAConfig(average_decay=0.9)))
    params = config_definitions.ExperimentConfig()
    assert garden_actions.get_eval_actions(params, trainer, model_dir) == []
    with pytest.raises(ValueError, match="Optimizer has to be instance of"):
        garden_actions.EMACheckpointing(model_dir, trainer.optimizer, trainer.checkpoint)


def test_callables_of_one_name_are_told_apart():
    """G1: in messages and in checkpoints."""
    conditional = [orbit.actions.ConditionalAction(bool, print) for _ in range(3)]
    mine = Callback(print)
    mine.name = "mine"
    schedule = Schedule([conditional[0], len, mine, conditional[1], Callback(conditional[2], on="train")])
    names = [action.name for action in schedule.actions]
    assert names == ["ConditionalAction", "len", "mine", "ConditionalAction-2", "ConditionalAction-3"]
    with pytest.raises(ValueError, match="two actions are named 'len-2'"):
        Schedule([len, len, _named("len-2")])


def _named(name):
    action = ReplicaIntegrityConfig(name=name).build()
    action.name = name
    return action
