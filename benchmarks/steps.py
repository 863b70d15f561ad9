"""A training step beside loops written by hand and Model Garden's Trainer: the same model, optimizer, loss, metrics.

A window is some steps and a look at the metrics. Two graphs of the very same step differ by up to a tenth in speed, so
each round builds every variant anew. "Legacy Adam" is what `optimizer.type: adam` selects, here as in Model Garden; on
a CPU its update splits even small variables over the cores, which costs more than the rest of a small step.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tf_keras

from benchmarks import harness, processes
from benchmarks.harness import Promise
from official_trainer import Task, inputs, random_streams, registry
from official_trainer.config import DataConfig, ExperimentConfig, RuntimeConfig, TaskConfig, TrainerConfig
from official_trainer.engine.trainer import Trainer

BATCH = 64
WARM_WINDOWS, TIMED_WINDOWS = 3, 4  # those that warm up also use up what was prefetched

Train = Callable[[int], float]
"""Trains a window of so many steps; returns its mean loss."""

HAND, HAND_MEMORY = "hand-written loop, shuffle().batch()", "hand-written loop, from_arrays"
OURS, OURS_MEMORY = "Trainer, shuffle().batch()", "Trainer, from_arrays"
OURS_XLA, GARDEN = "Trainer, from_arrays, enable_xla", "Model Garden's Trainer, mirrored (its default)"

SMALL, LEGACY = "64 units (µs/step)", "64 units, legacy Adam (µs/step)"
CNN, TRANSFORMER = "digits_cnn (µs/step)", "python_docs_lm, a Transformer (µs/step)"
KERAS_3, KERAS_3_LARGE = "Keras 3, 64 units (µs/step)", "Keras 3, 3 × 512 units (µs/step)"

ROUNDS = 15
PROMISES = (
    Promise(SMALL, OURS, HAND, 1.05),
    Promise(SMALL, OURS_MEMORY, HAND_MEMORY, 1.05),
    Promise(SMALL, OURS_MEMORY, HAND, 0.9),
    Promise(SMALL, OURS_MEMORY, GARDEN, 0.5),
    Promise(SMALL, OURS_XLA, HAND, 0.6),
    Promise(LEGACY, OURS, HAND, 1.05),
    Promise(CNN, OURS_MEMORY, HAND, 1.0),
    Promise(TRANSFORMER, OURS_MEMORY, HAND, 1.0),
    Promise(KERAS_3, OURS, HAND, 1.05),
    Promise(KERAS_3, OURS_MEMORY, HAND, 1.0),
    Promise(KERAS_3_LARGE, OURS_MEMORY, HAND, 1.0),
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is trained.

    Attributes:
      keras: the Keras of the model, `tf_keras` or `keras`.
      build: returns a new task, the config of its experiment, and a new optimizer.
      window_steps: steps of a window, some tenths of a second.
    """

    keras: Any
    build: Callable[[], tuple[Task, ExperimentConfig, Any]]
    window_steps: int


class DigitsTask(Task):
    """Says which digit an image shows, in either Keras."""

    def __init__(self, params: Any, keras_: Any, units: tuple[int, ...]) -> None:
        super().__init__(params)
        self._keras, self._units = keras_, units

    def build_model(self) -> Any:
        x = pixels = self._keras.Input([64])
        for units in self._units:
            x = self._keras.layers.Dense(units, activation="relu")(x)
        return self._keras.Model(pixels, self._keras.layers.Dense(10)(x))

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return inputs.from_arrays(digits(), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return self._keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[Any]:
        return [self._keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@functools.cache
def digits() -> tuple[Any, Any]:
    """Returns images, float32 `[1797, 64]` in [0, 1], and labels, int32 `[1797]`."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).astype("float32"), labels.astype("int32")


def dense(keras_: Any, optimizers: Any, *units: int) -> tuple[Task, ExperimentConfig, Any]:
    """Returns hidden layers on the digits, with an Adam of one of Keras's modules."""
    data = DataConfig(global_batch_size=BATCH, is_training=True)
    config = ExperimentConfig(task=TaskConfig(train_data=data), trainer=TrainerConfig())
    return DigitsTask(config.task, keras_, units), config, optimizers.Adam(1e-3)


def experiment(name: str) -> tuple[Task, ExperimentConfig, Any]:
    """Returns an experiment of this repository, without averaged weights, which the loop by hand has not."""
    config = registry.get_config(name, processes.ROOT)
    optimizer_config = config.trainer.optimizer_config.replace(ema=None)
    config = config.replace(trainer=config.trainer.replace(optimizer_config=optimizer_config))
    task = registry.get_task_cls(config.task)(config.task)
    return task, config, task.create_optimizer(optimizer_config, config.runtime)


SUBJECTS = {
    SMALL: Subject(tf_keras, lambda: dense(tf_keras, tf_keras.optimizers, 64), 500),
    LEGACY: Subject(tf_keras, lambda: dense(tf_keras, tf_keras.optimizers.legacy, 64), 500),
    CNN: Subject(tf_keras, lambda: experiment("digits_cnn"), 25),
    TRANSFORMER: Subject(tf_keras, lambda: experiment("python_docs_lm"), 4),
    KERAS_3: Subject(keras, lambda: dense(keras, keras.optimizers, 64), 500),
    KERAS_3_LARGE: Subject(keras, lambda: dense(keras, keras.optimizers, 512, 512, 512), 100),
}


def shuffle_batch(task: Task, config: ExperimentConfig) -> tf.data.Dataset:
    """The pipeline everybody writes, of the training examples of a task."""
    context = inputs.InputContext()
    params = config.task.train_data.replace(is_training=True, shuffle=False, global_batch_size=1)
    one_by_one = task.build_inputs(params, context).unbatch()
    count = context.examples_per_epoch
    examples = tf.data.Dataset.from_tensor_slices(next(iter(one_by_one.batch(count)))).cache().shuffle(count).repeat()
    return examples.batch(config.task.train_data.global_batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def in_memory(task: Task, config: ExperimentConfig) -> tf.data.Dataset:
    return task.build_inputs(config.task.train_data.replace(is_training=True), inputs.InputContext())


# The variants.


def hand_written(subject: Subject, pipeline: Callable[..., tf.data.Dataset] = shuffle_batch) -> Train:
    """A `tf.function` loop over windows, as one writes it who needs no trainer."""
    tf_keras.backend.experimental.disable_tf_random_generator()
    task, config, optimizer = subject.build()
    model = task.build_model()
    if subject.keras is keras:
        optimizer.build(model.trainable_variables)
    loss_mean, metrics = subject.keras.metrics.Mean("loss"), task.build_metrics()
    iterator = iter(pipeline(task, config))

    @tf.function
    def window(num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            features, labels = next(iterator)
            with tf.GradientTape() as tape:
                outputs = model(features, training=True)
                loss = tf.reduce_mean(task.build_losses(labels, outputs))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            loss_mean.update_state(loss)
            task.process_metrics(metrics, labels, outputs)

    def train(num_steps: int) -> float:
        window(tf.constant(num_steps))
        logs = {metric.name: float(metric.result()) for metric in (loss_mean, *metrics)}
        for metric in (loss_mean, *metrics):
            metric.reset_state()
        return logs["loss"]

    return train


def ours(subject: Subject, *, shuffles: bool = False, enable_xla: bool = False) -> Train:
    """Our Trainer, built the way the engine builds it for one device."""
    random_streams.enable(0)
    task, config, optimizer = subject.build()
    config = config.replace(
        trainer=config.trainer.replace(steps_per_loop=subject.window_steps),
        runtime=RuntimeConfig(enable_xla=enable_xla),
    )
    if shuffles:
        dataset = shuffle_batch(task, config)
        task.build_inputs = lambda params, input_context=None: dataset
    return windows_of(Trainer(config, task, task.build_model(), optimizer, evaluate=False))


def model_garden(subject: Subject) -> Train:
    """Model Garden's Trainer, built the way its driver builds it without a GPU."""
    from official.common import distribute_utils
    from official.core import base_task, base_trainer
    from official.core import config_definitions as cfg

    tf_keras.backend.experimental.disable_tf_random_generator()
    strategy = distribute_utils.get_distribution_strategy("mirrored", num_gpus=0)
    with strategy.scope():
        task, config, optimizer = subject.build()

    class GardenTask(base_task.Task):
        def build_model(self) -> Any:
            return task.build_model()

        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            return shuffle_batch(task, config)

        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
            return tf.reduce_mean(task.build_losses(labels, model_outputs))

        def build_metrics(self, training: bool = True) -> list[Any]:
            return task.build_metrics(training)

    theirs = cfg.ExperimentConfig()
    with strategy.scope():
        garden_task = GardenTask(theirs.task)
        trainer = base_trainer.Trainer(theirs, garden_task, garden_task.build_model(), optimizer, evaluate=False)
    return windows_of(trainer)


def windows_of(trainer: Any) -> Train:
    """The windows of a Trainer, ours or Model Garden's: the contract is the same."""

    def train(num_steps: int) -> float:
        logs = trainer.train(tf.constant(num_steps))
        return {name: float(tf.convert_to_tensor(value)) for name, value in logs.items()}["training_loss"]

    return train


BUILDS: dict[str, Callable[[Subject], Train]] = {
    HAND: hand_written,
    HAND_MEMORY: functools.partial(hand_written, pipeline=in_memory),
    OURS: functools.partial(ours, shuffles=True),
    OURS_MEMORY: ours,
    OURS_XLA: functools.partial(ours, enable_xla=True),
    GARDEN: model_garden,
}


def microseconds(name: str, variant: str, quick: bool) -> dict[str, float]:
    """Builds a variant, trains some windows, and returns what a step of the timed ones took."""
    tf_keras.backend.clear_session()
    gc.collect()  # the pipeline of the variant before
    train = BUILDS[variant](SUBJECTS[name])
    num_steps = 2 if quick else SUBJECTS[name].window_steps
    for _ in range(WARM_WINDOWS):
        train(num_steps)
    start = time.perf_counter()
    for _ in range(TIMED_WINDOWS):
        train(num_steps)
    return {name: (time.perf_counter() - start) / (TIMED_WINDOWS * num_steps) * 1e6}


def variants_of(name: str) -> list[str]:
    """Returns the variants that promises of a measurement name."""
    return list(dict.fromkeys(side for p in PROMISES if p.measurement == name for side in (p.against, p.variant)))


def measure(num_rounds: int, quick: bool) -> harness.Values:
    values: harness.Values = {}
    for name in SUBJECTS:
        variants = {variant: functools.partial(microseconds, name, variant, quick) for variant in variants_of(name)}
        values |= harness.in_turns(variants, num_rounds)
    return values
