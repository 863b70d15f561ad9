"""AutoGraph rewrites what users write, wherever it is called from, and none of the engine's own functions."""

import pytest
from tensorflow.python.autograph.impl import api

from official_trainer.engine.trainer import Trainer
from official_trainer.inputs import from_arrays
from official_trainer.lazy import tf
from official_trainer.tasks import export
from tests.support import toy


@pytest.fixture
def rewritten(monkeypatch):
    """The functions that AutoGraph rewrites, by module."""
    found, transform = [], api._TRANSPILER.transform

    def recorded(function, context):
        found.append((function.__module__, function.__qualname__))
        return transform(function, context)

    monkeypatch.setattr(api._TRANSPILER, "transform", recorded)
    return found


class Branching(toy.ToyTask):
    """Decides by tensors in everything that it defines, which Python alone cannot do while a step is traced."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = super().build_losses(labels, model_outputs)
        total = tf.constant(0.0)
        for loss in losses:
            if loss > 0.0:
                total += loss
        return total / tf.cast(tf.shape(losses)[0], tf.float32)

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics=metrics)
        if logs["loss"] > 1e9:
            logs["loss"] *= 0.0
        return logs

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics=metrics)
        if logs["loss"] > 1e9:
            logs["loss"] *= 0.0
        return logs


class InBlocks(toy.ToyTask):
    """Trains on blocks of batches."""

    def build_inputs(self, params, input_context=None):
        return from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


class BranchingTrainer(Trainer):
    """Overrides what a step reads."""

    def next_train_inputs(self, iterator):
        features, labels = super().next_train_inputs(iterator)
        if tf.reduce_sum(labels) > 1_000_000:
            labels *= 0
        return features, labels

    def next_eval_inputs(self, iterator):
        (features, labels), logs = super().next_eval_inputs(iterator)
        if tf.reduce_sum(labels) > 1_000_000:
            labels *= 0
        return (features, labels), logs


def test_users_may_branch_on_tensors_in_all_that_they_define():
    """T3, T4: steps, losses and what a Trainer of one's own reads; in the threads of replicas too."""
    numbers = []
    for task_cls, trainer_cls in ((Branching, BranchingTrainer), (toy.ToyTask, Trainer)):
        trainer = toy.build(task_cls=task_cls, trainer_cls=trainer_cls, strategy="mirrored1")
        logs = trainer.train(3)
        numbers.append([float(logs["training_loss"]), float(trainer.evaluate(-1)["validation_loss"])])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)


@pytest.mark.parametrize(
    ("task_cls", "strategy", "fields"),
    [(InBlocks, "off", {}), (toy.ToyTask, "mirrored2", {"gradient_accumulation_steps": 5})],
)
def test_no_function_of_the_engine_is_rewritten(rewritten, task_cls, strategy, fields):
    """T3: rewriting takes a tenth of a second for each function, before the first step of every run."""
    trainer = toy.build(toy.experiment(**fields), task_cls=task_cls, strategy=strategy)
    trainer.train(2)
    trainer.run_steps(1, publish=strategy == "off" and task_cls is InBlocks)
    trainer.evaluate(-1)
    export.default_signatures(trainer.task, trainer.model)["serving_default"].get_concrete_function()
    assert [name for module, name in rewritten if module.startswith("official_trainer.")] == []
    assert ("tests.support.toy", "ToyTask.build_losses") in rewritten


def test_a_debugger_sees_the_lines_of_the_user_where_steps_run_eagerly(rewritten):
    """T3: nothing is rewritten there, so a breakpoint stops in the user's file."""
    trainer = toy.build()
    tf.config.run_functions_eagerly(True)
    try:
        trainer.train(1)
    finally:
        tf.config.run_functions_eagerly(False)
    assert [found for found in rewritten if found[0].startswith("tests.")] == []
