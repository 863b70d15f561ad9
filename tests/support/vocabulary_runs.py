"""Runs of a Task whose model has a layer of each sort that holds words or statistics, made from a file."""

import functools

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.tasks import registry
from official_trainer.tasks.task import Task
from tests.support import jobs, toy

KERASES = {"tf_keras": tf_keras, "Keras 3": keras}
ROWS = {
    "word": np.array([["a"], ["b"], ["c"], ["d"]] * 3),
    "number": np.linspace(-3, 8, 12, dtype="float32")[:, None],
}
FILES = {  # what a run was trained with, and what lies there later
    "as it was": (["a", "b", "b", "c", "c", "c"], [1.0, 2.0, 6.0, 7.0]),
    "grown": (["a", "b", "b", "c", "c", "c", "d", "d", "d", "d"], [1.0, 2.0, 6.0, 7.0, 70.0]),
    "shrunk": (["a", "b"], [1.0, 2.0, 2.5]),
    "reordered": (["c", "a", "a", "a", "b", "b"], [-1.0, -2.0, -6.0, -7.0]),
}
LAYERS = (
    "string_lookup",
    "text_vectorization",
    "normalization",
    "given_normalization",
    "discretization",
    "feature_space",
    "list_in_a_nested_model",
    "own_table",
)


class ConfigOf:
    """What lies in the file, and which Keras builds the model; one of each in this process at a time."""

    kind, file, build = tf_keras, "as it was", None


@functools.cache
def table_layer(kind):
    class OwnTable(kind.layers.Layer):
        def __init__(self, words):
            super().__init__(name="own_table")
            numbers = tf.range(len(words), dtype=tf.int64)
            self.ranks = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, numbers), -1)

        def call(self, words):
            return tf.cast(self.ranks.lookup(words), tf.float32)

        def compute_output_shape(self, shape):
            return shape

        def compute_output_spec(self, words):
            return kind.KerasTensor(words.shape, "float32")

    return OwnTable


def build(kind, file):
    """Returns a model of all layers, with an output for each; the data of `file` make what they hold."""
    layers, (words, numbers) = kind.layers, FILES[file]
    words, numbers, distinct = np.array(words), np.array(numbers, "float32")[:, None], list(dict.fromkeys(words))
    adapted = {
        "string_lookup": layers.StringLookup(name="string_lookup"),
        "text_vectorization": layers.TextVectorization(
            name="text_vectorization", output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True
        ),
        "normalization": layers.Normalization(name="normalization"),
        "discretization": layers.Discretization(name="discretization", num_bins=3),
    }
    for name, layer in adapted.items():
        layer.adapt(numbers if name in ("normalization", "discretization") else words[:, None])
    space_of = kind.utils.FeatureSpace
    space = space_of(
        {
            "word": space_of.string_categorical(output_mode="int"),
            "number": space_of.float_normalized(),
        },
        output_mode="dict",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices({"word": np.resize(words, len(numbers)), "number": numbers[:, 0]}))
    given = space.get_inputs()
    encoded = space.get_encoded_features()
    inner_given = kind.Input((1,), dtype="string")
    inner = kind.Model(inner_given, layers.StringLookup(vocabulary=distinct)(inner_given))
    middle_given = kind.Input((1,), dtype="string")
    middle = kind.Model(middle_given, inner(middle_given))
    word, number = given["word"], given["number"]
    mean, variance = float(numbers.mean()), float(numbers.var())
    outputs = {
        **{
            name: layer(number if name in ("normalization", "discretization") else word)
            for name, layer in adapted.items()
        },
        "given_normalization": layers.Normalization(mean=mean, variance=variance, name="given")(number),
        "feature_space": layers.Lambda(lambda parts: tf.cast(parts[0], tf.float32) + 9 * parts[1], output_shape=(1,))(
            [encoded["word"], encoded["number"]]
        ),
        "list_in_a_nested_model": middle(word),
        "own_table": table_layer(kind)(distinct)(word),
    }
    embedded = layers.Flatten()(layers.Embedding(20, 2)(outputs["string_lookup"]))
    outputs["scored"] = layers.Dense(1)(layers.Concatenate()([embedded, outputs["normalization"]]))
    return kind.Model(given, outputs)


class VocabularyConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(VocabularyConfig)
class VocabularyTask(Task):
    """Fits the number by all layers; the sum of each layer's output is a metric."""

    def build_model(self):
        return (ConfigOf.build or build)(ConfigOf.kind, ConfigOf.file)

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((ROWS, ROWS["number"]), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return (labels - model_outputs["scored"]) ** 2

    def build_metrics(self, training=True):
        return [] if ConfigOf.build else [ConfigOf.kind.metrics.Sum(name=name) for name in LAYERS]

    def process_metrics(self, metrics, labels, model_outputs):
        for metric in metrics:
            output = tf.cast(model_outputs[metric.name], tf.float32)
            metric.update_state(output * tf.range(1.0, tf.cast(tf.shape(output)[0] + 1, tf.float32))[:, None])

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return ConfigOf.kind.optimizers.Adam(0.05)


@registry.register_config_factory("vocabularies")
def vocabularies_experiment():
    data = {name: schema.DataConfig(global_batch_size=4) for name in ("train_data", "validation_data")}
    base = toy.experiment(checkpoint_interval=2, validation_interval=2, summary_interval=2)
    return base.replace(task=VocabularyConfig(**data), trainer=base.trainer.replace(train_steps=4))


KEEPING = (
    "trainer.best_checkpoint_eval_metric=validation_loss",
    "trainer.best_checkpoint_metric_comp=lower",
    "trainer.actions=[{type: average_checkpoints, last: 2}, {type: checkpoint, directory: named}]",
)


resolved = functools.partial(jobs.resolved, "vocabularies")


def do(model_dir, *sets, kind, file="as it was", build=None, **options):
    ConfigOf.kind, ConfigOf.file, ConfigOf.build = kind, file, build
    return jobs.do("vocabularies", model_dir, *sets, **options)


@functools.cache
def made(name, file):
    """Returns the output of each layer as the code makes it."""
    return {layer: np.asarray(value) for layer, value in build(KERASES[name], file)(ROWS).items()}


def small(kind, file, *, mode="int", size=None):
    """Returns a model of a lookup and an embedding, which has as many rows as there are words unless `size` says."""
    lookup = kind.layers.StringLookup(name="words", output_mode=mode)
    lookup.adapt(np.array(FILES[file][0])[:, None])
    given = {"word": kind.Input((1,), dtype="string", name="word"), "number": kind.Input((1,), name="number")}
    vectors = lookup(given["word"])
    if mode == "int":
        size = lookup.vocabulary_size() if size is None else size
        vectors = kind.layers.Flatten()(kind.layers.Embedding(size, 2, name="embedding")(vectors))
    else:
        total = functools.partial(tf.reduce_sum, axis=-1, keepdims=True)
        vectors = kind.layers.Lambda(lambda hot: total(tf.cast(hot, tf.float32)), output_shape=(1,))(vectors)
    return kind.Model(given, {"scored": kind.layers.Dense(1, name="head")(vectors)})


fixed = functools.partial(small, size=20)
shape_free = functools.partial(small, mode="multi_hot")
"""One with a fixed number of rows; and one whose words have an output each, and no weight for it."""


OTHER = (
    "layer words: the code makes another vocabulary \\(4 entries, not 3; entry 1 is 'd', not 'c'; .* and 1 more\\) than"
)
"""What is said of the layer `words` of a grown file."""
