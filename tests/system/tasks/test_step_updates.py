"""Updates of variables after a step, registered from inside a layer."""

import numpy as np
import pytest

from official_trainer.config.optimization import EMAConfig
from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from official_trainer.tasks import after_step
from official_trainer.tasks.scopes import during
from official_trainer.tasks.step_updates import StepUpdates, _collected
from tests.support import several_tasks
from tests.support.cases import cases, full
from tests.support.toy import (
    FEATURES,
    LABELS,
    ToyTask,
    assert_bitwise_equal,
    build,
    examples,
    experiment,
    weights,
)

LIMIT = 0.05


class Counting(keras.layers.Layer):
    """Counts updates, without an optimizer."""

    def build(self, input_shape):
        options = {"aggregation": tf.VariableAggregation.MEAN, "trainable": False, "initializer": "zeros"}
        self.count = self.add_weight(name="count", shape=[], **options)

    def call(self, inputs):
        after_step(self.count, lambda count: count + 1.0)
        return inputs


class Clipped(keras.layers.Dense):
    """A constraint that no optimizer knows of, with a statement for AutoGraph."""

    def call(self, inputs):
        def clipped(kernel):
            if tf.reduce_max(tf.abs(kernel)) > LIMIT:
                kernel = tf.clip_by_value(kernel, -LIMIT, LIMIT)
            return kernel

        after_step(self.kernel, clipped)
        return super().call(inputs)


class Constrained(ToyTask):
    def build_model(self):
        inputs = keras.Input((6,), name="features")
        counting = Counting(name="counting")
        hidden = counting(counting(inputs))  # called twice in each step
        return keras.Model(inputs, Clipped(3, name="logits")(hidden))


@pytest.mark.parametrize(("strategy", "steps_per_loop", "micro_batches"), [("mirrored2", 4, 5), ("off", 1, 1)])
def test_a_layer_registers_updates_that_are_made_once_for_each_update(strategy, steps_per_loop, micro_batches):
    """G20: after the optimizer, on all replicas, in windows of any length, once for all micro-batches."""
    config = experiment(batch=10, steps_per_loop=steps_per_loop, gradient_accumulation_steps=micro_batches)
    trainer = build(config, task_cls=Constrained, strategy=strategy)
    for _ in range(8 // steps_per_loop):
        trainer.run_steps(steps_per_loop)
    parts = trainer.strategy.experimental_local_results(trainer.model.get_layer("counting").count)
    assert [float(part) for part in parts] == [8.0] * len(parts)
    for kernel in trainer.strategy.experimental_local_results(trainer.model.get_layer("logits").kernel):
        assert np.abs(kernel.numpy()).max() == np.float32(LIMIT)


@pytest.mark.parametrize(
    "options", [full({"enable_xla": True}), {"train_tf_function": False, "train_tf_while_loop": False}]
)
def test_updates_are_made_in_any_kind_of_step(options):
    """G20: compiled by XLA, or not traced at all; the bits are those of a traced step."""
    plain, other = (build(experiment(**each), task_cls=Constrained) for each in ({}, options))
    plain.run_steps(3)
    other.run_steps(3)
    assert float(other.model.get_layer("counting").count) == 3.0
    for value, expected in zip(weights(other), weights(plain), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)


class Counted(several_tasks.NoDropout):
    """Each of two tasks has a layer of its own that counts."""

    def build_models(self):
        return {
            name: keras.Model(model.input, Counting(name=f"counting_{name}")(model.output))
            for name, model in super().build_models().items()
        }


@pytest.mark.parametrize("joint", cases([True, False], False))
def test_a_layer_of_one_of_several_tasks_is_updated_by_the_steps_of_its_task(joint):
    """G20, T21: where each step is one task's, the other's layers are left alone."""
    trainer = several_tasks.build(several_tasks.experiment(joint=joint), task_cls=Counted)
    trainer.run_steps(6)
    counts = [float(model.layers[-1].count.numpy()) for model in trainer.model.sub_tasks.values()]
    assert counts == [6, 6] if joint else sum(counts) == 6
    assert min(counts) > 0


def test_a_compiled_model_of_keras_registers_updates_too():
    """G20, K6: `fit` is the same engine."""
    counting = Counting()
    program = Program(keras.Sequential([keras.Input([6]), counting, Clipped(3)]))
    program.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    program.fit(FEATURES, LABELS, batch_size=32, epochs=2, verbose=0)
    assert float(counting.count) == 8.0


def test_averaged_weights_see_the_new_value():
    """G20, T13: an average of weights that are always inside a limit is inside it, too."""
    trainer = build(experiment(ema=EMAConfig(average_decay=0.0)), task_cls=Constrained)
    trainer.run_steps(3)
    kernel = trainer.model.get_layer("logits").kernel.numpy()
    with trainer.weights_averaged():
        assert_bitwise_equal([trainer.model.get_layer("logits").kernel.numpy()], [kernel])


def test_evaluations_and_models_that_are_built_register_nothing():
    """G20: a layer's update belongs to training steps."""
    trainer = build(task_cls=Constrained)
    trainer.evaluate(-1)
    trainer.model(np.zeros([2, 6], "float32"))
    assert float(trainer.model.get_layer("counting").count) == 0.0


def test_a_step_without_data_makes_no_update():
    """G20, N1: also of a variable that the optimizer does not touch; a state saved while a step waits is whole."""
    trainer = build(task_cls=Constrained, train_dataset=examples(20).batch(10))
    with pytest.raises(DataError, match="the training data ended at step 2"):
        trainer.run_steps(3)
    assert float(trainer.model.get_layer("counting").count) == 2.0


def test_different_updates_of_one_variable_are_all_made_in_their_order():
    """G20: two layers may constrain what they share."""
    variable, updates = tf.Variable(1.0), StepUpdates()
    with during(_collected, updates):
        after_step(variable, lambda value: value + 1.0)
        after_step(variable, lambda value: value * 10.0)
    updates.make(tf.distribute.get_strategy(), after=tf.Variable(0))
    assert float(variable) == 20.0
