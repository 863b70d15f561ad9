"""Calls of `Program.fit` that are killed: each works in `folder/run`, and writes down what it returned.

TensorFlow is imported in the child alone.
"""

import functools
import importlib
import json
from pathlib import Path

from tests.support.chaos import compare
from tests.support.chaos.contract import RUN, Case
from tests.support.chaos.run_directory import RunDirectory
from tests.support.forked import Child


class FitDirectory(RunDirectory):
    """As any run directory; nothing is printed."""

    def says(self, step):
        return ""


def fit(name, function, *arguments, named=0):
    """Returns `function(folder, *arguments)` as a case; callbacks leave `named` checkpoints."""

    def start(shared, folder, first=None):
        return Child(functools.partial(function, str(folder), *arguments), cwd=folder, folder=folder, first=first)

    return Case(name, start, compare=functools.partial(_differences, named), directory=FitDirectory)


def _differences(named, broken, unbroken):
    import numpy as np

    found = compare.differences(broken, unbroken)
    if (broken / "result.json").read_text() != (unbroken / "result.json").read_text():
        found["result"] = [(folder / "result.json").read_text() for folder in (broken, unbroken)]
    ours, theirs = (np.load(folder / "weights.npz") for folder in (broken, unbroken))
    if weights := [name for name in theirs.files if ours[name].tobytes() != theirs[name].tobytes()]:
        found["weights"] = weights
    assert len([*unbroken.glob("*/*/ckpt-*.index")]) == named
    return found


def _keep(folder, result, model):
    import numpy as np

    Path(folder, RUN, "result.json").write_text(json.dumps(result, default=float))  # a learning rate is NumPy's
    np.savez(Path(folder, RUN, "weights.npz"), *model.get_weights())


def plain(folder):
    """Shuffled, with a validation."""
    from official_trainer.program import Program
    from tests.support.programs import deep, examples, lightly

    program = lightly(Program(deep(), f"{folder}/{RUN}"), optimizer="adam")
    settings = {"batch_size": 8, "epochs": 4, "validation_split": 0.2, "verbose": 0}
    history = program.fit(*examples(), **settings)
    _keep(folder, [history.history, history.epoch], program.model)


def with_callbacks(folder, name="tf_keras"):
    """Dropout, executions of two steps, a rate that falls, an early stop or more checkpoints of callbacks."""
    keras = importlib.import_module(name)
    from official_trainer.program import Program, ProgramCheckpoint
    from tests.support.programs import examples

    keras.utils.set_random_seed(1)
    if name == "tf_keras":
        keras.backend.experimental.enable_tf_random_generator()
        newest = {"save_freq": 3, "max_to_keep": 2, "keep_every_n_steps": 9}
        other = ProgramCheckpoint(f"{folder}/{RUN}/newest/{{step:04d}}", **newest)
    else:
        other = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.001, patience=3)
    pixels = keras.Input([6])
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(8, activation="tanh")(pixels))
    outputs = keras.layers.Dense(3)(keras.layers.BatchNormalization()(hidden))
    program = Program(keras.Model(pixels, outputs), f"{folder}/{RUN}", seed=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program.compile("adam", loss, metrics=["accuracy"], steps_per_execution=2)
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy", patience=1, factor=0.5),
        ProgramCheckpoint(f"{folder}/{RUN}/best/{{epoch:02d}}-{{val_loss:.4f}}", monitor="val_loss", max_to_keep=2),
        other,
    ]
    settings = {"batch_size": 8, "epochs": 4, "validation_split": 0.2, "verbose": 0}
    history = program.fit(*examples(), callbacks=callbacks, **settings)
    _keep(folder, [history.history, history.epoch, int(program.model.optimizer.iterations.numpy())], program.model)


def with_settings(folder):
    """Micro-batches, averages, a loss scale and two replicas."""
    from official_trainer.config import OptimizationConfig, RuntimeConfig, TrainerConfig
    from official_trainer.config.optimization import EMAConfig
    from official_trainer.lazy import keras
    from official_trainer.program import Program
    from tests.support.programs import CLASSES, FEATURES, examples, lightly

    def build():
        keras.utils.set_random_seed(1)
        pixels = keras.Input([FEATURES], name="pixels")
        hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2")(pixels)
        return keras.Model(pixels, keras.layers.Dense(CLASSES, dtype="float32")(hidden))

    averaged = OptimizationConfig(ema=EMAConfig(average_decay=0.9))
    trainer = TrainerConfig(gradient_accumulation_steps=2, optimizer_config=averaged, checkpoint_interval=2)
    two = RuntimeConfig(distribution_strategy="mirrored", num_logical_cpus=2, mixed_precision_dtype="float16")
    program = lightly(Program(build, f"{folder}/{RUN}", trainer=trainer, runtime=two), optimizer="adam")
    x, y = (array[:48] for array in examples())
    settings = {"batch_size": 12, "epochs": 3, "validation_split": 0.25, "verbose": 0}
    history = program.fit(x, y, **settings)
    _keep(folder, [history.history, program.evaluate(x, y, verbose=0)], program.model)
