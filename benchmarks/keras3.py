"""Microseconds per training step of models of Keras 3: ours beside loops written by hand, and Keras's own `fit`.

Owns: the models and the variants: the same step, optimizer, mean loss and accuracy. By hand there is one traced call
for each step, as most write it, or for each window of steps. `fit` has its defaults, on arrays. Does not own: how
variants are timed (`steps.py`), the tables (`report.py`).

Run as a process of its own (`python -m benchmarks.keras3 FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from benchmarks import processes, steps
from benchmarks.report import Comparison, Target
from official_trainer import Task
from official_trainer.config import schema
from official_trainer.lazy import tf

HAND = "hand-written Keras 3 loop, a call for each step"
HAND_WINDOWS = "hand-written Keras 3 loop, a call for each window"
OURS = "Trainer, shuffle().batch()"
OURS_MEMORY = "Trainer, in-memory pipeline"
FIT = "keras.Model.fit at its defaults"

TARGETS = (
    Target(name=OURS, against=HAND, at_most=1.0),
    Target(name=OURS, against=HAND_WINDOWS, at_most=1.05),
    Target(name=OURS_MEMORY, against=HAND, at_most=1.0),
    Target(name=OURS_MEMORY, against=HAND_WINDOWS, at_most=1.0),
    Target(name=OURS_MEMORY, against=FIT, at_most=0.5),
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A classifier of digits: the units of its hidden layers, and the steps between two looks at the metrics."""

    units: tuple[int, ...]
    window_steps: int


SUBJECTS = {"64 units": Subject((64,), 500), "3 × 512 units": Subject((512, 512, 512), 100)}


def build_model(subject: Subject) -> Any:
    import keras

    pixels = x = keras.Input([64])
    for units in subject.units:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model(pixels, keras.layers.Dense(10)(x))


def build_optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(steps.LEARNING_RATE)


def cross_entropy(labels: Any, logits: Any) -> tf.Tensor:
    import keras

    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def hand_written(subject: Subject, *, windows: bool) -> steps.Train:
    """A loop as one writes it who needs no trainer."""
    import keras

    model, optimizer = build_model(subject), build_optimizer()
    optimizer.build(model.trainable_variables)
    loss_mean, accuracy = keras.metrics.Mean("loss"), keras.metrics.SparseCategoricalAccuracy("accuracy")
    iterator = iter(steps.shuffle_batch())

    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(cross_entropy(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        loss_mean.update_state(loss)
        accuracy.update_state(labels, logits)

    one_step = tf.function(step)

    @tf.function
    def window(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            step(*next(iterator))

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        for _ in range(num_windows):
            if windows:
                window(iterator, tf.constant(window_steps))
            else:
                for _ in range(window_steps):
                    one_step(*next(iterator))
            logs = {metric.name: float(metric.result()) for metric in (loss_mean, accuracy)}
            loss_mean.reset_state()
            accuracy.reset_state()
            on_window()
        return logs["loss"]

    return train


class DigitsTask(Task):
    """Ours: a task over one of the pipelines."""

    def __init__(self, params: Any, subject: Subject, pipeline: Callable[..., tf.data.Dataset]) -> None:
        super().__init__(params)
        self._subject, self._pipeline = subject, pipeline

    def build_model(self) -> Any:
        return build_model(self._subject)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return self._pipeline(params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return cross_entropy(labels, model_outputs)

    def build_metrics(self, training: bool = True) -> list[Any]:
        import keras

        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def ours(subject: Subject, pipeline: Callable[..., tf.data.Dataset]) -> steps.Train:
    """Our Trainer, built the way the engine builds it for one device."""
    from official_trainer.engine.trainer import Trainer

    config = schema.ExperimentConfig(
        task=schema.TaskConfig(train_data=schema.DataConfig(global_batch_size=steps.BATCH, is_training=True)),
        trainer=schema.TrainerConfig(steps_per_loop=subject.window_steps),
    )
    task = DigitsTask(config.task, subject, pipeline)
    return steps.windows_of(Trainer(config, task, task.build_model(), build_optimizer(), evaluate=False))


def fit(subject: Subject) -> steps.Train:
    """`fit` on arrays; an epoch is a window."""
    import keras
    import numpy as np

    model = build_model(subject)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(build_optimizer(), loss, metrics=["accuracy"])
    digits = steps.digits()

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        images, labels = (np.resize(each, (window_steps * steps.BATCH, *each.shape[1:])) for each in digits)
        after_epoch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: on_window())
        found = model.fit(
            images, labels, batch_size=steps.BATCH, epochs=num_windows, verbose=0, callbacks=[after_epoch]
        )
        return found.history["loss"][-1]

    return train


VARIANTS: dict[str, Callable[[Subject], steps.Train]] = {
    HAND: functools.partial(hand_written, windows=False),
    HAND_WINDOWS: functools.partial(hand_written, windows=True),
    OURS: functools.partial(ours, pipeline=steps.shuffle_batch_of),
    OURS_MEMORY: functools.partial(ours, pipeline=steps.from_arrays),
    FIT: fit,
}


def measure_all(num_rounds: int) -> dict[str, dict[str, tuple[float, ...]]]:
    """Returns microseconds per step by model and variant, round by round."""
    return {name: _measure(subject, num_rounds) for name, subject in SUBJECTS.items()}


def _measure(subject: Subject, num_rounds: int) -> dict[str, tuple[float, ...]]:
    import keras

    keras.backend.clear_session()
    builds = {name: functools.partial(build, subject) for name, build in VARIANTS.items()}
    return steps.measure_variants(builds, num_rounds, subject.window_steps)


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    values = processes.results_of("benchmarks.keras3", num_rounds)
    return [
        Comparison(title=f"Keras 3, {name}", unit="µs/step", values=values[name], baseline=HAND, targets=TARGETS)
        for name in SUBJECTS
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
