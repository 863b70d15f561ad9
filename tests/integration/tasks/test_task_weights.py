"""Weights of examples and masks in a task's losses and metrics: the recipes of the guide, on one replica and on two."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.errors import ExitCode
from official_trainer.inputs.context import BatchesError
from tests.support import toy

LENGTHS = np.random.RandomState(1).randint(1, 7, [24, 1])
TOKENS = np.random.RandomState(0).randint(1, 8, [24, 6]) * (np.arange(6) < LENGTHS)  # 0 is padding
WEIGHTS = np.random.RandomState(2).rand(24).astype("float32")


class Tagging(toy.ToyTask):
    """Tells each token of a row; a subclass has the loss."""

    def build_model(self):
        layers, seeded = keras.layers, keras.initializers.RandomNormal(seed=1)
        tokens = keras.Input([6], dtype="int64")
        embedded = layers.Embedding(8, 4, mask_zero=True, embeddings_initializer=seeded)(tokens)
        return keras.Model(tokens, layers.Dense(8, kernel_initializer=seeded)(embedded))

    @classmethod
    def create_optimizer(cls, *args, **options):
        return keras.optimizers.Adam(0.1)

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((TOKENS, {"tokens": TOKENS, "weight": WEIGHTS}), params, input_context)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalCrossentropy("token_loss", from_logits=True)]

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(labels["tokens"], model_outputs, sample_weight=labels["tokens"] != 0)


class OfExample(Tagging):
    """Has a value for each example, from its own tokens, times its weight, as in the guide."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = keras.losses.sparse_categorical_crossentropy(labels["tokens"], model_outputs, from_logits=True)
        mask = tf.cast(labels["tokens"] != 0, losses.dtype)  # [batch, length]
        means = tf.reduce_sum(losses * mask, axis=-1) / tf.maximum(tf.reduce_sum(mask, axis=-1), 1)
        return labels["weight"] * means  # [batch]


def numbers(task_cls, strategy):
    """The losses and metrics of three steps, and of an evaluation of what they learned."""
    trainer = toy.build(toy.experiment(batch=8, eval_batch=12), task_cls=task_cls, strategy=strategy)
    logs = [trainer.train(3), trainer.evaluate(-1)]
    return [float(each[name]) for each in logs for name in sorted(each) if name.endswith("loss")]


def test_a_mask_and_weights_count_alike_on_any_number_of_replicas():
    """T2: if the loss has a value for each example; `token_loss` is the mean over all tokens."""
    np.testing.assert_allclose(numbers(OfExample, "mirrored2"), numbers(OfExample, "off"), rtol=1e-6)


class OfThree(Tagging):
    """Yields batches as Keras's fit takes them."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((TOKENS, TOKENS, WEIGHTS), params, input_context)


@pytest.mark.parametrize("call", [lambda trainer: trainer.train(1), lambda trainer: trainer.evaluate(-1)])
def test_a_third_part_of_a_batch_is_refused(call):
    """T2: with where weights of examples go."""
    message = r"batches have 3 parts, and steps take \(features, labels\); put weights of examples into the labels"
    with pytest.raises(BatchesError, match=message) as caught:
        call(toy.build(task_cls=OfThree))
    assert caught.value.exit_code == ExitCode.FAILED
