"""What a training step returns beside the loss reaches the summaries, as means over their steps."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.tasks.numbers import StepLogsError
from official_trainer.tracking import flatten
from tests.support import several_tasks
from tests.support.cases import cases
from tests.support.toy import ToyTask, build, experiment

BATCH = 8


class Numbers(ToyTask):
    """Sums of integers in float32 are exact, so every division of a batch has the same mean."""

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        features = np.arange(96 * 6).reshape(96, 6).astype("float32")
        return tf.data.Dataset.from_tensor_slices((features, np.zeros(96, "int32"))).repeat().batch(size, True)

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        first = inputs[0][:, 0]
        norms = {"mean": tf.reduce_mean(first), "is_large": tf.reduce_max(first) > 200}
        return {**logs, "first": norms, "examples": tf.size(first), "fixed": 0.5}


def expected(steps, size):
    """The numbers of a summary of some steps, whose replicas or micro-batches have `size` examples."""
    batches = [np.arange(step * BATCH, (step + 1) * BATCH) % 96 * 6 for step in steps]
    parts = np.reshape(batches, (-1, size))
    large = np.mean(parts.max(1) > 200)
    return {"first/mean": np.mean(batches), "first/is_large": large, "examples": size, "fixed": 0.5}


def numbers(logs):
    return {name: float(logs[name]) for name in ("first/mean", "first/is_large", "examples", "fixed")}


@pytest.mark.parametrize(
    ("strategy", "options", "size"),
    [("off", {}, BATCH), ("mirrored2", {"gradient_accumulation_steps": 2}, BATCH // 4)],
)
def test_a_summary_has_the_means_over_its_steps_and_replicas(strategy, options, size):
    """N32: of all that is one number, by flat names; each summary begins again."""
    trainer = build(experiment(batch=BATCH, **options), task_cls=Numbers, strategy=strategy)
    assert numbers(trainer.train(6)) == pytest.approx(expected(range(6), size), rel=1e-6)
    assert numbers(trainer.train(3)) == pytest.approx(expected(range(6, 9), size), rel=1e-6)


class Norms(ToyTask):
    """A number that rounds, of a step with dropout."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "norm": tf.linalg.global_norm(model.trainable_variables) + tf.reduce_mean(inputs[0])}


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_windows_and_restarts_do_not_change_a_bit(tmp_path, strategy):
    """N32, N1: whatever steps_per_loop is, and in a run that was stopped between two summaries."""
    unbroken, before, after = (build(experiment(), task_cls=Norms, strategy=strategy) for _ in range(3))
    assert unbroken.run_steps(7) == 7
    whole = unbroken.train_loop_end()
    for steps in (1, 3):
        before.run_steps(steps)
    before.checkpoint_state.before_save()
    path = before.checkpoint.write(str(tmp_path / "state"))
    report = after.checkpoint_state.read_checkpoint(path, 4)
    after.checkpoint_state.after_restore(report)
    assert float(after.windows.results()["norm"]) == float(before.windows.results()["norm"]), (
        "before any step is traced"
    )
    for steps in (2, 1):
        after.run_steps(steps)
    assert float(after.train_loop_end()["norm"]) == float(whole["norm"])
    assert "norm" not in after.windows.results(), "no step since the summary"


def test_a_restart_may_return_other_numbers(tmp_path):
    """N32: what a user changes in the step between two starts: the others go on, also in a process that goes back."""

    class Others(Norms):
        def train_step(self, *args, **kwargs):
            logs = super().train_step(*args, **kwargs)
            return {"a": 1.0, **({} if self.leaves_out else {"dev/norm": logs["norm"]}), **logs}

        leaves_out = True

    class Before(Others):
        leaves_out = False

    before, after, alone = (build(experiment(), task_cls=cls) for cls in (Before, Others, Others))
    before.run_steps(2)
    before.checkpoint_state.before_save()
    path = before.checkpoint.write(str(tmp_path / "state"))
    alone.run_steps(4)
    after.checkpoint_state.after_restore(after.checkpoint_state.read_checkpoint(path, 2))
    after.run_steps(2)
    results, unbroken = after.windows.results(), alone.windows.results()
    assert float(results["a"]) == 1.0
    assert float(results["norm"]) == float(unbroken["norm"])
    assert float(results["dev/norm"]) == float(before.windows.results()["dev/norm"]), "of the steps before"


def test_going_back_forgets_what_later_steps_returned(tmp_path):
    """N32, T12: a name that no step before the checkpoint has returned."""
    trainer, alone = (build(experiment(), task_cls=Norms) for _ in range(2))
    trainer.checkpoint_state.before_save()
    path = trainer.checkpoint.write(str(tmp_path / "state"))
    trainer.run_steps(5)
    trainer.checkpoint_state.after_restore(trainer.checkpoint_state.read_checkpoint(path, 0))
    assert float(trainer.train(2)["norm"]) == float(alone.train(2)["norm"])


class Others(ToyTask):
    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "outputs": inputs[0], "word": "so", "none": None, "fine": 2.0}


def test_what_is_no_number_is_left_out_with_a_word(caplog):
    """N32: once, with the shape and what to do."""
    with caplog.at_level(logging.WARNING, "official_trainer.tasks.numbers"):
        trainer = build(task_cls=Others)
        logs = trainer.train(2)
        trainer.run_steps(1, publish=True)  # traced again
    assert float(logs["fine"]) == 2.0
    assert not {"outputs", "word", "none"} & logs.keys()
    said = [record.getMessage() for record in caplog.records]
    ending = (
        "which is not recorded: only single numbers are. Reduce it, by tf.reduce_mean for example, or use "
        "publish.histogram or publish.image inside the step"
    )
    assert said == [
        f"Others.train_step returns 'none', a NoneType, {ending}",
        f"Others.train_step returns 'outputs', float32 of shape (10, 6), {ending}",
        f"Others.train_step returns 'word', a str, {ending}",
    ]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("accuracy", r"a training metric \(SparseCategoricalAccuracy\)"),
        ("learning_rate", "what every row of training has"),
    ],
)
def test_a_name_that_is_taken_is_refused(name, what):
    """N32: at the first step, with what has it."""

    class Taken(ToyTask):
        def train_step(self, *args, **kwargs):
            return {**super().train_step(*args, **kwargs), name: 1.0}

    message = rf"Taken.train_step returns '{name}', which is the name of {what};\s+that is recorded without"
    with pytest.raises(StepLogsError, match=message):
        build(task_cls=Taken).train(1)


def test_metrics_that_a_step_of_model_garden_returns_are_recorded_once():
    """N32, A1: its steps also return the results of their metrics, which are left to these; other numbers count."""
    from official.core import base_task

    class Garden(base_task.Task):
        build_model, build_inputs, build_metrics = ToyTask.build_model, ToyTask.build_inputs, ToyTask.build_metrics

        def build_losses(self, labels, model_outputs, aux_losses=None):
            losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
            return tf.reduce_mean(losses)

        def train_step(self, inputs, model, optimizer, metrics=None):
            logs = super().train_step(inputs, model, optimizer, metrics)
            return {**logs, "accuracy": 7.0, "norm": 3.0}

    ours, theirs = build(task_cls=ToyTask), build(task_cls=Garden)
    logs = theirs.train(3)
    assert float(logs["norm"]) == 3.0
    assert 0 < float(logs["accuracy"]) <= 1
    assert logs.keys() - {"norm"} == ours.train(3).keys()


def test_a_step_of_the_trainers_own_that_calls_ours_records_them_too():
    """N32, A3: Model Garden's override points."""

    class Own(Trainer):
        def train_step(self, iterator):
            super().train_step(iterator)

    assert "norm" in build(task_cls=Norms, trainer_cls=Own).train(2)


def test_each_of_several_tasks_has_the_means_over_its_own_steps():
    """N32, T21: in interleaved training, under the name of the task; one that had no step has none."""

    class Labelled(several_tasks.Several):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for value, part in enumerate(self.parts.values()):
                step = part.task.train_step
                part.task.train_step = lambda *a, step=step, n=value, **k: {**step(*a, **k), "number": n + 1.0}

    trainer = several_tasks.build(task_cls=Labelled)
    logs = flatten(trainer.train(12))
    assert {name: logs[name] for name in logs if "number" in name} == {"points/number": 1.0, "sums/number": 2.0}
    seen = [{name for name in flatten(trainer.train(1)) if "number" in name} for _ in range(6)]
    assert {"points/number"} in seen
    assert {"sums/number"} in seen


def test_a_name_that_one_of_several_tasks_has_taken_is_refused():
    """N32, T21: with the task."""

    class Taken(several_tasks.Several):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            task = self.parts["points"].task
            step = task.train_step
            task.train_step = lambda *args, **kwargs: {**step(*args, **kwargs), "accuracy": 1.0}

    said = r"PointsTask.train_step returns 'accuracy', which is the name of a training metric \(Sparse"
    with pytest.raises(StepLogsError, match=said):
        several_tasks.build(task_cls=Taken).train(1)
