"""A task and a trainer that decide by tensors, beside a task and a trainer that do not."""

import pytest
import tensorflow as tf

from official_trainer.engine.trainer import Trainer
from tests.support import toy


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


def check_branches_change_nothing(strategy):
    """Compares the losses of training and of an evaluation."""
    numbers = []
    for task_cls, trainer_cls in ((Branching, BranchingTrainer), (toy.ToyTask, Trainer)):
        trainer = toy.build(task_cls=task_cls, trainer_cls=trainer_cls, strategy=strategy)
        logs = trainer.train(3)
        numbers.append([float(logs["training_loss"]), float(trainer.evaluate(-1)["validation_loss"])])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)
