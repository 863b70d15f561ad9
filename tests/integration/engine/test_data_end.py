"""Data that is read to its end and has none: refused where that is known, counted where it is not."""

import re

import pytest

from official_trainer import files
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.config.multitask import MultiEvalExperimentConfig, TaskRoutine
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode
from official_trainer.runs.mistakes.report import report_of
from official_trainer.tasks import registry
from official_trainer.tasks.contract import EndlessError
from tests.support import jobs, toy


class RepeatedConfig(schema.TaskConfig):
    """Config class of its own, because the sections of several validation sets tell their task by it."""


@registry.register_task_cls(RepeatedConfig)
class RepeatedTask(toy.Undropped):
    """The toy task; the batches of an evaluation come again and again."""

    def build_inputs(self, params, input_context=None):
        batches = super().build_inputs(params, input_context)
        return batches if params.is_training else batches.repeat()


FOUR = {"train_steps": 4, "checkpoint_interval": 2, "validation_interval": 2, "steps_per_loop": 2}
do = toy.runs_of("repeated", None, RepeatedConfig, batch=8, eval_batch=50, export=toy.NO_EXPORT, **FOUR)


@registry.register_config_factory("repeated_beside")
def repeats_beside():
    """A named validation set that repeats, which is evaluated before the task's own."""
    base = registry.get_config("repeated")
    parts = {name: getattr(base, name) for name in ("trainer", "runtime")}
    named = TaskRoutine(task_name="dev", task_config=base.task, eval_steps=-1)
    return MultiEvalExperimentConfig(task=base.task, eval_tasks=(named,), **parts)


SAID = r"task.validation_data has no end, .*leave out repeat\(\) where RepeatedTask.build_inputs.* trainer.*_steps"


@pytest.mark.parametrize(
    ("mode", "sets"),
    [
        ("train_and_eval", ()),
        ("train_and_eval", ("runtime.distribution_strategy=mirrored",)),  # whose datasets hide it
        ("continuous_eval", ()),
    ],
)
def test_validation_data_without_an_end_is_refused_before_training(mode, sets, model_dir):
    """N28: with the line of `build_inputs`, and both ways out."""
    with pytest.raises(EndlessError, match=SAID) as caught:
        do(model_dir, *sets, mode=mode)
    assert caught.value.exit_code == ExitCode.DATA
    assert re.match(r".*test_data_end.py:\d+ in build_inputs\n", report_of(caught.value).message)
    assert committed_steps(model_dir) == ()


def test_data_are_built_in_one_order_also_where_a_process_begins_with_an_evaluation(model_dir, monkeypatch):
    """N1: `build_inputs` may draw from a generator that a module holds; a run that is done builds no training data."""
    built, evaluate, build_inputs = [], Trainer.evaluate, toy.Undropped.build_inputs

    def noted(self, params, input_context=None):
        built.append("train" if params.is_training else "validation")
        return build_inputs(self, params, input_context)

    def run_killed_at(step):
        def killed(self, num_steps):
            if self.context.step == step:
                raise KeyboardInterrupt
            return evaluate(self, num_steps)

        built.clear()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Trainer, "evaluate", killed)
            do(model_dir)
        assert (built, committed_steps(model_dir)[-1]) == (["validation", "train"], step)

    monkeypatch.setattr(RepeatedTask, "build_inputs", noted)
    run_killed_at(2)
    run_killed_at(4)  # begins with the evaluation of step 2
    built.clear()
    do(model_dir)
    assert built == ["validation"]


def test_a_number_of_batches_bounds_it_and_single_commands_refuse_it_too(model_dir):
    """N28: `eval`, `predict` and `check` of a run that was evaluated on some batches."""
    do(model_dir, "trainer.validation_steps=1")
    assert committed_steps(model_dir) == (2, 4)
    with pytest.raises(EndlessError, match=SAID):
        do(model_dir, mode="eval")
    with pytest.raises(EndlessError, match=r"validation_data has no end, .*leave out repeat\(\) for it, or"):
        do(model_dir, mode="predict")
    assert not files.list_dir(f"{model_dir}/predictions/predictions-00000.npz")
    *_, failed = jobs.check("repeated", jobs.resolved("repeated"), model_dir=f"{model_dir}-new", mode="train_and_eval")
    assert failed.name == "evaluate" and isinstance(failed.error, EndlessError)


def test_check_finds_training_data_that_end_before_the_last_step(model_dir, monkeypatch):
    """N28: 101 examples are 13 batches, and the run would fail behind them; not where it is to repeat them."""
    monkeypatch.setattr(RepeatedTask, "build_inputs", lambda self, params: toy.examples(101).batch(8))
    said = "the training data ends at step 13, and trainer.train_steps=14 asks for more; set trainer.on_data_end"

    def steps(*sets):
        return list(jobs.check("repeated", jobs.resolved("repeated", *sets), model_dir=str(model_dir), mode="train"))

    assert said in str(steps("trainer.train_steps=14")[-1].error)
    assert all(step.error is None for step in steps("trainer.train_steps=14", "trainer.on_data_end=repeat"))


def test_a_named_set_without_an_end_names_its_own_number_of_batches(model_dir):
    """N28: of an experiment with several validation sets."""
    said = r"^eval_tasks\[0\].task_config.validation_data has no end.*or set eval_tasks\[0\].eval_steps to a number"
    with pytest.raises(EndlessError, match=said):
        jobs.run(
            "repeated_beside", jobs.resolved("repeated_beside"), mode="train_and_eval", model_dir=model_dir, quiet=True
        )
