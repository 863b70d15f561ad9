"""An encoder of Model Garden in a model of Keras 3, through a map of names."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from official.nlp.modeling.networks import BertEncoderV2

from official_trainer.config.schema import TaskConfig
from official_trainer.engine import first_weights
from official_trainer.tasks.task import Task

LENGTH, SIZE, HEADS, WORDS, BLOCKS = 8, 8, 2, 20, 2
NAMES = {
    "word_embeddings/*": "words/*",
    "position_embedding/*": "positions/*",
    "type_embeddings/*": "types/*",
    "embeddings/layer_norm/*": "norm/*",
    "transformer/layer_*/self_attention/*": "block_*/attention/*",
    "transformer/layer_*/self_attention_layer_norm/*": "block_*/attention_norm/*",
    "transformer/layer_*/intermediate/*": "block_*/intermediate/*",
    "transformer/layer_*/output/*": "block_*/output/*",
    "transformer/layer_*/output_layer_norm/*": "block_*/output_norm/*",
    "pooler_transform/*": "pooler/*",
}


def block(number):
    given = keras.Input([LENGTH, SIZE])
    attended = layers.MultiHeadAttention(HEADS, SIZE // HEADS, name="attention")(given, given)
    hidden = layers.LayerNormalization(epsilon=1e-12, name="attention_norm")(given + attended)
    inner = layers.Dense(16, lambda x: keras.ops.gelu(x, approximate=True), name="intermediate")(hidden)
    output = layers.Dense(SIZE, name="output")(inner)
    return keras.Model(
        given, layers.LayerNormalization(epsilon=1e-12, name="output_norm")(hidden + output), name=f"block_{number}"
    )


def test_an_encoder_of_model_garden_computes_the_same_in_keras_3(tmp_path):
    """N40: every value by its name, in ten lines; attention, norms, embeddings, pooler."""
    encoder = BertEncoderV2(
        vocab_size=WORDS, hidden_size=SIZE, num_layers=BLOCKS, num_attention_heads=HEADS, inner_dim=16,
        max_sequence_length=LENGTH,
    )  # fmt: skip
    words = np.arange(2 * LENGTH).reshape(2, LENGTH).astype("int32")
    batch = {"input_word_ids": words, "input_mask": np.ones_like(words), "input_type_ids": np.zeros_like(words)}
    encoder(batch)
    for number, variable in enumerate(encoder.variables):
        variable.assign(0.3 * tf.random.stateless_normal(variable.shape, [number, 1]))
    tf.train.Checkpoint(encoder=encoder).write(str(tmp_path / "ckpt-7"))

    given = keras.Input([LENGTH], dtype="int32")
    zeros = keras.ops.zeros_like(given)
    hidden = layers.Embedding(WORDS, SIZE, name="words")(given) + layers.Embedding(16, SIZE, name="types")(zeros)
    hidden += layers.Embedding(LENGTH, SIZE, name="positions")(zeros + keras.ops.arange(LENGTH, dtype="int32"))
    hidden = layers.LayerNormalization(epsilon=1e-12, name="norm")(hidden)
    for number in range(BLOCKS):
        hidden = block(number)(hidden)
    model = keras.Model(given, [hidden, layers.Dense(SIZE, "tanh", name="pooler")(hidden[:, 0])])

    task = Task(TaskConfig(init_checkpoint=str(tmp_path), init_checkpoint_names=NAMES))
    (found,) = first_weights.initialize(task, model, tf.distribute.get_strategy())
    assert found.restored == found.variables == len(model.weights) == len(encoder.variables)
    expected = encoder(batch)
    for name, output in zip(("sequence_output", "pooled_output"), model(words), strict=True):
        np.testing.assert_allclose(output.numpy(), expected[name].numpy(), atol=1e-6)
