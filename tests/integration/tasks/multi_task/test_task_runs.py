"""Whole runs of several tasks: everything that a run of one task has, restarts included."""

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import MultiEvalExperimentConfig
from official_trainer.runs.resume.config_changes import kind_of
from tests.support import several_tasks, toy
from tests.support.several_tasks import do


def test_one_task_with_named_sets_keeps_the_best_by_one_of_them(tmp_path):
    """T21, B3, B4: `eval_tasks`, in a run, as Model Garden names their results."""
    base = toy.experiment(on_data_end="repeat", validation_interval=20, best_checkpoint_eval_metric="few|accuracy")
    config = MultiEvalExperimentConfig(
        task=several_tasks.POINTS.task_config,
        trainer=base.trainer.replace(train_steps=40, export=base.trainer.export.replace(at_end=False)),
        eval_tasks=(several_tasks.POINTS.replace(task_name="few", eval_steps=1),),
    )
    metrics = do(tmp_path / "run", config=config)
    assert {"accuracy", "few/accuracy", "few/validation_loss", "best_few|accuracy"} <= metrics.keys()
    assert committed_steps(str(tmp_path / "run" / "best"))


KINDS = {
    "task.task_routines": "variables",
    "task.task_routines[0].task_name": "variables",
    "task.task_routines[1].task_weight": "guarded",
    "task.task_routines[1].eval_steps": "safe",
    "task.task_routines[1].task_config.validation_data.global_batch_size": "safe",
    "task.task_routines[1].task_config.train_data.global_batch_size": "guarded",
    "task.task_routines[1].task_config.init_checkpoint": "safe",
    "trainer.trainer_type": "guarded",
    "trainer.task_sampler.type": "guarded",
    "eval_tasks[0].eval_steps": "safe",
    "eval_tasks": "safe",
}


def test_what_a_changed_setting_of_several_tasks_means():
    """T21, N9: what is evaluated is free, what is trained is guarded."""
    assert {path: kind_of(path) for path in KINDS} == KINDS
