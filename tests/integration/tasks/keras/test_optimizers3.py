"""Each optimizer of `trainer.optimizer_config` as one of Keras 3: its class, its settings, its loss scale."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import RuntimeConfig, opt
from official_trainer.config import optimization as spelled
from official_trainer.tasks.keras.optimizers3 import build_optimizer

CLASSES = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "rmsprop": keras.optimizers.RMSprop,
    "adagrad": keras.optimizers.Adagrad,
}
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
REFUSED = {"decay", "gradient_clip_norm"}
NUMBERS, FLAGS = st.sampled_from([0.125, 0.25, 0.5]), st.booleans()
RENAMED = {"weight_decay_rate": "weight_decay"}


def settable(kind):
    """Returns the fields of an optimizer that hold a number or a flag, and are no way to clip."""
    defaults = dataclasses.asdict(spelled.OptimizerConfig(type=kind).get())
    left = {*CLIPS, "name", *REFUSED}
    return {
        name: FLAGS if isinstance(value, bool) else NUMBERS
        for name, value in defaults.items()
        if name not in left and value is not None
    }


@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_each_field_is_an_argument(kind, data):
    """N37: and what a section leaves out has Model Garden's default, not Keras 3's."""
    options = {}
    for name, values in settable(kind).items():
        if data.draw(st.booleans()):
            options[name] = data.draw(values)
    clip = data.draw(st.sampled_from([None, *CLIPS]))
    if clip is not None:
        options[clip] = 0.75
    if kind == "adamw":
        options["gradient_clip_norm"] = 0.0
    section = getattr(opt, kind)(0.01, name="mine", **options)
    built = build_optimizer(section)
    assert type(built) is CLASSES[kind]
    found, expected = built.get_config(), dataclasses.asdict(section.optimizer.get())
    assert found.pop("learning_rate") == pytest.approx(0.01, rel=1e-7)
    for name, value in expected.items():
        if name not in {*REFUSED, "include_in_weight_decay"} and not name.startswith("exclude_from"):
            assert found[RENAMED.get(name, name)] == value, name
    assert not found["use_ema"]
    assert found["loss_scale_factor"] is None


@pytest.mark.parametrize(
    ("options", "norm"),
    [
        ({}, 1.0),
        ({"gradient_clip_norm": 0.25}, 0.25),
        ({"gradient_clip_norm": 0.0}, None),
        ({"gradient_clip_norm": 0.5, "global_clipnorm": 0.75}, 0.5),
        ({"gradient_clip_norm": 0.5, "global_clipnorm": 0.25}, 0.25),
        ({"gradient_clip_norm": 0.0, "global_clipnorm": 0.25}, 0.25),
    ],
)
def test_adamw_clips_by_the_smaller_of_its_two_global_norms(options, norm):
    """N37: which is what clipping by one after the other does."""
    assert build_optimizer(opt.adamw(0.1, **options)).global_clipnorm == norm


def test_averages_are_not_the_optimizers():
    """N37: the engine keeps them."""
    assert not build_optimizer(opt.adam(0.1, ema=0.9)).use_ema


def test_a_constant_rate_is_a_variable_and_another_is_not():
    """N37: so a rate can be assigned."""
    optimizer = build_optimizer(opt.adam(0.25))
    optimizer.learning_rate = 0.5
    assert float(optimizer.learning_rate) == 0.5
    optimizer = build_optimizer(opt.adam(0.25, warmup_steps=10))
    assert float(optimizer.learning_rate) == 0.0
    optimizer.iterations.assign(4)
    assert float(optimizer.learning_rate) == pytest.approx(0.1)


def scaled(runtime):
    """Returns an optimizer, and a weight of 1 after its update by a loss of 1e-8 times the weight in float16."""
    optimizer = build_optimizer(opt.sgd(1.0, clipnorm=1.0), runtime)
    weight = keras.Variable(1.0)
    optimizer.build([weight])
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.cast(weight.value, tf.float32) * 1e-8)
        loss = tf.cast(loss, tf.float16)
    gradient = tape.gradient(loss, weight.value)
    optimizer.apply_gradients([(tf.cast(gradient, tf.float32) * 1e7, weight)])
    return optimizer, weight.numpy()


def test_the_names_of_variables_do_not_depend_on_what_was_built_before():
    """N37: as a checkpoint needs them."""
    runtime = RuntimeConfig(mixed_precision_dtype="float16")
    first, second = ([each.path for each in build_optimizer(opt.adam(0.1), runtime).variables] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("scale", [None, "dynamic"])
def test_float16_scales_the_loss(scale):
    """N37: as Keras does, from 2 ** 15 on."""
    optimizer, weight = scaled(RuntimeConfig(mixed_precision_dtype="float16", loss_scale=scale))
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert float(optimizer.dynamic_scale) == 2.0**15
    np.testing.assert_allclose(weight, 0.9, rtol=1e-3)


def test_a_fixed_scale_stays_what_it_is():
    """N37: also after a gradient that is not finite, and the gradient is unscaled before it is clipped."""
    optimizer, weight = scaled(RuntimeConfig(mixed_precision_dtype="float16", loss_scale=1024.0))
    np.testing.assert_allclose(weight, 0.9, rtol=1e-3)
    assert type(optimizer) is keras.optimizers.SGD
    optimizer.apply([tf.constant(np.inf)])
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 1024.0


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_other_precisions_scale_nothing(dtype):
    """N37"""
    optimizer = build_optimizer(opt.sgd(1.0), RuntimeConfig(mixed_precision_dtype=dtype))
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 1.0


def test_an_optimizer_is_saved_with_its_model(tmp_path):
    """N37: in a `.keras` file, as Keras's callbacks write it, with its schedule, patterns and state."""
    section = opt.adamw(0.1, warmup_steps=3, decay="cosine", decay_steps=9, exclude_from_weight_decay=("dense/bias",))
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="dense")])
    model.compile(build_optimizer(section), "mse")
    data = np.ones([4, 2], np.float32), np.ones([4, 1], np.float32)
    model.fit(*data, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        each.fit(*data, epochs=2, verbose=0)
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
