"""A byte-level language model of Python's own help texts, which every Python brings along. `python_docs_lm`."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Between,
    Config,
    DataConfig,
    ExperimentConfig,
    Fraction,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """A Transformer that sees only what comes before.

    Attributes:
      num_layers: blocks of attention and feed-forward layers.
      hidden_size: width of a position.
      num_heads: heads of attention.
      inner_size: units of a feed-forward layer.
      dropout: share of the features set to zero while training.
    """

    num_layers: Positive = 2
    hidden_size: Positive = 96
    num_heads: Positive = 4
    inner_size: Positive = 384
    dropout: Fraction = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class PythonDocsConfig(TaskConfig):
    """Help texts and their language model.

    Attributes:
      model: the Transformer.
      sequence_length: bytes in an example.
      held_out_every: one in so many topics is kept for validation.
    """

    model: TransformerConfig = TransformerConfig()
    sequence_length: Positive = 128
    held_out_every: Annotated[int, Between(2)] = 10


@register_task_cls(PythonDocsConfig)
class PythonDocsTask(Task):
    """Predicts the next byte. Byte 0, which no text holds, begins a topic and pads its end."""

    def build_model(self) -> keras.Model:
        from official.nlp.modeling import layers

        params, length = self.task_config.model, self.task_config.sequence_length
        tokens = keras.Input([length], dtype=tf.int32, name="tokens")
        x = layers.OnDeviceEmbedding(256, params.hidden_size)(tokens)
        x = keras.layers.Dropout(params.dropout)(x + layers.PositionEmbedding(max_length=length)(x))
        # [batch, to predict, to look at]: each position sees itself and what comes before.
        before = tf.linalg.band_part(tf.ones([length, length], tf.int32), -1, 0)
        mask = tf.ones_like(tokens)[:, None, :] * before
        for _ in range(params.num_layers):
            block = layers.TransformerEncoderBlock(
                params.num_heads,
                params.inner_size,
                "gelu",
                norm_first=True,
                output_dropout=params.dropout,
                inner_dropout=params.dropout,
            )
            x = block([x, mask])
        x = keras.layers.LayerNormalization()(x)
        return keras.Model(tokens, keras.layers.Dense(256, dtype="float32", name="logits")(x))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        train, validation = load_topics(self.task_config.held_out_every)
        topics = train if params.is_training else validation
        return inputs.from_arrays(cut(topics, self.task_config.sequence_length), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        nats, is_text = cross_entropy(labels, model_outputs)
        return tf.reduce_sum(nats * is_text, axis=1) / tf.reduce_sum(is_text, axis=1)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.Mean(name="bits_per_byte")]

    def process_metrics(self, metrics: list[keras.metrics.Metric], labels: Any, model_outputs: Any) -> None:
        nats, is_text = cross_entropy(labels, model_outputs)
        for metric in metrics:
            metric.update_state(nats / math.log(2), sample_weight=is_text)

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logits = self.inference_step(inputs, model)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


def cross_entropy(labels: Any, logits: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each byte's cost in nats, and 1 where a byte is text, 0 where it is padding: float32 [batch, length]."""
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return nats, tf.cast(labels != 0, tf.float32)


def load_topics(held_out_every: int) -> tuple[list[bytes], list[bytes]]:
    """Returns the texts of the topics for training and for validation, by name.

    Topics quote each other at length, so training leaves out every paragraph that also stands in a held-out topic.
    """
    from pydoc_data.topics import topics

    texts = [topics[name].split("\n\n") for name in sorted(topics)]
    validation = texts[::held_out_every]
    held_out = {" ".join(paragraph.split()) for text in validation for paragraph in text}
    train = [
        [paragraph for paragraph in text if " ".join(paragraph.split()) not in held_out]
        for number, text in enumerate(texts)
        if number % held_out_every
    ]
    train_bytes, validation_bytes = (["\n\n".join(text).encode() for text in part] for part in (train, validation))
    return [text for text in train_bytes if text], validation_bytes


def cut(topics: list[bytes], length: int) -> tuple[Any, Any]:
    """Returns (tokens, labels), where each label is the byte after its token: int32 [examples, length]."""
    import numpy as np

    tokens, labels = [], []
    for text in topics:
        padded = text.ljust(-(-len(text) // length) * length, b"\0")
        labels.append(np.frombuffer(padded, np.uint8).reshape(-1, length))
        tokens.append(np.frombuffer(b"\0" + padded[:-1], np.uint8).reshape(-1, length))
    return np.concatenate(tokens).astype("int32"), np.concatenate(labels).astype("int32")


@register_config_factory("python_docs_lm")
def python_docs_lm() -> ExperimentConfig:
    """Bytes of Python's help texts, a small Transformer; best by bits per byte on topics kept apart."""
    return ExperimentConfig(
        task=PythonDocsConfig(
            train_data=DataConfig(global_batch_size=32),
            validation_data=DataConfig(global_batch_size=64),
        ),
        trainer=TrainerConfig(
            train_steps=800,
            steps_per_loop=50,
            summary_interval=50,
            checkpoint_interval=200,
            validation_interval=200,
            best_checkpoint_eval_metric="bits_per_byte",
            best_checkpoint_metric_comp="lower",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(
                    type="adamw",
                    adamw=opt.AdamWeightDecayConfig(
                        beta_2=0.98,
                        weight_decay_rate=0.01,
                        exclude_from_weight_decay=("layer_norm", "LayerNorm", "bias"),
                    ),
                ),
                ema=opt.EMAConfig(average_decay=0.99),
                learning_rate=opt.LrConfig(
                    type="cosine",
                    cosine=opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=800, alpha=0.05),
                ),
                warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=60)),
            ),
        ),
    )
