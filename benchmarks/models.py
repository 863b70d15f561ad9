"""Milliseconds per training step of larger models, ours beside a loop written by hand: dense, convolutions, attention.

Owns: the models, and both loops over the step of one task, without XLA. The loop by hand reads `shuffle().batch()`, has
the optimizer that `type: adam` or `adamw` selects, reads a mean loss and the metrics after every window, and draws
dropout as Keras does by default. Does not own: how variants are timed (`steps.py`).

Run as a process of its own (`python -m benchmarks.models FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from benchmarks import processes, steps
from benchmarks.report import Comparison, Target
from official_trainer.config import optimization as opt
from official_trainer.config import schema
from official_trainer.inputs import InputContext
from official_trainer.lazy import keras, tf
from official_trainer.tasks import random_streams, registry

HAND = "hand-written loop, shuffle().batch()"
OURS = "Trainer, in-memory pipeline"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to train.

    Attributes:
      build: returns its task and the config of its experiment.
      window_steps: steps between two looks at the metrics; about a second.
    """

    build: Callable[[], tuple[Any, schema.ExperimentConfig]]
    window_steps: int


class DenseTask(steps.PixelsTask):
    """Digits, through hidden layers of `units` each."""

    def __init__(self, params: Any, units: int, layers: int) -> None:
        super().__init__(params, steps.from_arrays)
        self._hidden = [units] * layers

    def build_model(self) -> keras.Model:
        pixels = x = keras.Input([64])
        for units in self._hidden:
            x = keras.layers.Dense(units, activation="relu")(x)
        return keras.Model(pixels, keras.layers.Dense(10)(x))


def dense(units: int, layers: int, batch: int) -> tuple[Any, schema.ExperimentConfig]:
    config = schema.ExperimentConfig(
        task=schema.TaskConfig(train_data=schema.DataConfig(global_batch_size=batch, is_training=True)),
        trainer=schema.TrainerConfig(
            optimizer_config=opt.OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(
                    type="constant", constant=opt.ConstantLrConfig(learning_rate=steps.LEARNING_RATE)
                ),
            )
        ),
    )
    return DenseTask(config.task, units, layers), config


def experiment(name: str) -> tuple[Any, schema.ExperimentConfig]:
    """Returns an experiment of this repository, without averaged weights, which the loop by hand has not."""
    config = registry.get_config(name, processes.ROOT)
    optimizer_config = config.trainer.optimizer_config.replace(ema=None)
    config = config.replace(trainer=config.trainer.replace(optimizer_config=optimizer_config))
    return registry.get_task_cls(config.task)(config.task), config


SUBJECTS: dict[str, Subject] = {
    "dense, 2 × 512, batch 128": Subject(build=functools.partial(dense, 512, 2, 128), window_steps=200),
    "dense, 3 × 2,048, batch 256": Subject(build=functools.partial(dense, 2048, 3, 256), window_steps=5),
    "digits_cnn": Subject(build=functools.partial(experiment, "digits_cnn"), window_steps=25),
    "Transformer of python_docs_lm": Subject(build=functools.partial(experiment, "python_docs_lm"), window_steps=4),
}


def shuffle_batch(task: Any, config: schema.ExperimentConfig) -> tf.data.Dataset:
    """The pipeline everybody writes, of the training examples of a task."""
    context = InputContext()
    params = config.task.train_data.replace(is_training=True, shuffle=False)
    one_by_one = task.build_inputs(params.replace(global_batch_size=1), context).unbatch()
    arrays = next(iter(one_by_one.batch(context.examples_per_epoch)))
    examples = tf.data.Dataset.from_tensor_slices(arrays).cache().shuffle(context.examples_per_epoch).repeat()
    return examples.batch(params.global_batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def hand_written(subject: Subject) -> steps.Train:
    """A `tf.function` loop over the model, the losses and the metrics of a task."""
    keras.backend.experimental.disable_tf_random_generator()
    task, config = subject.build()
    model = task.build_model()
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    loss_mean, metrics = keras.metrics.Mean("training_loss"), task.build_metrics()
    iterator = iter(shuffle_batch(task, config))

    @tf.function
    def window(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            features, labels = next(iterator)
            with tf.GradientTape() as tape:
                outputs = model(features, training=True)
                loss = tf.reduce_mean(task.build_losses(labels, outputs))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            loss_mean.update_state(loss)
            task.process_metrics(metrics, labels, outputs)

    def train(num_windows: int, window_steps: int, on_window: Callable[[], None]) -> float:
        for _ in range(num_windows):
            window(iterator, tf.constant(window_steps))
            logs = {metric.name: float(metric.result()) for metric in (loss_mean, *metrics)}
            for metric in (loss_mean, *metrics):
                metric.reset_states()
            on_window()
        return logs[loss_mean.name]

    return train


def ours(subject: Subject, *, enable_xla: bool = False) -> steps.Train:
    """Our Trainer, built the way the engine builds it for one device."""
    from official_trainer.engine.trainer import Trainer

    random_streams.enable(0)
    task, config = subject.build()
    config = config.replace(runtime=config.runtime.replace(enable_xla=enable_xla))
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    return steps.windows_of(Trainer(config, task, task.build_model(), optimizer, evaluate=False))


def measure_all(num_rounds: int) -> dict[str, dict[str, tuple[float, ...]]]:
    """Returns milliseconds per step by model and variant, round by round; one model after the other."""
    results = {}
    for name, subject in SUBJECTS.items():
        variants = {HAND: functools.partial(hand_written, subject), OURS: functools.partial(ours, subject)}
        found = steps.measure_variants(variants, num_rounds, subject.window_steps)
        results[name] = {variant: tuple(each / 1000 for each in values) for variant, values in found.items()}
    return results


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    results = processes.results_of("benchmarks.models", num_rounds)
    target = Target(name=OURS, against=HAND, at_most=1.0)
    return [
        Comparison(title=name, unit="ms/step", digits=2, values=values, baseline=HAND, targets=[target])
        for name, values in results.items()
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
