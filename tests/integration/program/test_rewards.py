"""Rewards beside losses: maximised, weighted, told, monitored; those without a gradient too."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import (
    ArgumentError,
    EvolutionStrategies,
    Program,
    PythonReward,
    RewardError,
    RewardLayer,
    ScoreFunction,
    load_program,
)
from official_trainer.tasks import metrics
from tests.support.cases import cases
from tests.support.rewards import (
    EXAMPLES,
    FEATURES,
    assert_alike,
    build,
    closeness,
    examples,
    is_right,
    rewarded,
    under_a_strategy,
    weights_of,
)


@pytest.fixture(scope="module")
def data():
    return examples()


def two_outputs(as_dict=False):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("left", "right")]
    return keras.Model(inputs, dict(zip(("left", "right"), outputs, strict=True)) if as_dict else outputs)


# What is maximised.

FITS = {
    "plain": {},
    "weights": {"sample_weight": np.linspace(0.1, 2, EXAMPLES).astype(np.float32)},
    "split": {"validation_split": 0.3, "batch_size": 8},
}


@pytest.mark.parametrize("name", cases(list(FITS), "weights"))
def test_a_reward_trains_as_a_loss_of_the_other_sign(data, name):
    """K1: the same weights and numbers; sample weights count alike."""
    arguments = {"epochs": 2, "verbose": 0, "shuffle": False, **FITS[name]}
    by_loss = Program(build())
    by_loss.compile("sgd", loss="mse")
    by_reward = rewarded()
    expected = by_loss.fit(*data, **arguments).history
    found = by_reward.fit(*data, **arguments).history
    assert_alike(weights_of(by_reward), weights_of(by_loss))
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-5), key
    assert set(found) == set(expected) | {key.replace("loss", "reward") for key in expected}
    penalty = [total + reward for total, reward in zip(found["loss"], found["reward"], strict=True)]
    assert all(0 < value < 0.2 for value in penalty), "of the regularizer, which is a loss"


CROSSENTROPIES = {
    "softmax": ("softmax", keras.losses.sparse_categorical_crossentropy),
    "sigmoid": ("sigmoid", keras.losses.binary_crossentropy),
    "smoothed": ("softmax", lambda y, q: keras.losses.categorical_crossentropy(y, q, label_smoothing=0.1)),
    "focal": ("softmax", keras.losses.categorical_focal_crossentropy),
    "binary of softmax": ("softmax", keras.losses.binary_focal_crossentropy),
    "operation": (tf.nn.softmax, keras.losses.categorical_crossentropy),  # Keras finds its logits in the graph
    "operation of sigmoid": (tf.nn.sigmoid, keras.losses.binary_crossentropy),
    "logits": ("linear", lambda y, q: keras.losses.sparse_categorical_crossentropy(y, q, from_logits=True)),
}


def of_each_activation():
    """Returns a model with an output for each of these crossentropies, and its compile arguments as losses."""
    keras.utils.set_random_seed(1)
    inputs, outputs = keras.Input([FEATURES]), {}
    for name, (activation, _) in CROSSENTROPIES.items():
        layer = keras.layers.Activation(activation, name=name.replace(" ", "_"))
        outputs[layer.name] = layer(keras.layers.Dense(3)(inputs))
    losses = {name.replace(" ", "_"): loss for name, (_, loss) in CROSSENTROPIES.items()}
    return keras.Model(inputs, outputs), losses


@pytest.mark.parametrize("run_eagerly", cases([False, True], False, True))
def test_a_crossentropy_of_probabilities_is_a_reward(data, run_eagerly):
    """K1: Keras computes it of the logits that it finds behind the outputs, so the outputs have no gradient."""
    classes = (data[0][:, 0] > 0).astype(np.int32) + (data[0][:, 1] > 0.5).astype(np.int32)
    expected, losses = of_each_activation()
    expected.compile("sgd", losses, run_eagerly=run_eagerly)
    sparse = ("softmax", "logits")
    y = {name: classes if name in sparse else np.eye(3, dtype=np.float32)[classes] for name in losses}
    expected.train_on_batch(data[0], y)
    rewards = {name: lambda t, q, loss=loss: -loss(t, q) for name, loss in losses.items()}
    found = rewarded(of_each_activation()[0], reward=rewards, run_eagerly=run_eagerly)
    found.train_on_batch(data[0], y)
    assert_alike(weights_of(found), expected.get_weights())


def test_a_reward_without_a_gradient_is_refused_after_a_softmax_too(data):
    """K1: the logits behind the outputs do not count as a gradient."""
    program = rewarded(of_each_activation()[0], reward={"softmax": lambda t, q: tf.round(q[:, 0])})
    with pytest.raises(
        RewardError, match=r"reward '<lambda>' has no gradient: it is not differentiable in the outputs"
    ):
        program.train_on_batch(data[0], {"softmax": data[1]})


def test_class_weights_count_in_rewards(data):
    """K1"""
    x, y = data[0], (data[0][:, 0] > 0).astype(np.int32)

    def right_probability(y_true, y_pred):
        return tf.gather(tf.nn.softmax(y_pred), tf.cast(tf.reshape(y_true, [-1]), tf.int32), batch_dims=1)

    program = rewarded(build(2), reward=right_probability)
    arguments = {"class_weight": {0: 0.0, 1: 2.0}, "return_dict": True}
    found = program.train_on_batch(x, y, **arguments)["reward"]
    before = rewarded(build(2), reward=right_probability)
    weights = np.where(y == 1, 2.0, 0.0)
    probabilities = tf.nn.softmax(before.model(x)).numpy()[np.arange(EXAMPLES), y]
    assert found == pytest.approx(np.mean(weights * probabilities), rel=1e-5)


def test_a_loss_and_a_reward_are_trained_together(data):
    """K1, K3: `loss` is what is minimised: the loss minus the weighted reward."""
    x, y = data
    program = rewarded(loss="mae", reward_weights=0.5, metrics=["mse"])
    found = program.evaluate(x, y, verbose=0, return_dict=True)
    outputs = program.model(x).numpy()
    reward = -0.5 * np.mean((outputs - y) ** 2)
    assert found["reward"] == pytest.approx(reward, rel=1e-5)
    penalty = sum(float(loss) for loss in program.model.losses)
    assert found["loss"] == pytest.approx(np.mean(abs(outputs - y)) + penalty - reward, rel=1e-5)
    assert list(found) == program.metrics_names == ["loss", "reward", "mse"]
    assert program.evaluate(x, y, verbose=0) == list(found.values())
    assert program.test_on_batch(x, y, return_dict=True) == pytest.approx(found, rel=1e-5)
    assert float(program.compute_reward(x, y, outputs)) == pytest.approx(reward, rel=1e-5)
    assert float(program.compute_loss(x, tf.constant(y), tf.constant(outputs))) == pytest.approx(found["loss"])
    assert program.train_on_batch(x, y, return_dict=True) == pytest.approx(found, rel=1e-5)
    assert program.test_on_batch(x, y, return_dict=True)["loss"] < found["loss"]


WEIGHTS = {
    "number": (2.0, 2.0, 2.0),
    "list": ([1.0, 0.25], 1.0, 0.25),
    "dict": ({"right": 0.25}, 1.0, 0.25),
    "none": (None, 1.0, 1.0),
}


@pytest.mark.parametrize("as_dict", cases([False, True], True))
@pytest.mark.parametrize("name", cases(list(WEIGHTS), "dict"))
def test_rewards_of_several_outputs(data, name, as_dict):
    """K1: weights as a number, a list or a dict; each output's own reward is told without them."""
    given, left, right = WEIGHTS[name]
    x, y = data
    targets = {"left": y, "right": 2 * y} if as_dict else [y, 2 * y]
    program = rewarded(two_outputs(as_dict), reward_weights=given)
    found = program.fit(x, targets, epochs=1, batch_size=EXAMPLES, verbose=0).history
    assert list(found) == ["loss", "reward", "left_reward", "right_reward"]
    ((total,), (of_left,), (of_right,)) = (found[key] for key in list(found)[1:])
    assert total == pytest.approx(left * of_left + right * of_right)
    outputs = two_outputs()(x)
    assert of_right == pytest.approx(-np.mean((outputs[1] - 2 * y) ** 2), rel=1e-5)
    by_loss = Program(two_outputs(as_dict))
    by_loss.compile("sgd", "mse", loss_weights={"left": left, "right": right} if as_dict else [left, right])
    by_loss.fit(x, targets, epochs=1, batch_size=EXAMPLES, verbose=0)
    assert_alike(weights_of(program), weights_of(by_loss))


@pytest.mark.parametrize("listed", cases([False, True], True))
def test_an_output_may_have_a_loss_and_another_a_reward(data, listed):
    """K1"""
    reward = [None, closeness] if listed else {"right": closeness}
    x, y = data
    program = rewarded(two_outputs(), reward=reward, loss={"left": "mae"})
    found = program.evaluate(x, [y, y], verbose=0, return_dict=True)
    assert list(found) == ["loss", "left_loss", "reward", "right_reward"]
    assert found["loss"] == pytest.approx(found["left_loss"] - found["right_reward"])
    assert found["reward"] == pytest.approx(found["right_reward"])


def test_a_reward_needs_no_targets(data):
    """K1"""
    program = rewarded(reward=lambda y_true, y_pred: y_pred[:, 0])
    history = program.fit(data[0], epochs=3, verbose=0).history
    assert history["reward"][-1] > history["reward"][0]


@keras.saving.register_keras_serializable("tests")
class Small(RewardLayer):
    """Outputs are rewarded for being small."""

    def call(self, inputs):
        self.add_reward(-0.5 * tf.reduce_sum(tf.square(inputs), axis=-1))
        return inputs


def with_small_outputs():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1), Small()])


@pytest.mark.parametrize("reward", cases([None, closeness], None, closeness))
def test_a_layer_adds_a_reward(data, tmp_path, reward):
    """K1: trained as a loss of the other sign, and told as a reward, also of a program that was saved."""
    expected = with_small_outputs()
    expected.compile("sgd", "mse")
    of_layer = -0.5 * np.mean(np.square(expected(data[0])))
    losses = [expected.evaluate(*data, verbose=0), expected.train_on_batch(*data)]
    program = rewarded(with_small_outputs(), loss=None if reward else "mse", reward=reward)
    found = program.evaluate(*data, verbose=0, return_dict=True)
    of_outputs = -np.mean(np.square(with_small_outputs()(data[0]) - data[1])) if reward else 0.0
    assert list(found) == ["loss", "reward"]
    assert found["reward"] == pytest.approx(of_layer + of_outputs, rel=1e-5)
    assert found["loss"] == pytest.approx(losses[0], rel=1e-5)
    assert program.train_on_batch(*data, return_dict=True)["loss"] == pytest.approx(losses[1], rel=1e-5)
    assert_alike(weights_of(program), expected.get_weights())
    program.save(str(tmp_path / "program.keras"))
    again = load_program(str(tmp_path / "program.keras"))
    assert again.evaluate(*data, verbose=0) == pytest.approx(program.evaluate(*data, verbose=0), rel=1e-5)


class Late(keras.Model):
    def build(self, shape):
        self.small = Small()

    def call(self, inputs):
        return self.small(inputs)


def test_a_layer_that_is_made_after_compile_adds_no_reward(data):
    """K1: `compile` asks the layers whether there is a reward to tell."""
    program = Program(Late())
    program.compile("sgd", "mse")
    with pytest.raises(RewardError, match=r"a layer that adds a reward was made after compile; call compile again"):
        program.evaluate(*data, verbose=0)
    program.compile("sgd", "mse")
    assert program.evaluate(*data, verbose=0, return_dict=True)["reward"] < 0


class OwnLoss(keras.Model):
    """A model that computes its loss itself."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.reduce_mean(tf.abs(y_pred)) + 5.0


def test_a_reward_beside_a_loss_of_the_model_itself(data):
    """K1"""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    program = rewarded(OwnLoss(inputs, keras.layers.Dense(1)(inputs)))
    outputs = program.model(data[0]).numpy()
    found = program.train_on_batch(*data, return_dict=True)
    expected = np.mean(abs(outputs)) + 5.0 + np.mean((outputs - data[1]) ** 2)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", cases(["model.keras", "model.h5", "model"], "model.keras"))
def test_a_rewarded_model_is_saved_as_any_other(data, tmp_path, name):
    """K1: without its rewards, which are the program's."""
    program = rewarded(two_outputs())
    program.train_on_batch(data[0], [data[1]] * 2)
    program.model.save(tmp_path / name)
    read = keras.models.load_model(tmp_path / name)
    assert_alike(read.predict(data[0], verbose=0), program.predict(data[0], verbose=0))


class Own(keras.Model):
    """A model whose outputs nobody knows before the first batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs), 2 * self.dense(inputs)


@pytest.mark.full
def test_outputs_that_only_a_batch_tells(data):
    """K1: rewards by the names that Keras gives them."""
    x, y = data
    program = rewarded(Own(), reward={"output_2": closeness})
    assert list(program.fit(x, [y, y], verbose=0).history) == ["loss", "reward", "output_2_reward"]
    with pytest.raises(ArgumentError, match=r"reward\['output_3'\]: the outputs are output_1, output_2; did you mean"):
        rewarded(Own(), reward={"output_3": closeness}).fit(x, [y, y], verbose=0)


def test_other_weights_are_not_tried_on_several_replicas():
    """K1"""
    with pytest.raises(ArgumentError, match=r"EvolutionStrategies needs one replica, .* with 2; build it without a s"):
        under_a_strategy(reward_estimator=EvolutionStrategies(population=2))


# What compile takes.


@pytest.mark.full
def test_names_of_rewards(data):
    """K1: what Keras calls accuracy, for the shapes there are, and for classes that were drawn."""
    x = data[0]
    y = (x[:, 0] > 0).astype(np.int32)
    one_hot = np.eye(2, dtype=np.float32)[y]
    for name, targets, estimator in [
        ("accuracy", y, ScoreFunction()),
        ("accuracy", one_hot, ScoreFunction()),
        ("acc", y, EvolutionStrategies(population=2)),
        ("sparse_categorical_accuracy", y, EvolutionStrategies(population=2)),
    ]:
        program = rewarded(build(2), reward=name, reward_estimator=estimator, metrics=["accuracy"])
        found = program.test_on_batch(x, targets, return_dict=True)
        assert found["reward"] == pytest.approx(found["accuracy"]), name
        assert 0 < program.train_on_batch(x, targets, return_dict=True)["reward"] < 1
    binary = rewarded(build(1), reward="accuracy", reward_estimator=EvolutionStrategies(population=2))
    outputs = np.array([[0.2], [0.8], [0.9], [0.1]], np.float32)
    assert float(binary.compute_reward(y=np.array([0, 1, 0, 0]), y_pred=outputs)) == 0.75
    registered = rewarded(build(2), reward="tests>closeness")
    assert float(registered.compute_reward(y=outputs, y_pred=outputs + 2)) == pytest.approx(-4)


REFUSED = {
    "name": ({"reward": "acuracy"}, r"reward='acuracy' is not a name of a reward; allowed: accuracy, .* 'accuracy'\?"),
    "loss name": ({"reward": "mse"}, r"reward='mse': this is a loss, but a reward is maximised; give loss='mse'"),
    "loss": ({"reward": keras.losses.MeanSquaredError()}, "or one of the names accuracy, .* give a loss as loss="),
    "number": ({"reward": {"left": 3}}, r"reward\['left'\]=3: a reward is a function of \(y_true, y_pred\)"),
    "nothing": ({"reward": [None, None]}, r"reward=\[None, None\] has no reward for any output; leave it out, or"),
    "outputs": (
        {"reward": [closeness]},
        r"reward needs one entry for each of the 2 outputs \(left, right\), .*; it has 1",
    ),
    "output": (
        {"reward": {"rigth": closeness}},
        r"reward\['rigth'\]: the outputs are left, right; did you mean 'right'\?",
    ),
    "weights": ({"reward_weights": [1.0]}, r"reward_weights needs one entry for each of the 2 outputs \(left, right\)"),
    "weight": (
        {"reward": {"left": closeness}, "reward_weights": {"right": 1.0}},
        r"reward_weights\['right'\]: the outputs with a reward are left",
    ),
    "words": ({"reward_weights": {"left": "2"}}, "reward_weights: '2' for the output 'left'; allowed: numbers"),
    "alone": (
        {"reward": None, "reward_weights": 2.0},
        r"reward_weights=2.0 has no effect without a reward; give reward=… too, or leave it out",
    ),
    "estimator": (
        {"reward_estimator": "reinforce"},
        r"reward_estimator='reinforce'; allowed: reward_estimator=ScoreFunction\(…\) or reward_estimator=Evol",
    ),
    "kinds": (
        {"reward_estimator": ScoreFunction(outputs={"lefd": "logits"})},
        r"an output of ScoreFunction.outputs='lefd'; allowed: 'left', 'right'; did you mean 'left'\?",
    ),
    "no kind": (
        {"reward_estimator": ScoreFunction(outputs={"left": "logits"})},
        "ScoreFunction.outputs has no entry for the output 'right'; allowed: logits, probabilities, gaussian",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_the_model_is_refused(name):
    """K1: at compile, with what is allowed."""
    settings, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        rewarded(two_outputs(), **settings)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (
            lambda: ScoreFunction(outputs="logit"),
            r"ScoreFunction.outputs='logit'; allowed: .*; did you mean 'logits'\?",
        ),
        (
            lambda: ScoreFunction(outputs={"a": "x"}),
            r"ScoreFunction.outputs\['a'\]='x'; allowed: 'logits', 'probabilities', 'gaussian'",
        ),
        (lambda: ScoreFunction(baseline="mean"), r"ScoreFunction.baseline='mean'; allowed: 'leave_one_out', 'none'"),
        (
            lambda: ScoreFunction(samples=1),
            "ScoreFunction.samples=1; allowed: whole numbers from 2 on, because a basel",
        ),
        (lambda: ScoreFunction(sigma=0), "ScoreFunction.sigma=0; allowed: numbers above 0"),
        (lambda: EvolutionStrategies(population=1), "EvolutionStrategies.population=1; allowed: whole numbers from 2"),
        (
            lambda: EvolutionStrategies(population=3),
            "population=3; allowed: even numbers, for mirrored pairs; or set an",
        ),
        (lambda: EvolutionStrategies(sigma=-1), "EvolutionStrategies.sigma=-1; allowed: numbers above 0"),
    ],
)
def test_estimators_say_what_they_take(estimator, message):
    with pytest.raises(ArgumentError, match=message):
        estimator()


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


class OwnMetrics(Own):
    @property
    def metrics(self):
        return []


def test_models_that_would_not_be_rewarded_are_refused(data):
    """K1"""
    with pytest.raises(
        ArgumentError, match=r"OwnStep has its own train_step, but the steps of Program compute rewards"
    ):
        rewarded(OwnStep())
    with pytest.raises(RewardError, match=r"OwnMetrics.metrics leaves out the metrics of compile, and with them the"):
        rewarded(OwnMetrics()).evaluate(data[0], [data[1]] * 2, verbose=0)


def test_a_reward_is_asked_for_where_there_is_none(data):
    program = Program(build())
    program.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match=r"compute_reward: the program has no reward; use compile\(reward=…\)"):
        program.compute_reward(y=data[1], y_pred=data[1])


@pytest.mark.full
@pytest.mark.parametrize("estimator", [ScoreFunction(), EvolutionStrategies(population=4)])
def test_rewards_under_xla(data, estimator):
    """K1: of tensors, whatever trains them; none of Python."""
    y = (data[0][:, 0] > 0).astype(np.int32)
    settings = {"reward_estimator": estimator, "jit_compile": True}
    history = rewarded(build(2), reward="accuracy", **settings).fit(data[0], y, verbose=0).history
    assert 0 < history["reward"][0] < 1
    program = rewarded(build(2), reward=PythonReward(is_right), **settings)
    with pytest.raises(RewardError, match="'is_right' is computed in Python, which XLA cannot compile; leave"):
        program.fit(data[0], y, verbose=0)


CHOICES = r"Choose an estimator: compile\(…, reward_estimator=ScoreFunction\(…\) or reward_estimator=Evolution"


def test_a_reward_without_a_gradient_needs_an_estimator(data):
    """K1: of Python at once, of TensorFlow at the first step; it may be evaluated."""
    with pytest.raises(RewardError, match=rf"reward 'is_right' has no gradient: it is computed in Python. {CHOICES}"):
        rewarded(reward=PythonReward(is_right))

    def rounded(y_true, y_pred):
        return tf.cast(y_pred > y_true, tf.float32)

    program = rewarded(reward=rounded)
    assert 0 <= program.evaluate(*data, verbose=0, return_dict=True)["reward"] <= 1
    with pytest.raises(RewardError, match=f"reward 'rounded' has no gradient: it is not differentiable .*. {CHOICES}"):
        program.fit(*data, verbose=0)


def test_a_reward_that_tensors_cannot_be_given(data):
    def in_numpy(y_true, y_pred):
        return -np.abs(y_true.numpy() - y_pred.numpy())

    with pytest.raises(
        RewardError, match=r"(?s)'in_numpy' cannot be computed with tensors .* reward=PythonReward\(in_numpy"
    ):
        rewarded(reward=in_numpy).fit(*data, verbose=0)


def test_weights_of_what_has_one_reward(data):
    x, y = data
    with pytest.raises(RewardError, match=r"'closeness' of the output 'out' is a number for each .* \(None, 2\); give"):
        rewarded(build(2)).fit(x, np.tile(y, 2), sample_weight=np.ones([EXAMPLES, 2], np.float32), verbose=0)


@pytest.mark.full
def test_what_was_compiled_can_be_compiled_again(data, tmp_path):
    """K1: rewards, weights and estimators go through JSON; the same training."""
    y = (data[0][:, 0] > 0).astype(np.int32)
    for settings in (
        {"reward": closeness, "reward_weights": {"out": 0.5}, "loss": "mae"},
        {"reward": "accuracy", "reward_estimator": ScoreFunction(samples=2, outputs={"out": "logits"})},
        {"reward": {"out": PythonReward(is_right)}, "reward_estimator": EvolutionStrategies(population=4)},
    ):
        targets = data[1] if settings["reward"] is closeness else y
        first, second = rewarded(build(2), **settings), Program(build(2))
        second.compile_from_config(json.loads(json.dumps(first.get_compile_config())))
        assert second.get_compile_config() == first.get_compile_config()
        assert second.fit(data[0], targets, verbose=0).history == first.fit(data[0], targets, verbose=0).history, (
            settings
        )
    program = Program(build())
    program.compile("sgd", "mse")
    assert "reward" not in program.get_compile_config()


# What has no gradient.


def one_step(layer, reward, estimator, x, y=None):
    """Returns by how much a step of size 1 moved the kernel of a model of one layer, its kernel and outputs before."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input([x.shape[1]])
    program = Program(keras.Model(inputs, layer(inputs)))
    program.compile(keras.optimizers.SGD(1.0), reward=reward, reward_estimator=estimator)
    before, outputs = program.model.get_weights()[0], program.model(x).numpy()
    program.train_on_batch(x, y)
    return program.model.get_weights()[0] - before, before, outputs


def linear(units):
    return keras.layers.Dense(units, use_bias=False, name="out")


def right_table(y_true, y_pred):
    return float(3 * y_true + 1 if y_pred == y_true else y_true)  # another mean for each example


@pytest.mark.parametrize("baseline", cases(["leave_one_out", "none"], "leave_one_out"))
@pytest.mark.parametrize("outputs", cases(["logits", "probabilities"], "logits"))
def test_drawn_classes_estimate_the_gradient_of_the_expected_reward(outputs, baseline):
    """K1: beside the exact one, which sums over all classes."""
    x = np.eye(2, dtype=np.float32) + (1.0 if outputs == "probabilities" else 0.0)
    y = np.array([0, 2])
    estimator = ScoreFunction(outputs=outputs, samples=20000, baseline=baseline)
    if outputs == "probabilities":
        x = np.array([[0.4, 0.6], [0.9, 0.1]], np.float32)
    layer = linear(3) if outputs == "logits" else Mixture()
    moved, before, _ = one_step(layer, PythonReward(right_table), estimator, x, y)
    rewards = tf.constant([[right_table(t, c) for c in range(3)] for t in y], tf.float32)
    kernel = tf.Variable(before)
    with tf.GradientTape() as tape:
        odds = x @ kernel if outputs == "logits" else tf.math.log(x @ tf.nn.softmax(kernel))
        expected = tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(odds) * rewards, axis=-1))
    gradient = tape.gradient(expected, kernel).numpy()
    np.testing.assert_allclose(moved, gradient, atol=0.05 * abs(gradient).max())


class Mixture(keras.layers.Layer):
    """Probabilities of classes, linear in the inputs."""

    def build(self, shape):
        self.kernel = self.add_weight("kernel", [shape[-1], 3])

    def call(self, inputs):
        return inputs @ tf.nn.softmax(self.kernel)


@pytest.mark.full
def test_drawn_numbers_estimate_the_gradient_of_the_expected_reward():
    """K1: of Gaussians; also of a reward that is one number for the whole batch."""
    x, y = np.array([[1.0, 0.0], [0.0, 2.0]], np.float32), np.array([[1.0], [-1.0]], np.float32)
    estimator = ScoreFunction(outputs="gaussian", samples=20000, sigma=0.5)
    for reward in (closeness, lambda y_true, y_pred: tf.reduce_mean(closeness(y_true, y_pred))):
        moved, _, outputs = one_step(linear(1), reward, estimator, x, y)
        gradient = x.T @ (-2 * (outputs - y)) / 2
        np.testing.assert_allclose(moved, gradient, atol=0.05 * abs(gradient).max())


@pytest.mark.parametrize("antithetic", cases([True, False], True))
def test_other_weights_estimate_the_gradient_of_the_reward(antithetic):
    """K1: beside the exact one."""
    x, y = np.array([[1.0, 0.0], [0.0, 2.0]], np.float32), np.array([[1.0], [-1.0]], np.float32)
    estimator = EvolutionStrategies(population=2000, sigma=0.01, antithetic=antithetic)
    moved, _, outputs = one_step(linear(1), PythonReward(lambda t, p: float(-np.sum((t - p) ** 2))), estimator, x, y)
    gradient = x.T @ (-2 * (outputs - y)) / 2
    np.testing.assert_allclose(moved, gradient, atol=0.2 * abs(gradient).max())


class Noisy(keras.layers.Layer):
    """Adds noise, in an evaluation too: from a generator, and from TensorFlow's own state."""

    def __init__(self):
        super().__init__()
        self.noise = keras.layers.GaussianNoise(1.0)

    def call(self, inputs):
        return self.noise(inputs, training=True) + tf.random.normal([1])


@pytest.mark.full
def test_all_copies_draw_the_same_numbers():
    """K1: else noise of size 1 would drown what weights of size 0.01 change."""
    estimator = EvolutionStrategies(population=64, sigma=0.01)

    def layer(inputs):
        return Noisy()(linear(1)(inputs))

    moved, _, _ = one_step(layer, lambda t, p: tf.round(p * 1e4) / 1e4, estimator, np.ones([4, 1], np.float32))
    assert moved.item() == pytest.approx(1.0, abs=0.5)


@pytest.mark.full
def test_trying_other_weights_leaves_the_model_as_it_is():
    """K1: to the last bit; batch statistics move as one pass moves them, and the loss is trained beside."""

    def model():
        keras.utils.set_random_seed(1)
        inputs = keras.Input([FEATURES])
        hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(4)(inputs)))
        return keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden))

    x, y = examples()
    found, expected = (
        rewarded(
            model(), optimizer="sgd", loss="mse", reward_weights=0.0, reward_estimator=EvolutionStrategies(population=4)
        ),
        Program(model()),
    )
    expected.compile("sgd", loss="mse")
    for program in (found, expected):
        program.train_on_batch(x, y)
    assert_alike(weights_of(found), weights_of(expected), rtol=1e-6)
    still = rewarded(model(), optimizer=keras.optimizers.SGD(0.0), reward_estimator=EvolutionStrategies(population=4))
    before = [variable.numpy() for variable in still.model.trainable_variables]
    still.train_on_batch(x, y)
    assert all((b == v.numpy()).all() for b, v in zip(before, still.model.trainable_variables, strict=True))


@pytest.mark.full
def test_a_sequence_is_drawn_step_by_step():
    """K1: one reward for all steps of an example; what a mask leaves out is not learned."""
    tokens = np.array([[1, 2, 0, 0], [2, 1, 3, 0]] * 8)

    def length(y_true, y_pred):
        assert y_pred.shape == (4,)
        return float(np.sum(y_pred == 1))

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Embedding(4, 8, mask_zero=True), keras.layers.Dense(3, use_bias=False)])
    program = Program(model)
    program.compile(keras.optimizers.Adam(0.1), reward=PythonReward(length), reward_estimator=ScoreFunction())
    program.train_on_batch(tokens)
    of_padding = model.get_weights()[0][0].copy()
    history = program.fit(tokens, epochs=15, verbose=0).history
    assert history["reward"][-1] > history["reward"][0] + 0.5
    classes = np.argmax(model(tokens), axis=-1)
    assert (classes[tokens > 0] == 1).all()
    np.testing.assert_array_equal(model.get_weights()[0][0], of_padding)


def test_a_class_needs_another_one(data):
    with pytest.raises(RewardError, match=r"the output 'out' has the shape \(None, 1\), but sampling needs"):
        rewarded(reward="accuracy", reward_estimator=ScoreFunction()).fit(*data, verbose=0)


class Judge:
    """Counts how many of its calls are under way at once."""

    def __init__(self):
        self.now, self.most, self.loops = 0, 0, set()

    async def __call__(self, y_true, y_pred):
        self.loops.add(asyncio.get_running_loop())
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        return float(y_pred == y_true)


def test_rewards_that_wait_are_awaited_at_once(data):
    """K1: all draws of all examples of a batch, in one loop for good."""
    judge = Judge()
    y = (data[0][:, 0] > 0).astype(np.int32)
    program = rewarded(build(2), reward=judge, reward_estimator=ScoreFunction(samples=3))
    program.fit(data[0], y, batch_size=10, verbose=0)
    assert (judge.most, judge.now, len(judge.loops)) == (30, 0, 1)
    judge.most = 0
    program.evaluate(data[0], y, batch_size=25, verbose=0)
    assert judge.most == 25


async def _failing(y_true, y_pred):
    raise StopIteration("gone")  # which would say that data has ended


async def _waiting(y_true, y_pred):
    return "good"


def _none(y_true, y_pred):
    return None


FAILING = {
    "stops": (_failing, "reward '_failing' has failed: "),
    "words": (
        _waiting,
        "reward '_waiting' has failed: RewardError: it returned 'good' for an example; it must return a number",
    ),
    "none": (PythonReward(_none), "reward '_none' has failed: RewardError: it returned None for an example"),
    "divides": (PythonReward(lambda t, p: 1 / 0), "reward '<lambda>' has failed: ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize(
    ("name", "method"),
    cases(
        list(itertools.product(FAILING, ["fit", "train_on_batch", "evaluate", "eager fit"])),
        *(("stops", "fit"), ("words", "train_on_batch"), ("none", "evaluate"), ("divides", "eager fit")),
    ),
)
def test_a_reward_that_fails_says_so(data, name, method):
    reward, message = FAILING[name]
    eager, _, method = method.rpartition(" ")
    program = rewarded(build(2), reward=reward, reward_estimator=ScoreFunction(), run_eagerly=bool(eager))
    arguments = {} if "batch" in method else {"verbose": 0}
    with pytest.raises(RewardError, match=message) as caught:
        getattr(program, method)(data[0], data[1], **arguments)
    assert caught.value.__cause__ is not None


# Who hears of it.


def test_a_reward_is_told_everywhere(data, tmp_path, capsys):
    """K1, K3: in the progress bar, the history and the records, and known as better when higher."""
    program = rewarded(model_dir=str(tmp_path / "run"))
    history = program.fit(*data, epochs=2, batch_size=10, validation_split=0.2, verbose=1).history
    shown = capsys.readouterr().out
    assert " - loss: " in shown and " - reward: " in shown and " - val_reward: " in shown
    rows = [json.loads(line) for line in Path(tmp_path, "run", "metrics.jsonl").read_text().splitlines()]
    for split, key in (("train", "reward"), ("validation", "val_reward")):
        assert [row["reward"] for row in rows if row["split"] == split] == history[key]
    directions = {metric.name: metrics.direction_of(metric) for metric in program.metrics}
    assert directions == {"loss": "min", "reward": "max"}


class Falling(keras.callbacks.Callback):
    """Undoes what was learned, so that rewards fall epoch by epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[-1].bias.assign([float(epoch)])


@pytest.fixture(scope="module")
def fall():
    """Returns a function that returns what a fit gives whose rewards fall from the first epoch on."""
    program = rewarded(optimizer=keras.optimizers.SGD(0.0))
    x = examples()[0]
    arguments = {"validation_data": (x, 0 * x[:, :1]), "epochs": 5, "verbose": 0}

    def fit(callback, rate=0.0):
        program.model.optimizer.learning_rate.assign(rate)
        return program.fit(x, 0 * x[:, :1], callbacks=[Falling(), callback], **arguments)

    return fit


STOPPERS = {"auto": ("val_reward", "auto", 3), "min": ("val_reward", "min", 5), "loss": ("val_loss", "auto", 3)}


@pytest.mark.parametrize("name", cases(list(STOPPERS), "auto", "min"))
def test_early_stopping_maximises_rewards(fall, name):
    """K1: an attribute `mode` that is "min" stays; EarlyStopping does not keep its argument."""
    monitor, mode, epochs = STOPPERS[name]
    callback = keras.callbacks.EarlyStopping(monitor, patience=2, min_delta=0.01, mode=mode)
    if mode == "min":
        callback.mode = mode
    assert len(fall(callback).epoch) == epochs
    if name == "auto":
        assert (callback.best_epoch, callback.min_delta) == (0, 0.01)
        assert len(fall(callback).epoch) == epochs, "turned once, it stays so"


@pytest.mark.parametrize("mode", cases(["auto", "min"], "auto"))
def test_checkpoints_keep_the_largest_reward(fall, tmp_path, mode):
    """K1"""
    pattern = str(tmp_path / "{epoch}.h5")
    callback = keras.callbacks.ModelCheckpoint(pattern, monitor="val_reward", save_best_only=True, mode=mode)
    callback.mode = mode
    fall(callback)
    found = sorted(int(path.stem) for path in tmp_path.iterdir())
    assert found == ([1] if mode == "auto" else [1, 2, 3, 4, 5])


def test_a_checkpoint_keeps_the_threshold_it_was_given(fall, tmp_path):
    """K1"""
    settings = {"monitor": "val_reward", "save_best_only": True, "initial_value_threshold": 100.0}
    fall(keras.callbacks.ModelCheckpoint(str(tmp_path / "x.h5"), **settings))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", cases(["auto", "min"], "auto"))
def test_a_rate_is_reduced_when_rewards_stop_rising(fall, mode):
    """K1"""
    callback = keras.callbacks.ReduceLROnPlateau("val_reward", factor=0.5, patience=1, mode=mode)
    rate = fall(callback, rate=1e-9).history["lr"][-1]
    assert rate == pytest.approx(1e-9 / 8 if mode == "auto" else 1e-9)


def test_a_callback_that_is_changed_is_named(fall, caplog):
    """K1: EarlyStopping does not keep `mode`, so both a guess and "min" are changed, with a warning."""
    callback = keras.callbacks.EarlyStopping("val_reward", patience=2, mode="min")
    assert len(fall(callback).epoch) == 3
    assert "EarlyStopping(monitor='val_reward') takes higher values as better" in caplog.text
    caplog.clear()
    fall(keras.callbacks.EarlyStopping("val_reward", patience=2, mode="max"))
    assert "takes higher values" not in caplog.text


def test_draws_follow_from_the_seed_and_not_from_what_was_built_before(data):
    """K1, K5: Keras numbers unnamed layers over the whole process, and a second program in it has other names."""
    histories = []
    for _ in range(2):
        program = rewarded(build(2), reward="accuracy", reward_estimator=ScoreFunction())
        histories.append(program.fit(data[0], data[1] > 0, epochs=2, verbose=0).history)
        keras.layers.Dense(1)  # takes a number
    assert histories[0] == histories[1]


def test_a_name_of_keras_is_a_reward(data):
    """K1: the cosine itself, which Keras's function is the negative of."""
    program = rewarded(build(2), reward="cosine_similarity")
    outputs = program.model(data[0]).numpy()
    targets = np.ones_like(outputs)
    cosine = np.sum(outputs, axis=1) / np.linalg.norm(outputs, axis=1) / np.sqrt(2)
    found = program.test_on_batch(data[0], targets, return_dict=True)
    assert found["reward"] == pytest.approx(np.mean(cosine), rel=1e-4)
