"""What `check` says of logits in the place of probabilities, in both Kerases."""

import contextlib
import dataclasses
import re
import types

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.config import schema
from official_trainer.lazy import keras as keras2
from official_trainer.runs import logits, run
from official_trainer.tasks import registry
from tests.support import toy
from tests.support.cases import cases

ONE_HOT = np.eye(3, dtype="float32")[toy.LABELS[:10]]
YES = (toy.LABELS[:10, None] > 0).astype("float32")


class LogitsTask(toy.ToyTask):
    """Its parts are set by a case."""

    keras, activation, loss, metric = keras2, None, None, None

    def build_model(self):
        inputs = self.keras.Input((6,))
        hidden = self.keras.layers.Dense(3, "sigmoid")(inputs)
        units = 3 if self.activation == "softmax" else 1
        return self.keras.Model(inputs, self.keras.layers.Dense(units, self.activation)(hidden + 4 * inputs[:, :3]))

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return self.loss(YES if model_outputs.shape[1] == 1 else ONE_HOT, model_outputs)

    def build_metrics(self, training=True):
        return [] if self.metric is None else [self.metric()]

    def process_metrics(self, metrics, labels, model_outputs):
        for metric in metrics:
            metric.update_state(YES, model_outputs)


FORGOTTEN = "takes probabilities, and gets values from -[0-9.]+ to [0-9.]+: set from_logits=True, or end the model"
SQUARES = lambda _: lambda labels, outputs: (labels - outputs) ** 2  # noqa: E731
CASES = {
    "function": (None, lambda k: k.losses.binary_crossentropy, None, f"binary_crossentropy, at .*:[0-9]+, {FORGOTTEN}"),
    "class": (None, lambda k: k.losses.BinaryCrossentropy(), None, f"binary_crossentropy, at .*:[0-9]+, {FORGOTTEN}"),
    "focal": (None, lambda k: k.losses.BinaryFocalCrossentropy(), None, f"binary_focal_crossentropy, .*{FORGOTTEN}"),
    "metric": (None, SQUARES, lambda k: k.metrics.AUC(name="area"), f"AUC of the metric 'area' {FORGOTTEN}"),
    "metric of a loss": (
        None,
        SQUARES,
        lambda k: k.metrics.BinaryCrossentropy(name="entropy"),
        f"binary_crossentropy of the metric 'entropy' {FORGOTTEN}",
    ),
    "probabilities": ("softmax", lambda k: k.losses.CategoricalCrossentropy(), None, None),
    "logits": (None, lambda k: k.losses.BinaryCrossentropy(from_logits=True), None, None),
    "metric of logits": (None, SQUARES, lambda k: k.metrics.AUC(from_logits=True), None),
    "regression": (None, SQUARES, lambda k: k.metrics.MeanAbsoluteError(), None),
    "margin": ("tanh", lambda k: k.losses.hinge, lambda k: k.metrics.Hinge(), None),
}


OF_KERAS_3 = ("class", "metric", "metric of a loss", "logits")
NAMES = [("tf_keras", name) for name in CASES] + [("keras", name) for name in CASES]


@pytest.mark.parametrize(
    ("keras", "name"), cases(NAMES, *(case for case in NAMES if case[0] == "tf_keras" or case[1] in OF_KERAS_3))
)
def test_what_gets_logits_for_probabilities_is_named(name, keras):
    """N10: with its line or its metric; nothing is said of what is right."""
    keras = {"tf_keras": keras2, "keras": keras3}[keras]
    activation, loss, metric, said = CASES[name]
    task = LogitsTask(None)
    task.keras, task.activation, task.loss = keras, activation, loss(keras)
    task.metric = None if metric is None else lambda: metric(keras)
    trainer = types.SimpleNamespace(strategy=tf.distribute.get_strategy())
    batch = tf.constant(toy.FEATURES[:10]), tf.constant(ONE_HOT)
    lines = logits.in_first_batch(trainer, task, task.build_model(), [batch])
    if said is None:
        assert lines == []
    else:
        (line,) = lines
        assert re.search(said, line), line


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgottenConfig(schema.TaskConfig):
    """A config of its own."""


@registry.register_task_cls(ForgottenConfig)
class ForgottenTask(toy.ToyTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras2.losses.sparse_categorical_crossentropy(labels, model_outputs)


@registry.register_config_factory("forgotten_logits")
def forgotten_logits():
    """The toy task's config."""
    base = toy.experiment()
    data = {"train_data": base.task.train_data, "validation_data": base.task.validation_data}
    return base.replace(task=ForgottenConfig(**data))


@pytest.mark.parametrize(
    ("mode", "step"), cases([("train", "train"), ("train_and_eval", "evaluate")], ("train_and_eval", "evaluate"))
)
def test_check_says_it_of_the_first_batch(mode, step, model_dir):
    """N10: where it evaluates, of the evaluation step; else of the training step."""
    resolved = configuration.resolve(registry.get_config("forgotten_logits"), experiment="forgotten_logits")
    steps = run.check("forgotten_logits", resolved, model_dir=str(model_dir), mode=mode)
    with contextlib.closing(steps):
        first = next(result for result in steps if "sparse_categorical_crossentropy, at tests/integ" in result.outcome)
    assert first.name == step
