"""Microseconds per training step of a small model (64 → 64 relu → 10, batch 64, Adam), in windows of 500 steps.

Owns: the variants and how they are timed. Each computes the same step, with the same optimizer class, a mean loss and
an accuracy that are read and reset after every window. Does not own: the tables (`report.py`).

The optimizer is `tf_keras.optimizers.Adam`, as one would write it by hand. "Legacy Adam" is what `optimizer.type: adam`
selects, here as in Model Garden; on a CPU its update splits even small variables over the cores, which costs more than
the rest of the step.

Run as a process of its own (`python -m benchmarks.steps FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer.config import schema
from official_trainer.lazy import keras, tf
from official_trainer.tasks.task import Task

BATCH = 64
WINDOW_STEPS = 500
WARM_WINDOWS = 2  # not timed: they use up what was prefetched while other variants ran
TIMED_WINDOWS = 4
ROUNDS_PER_BUILD = 3
LEARNING_RATE = 1e-3

Train = Callable[[int, int, Callable[[], None]], float]
"""`train(num_windows, window_steps, on_window)` trains, calls `on_window` after each window, returns the last loss."""

HAND = "hand-written loop, shuffle().batch()"
HAND_MEMORY = "hand-written loop, in-memory pipeline"
OURS = "Trainer, shuffle().batch()"
OURS_MEMORY = "Trainer, in-memory pipeline"
OURS_XLA = "Trainer, in-memory pipeline, enable_xla"
GARDEN = "Model Garden Trainer, mirrored (its default)"
GARDEN_OFF = "Model Garden Trainer, off"
HAND_LEGACY = "hand-written loop, shuffle().batch(), legacy Adam"
OURS_LEGACY = "Trainer, shuffle().batch(), legacy Adam"
OURS_MEMORY_LEGACY = "Trainer, in-memory pipeline, legacy Adam"
GARDEN_LEGACY = "Model Garden Trainer, mirrored, legacy Adam"
FIT_1 = "tf_keras fit, steps_per_execution=1"
FIT_WINDOW = "tf_keras fit, steps_per_execution=500"

TARGETS = (
    Target(name=OURS, against=HAND, at_most=1.05),
    Target(name=OURS_MEMORY, against=HAND_MEMORY, at_most=1.05),
    Target(name=OURS_MEMORY, against=HAND, at_most=0.9),
    Target(name=OURS, against=GARDEN, at_most=0.5),
    Target(name=OURS_MEMORY, against=GARDEN, at_most=0.5),
    Target(name=OURS_XLA, against=HAND, at_most=0.6),
    Target(name=OURS_LEGACY, against=HAND_LEGACY, at_most=1.05),
    Target(name=OURS_MEMORY_LEGACY, against=HAND_LEGACY, at_most=1.0),
)


# The parts that all variants share.


@functools.cache
def digits() -> tuple[Any, Any]:
    """Returns images, float32 `[1797, 64]` in [0, 1], and labels, int32 `[1797]`."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).astype("float32"), labels.astype("int32")


def build_model() -> keras.Model:
    pixels = keras.Input([64])
    hidden = keras.layers.Dense(64, activation="relu")(pixels)
    return keras.Model(pixels, keras.layers.Dense(10)(hidden))


def build_optimizer(*, legacy: bool = False) -> keras.optimizers.Optimizer:
    adam = keras.optimizers.legacy.Adam if legacy else keras.optimizers.Adam
    return adam(LEARNING_RATE)


def cross_entropy(labels: Any, logits: Any) -> tf.Tensor:
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def shuffle_batch() -> tf.data.Dataset:
    """The pipeline everybody writes."""
    images, labels = digits()
    examples = tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(len(labels)).repeat()
    return examples.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def in_memory() -> tf.data.Dataset:
    """Ours for arrays."""
    return from_arrays(schema.DataConfig(global_batch_size=BATCH, is_training=True), None)


def from_arrays(params: Any, input_context: Any) -> tf.data.Dataset:
    from official_trainer import inputs

    return inputs.from_arrays(digits(), params, input_context)


def shuffle_batch_of(params: Any, input_context: Any) -> tf.data.Dataset:
    return shuffle_batch()


# The variants.


def hand_written(pipeline: Callable[[], tf.data.Dataset], *, legacy: bool = False) -> Train:
    """A `tf.function` loop, as one writes it who needs no trainer."""
    model, optimizer = build_model(), build_optimizer(legacy=legacy)
    loss_mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    iterator = iter(pipeline())

    @tf.function
    def window(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            images, labels = next(iterator)
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                loss = tf.reduce_mean(cross_entropy(labels, logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            loss_mean.update_state(loss)
            accuracy.update_state(labels, logits)

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        for _ in range(num_windows):
            window(iterator, tf.constant(window_steps))
            logs = {metric.name: float(metric.result()) for metric in (loss_mean, accuracy)}
            loss_mean.reset_states()
            accuracy.reset_states()
            on_window()
        return logs[loss_mean.name]

    return train


def windows_of(trainer: Any) -> Train:
    """The windows of a Trainer, ours or Model Garden's: the contract is the same."""

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        for _ in range(num_windows):
            logs = {
                name: float(tf.convert_to_tensor(value))
                for name, value in trainer.train(tf.constant(window_steps)).items()
            }
            on_window()
        return logs["training_loss"]

    return train


class PixelsTask(Task):
    """Ours: a task over one of the pipelines."""

    def __init__(self, params: Any, pipeline: Callable[..., tf.data.Dataset]) -> None:
        super().__init__(params)
        self._pipeline = pipeline

    def build_model(self) -> keras.Model:
        return build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return self._pipeline(params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return cross_entropy(labels, model_outputs)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def ours(pipeline: Callable[..., tf.data.Dataset], *, enable_xla: bool = False, legacy: bool = False) -> Train:
    """Our Trainer, built the way the engine builds it for one device."""
    from official_trainer.engine.trainer import Trainer

    config = schema.ExperimentConfig(
        task=schema.TaskConfig(train_data=schema.DataConfig(global_batch_size=BATCH, is_training=True)),
        trainer=schema.TrainerConfig(steps_per_loop=WINDOW_STEPS),
        runtime=schema.RuntimeConfig(enable_xla=enable_xla),
    )
    task = PixelsTask(config.task, pipeline)
    return windows_of(Trainer(config, task, task.build_model(), build_optimizer(legacy=legacy), evaluate=False))


def model_garden(distribution_strategy: str, *, legacy: bool = False) -> Train:
    """Model Garden's Trainer, built the way its driver builds it without a GPU."""
    from official.common import distribute_utils
    from official.core import base_task, base_trainer
    from official.core import config_definitions as cfg

    class GardenTask(base_task.Task):
        def build_model(self) -> keras.Model:
            return build_model()

        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            return shuffle_batch()

        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
            return tf.reduce_mean(cross_entropy(labels, model_outputs))

        def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    config = cfg.ExperimentConfig()
    with distribute_utils.get_distribution_strategy(distribution_strategy, num_gpus=0).scope():
        task = GardenTask(config.task)
        optimizer = build_optimizer(legacy=legacy)
        trainer = base_trainer.Trainer(config, task, task.build_model(), optimizer, evaluate=False)
    return windows_of(trainer)


def keras_fit(steps_per_execution: int) -> Train:
    """`Model.fit`."""
    model = build_model()
    model.compile(
        build_optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return windows_of_fit(model, shuffle_batch())


def windows_of_fit(model: keras.Model, dataset: tf.data.Dataset) -> Train:
    """Returns `fit` of a compiled model; an epoch is a window."""

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        after_epoch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: on_window())
        history = model.fit(
            dataset, epochs=num_windows, steps_per_epoch=window_steps, verbose=0, callbacks=[after_epoch]
        )
        return history.history["loss"][-1]

    return train


VARIANTS: dict[str, Callable[[], Train]] = {
    HAND: lambda: hand_written(shuffle_batch),
    OURS: lambda: ours(shuffle_batch_of),
    HAND_MEMORY: lambda: hand_written(in_memory),
    OURS_MEMORY: lambda: ours(from_arrays),
    OURS_XLA: lambda: ours(from_arrays, enable_xla=True),
    GARDEN: lambda: model_garden("mirrored"),
    GARDEN_OFF: lambda: model_garden("off"),
    HAND_LEGACY: lambda: hand_written(shuffle_batch, legacy=True),
    OURS_LEGACY: lambda: ours(shuffle_batch_of, legacy=True),
    OURS_MEMORY_LEGACY: lambda: ours(from_arrays, legacy=True),
    GARDEN_LEGACY: lambda: model_garden("mirrored", legacy=True),
    FIT_1: lambda: keras_fit(1),
    FIT_WINDOW: lambda: keras_fit(WINDOW_STEPS),
}


# Measuring.


def microseconds_per_step(train: Train, window_steps: int = WINDOW_STEPS) -> float:
    """Trains some windows and returns what a step of the timed ones took."""
    ends: list[float] = []
    train(WARM_WINDOWS + TIMED_WINDOWS, window_steps, lambda: ends.append(time.perf_counter()))
    timed = ends[-1] - ends[WARM_WINDOWS - 1]
    return timed / (TIMED_WINDOWS * window_steps) * 1e6


def measure_all(num_rounds: int) -> dict[str, tuple[float, ...]]:
    """Returns microseconds per step by variant, round by round."""
    return measure_variants(VARIANTS, num_rounds)


def measure_variants(
    variants: Mapping[str, Callable[[], Train]],
    num_rounds: int,
    window_steps: int = WINDOW_STEPS,
    rounds_per_build: int = ROUNDS_PER_BUILD,
) -> dict[str, tuple[float, ...]]:
    """Returns microseconds per step by variant, round by round.

    Two graphs of the very same step differ by up to a tenth in speed, by luck of scheduling. So all variants are built
    anew every few rounds.
    """
    values: dict[str, tuple[float, ...]] = dict.fromkeys(variants, ())
    for start in range(0, num_rounds, rounds_per_build):
        measures = _build_all(variants, window_steps)
        results = rounds.interleave(measures, min(rounds_per_build, num_rounds - start))["microseconds"]
        values = {name: values[name] + results[name] for name in variants}
    return values


def _build_all(variants: Mapping[str, Callable[[], Train]], window_steps: int) -> dict[str, rounds.Measure]:
    """Builds, traces and compiles every variant."""
    keras.backend.clear_session()
    gc.collect()  # pipelines of the last build
    trains = {name: build() for name, build in variants.items()}
    for train in trains.values():
        train(1, window_steps, lambda: None)

    def measure(train: Train) -> dict[str, float]:
        return {"microseconds": microseconds_per_step(train, window_steps)}

    return {name: functools.partial(measure, train) for name, train in trains.items()}


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    values = processes.results_of("benchmarks.steps", num_rounds)
    return [Comparison(title="training a small model", unit="µs/step", values=values, baseline=HAND, targets=TARGETS)]


if __name__ == "__main__":
    processes.write_results(measure_all)
