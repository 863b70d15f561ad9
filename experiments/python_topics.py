"""Which chapter of Python's reference a paragraph is from, with a small BERT of KerasHub. `python_topics`.

It needs `pip install 'official-trainer[hub]'`. The text comes with Python; nothing is downloaded, because the model is
built from its config. `keras_hub` is imported where the model is built, so that the experiment is listed, shown and
checked without it.
"""

import dataclasses
import functools
import re
import zlib

import keras

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Config,
    DataConfig,
    ExperimentConfig,
    Fraction,
    Positive,
    TaskConfig,
    TrainerConfig,
    opt,
)

CHAPTERS = "specialnames", "compound", "types", "string-methods", "debugger"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(Config):
    """A BERT.

    Attributes:
      vocabulary: number of words that are told apart; others share a number with one of these.
      words: of a paragraph, as many as the model reads.
      layers: transformer layers.
      heads: attention heads of a layer.
      hidden: numbers that stand for a word, a multiple of `heads`.
      dropout: share of the numbers set to zero while training.
    """

    vocabulary: Positive = 2000
    words: Positive = 48
    layers: Positive = 2
    heads: Positive = 4
    hidden: Positive = 64
    dropout: Fraction = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicsConfig(TaskConfig):
    """Paragraphs and their classifier.

    Attributes:
      model: the classifier.
      held_out: share of the paragraphs kept for validation.
    """

    model: BertConfig = BertConfig()
    held_out: Fraction = 0.2


@register_task_cls(TopicsConfig)
class TopicsTask(Task):
    """Says which chapter a paragraph is from."""

    def build_model(self):
        import keras_hub

        params = self.task_config.model
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=params.vocabulary,
            num_layers=params.layers,
            num_heads=params.heads,
            hidden_dim=params.hidden,
            intermediate_dim=4 * params.hidden,
            max_sequence_length=params.words,
            dropout=params.dropout,
        )
        return keras_hub.models.BertTextClassifier(
            backbone=backbone, num_classes=len(CHAPTERS), preprocessor=None, dropout=params.dropout
        )

    def build_inputs(self, params, input_context=None):
        model = self.task_config.model
        arrays = load_paragraphs(model.vocabulary, model.words)
        return inputs.from_arrays(arrays, params, input_context, held_out=self.task_config.held_out)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs, model, labels=None):
        return {"probabilities": keras.activations.softmax(self.inference_step(inputs, model))}


@functools.cache
def load_paragraphs(vocabulary, length):
    """Returns (features, labels): what BERT takes, int32 [paragraphs, length] each, and the numbers of chapters.

    A word's number follows from its letters. 0 fills up a paragraph, and 1 is before its first word.
    """
    from pydoc_data.topics import topics

    import numpy as np

    chapters = {}  # by what the model reads: it may be in several chapters, and counts for the first one
    for number, chapter in enumerate(CHAPTERS):
        for paragraph in re.split(r"\n\s*\n", topics[chapter]):
            words = re.findall(r"\w+|[^\w\s]", paragraph.lower())
            if len(words) > 5:
                numbers = (2 + zlib.crc32(word.encode()) % (vocabulary - 2) for word in words)
                chapters.setdefault((1, *numbers)[:length], number)
    tokens = np.zeros([len(chapters), length], "int32")
    for row, numbers in enumerate(chapters):
        tokens[row, : len(numbers)] = numbers
    features = {"token_ids": tokens, "segment_ids": 0 * tokens, "padding_mask": (tokens > 0).astype("int32")}
    return features, np.array([*chapters.values()])


@register_config_factory("python_topics")
def python_topics():
    """Chapters of Python's reference told apart by a paragraph, a small BERT of KerasHub."""
    data = DataConfig(global_batch_size=32)
    trainer = TrainerConfig(
        train_steps=400,
        summary_interval=100,
        checkpoint_interval=200,
        validation_interval=100,
        best_checkpoint_eval_metric="accuracy",
        optimizer_config=opt.adamw(1e-3, weight_decay_rate=0.01, decay="linear", warmup_steps=40),
    )
    return ExperimentConfig(task=TopicsConfig(train_data=data, validation_data=data), trainer=trainer)
