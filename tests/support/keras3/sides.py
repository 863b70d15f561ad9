"""Both sides of a comparison: a small model trained by Keras 3's own `fit`, and by the engine.

Owns: training a case on each side, and the losses and weights that come out. Does not own: the cases (`models.py`).
"""

import contextlib

import keras

from official_trainer import config as configuration
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.keras3 import models

WORKSPACE = ROOT / "tests" / "support" / "keras3" / "workspace"
EXPERIMENT = "keras3_models"


def reference_losses(name, **options):
    """Returns the loss of each of the 50 batches of Keras's own `fit`."""
    return fitted(name, **options)[0]


def fitted(name, *, dropout=0.0, optimizer=""):
    """Trains a case by `fit` with its defaults, in order; returns the loss of each batch, and the model."""
    case, losses = models.ALL[name], []

    class Each(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(logs["loss"])
            self.model.reset_metrics()  # or the next one would be a mean with those before

    with policy(case.policy):
        model = models.built(name, dropout)
        model.compile(optimizer=models.OPTIMIZERS[optimizer]() if optimizer else case.optimizer(), loss=case.losses)
        model.fit(case.features(), case.labels(), batch_size=models.BATCH, shuffle=False, verbose=0, callbacks=[Each()])
    return losses, model


@contextlib.contextmanager
def policy(name):
    """Sets the global dtype policy in a `with` block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def engine_losses(name, model_dir, *sets):
    """Returns the loss of each of the 50 steps of a run of the engine, from its `metrics.jsonl`."""
    trained(name, model_dir, *sets)
    return losses_of(model_dir)


def trained(name, model_dir, *sets):
    """Trains a case in this process, as `official-trainer train` does."""
    run.run(EXPERIMENT, resolved(name, *sets), mode="train", model_dir=str(model_dir), quiet=True)


def losses_of(model_dir):
    return [row["training_loss"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]


def model_of(name, model_dir, *sets):
    """Returns the model of a run with the weights of its last checkpoint, on one device."""
    single = "runtime={distribution_strategy: off}"
    return run.model_of(EXPERIMENT, resolved(name, *sets, single), model_dir=str(model_dir))


def words(name, *sets):
    """Returns the settings of a case's run."""
    case = models.ALL[name]
    dtype = (f"runtime.mixed_precision_dtype={case.dtype}",) if case.dtype else ()
    return (f"task.model={name}", *dtype, *sets)


def resolved(name, *sets):
    keras.backend.clear_session()
    models.first_weights(name)  # before the run seeds Keras
    factory = registry.get_config(EXPERIMENT, WORKSPACE)
    return configuration.resolve(factory, experiment=EXPERIMENT, sets=words(name, *sets))
