"""Rewards beside losses, in a Program of either Keras: maximised, weighted, told, saved."""

from __future__ import annotations

import keras as keras3
import numpy as np
import pytest

from official_trainer.lazy import keras as keras2
from official_trainer.lazy import tf
from official_trainer.program import ArgumentError, Program, ProgramCheckpoint, load_program
from official_trainer.tasks import metrics
from tests.support.cases import cases
from tests.support.programs import EXAMPLES, FEATURES, examples

X = examples()[0]
Y = (X[:, :1] > 0).astype(np.float32) + X[:, 1:2]
WEIGHTS = np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
KERASES = {"2": keras2, "3": keras3}


def closeness(y_true, y_pred):
    return -tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


for module in KERASES.values():
    module.saving.register_keras_serializable("tests.rewards")(closeness)


@pytest.fixture(params=cases(list(KERASES), "3"))
def keras(request):
    return KERASES[request.param]


def build(keras, units=1, activation=None):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    return keras.Model(inputs, keras.layers.Dense(units, activation, kernel_regularizer="l2", name="out")(inputs))


def two(keras, as_dict=False):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("left", "right")}
    return keras.Model(inputs, outputs if as_dict else list(outputs.values()))


def rewarded(model, **settings):
    program = Program(model)
    program.compile(**{"optimizer": "sgd", "reward": closeness, **settings})
    return program


def assert_alike(program, expected):
    for value, other in zip(program.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keras", KERASES, indirect=True)
def test_a_reward_trains_as_a_loss_of_the_other_sign(keras):
    """K1: the same weights and the same `loss`, in a validation too; sample weights count alike."""
    arguments = {"sample_weight": WEIGHTS, "validation_split": 0.3, "batch_size": 8, "epochs": 2, "shuffle": False}
    by_loss, by_reward = Program(build(keras)), rewarded(build(keras))
    by_loss.compile("sgd", loss="mse")
    expected = by_loss.fit(X, Y, verbose=0, **arguments).history
    history = by_reward.fit(X, Y, verbose=0, **arguments).history
    assert_alike(by_reward.model, by_loss.model)
    for key, values in expected.items():
        assert history[key] == pytest.approx(values, rel=1e-5), key
    assert set(history) == set(expected) | {key.replace("loss", "reward") for key in expected}


def test_a_sequential_model_has_rewards_before_its_first_call(keras):
    """K1: with a weight for its only output, by the name of its last layer in Keras 3."""
    program = rewarded(keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1)]), reward_weights=[0.5])
    outputs = np.asarray(program.model(X))
    assert float(program.compute_reward(X, Y, outputs)) == pytest.approx(-0.5 * np.mean((outputs - Y) ** 2), rel=1e-5)


def test_a_loss_and_a_reward_are_trained_together(keras):
    """K1, K3: `loss` is what is minimised: the loss minus the weighted reward."""
    program = rewarded(build(keras), loss="mae", reward_weights=0.5, metrics=["mse"])
    logs = program.evaluate(X, Y, verbose=0, return_dict=True)
    outputs = np.asarray(program.model(X))
    reward = -np.mean((outputs - Y) ** 2)
    assert logs["reward"] == pytest.approx(reward, rel=1e-5)
    penalty = sum(float(loss) for loss in program.model.losses)
    assert logs["loss"] == pytest.approx(np.mean(abs(outputs - Y)) + penalty - 0.5 * reward, rel=1e-5)
    assert program.test_on_batch(X, Y, return_dict=True) == pytest.approx(logs, rel=1e-5)
    assert float(program.compute_reward(X, Y, outputs)) == pytest.approx(0.5 * reward, rel=1e-5)
    assert float(program.compute_loss(X, Y, outputs)) == pytest.approx(logs["loss"], rel=1e-5)
    assert program.train_on_batch(X, Y, return_dict=True) == pytest.approx(logs, rel=1e-5)
    assert program.test_on_batch(X, Y, return_dict=True)["loss"] < logs["loss"]
    measured = {inner.name: inner for metric in program.metrics for inner in metrics.inner_metrics(metric)}
    assert metrics.direction_of(None, [measured["reward"]], "reward", "reward") == "max"


OF_OUTPUTS = [(2.0, 2.0, 2.0), ([1.0, 0.25], 1.0, 0.25), ({"right": 0.25}, 1.0, 0.25), (None, 1.0, 1.0)]
"""Weights as a number, a list or a dict, and what they are for each of two outputs."""


def test_rewards_of_several_outputs(keras):
    """K1: weights as a number, a list or a dict; each output's own reward is told without them."""
    for as_dict in (False, True):
        model = two(keras, as_dict)
        outputs = model(X)
        left, right = (np.asarray(outputs[key]) for key in (("left", "right") if as_dict else (0, 1)))
        targets = {"left": Y, "right": 2 * Y} if as_dict else [Y, 2 * Y]
        of_left, of_right = -np.mean((left - Y) ** 2), -np.mean((right - 2 * Y) ** 2)
        for given, weight_of_left, weight_of_right in OF_OUTPUTS:
            program = rewarded(model, reward_weights=given)
            expected = weight_of_left * of_left + weight_of_right * of_right
            assert float(program.compute_reward(X, targets, outputs)) == pytest.approx(expected, rel=1e-5), given
    program, by_loss = rewarded(model, reward_weights={"right": 0.25}), Program(two(keras, as_dict=True))
    history = program.fit(X, targets, batch_size=EXAMPLES, verbose=0).history
    assert set(history) == {"loss", "left_reward", "right_reward"}
    assert history["right_reward"] == pytest.approx([of_right], rel=1e-5)
    assert history["loss"] == pytest.approx([-of_left - 0.25 * of_right], rel=1e-5)
    by_loss.compile("sgd", {"left": "mse", "right": "mse"}, loss_weights={"left": 1.0, "right": 0.25})
    by_loss.train_on_batch(X, targets)
    assert_alike(program.model, by_loss.model)


def test_an_output_may_have_a_loss_and_another_a_reward(keras):
    """K1: a list with None, or a dict without the other output."""
    for reward in ([None, closeness], {"right": closeness}):
        program = rewarded(two(keras), reward=reward, loss={"left": "mae"} if keras is keras2 else ["mae", None])
        outputs = program.model(X)
        expected = np.mean(abs(np.asarray(outputs[0]) - Y)) + np.mean((np.asarray(outputs[1]) - Y) ** 2)
        assert float(program.compute_loss(X, [Y, Y], outputs)) == pytest.approx(expected, rel=1e-5)
    logs = program.test_on_batch(X, [Y, Y], return_dict=True)
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert "right_reward" in logs and "left_reward" not in logs


def test_a_crossentropy_of_probabilities_is_a_reward(keras):
    """K1: Keras computes it of the logits that it finds behind the outputs, so the outputs have no gradient."""
    classes = (X[:, 0] > 0).astype(np.int32)
    crossentropy = keras.losses.sparse_categorical_crossentropy
    expected = build(keras, 2, "softmax")
    expected.compile("sgd", crossentropy)
    by_reward = rewarded(build(keras, 2, "softmax"), reward=lambda y, q: -crossentropy(y, q))
    for program in (expected, by_reward):
        program.train_on_batch(X, classes)
    assert_alike(by_reward.model, expected)


def test_a_reward_beside_a_loss_of_the_model_itself(keras):
    """K1: what is trained has both."""

    class OwnLoss(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 3 * tf.reduce_mean(tf.square(tf.cast(y, tf.float32) - y_pred))

    model = build(keras)
    program, plain = rewarded(OwnLoss(model.inputs, model.outputs)), build(keras)
    plain.compile("sgd", "mse", loss_weights=4.0)
    plain.layers[-1].kernel_regularizer = None
    for trained in (program, plain):
        trained.train_on_batch(X, Y)
    tolerance = {"rtol": 1e-2, "atol": 1e-2}  # the penalty is not part of the model's own loss
    for value, other in zip(program.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, **tolerance)


def test_what_was_compiled_can_be_compiled_again(keras, tmp_path):
    """K1, K9: from a file of the whole program, or from its config: weights, rewards and what trains on."""
    program = rewarded(build(keras), optimizer="adam", loss="mae", reward_weights=0.5)
    program.train_on_batch(X, Y)
    expected = program.test_on_batch(X, Y, return_dict=True)
    assert {"loss", "reward"} <= set(expected)
    of_config = Program(build(keras))
    of_config.compile_from_config(program.get_compile_config())
    of_config.set_weights(program.get_weights())
    program.save(tmp_path / "program.keras")
    for again in (of_config, load_program(tmp_path / "program.keras")):
        assert again.test_on_batch(X, Y, return_dict=True) == pytest.approx(expected, rel=1e-6)


def test_the_best_by_a_reward_is_the_highest(keras, tmp_path):
    """K1, C1: a checkpoint of the callback knows the direction."""
    kept = ProgramCheckpoint(tmp_path / "{epoch:02d}", monitor="val_reward", save_best_only=True)
    program = rewarded(build(keras), reward=closeness)
    program.fit(X, Y, epochs=3, validation_split=0.3, callbacks=[kept], verbose=0)
    assert kept.kept[0].endswith("03")


REFUSED = [
    (
        {"reward": "accuracy"},
        r"^reward='accuracy': a reward is a function of \(y_true, y_pred\) that returns",
    ),
    ({"reward": 3}, r"^reward=3: a reward is a function of \(y_true, y_pred\) that returns a number"),
    (
        {"reward": {"lefft": closeness}},
        r"^reward\['lefft'\]: the outputs are left, right; did you mean 'left",
    ),
    ({"reward": [closeness]}, r"^reward needs one entry for each of the 2 outputs \(left, right\)"),
    (
        {"reward": {"left": closeness}, "reward_weights": {"right": 1.0}},
        r"^reward_weights\['right'\]: the outputs with a reward are left",
    ),
    (
        {"reward_weights": "much"},
        r"^reward_weights: 'much' for the output 'left'; allowed: finite numbers$",
    ),
    ({"reward_weights": float("nan")}, r"^reward_weights: nan for the output 'left'; allowed: finite"),
    ({"reward": None, "reward_weights": 2.0}, r"^reward_weights=2.0 has no effect without a reward; give"),
    ({"weighted_metrics": ["mse"]}, r"^weighted_metrics: beside rewards of several outputs, give a dict by"),
]


def test_what_does_not_fit_the_model_is_refused(keras):
    """K1: in `compile`."""
    model = two(keras)
    for settings, message in REFUSED:
        with pytest.raises(ArgumentError, match=message):
            rewarded(model, **settings)


def test_a_reward_that_trains_nothing_is_refused(keras):
    """K1: one without a gradient, without targets, or beside a step of the model's own."""
    program = rewarded(build(keras, activation="sigmoid"), reward=lambda y, q: tf.round(q[:, 0]))
    with pytest.raises(ArgumentError, match=r"reward '<lambda>' has no gradient: it is not differentiable in the out"):
        program.train_on_batch(X, Y)
    with pytest.raises(ArgumentError, match=r"y is missing: a reward is computed of targets and outputs, as a loss is"):
        rewarded(build(keras)).compute_reward(X, None, X[:, :1])

    class OwnStep(keras.Model):
        def train_step(self, data):
            return {}

    model = build(keras)
    with pytest.raises(
        ArgumentError, match=r"^reward: OwnStep has its own train_step, but the steps of Program comput"
    ):
        rewarded(OwnStep(model.inputs, model.outputs))
