"""What a subclass of Program overrides is what steps compute."""

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.cases import cases
from tests.support.fits import BY_NAME, WEIGHTS, two
from tests.support.programs import examples, light, lightly

X, Y = examples()


class Own(Program):
    """Overrides all three: AutoGraph converts them, and their results show where they were called."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        if tf.reduce_any(tf.math.is_nan(y_pred)):  # needs AutoGraph
            loss = tf.zeros_like(loss)
        return loss + 100.0

    def compute_reward(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 7.0 + (super().compute_reward(x, y, y_pred, sample_weight) if self.has_reward else 0.0)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": tf.reduce_max(y_pred)}


def confidence(y_true, y_pred):
    return tf.reduce_max(tf.nn.softmax(y_pred), axis=-1)


@pytest.mark.parametrize("has_reward", cases([False, True], True))
def test_steps_call_what_a_subclass_overrides(has_reward):
    """K8: in fit, in its validation, in evaluate and on one batch; the reward is part of the loss."""
    Own.has_reward = has_reward
    program = lightly(Own(light()), **({"reward": confidence} if has_reward else {}))
    outputs = program.model(X).numpy()
    cross_entropy = float(keras.losses.SparseCategoricalCrossentropy(from_logits=True)(Y, outputs))
    told = {"reward": float(tf.reduce_mean(confidence(Y, outputs)))} if has_reward else {}
    reward = 7.0 + sum(told.values())
    computed = float(program.compute_loss(X, Y, outputs))
    assert computed == pytest.approx(cross_entropy - reward + 100.0, rel=1e-5)
    expected = {"loss": cross_entropy - reward, "largest": outputs.max(), **told}  # what tf_keras measures as `loss`
    found = program.evaluate(X, Y, batch_size=50, verbose=0, return_dict=True)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found == pytest.approx(program.test_on_batch(X, Y, return_dict=True), rel=1e-5)
    assert found == pytest.approx(program.train_on_batch(X, Y, return_dict=True), rel=1e-5)
    history = program.fit(X, Y, validation_data=(X, Y), verbose=0).history
    assert {*expected, *(f"val_{name}" for name in expected)} <= history.keys()


def test_an_override_of_the_loss_is_what_is_trained():
    """K8: its gradient moves the weights, not that of the loss of `compile`."""

    class Still(Program):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 0.0 * super().compute_loss(x, y, y_pred, sample_weight)

    program = lightly(Still(light()))
    before = program.model.get_weights()
    program.train_on_batch(X, Y)
    assert all((was == now).all() for was, now in zip(before, program.model.get_weights(), strict=True))


@pytest.mark.parametrize("is_by_name", cases([False, True], True))
def test_arrays_of_several_outputs_are_computed(is_by_name):
    """K8: what `predict` returns, doubles and weights of examples too; the numbers are those of an evaluation."""
    named = {"left": Y, "right": Y.astype(np.int64)}
    y, weight = (named, dict.fromkeys(named, WEIGHTS)) if is_by_name else ([*named.values()], [WEIGHTS, WEIGHTS])
    rewards = {"left": confidence, "right": confidence}
    program = lightly(
        Program(two(keras, by_name=is_by_name)), reward=rewards, reward_weights={"left": 2.0, "right": 0.5}
    )
    outputs = program.predict(BY_NAME, verbose=0)
    expected = program.evaluate(BY_NAME, y, sample_weight=weight, batch_size=50, return_dict=True, verbose=0)
    assert float(program.compute_loss(BY_NAME, y, outputs, weight)) == pytest.approx(expected["loss"], rel=1e-5)
    told = 2.0 * expected["left_reward"] + 0.5 * expected["right_reward"]  # Keras divides its mean by the weights
    computed = float(program.compute_reward(BY_NAME, y, outputs, weight))
    assert computed == pytest.approx(told * float(WEIGHTS.mean()), rel=1e-5)
    program.reset_metrics()
    found = program.compute_metrics(BY_NAME, y, outputs, weight)
    assert float(found["left_accuracy"]) == pytest.approx(expected["left_accuracy"], rel=1e-5)
