"""Models whose layers create their variables when they are called: they have them before anything is restored."""

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.lazy import keras
from official_trainer.tasks import random_streams
from tests.support.cases import cases
from tests.support.toy import STRATEGIES, ToyTask, assert_bitwise_equal, build, experiment, strategy_of, weights


class Waiting(keras.Model):
    """Layers without variables, one of which only training needs."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.drop = (
            keras.layers.Dense(8, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
        )
        self.logits = keras.layers.Dense(3)

    def call(self, inputs, training=None):
        hidden = self.drop(self.norm(self.hidden(inputs), training=training), training=training)
        return self.logits(hidden)


class WaitingTask(ToyTask):
    """Evaluation reads a key that batches for training do not have, and both steps want the metrics of the model."""

    def build_model(self):
        model = Waiting()
        model.compile(metrics=[keras.metrics.SparseCategoricalAccuracy("of_model")])
        model.compiled_metrics.build(tf.zeros([1, 3]), tf.zeros([1], tf.int32))
        return model

    def build_inputs(self, params, input_context=None):
        def keyed(x, y):
            return {"x": x, "y": y} if params.is_training else {"x": x, "y": y, "unique_id": y}

        return super().build_inputs(params, input_context).map(keyed)

    def train_step(self, inputs, model, optimizer, metrics=None):
        self._check(model, metrics)
        features = inputs["x"] + tf.random.stateless_normal(tf.shape(inputs["x"]), random_streams.seed("noise")) / 100
        return super().train_step((features, inputs["y"]), model, optimizer, metrics)

    def validation_step(self, inputs, model, metrics=None):
        self._check(model, metrics)
        ids = inputs.pop("unique_id")
        return {**super().validation_step((inputs["x"], inputs["y"]), model, metrics), "ids": ids}

    def _check(self, model, metrics):
        assert [metric.name for metric in metrics] == ["accuracy", "of_model"]
        assert metrics[1:] == model.metrics


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "mirrored2"))
def test_variables_are_there_before_the_first_step(strategy):
    """N1: the steps are traced as they run: with their own data, on their replicas, with all metrics."""
    trainer = build(task_cls=WaitingTask, strategy=strategy)
    assert len(trainer.model.trainable_variables) == 6
    assert len(weights(trainer)) == 8 + 1 + 2 * 6, "the weights, and Adam's count and slots"
    assert int(trainer.optimizer.iterations.numpy()) == 0
    trainer.train(2)
    assert int(trainer.optimizer.iterations.numpy()) == 2
    assert "validation_loss" in trainer.evaluate(-1)


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_a_dataset_of_the_caller_is_what_the_step_is_traced_with(strategy):
    """N1: also one that is distributed."""

    def batches(input_context):
        params = experiment().task.train_data
        return WaitingTask(None).build_inputs(inputs.with_training_flag(params, True), input_context)

    dataset = strategy_of(strategy).distribute_datasets_from_function(batches)
    trainer = build(task_cls=WaitingTask, strategy=strategy, train_dataset=dataset, evaluate=False)
    assert len(trainer.model.trainable_variables) == 6
    trainer.train(1)


class _BuiltTask(WaitingTask):
    def build_model(self):
        model = super().build_model()
        model(tf.zeros([1, 6]))
        return model


def test_a_run_computes_the_same_as_with_a_model_that_was_built_before():
    """N1: the trace, of whichever step, leaves no trace: weights, slots and dropout after it are the same bits."""
    waiting, built, evaluates = (
        build(task_cls=task_cls, train=trains)
        for task_cls, trains in ((WaitingTask, True), (_BuiltTask, True), (WaitingTask, False))
    )
    for other in (built, evaluates):
        assert_bitwise_equal(waiting.model.get_weights(), other.model.get_weights())
    for trainer in (waiting, built):
        trainer.train(5)
    assert_bitwise_equal(weights(waiting), weights(built))


class _Growing(keras.Model):
    """Makes its layers when it is built, as DETR of Model Garden does."""

    def build(self, input_shape):
        self.logits = keras.layers.Dense(3)
        super().build(input_shape)

    def call(self, inputs, training=None):
        return self.logits(inputs)


class _GrowingTask(ToyTask):
    def build_model(self):
        return _Growing()


def test_a_model_that_makes_its_layers_when_it_is_built_has_their_variables():
    """N1: it has no layer yet that could wait for its first call."""
    trainer = build(task_cls=_GrowingTask)
    assert len(trainer.model.trainable_variables) == 2
    trainer.train(2)
    assert int(trainer.optimizer.iterations.numpy()) == 2
