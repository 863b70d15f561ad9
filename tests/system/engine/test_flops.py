"""The FLOPs of models that other packages build, beside what they are by hand."""

import keras as keras3
import tensorflow as tf
from official.nlp.configs import encoders

from official_trainer.engine import flops


def gradients_of(model, inputs):
    """Returns the graph of a forward and a backward pass whose gradients are all used."""

    @tf.function(autograph=False)
    def step(inputs):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = tf.reduce_sum((outputs["pooled_output"] if isinstance(outputs, dict) else outputs) ** 2)
        weights = model.trainable_variables
        for gradient, variable in zip(tape.gradient(loss, weights), weights, strict=True):
            if gradient is not None:
                variable.assign_sub(tf.convert_to_tensor(gradient))

    return step.get_concrete_function(inputs).graph


def test_bert_of_model_garden():
    """N51: within 1 % of the count that papers use: weights of the layers, and attention."""
    batch, length, hidden, inner, layers = 8, 128, 128, 512, 2
    config = encoders.EncoderConfig(type="bert")
    config.bert.override(
        {"num_layers": layers, "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 2}
    )
    model = encoders.build_encoder(config)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    found = flops.count(gradients_of(model, {name: tf.ones([batch, length], tf.int32) for name in names}))
    weights = layers * (4 * hidden * hidden + 2 * hidden * inner)
    by_hand = 6 * batch * (length * weights + hidden * hidden) + 12 * layers * batch * length * length * hidden
    assert abs(found / by_hand - 1) < 0.01


def test_layers_of_keras_3():
    """N51: convolutions, loops over time, attention."""
    inputs = keras3.Input([20, 12])
    hidden = keras3.layers.LSTM(24, return_sequences=True)(keras3.layers.Conv1D(12, 3, padding="same")(inputs))
    model = keras3.Model(inputs, keras3.layers.Dense(3)(keras3.layers.MultiHeadAttention(3, 8)(hidden, hidden)))
    of_attention = 6 * 20 * 4 * 24 * 24 + 12 * 3 * 20 * 20 * 8
    by_hand = 4 * 20 * 12 * 36 + 6 * 20 * (12 + 24) * 96 + of_attention + 6 * 20 * 24 * 3
    assert flops.count(gradients_of(model, tf.ones([4, 20, 12]))) == 4 * by_hand
