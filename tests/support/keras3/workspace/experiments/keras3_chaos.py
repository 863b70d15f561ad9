"""`keras3_chaos`: a model of Keras 3 with one of everything that has state, which writes down what it trains on.

Each training step appends one line a replica to `<model_dir>.ids`: process, step, replica, checksum of the images that
the model has augmented, numbers of the examples; and to `<model_dir>.masks` what a dropout of the replica lets through.
"""

import dataclasses
import os
import threading
import zlib
from typing import Literal

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

NUM_EXAMPLES = 176
"""An epoch is eleven batches of 16."""

PARTS = ("flip", "translation", "batch_norm", "seeded_noise", "noise", "dropout", "lstm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keras3ChaosConfig(TaskConfig):
    """Images and their classifier.

    Attributes:
      parts: layers of the model that draw or have state, beside those that only learn.
      optimizer: `adam`; `averaging`, which overwrites weights with their averages; `scaling` for float16, whose scale
        overflows in some steps; `accumulating`.
      writes: whether steps write down what they train on, which XLA cannot compile.
    """

    parts: tuple[str, ...] = PARTS
    writes: bool = True
    optimizer: Literal["adam", "averaging", "scaling", "accumulating"] = "adam"


@register_task_cls(Keras3ChaosConfig)
class Keras3ChaosTask(Task):
    """Says which of three kinds an image is of."""

    _log = _masks = _global_step = None
    _of_replica = threading.local()  # replicas are traced in threads

    def build_model(self):
        from tests.support.keras3 import drawing

        return drawing.build(self.task_config.parts)

    def build_inputs(self, params, input_context=None):
        images, labels = _images()
        if not params.is_training:
            return inputs.from_arrays((images[:64], labels[:64]), params, input_context)
        numbered = images, {"label": labels, "number": np.arange(NUM_EXAMPLES)}
        return inputs.from_arrays(numbered, params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        import keras

        labels = labels["label"] if isinstance(labels, dict) else labels
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs["logits"], from_logits=True)

    def build_metrics(self, training=True):
        import keras

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
        from tests.support.keras3 import drawing

        return drawing.OPTIMIZERS[self.task_config.optimizer]()

    def build_actions(self, trainer):
        self._global_step = trainer.global_step  # only the chief builds actions
        return ()

    def train_step(self, inputs, model, optimizer=None, metrics=None):
        if optimizer is not None:  # the trace that only builds layers has none
            self._of_replica.step = tf.convert_to_tensor(optimizer.iterations)  # before the update adds 1
        try:
            return super().train_step(inputs, model=model, optimizer=optimizer, metrics=metrics)
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
            train_data=DataConfig(global_batch_size=16), validation_data=DataConfig(global_batch_size=32)
        ),
        trainer=TrainerConfig(
            train_steps=50, steps_per_loop=7, summary_interval=5, checkpoint_interval=6, validation_interval=26,
            max_to_keep=2, best_checkpoint_eval_metric="accuracy", export=ExportConfig(at_end=False),
            optimizer_config=opt.adam(0.01),  # required; the task brings its own
        ),
    )  # fmt: skip
