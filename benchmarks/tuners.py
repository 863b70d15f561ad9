"""A sweep beside KerasTuner, which uses Keras 3, and beside Optuna with `fit` of tf_keras, each in one process.

Owns: these tuners' programs: the network of `digits_mlp` on the same data, 2,000 steps in epochs of 200, an evaluation
after each, the best weights saved, learning rate and dropout drawn at random. Ours saves checkpoints to continue from
and exports a model beside that. Does not own: the sweep (`sweeps.py`).

Run as a process of its own (`python -m benchmarks.tuners TUNER TRIALS FOLDER`), which imports TensorFlow.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import processes, rounds, sweeps
from benchmarks.report import Comparison, Target

OURS, KERAS_TUNER, OPTUNA = "a sweep", "KerasTuner", "Optuna and tf_keras fit"
_PROGRAMS = {KERAS_TUNER: "keras_tuner", OPTUNA: "optuna"}
EPOCHS, STEPS = 10, 200


def compare(num_rounds: int, num_trials: int = sweeps.NUM_TRIALS) -> list[Comparison]:
    """Runs each tuner once in every round."""
    space = sweeps.SPACES[sweeps.NUMBERS]
    variants = {OURS: functools.partial(sweeps.sweep, space, num_trials)}
    variants |= {name: functools.partial(tune, program, num_trials) for name, program in _PROGRAMS.items()}
    results = rounds.interleave(variants, num_rounds)
    per_trial = {name: [value / num_trials for value in values] for name, values in results["seconds"].items()}
    return [
        Comparison(
            title="a trial of 2,000 steps, of 20 in sequence, start to exit",
            unit="s",
            digits=2,
            values=per_trial,
            targets=[Target(name=OURS, against=name, at_most=1.0) for name in _PROGRAMS],
        ),
        Comparison(title="peak memory of the largest process", unit="MiB", values=results["mebibytes"]),
    ]


def tune(program: str, num_trials: int) -> dict[str, float]:
    """Runs a tuner in a child, start to exit."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "benchmarks.tuners", program, str(num_trials), folder]
        usage = processes.run(argv)
        if len((Path(folder) / "trials").read_text().splitlines()) != num_trials:
            raise RuntimeError(f"{program} did not complete {num_trials} trials")
    return {"seconds": usage.wall_seconds, "mebibytes": usage.peak_bytes / 2**20}


def build(keras: Any, rate: float, dropout: float) -> Any:
    """Returns the compiled model, of Keras 3 or of tf_keras."""
    layers, optimizers = keras.layers, keras.optimizers
    hidden = [layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dropout(dropout), layers.Dense(10)]
    model = keras.Sequential([keras.Input([8, 8, 1]), *hidden])
    schedule = optimizers.schedules.CosineDecay(rate, EPOCHS * STEPS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(schedule), loss, metrics=["accuracy"])
    return model


def data() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of `fit` for training and for validation."""
    import tensorflow as tf

    from experiments.digits import load_digits

    train, held_out = load_digits(0.2)
    batches = tf.data.Dataset.from_tensor_slices(train).cache().shuffle(len(train[0])).repeat().batch(64).prefetch(2)
    validation = tf.data.Dataset.from_tensor_slices(held_out).batch(360)
    return {"x": batches, "steps_per_epoch": STEPS, "epochs": EPOCHS}, {"validation_data": validation}


def with_keras_tuner(num_trials: int, folder: str) -> None:
    """Searches with KerasTuner, which saves the best weights of each trial."""
    import keras
    import keras_tuner

    def hypermodel(values: Any) -> Any:
        return build(keras, values.Float("rate", 1e-4, 1e-1, sampling="log"), values.Float("dropout", 0, 0.5))

    tuner = keras_tuner.RandomSearch(
        hypermodel, objective="val_accuracy", max_trials=num_trials, directory=folder, project_name="search", seed=0
    )
    training, validation = data()
    tuner.search(**training, **validation, verbose=0)
    note(folder, len(tuner.oracle.trials))


def with_optuna(num_trials: int, folder: str) -> None:
    """Searches with Optuna; a killed program continues with the trials that are not complete."""
    import optuna
    import tf_keras
    from tf_keras.callbacks import LambdaCallback, ModelCheckpoint

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    training, validation = data()
    steps = Path(folder, "steps")

    def log(batch: int, logs: Any) -> None:
        if batch % 100 == 99:
            with steps.open("a") as file:
                file.write("100\n")

    def objective(trial: Any) -> float:
        rate, dropout = trial.suggest_float("rate", 1e-4, 1e-1, log=True), trial.suggest_float("dropout", 0, 0.5)
        model = build(tf_keras, rate, dropout)
        best = ModelCheckpoint(f"{folder}/{trial.number}.weights.h5", "val_accuracy", 0, True, True)
        history = model.fit(**training, **validation, verbose=0, callbacks=[best, LambdaCallback(on_batch_end=log)])
        note(folder, 1)
        return float(max(history.history["val_accuracy"]))

    study = optuna.create_study(
        storage=f"sqlite:///{folder}/study.db",
        study_name="digits",
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
        load_if_exists=True,
    )
    complete = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
    study.optimize(objective, num_trials - complete)


def note(folder: str, count: int) -> None:
    """Notes that so many trials are complete."""
    with Path(folder, "trials").open("a") as file:
        file.write("complete\n" * count)


if __name__ == "__main__":
    program, num_trials, folder = sys.argv[1:]
    if program == "optuna":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    {"keras_tuner": with_keras_tuner, "optuna": with_optuna}[program](int(num_trials), folder)
