"""`keras3_chaos`: a model of Keras 3 with one of everything that has state, which writes down what it trains on.

Each training step appends one line a replica to `<model_dir>.ids`: process, step, replica, checksum of the images that
the model has augmented, numbers of the examples; and to `<model_dir>.masks` what a dropout of the replica lets through.
"""

import dataclasses
import functools
import os
import threading
import zlib
from typing import Literal

import keras
import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    TaskConfig,
    TrainerConfig,
    opt,
)
from official_trainer.lazy import tf

NUM_EXAMPLES, BATCH = 176, 16
"""An epoch is eleven batches."""

LARGE_AT = 5
"""The step whose last example makes gradients that float16 cannot hold, with a loss that is finite."""

PARTS = ("hidden", "flip", "translation", "batch_norm", "seeded_noise", "noise", "dropout", "lstm")


def scaling():
    """Overflows at the beginning, and again whenever it has grown enough."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**20, dynamic_growth_steps=5
    )


sgd = functools.partial(keras.optimizers.SGD, 0.1)
OPTIMIZERS = {
    "adam": functools.partial(keras.optimizers.Adam, keras.optimizers.schedules.CosineDecay(0.01, 50)),
    "averaging": functools.partial(
        keras.optimizers.AdamW, 0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
    ),
    "scaling": scaling,
    "accumulating": functools.partial(keras.optimizers.Adam, 0.01, gradient_accumulation_steps=3),
    "sgd": sgd,  # its weights tell what was done to gradients, and those of the others, which clip in nearly every step
    "clipnorm": functools.partial(sgd, clipnorm=0.02),
    "global_clipnorm": functools.partial(sgd, global_clipnorm=0.05),
    "scaling_sgd": lambda: keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**10),
}


class SeededNoise(keras.layers.Layer):
    """Draws from a generator of its own, twice in a call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x, training=False):
        if not training:
            return x
        shape = keras.ops.shape(x)
        scale = keras.random.uniform((), 0.5, 1.0, seed=self.generator)
        return x + keras.ops.cast(0.1 * scale * keras.random.normal(shape, seed=self.generator), x.dtype)


class Noise(keras.layers.Layer):
    """Draws without a seed, from what Keras has once for a process."""

    def call(self, x, training=False):
        noise = 0.1 * keras.random.normal(keras.ops.shape(x))
        return x + keras.ops.cast(noise, x.dtype) if training else x


def build(parts):
    """Returns the model: `logits`, `augmented` images, and the `mask` that a dropout makes of ones."""
    image = x = keras.Input((8, 8, 1), name="image")
    if "hidden" not in parts:
        logits = keras.layers.Dense(3)(keras.layers.Flatten()(image))
        logits = keras.layers.Activation("linear", dtype="float32", name="logits")(logits)
        return keras.Model(image, {"logits": logits, "augmented": image, "mask": image})
    x = keras.layers.RandomFlip("horizontal")(x) if "flip" in parts else x
    augmented = x = keras.layers.RandomTranslation(0.2, 0.2)(x) if "translation" in parts else x
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.BatchNormalization(momentum=0.8)(x) if "batch_norm" in parts else x
    x = SeededNoise()(x) if "seeded_noise" in parts else x
    x = Noise()(x) if "noise" in parts else x
    x = keras.layers.MaxPool2D(4)(x)
    if "lstm" in parts:
        x = keras.layers.LSTM(4, dropout=0.2)(keras.layers.Reshape((4, 4))(x))
    x = keras.layers.Dense(8, "tanh")(keras.layers.Flatten()(x))
    mask = keras.ops.ones_like(x)
    if "dropout" in parts:
        x, mask = keras.layers.Dropout(0.3)(x), keras.layers.Dropout(0.5)(mask)
    outputs = {"augmented": augmented, "mask": mask}
    logits = keras.layers.Dense(3, dtype="float32", name="logits")(x)
    return keras.Model(image, {"logits": logits, **outputs})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keras3ChaosConfig(TaskConfig):
    """Images and their classifier.

    Attributes:
      parts: layers of the model that draw or have state, and `hidden` ones, without which it is linear.
      optimizer: one of `OPTIMIZERS`.
      writes: whether steps write down what they train on, which XLA cannot compile.
      as_object: whether the loss is an object of a class of `keras.losses`, and not a function.
      has_large_example: see `LARGE_AT`.
    """

    parts: tuple[str, ...] = PARTS
    writes: bool = True
    optimizer: Literal[*OPTIMIZERS] = "adam"
    as_object: bool = False
    has_large_example: bool = False


@register_task_cls(Keras3ChaosConfig)
class Keras3ChaosTask(Task):
    """Says which of three kinds an image is of."""

    _log = _masks = _global_step = None
    _of_replica = threading.local()  # replicas are traced in threads

    def build_model(self):
        return build(self.task_config.parts)

    def build_inputs(self, params, input_context=None):
        images, labels = _images()
        if self.task_config.has_large_example:
            images[LARGE_AT * BATCH - 1, 0, 0] = -3000  # of a wrong class: with 3000 its gradient would be zero
        if not params.is_training:
            return inputs.from_arrays((images[:64], labels[:64]), params, input_context)
        numbered = images, {"label": labels, "number": np.arange(NUM_EXAMPLES)}
        return inputs.from_arrays(numbered, params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        labels = labels["label"] if isinstance(labels, dict) else labels
        if self.task_config.as_object:
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model_outputs["logits"])
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs["logits"], from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def process_metrics(self, metrics, labels, model_outputs):
        if isinstance(labels, dict):  # of a training step
            seen = [model_outputs["augmented"], model_outputs["mask"], labels["number"]]
            step = getattr(self._of_replica, "step", None)
            if step is not None and self._global_step is not None:
                step = self._global_step  # which counts updates that float16 skips, too
            if self.task_config.writes and step is not None:
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                tf.numpy_function(self._write_lines, [step, replica, *seen], [])
            labels = labels["label"]
        super().process_metrics(metrics, labels, model_outputs["logits"])

    def create_optimizer(self, optimizer_config, runtime_config=None, dp_config=None):
        return OPTIMIZERS[self.task_config.optimizer]()

    def build_actions(self, trainer):
        self._global_step = trainer.global_step  # only the chief builds actions
        return ()

    def train_step(self, inputs, model, optimizer=None, metrics=None):
        if optimizer is not None:  # the trace that only builds layers has none
            self._of_replica.step = tf.convert_to_tensor(optimizer.iterations)  # before the update adds 1
        try:
            logs = super().train_step(inputs, model=model, optimizer=optimizer, metrics=metrics)
            if hasattr(optimizer, "dynamic_scale"):
                logs["loss_scale"] = optimizer.dynamic_scale * 1.0  # a mean over replicas
            return logs
        finally:
            self._of_replica.step = None

    def _write_lines(self, step, replica, augmented, mask, numbers):
        if self._log is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._log, self._masks = (os.open(f"{self.logging_dir}.{kind}", flags) for kind in ("ids", "masks"))
        listed = ",".join(map(str, numbers))
        # One call each, so that a kill leaves no half line.
        os.write(self._log, f"{os.getpid()} {step} {replica} {zlib.crc32(augmented.tobytes())} {listed}\n".encode())
        os.write(self._masks, f"{step} {replica} {''.join(str(int(bit > 0)) for bit in mask.ravel())}\n".encode())


def _images():
    """Returns images, float32 [n, 8, 8, 1], and labels, int32 [n], which their brightness tells."""
    random = np.random.RandomState(0)
    labels = random.randint(0, 3, NUM_EXAMPLES).astype("int32")
    return (random.rand(NUM_EXAMPLES, 8, 8, 1) + labels[:, None, None, None]).astype("float32"), labels


@register_config_factory("keras3_chaos")
def keras3_chaos() -> ExperimentConfig:
    """Fifty steps with every kind of event, at intervals that do not coincide."""
    return ExperimentConfig(
        task=Keras3ChaosConfig(
            train_data=DataConfig(global_batch_size=BATCH), validation_data=DataConfig(global_batch_size=32)
        ),
        trainer=TrainerConfig(
            train_steps=50, steps_per_loop=7, summary_interval=5, checkpoint_interval=6, validation_interval=26,
            max_to_keep=2, best_checkpoint_eval_metric="accuracy", export=ExportConfig(at_end=False),
            optimizer_config=opt.adam(0.01),  # required; the task brings its own
        ),
    )  # fmt: skip
