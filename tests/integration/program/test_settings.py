"""The sections of an experiment's config beside Keras's arguments: what takes effect in fit, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from official_trainer.actions.early_stopping import EarlyStoppingConfig
from official_trainer.config import ConfigError, OptimizationConfig, RuntimeConfig, TrainerConfig
from official_trainer.config.optimization import EMAConfig, LrConfig
from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program
from official_trainer.stopping import PreemptedError
from tests.support.cases import full
from tests.support.programs import CLASSES, FEATURES, assert_alike, examples, lightly

X, Y = (array[:48] for array in examples())
IN_THREE = TrainerConfig(gradient_accumulation_steps=3)
EMA = OptimizationConfig(ema=EMAConfig(average_decay=0.9))


def build():
    keras.utils.set_random_seed(1)
    pixels = keras.Input([FEATURES], name="pixels")
    hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2")(pixels)
    return keras.Model(pixels, keras.layers.Dense(CLASSES, dtype="float32")(hidden))


def program(model_dir=None, make=build, compiling=(), **sections):
    return lightly(Program(make, model_dir, **sections), **dict(compiling))


def fit(owner, **arguments):
    settings = {"batch_size": 12, "epochs": 3, "shuffle": False, "validation_split": 0.25, "verbose": 0}
    return owner.fit(X, Y, **{**settings, **arguments}).history


def weights(owner):
    return owner.model.get_weights()


@pytest.fixture(scope="module")
def plain():
    """Returns the history and the weights of a fit without any section."""
    owner = program()
    return fit(owner), weights(owner)


@pytest.mark.parametrize(
    ("settings", "rtol"),
    [
        ({"trainer": IN_THREE}, 1e-6),
        full(({"runtime": RuntimeConfig(distribution_strategy="mirrored")}, 1e-6)),
        full(({"runtime": RuntimeConfig(mixed_precision_dtype="float16")}, 2e-3)),
    ],
    ids=["accumulated", "mirrored", "float16"],
)
def test_the_numbers_stay_what_they_are(plain, settings, rtol):
    """K6, G14: micro-batches, replicas, XLA and precision change how a step is computed, not what it is."""
    assert_alike(fit(program(**settings)), plain[0], rtol)


@pytest.mark.full
def test_xla_compiles_the_steps():
    """K6: a step that XLA cannot compile fails, and a smaller last batch is one more compilation."""

    def with_python():
        pixels = keras.Input([FEATURES])
        seen = keras.layers.Lambda(lambda x: tf.ensure_shape(tf.numpy_function(abs, [x], tf.float32), x.shape))(pixels)
        return keras.Model(pixels, keras.layers.Dense(CLASSES)(seen))

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?i)compil"):
        fit(program(make=with_python, compiling={"jit_compile": True}))
    uneven = {"batch_size": 10, "validation_split": 0}
    assert_alike(fit(program(compiling={"jit_compile": True}), **uneven), fit(program(), **uneven), 1e-6)


def test_the_seed_decides_the_weights_that_a_function_gives():
    """K6"""

    def unseeded():
        return keras.Sequential([keras.layers.Dense(CLASSES, input_shape=[FEATURES])])

    first, again, other = (weights(Program(unseeded, seed=seed)) for seed in (3, 3, 4))
    assert (first[0] == again[0]).all()
    assert (first[0] != other[0]).any()


def test_averaged_weights_are_those_evaluated_and_predicted_with(plain):
    """K6, K3: the averages by hand, and training with the weights themselves."""
    owner, other = program(trainer=TrainerConfig(optimizer_config=EMA)), program()
    kept = []

    class Keeping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append(self.model.get_weights())

    start = weights(owner)
    fit(owner, callbacks=[Keeping()])
    for found, expected in zip(weights(owner), plain[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    averages = start
    for step, values in enumerate(kept, start=1):
        decay = min(0.9, (1 + step) / (10 + step))
        averages = [decay * a + (1 - decay) * v for a, v in zip(averages, values, strict=True)]
    other.model.set_weights(averages)
    assert owner.evaluate(X, Y, verbose=0) == pytest.approx(other.evaluate(X, Y, verbose=0), rel=1e-5)
    expected = other.predict(X, verbose=0)
    np.testing.assert_allclose(owner.predict(X, verbose=0), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(owner.predict_on_batch(X), expected, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_with_averages_is_loaded_without_them(tmp_path):
    """K6: the weights and the optimizer's state, by a program that does not average."""
    owner = program(tmp_path, trainer=TrainerConfig(optimizer_config=EMA))
    fit(owner, epochs=1)
    other = program()
    other.load(str(tmp_path))
    for found, expected in zip(weights(other), weights(owner), strict=True):
        np.testing.assert_array_equal(found, expected)
    slots = [[variable.numpy() for variable in each.model.optimizer.variables] for each in (other, owner)]
    for found, expected in zip(*slots, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_action_of_the_config_may_end_fit(tmp_path):
    """K6: actions are called beside callbacks, which hear of the end; the record counts all examples."""
    stopping = EarlyStoppingConfig(monitor="loss", min_delta=100.0, patience=2)
    owner = program(str(tmp_path / "run"), trainer=TrainerConfig(actions=(stopping,)))
    assert len(fit(owner, epochs=9, batch_size=10)["val_loss"]) == 3
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "has not improved" in record["stopped_early"]
    assert record["time"]["total"]["examples"] == 3 * 36  # with those of a smaller last batch
    assert record["time"]["attempts"][0]["examples_per_second"] > 0


@pytest.mark.full
def test_a_time_limit_ends_fit_with_all_saved(tmp_path):
    """K6: `max_wall_seconds`; the same call goes on."""
    limited = program(str(tmp_path), runtime=RuntimeConfig(max_wall_seconds=0.01))
    with pytest.raises(PreemptedError, match="max_wall_seconds"):
        fit(limited)
    history = fit(program(str(tmp_path)))
    assert len(history["loss"]) == 3


RATE = OptimizationConfig(learning_rate=LrConfig(type="constant"))
LOSS_SCALE = RuntimeConfig(mixed_precision_dtype="float16", loss_scale=8.0)
CONTRADICTING = [
    ({"trainer": TrainerConfig(train_steps=9)}, r"^trainer\.train_steps: leave it out; arguments of Program, compile"),
    ({"trainer": TrainerConfig(optimizer_config=RATE)}, r"^trainer\.optimizer_config\.learning_rate: leave it out"),
    ({"runtime": RuntimeConfig(seed=3)}, r"^runtime\.seed: leave it out"),
    ({"runtime": LOSS_SCALE}, r"^runtime\.loss_scale: leave it"),
    ({"runtime": RuntimeConfig(distribution_strategy="tpu")}, "distribution_strategy=tpu: fit runs in one process"),
    ({"trainer": TrainerConfig(max_to_keep=3)}, r"^trainer\.max_to_keep: it needs a run directory; give Program\(mod"),
    ({"runtime": RuntimeConfig(max_wall_seconds=3)}, r"give Program\(model_dir=…\)"),
]


def test_what_contradicts_arguments_is_refused():
    """K6: with the argument to use instead."""
    for sections, said in CONTRADICTING:
        with pytest.raises(ArgumentError, match=said):
            Program(build, **sections)


def test_what_a_model_is_built_on_comes_too_late_for_one_that_is_built():
    """K6"""
    with pytest.raises(ArgumentError, match="give Program a function that builds the model, in place of the model"):
        Program(build(), runtime=RuntimeConfig(mixed_precision_dtype="bfloat16"))


def test_a_best_checkpoint_needs_an_evaluation(tmp_path):
    """K6"""
    owner = program(str(tmp_path), trainer=TrainerConfig(best_checkpoint_eval_metric="accuracy"))
    with pytest.raises(ArgumentError, match=r"no evaluation with this metric; give fit\(validation_data=…\)"):
        fit(owner, validation_split=0)


def test_wrong_values_are_refused(tmp_path):
    """K6: as in an experiment's config."""
    with pytest.raises(ConfigError, match="must be at least 1"):
        Program(build, trainer=TrainerConfig(gradient_accumulation_steps=0))
    owner = program(str(tmp_path), trainer=TrainerConfig(keep_checkpoint_every_n_steps=5))
    with pytest.raises(ConfigError, match="not a multiple of checkpoint_interval=3"):
        fit(owner)
