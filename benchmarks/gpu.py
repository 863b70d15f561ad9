"""Milliseconds per training step on a GPU: Model Garden's ResNet-50 and a Transformer of 100 million parameters.

Owns: the models, in bfloat16 on data that is drawn once, and the trainers beside ours: a loop written by hand, Model
Garden's Trainer, tf_keras `fit`. Does not own: the loops (`models.py`), how variants are timed (`steps.py`).

Where there is no GPU nothing is measured. `GPU_TESTS=stand-in` runs all of it on the CPU with tiny models, to try this
code; what it prints then says nothing about GPUs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from benchmarks import models, processes, steps
from benchmarks.report import Comparison, Target
from official_trainer.config import optimization as opt
from official_trainer.config import schema
from official_trainer.distributed import devices
from official_trainer.lazy import keras, tf
from official_trainer.tasks.task import Task

OURS_XLA = f"{models.OURS}, enable_xla"
GARDEN = "Model Garden Trainer, off"
FIT = "tf_keras fit"

IS_STAND_IN = os.environ.get("GPU_TESTS") == "stand-in"
DTYPE: Any = None if IS_STAND_IN else "bfloat16"


class Classifier(Task):
    """A task over examples in memory that are drawn once."""

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(losses, axis=list(range(1, len(losses.shape))))

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        from official_trainer import inputs

        return inputs.from_arrays(self.examples(), params, input_context)

    def examples(self) -> tuple[Any, Any]:
        raise NotImplementedError


class ResNetTask(Classifier):
    """Model Garden's ResNet-50 on images of 224 × 224."""

    DEPTH, SIZE, CLASSES, EXAMPLES = (18, 32, 10, 16) if IS_STAND_IN else (50, 224, 1000, 512)

    def build_model(self) -> keras.Model:
        from official.vision.modeling import backbones, classification_model

        specs = keras.layers.InputSpec(shape=[None, self.SIZE, self.SIZE, 3])
        return classification_model.ClassificationModel(
            backbones.ResNet(self.DEPTH, input_specs=specs), num_classes=self.CLASSES, input_specs=specs
        )

    def examples(self) -> tuple[Any, Any]:
        return _images(self.EXAMPLES, self.SIZE, self.CLASSES)


class TransformerTask(Classifier):
    """A language model: 12 blocks of 768, 32,000 words, sequences of 512: 110 million parameters."""

    LENGTH, WORDS, SIZE, BLOCKS, EXAMPLES = (16, 100, 64, 1, 16) if IS_STAND_IN else (512, 32_000, 768, 12, 512)

    def build_model(self) -> keras.Model:
        from official.nlp.modeling import layers

        words = keras.Input([self.LENGTH], dtype=tf.int32)
        x = layers.OnDeviceEmbedding(self.WORDS, self.SIZE)(words)
        x = x + layers.PositionEmbedding(max_length=self.LENGTH)(x)
        before = tf.linalg.band_part(tf.ones([self.LENGTH, self.LENGTH], tf.int32), -1, 0)
        mask = tf.ones_like(words)[:, None, :] * before
        for _ in range(self.BLOCKS):
            x = layers.TransformerEncoderBlock(self.SIZE // 64, 4 * self.SIZE, "gelu", norm_first=True)([x, mask])
        x = keras.layers.LayerNormalization()(x)
        return keras.Model(words, keras.layers.Dense(self.WORDS, dtype="float32")(x))

    def examples(self) -> tuple[Any, Any]:
        return _words(self.EXAMPLES, self.LENGTH, self.WORDS)


@functools.cache
def _images(count: int, size: int, classes: int) -> tuple[Any, Any]:
    """Returns images, float32 `[count, size, size, 3]`, and labels, int32 `[count]`."""
    import numpy as np

    draw = np.random.default_rng(0)
    return draw.random((count, size, size, 3), "float32"), draw.integers(0, classes, count, "int32")


@functools.cache
def _words(count: int, length: int, words: int) -> tuple[Any, Any]:
    """Returns words and the word after each, int32 `[count, length]`."""
    import numpy as np

    drawn = np.random.default_rng(0).integers(0, words, (count, length + 1), "int32")
    return drawn[:, :-1], drawn[:, 1:]


def built(task_cls: type[Classifier], batch: int, optimizer: str) -> tuple[Any, schema.ExperimentConfig]:
    config = schema.ExperimentConfig(
        task=schema.TaskConfig(
            train_data=schema.DataConfig(global_batch_size=2 if IS_STAND_IN else batch, is_training=True)
        ),
        trainer=schema.TrainerConfig(
            optimizer_config=opt.OptimizationConfig(
                optimizer=opt.OptimizerConfig(type=optimizer),
                learning_rate=opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=1e-4)),
            )
        ),
        runtime=schema.RuntimeConfig(mixed_precision_dtype=DTYPE),
    )
    return task_cls(config.task), config


SUBJECTS: dict[str, models.Subject] = {
    "ResNet-50, bfloat16, batch 128": models.Subject(
        build=functools.partial(built, ResNetTask, 128, "sgd"), window_steps=2 if IS_STAND_IN else 10
    ),
    "Transformer of 110 M, bfloat16, batch 16 × 512": models.Subject(
        build=functools.partial(built, TransformerTask, 16, "adamw"), window_steps=2 if IS_STAND_IN else 10
    ),
}


def model_garden(subject: models.Subject) -> steps.Train:
    """Model Garden's Trainer over the same model, optimizer, losses and metrics."""
    from official.core import base_task, base_trainer
    from official.core import config_definitions as cfg

    keras.backend.experimental.disable_tf_random_generator()
    task, config = subject.build()

    class GardenTask(base_task.Task):
        def build_model(self) -> keras.Model:
            return task.build_model()

        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            return models.shuffle_batch(task, config)

        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
            return tf.reduce_mean(task.build_losses(labels, model_outputs))

        def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
            return task.build_metrics(training)

    theirs = cfg.ExperimentConfig()
    garden_task = GardenTask(theirs.task)
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    return steps.windows_of(
        base_trainer.Trainer(theirs, garden_task, garden_task.build_model(), optimizer, evaluate=False)
    )


def keras_fit(subject: models.Subject) -> steps.Train:
    """`Model.fit`, a window in one call; an epoch is a window."""
    keras.backend.experimental.disable_tf_random_generator()
    task, config = subject.build()
    model = task.build_model()
    model.compile(
        task.create_optimizer(config.trainer.optimizer_config, config.runtime),
        lambda labels, outputs: task.build_losses(labels, outputs),
        metrics=["accuracy"],
        steps_per_execution=subject.window_steps,
    )
    return steps.windows_of_fit(model, models.shuffle_batch(task, config))


VARIANTS: dict[str, Callable[[models.Subject], steps.Train]] = {
    models.HAND: models.hand_written,
    models.OURS: models.ours,
    OURS_XLA: functools.partial(models.ours, enable_xla=True),
    GARDEN: model_garden,
    FIT: keras_fit,
}


def measure_all(num_rounds: int) -> dict[str, dict[str, tuple[float, ...]]]:
    """Returns milliseconds per step by model and variant, round by round; one model after the other.

    Everything is built once: to compile ResNet-50 takes longer than all that is measured.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.mixed_precision.set_global_policy("float32" if DTYPE is None else f"mixed_{DTYPE}")
    results = {}
    for name, subject in SUBJECTS.items():
        variants = {title: functools.partial(build, subject) for title, build in VARIANTS.items()}
        found = steps.measure_variants(variants, num_rounds, subject.window_steps, rounds_per_build=num_rounds)
        results[name] = {variant: tuple(each / 1000 for each in values) for variant, values in found.items()}
    return results


def compare(num_rounds: int) -> list[Comparison]:
    """Measures on the first GPU; without one it says so, and compares nothing."""
    gpus = devices.gpus(os.environ)
    if not gpus and not IS_STAND_IN:
        print("no GPU: nothing is measured")
        return []
    visible = {} if IS_STAND_IN else {devices.VISIBLE_GPUS: gpus[0]}
    results = processes.results_of("benchmarks.gpu", num_rounds, {**processes.environment(), **visible})
    where = "STAND-IN, tiny models on a CPU" if IS_STAND_IN else "one GPU"
    target = Target(name=models.OURS, against=models.HAND, at_most=1.0)
    return [
        Comparison(
            title=f"{name} ({where})",
            unit="ms/step",
            digits=2,
            values=values,
            baseline=models.HAND,
            targets=() if IS_STAND_IN else [target],
        )
        for name, values in results.items()
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
