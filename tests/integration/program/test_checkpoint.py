"""The checkpoint callback of `Program.fit`, and reading back what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program, ProgramCheckpoint
from official_trainer.tasks.metrics import MetricDirectionError
from tests.support.cases import cases, full
from tests.support.programs import deep, diary_of, examples, light, lightly

STEPS = 5
"""Steps in an epoch: forty examples in batches of eight."""


def fit(program, *callbacks, **arguments):
    x, y = examples()
    given = {"epochs": 3, "batch_size": 8, "shuffle": False, "verbose": 0}
    return program.fit(x[:40], y[:40], callbacks=list(callbacks), **{**given, **arguments})


def fit_validated(program, *callbacks, **arguments):
    x, y = examples()
    return fit(program, *callbacks, validation_data=(x[40:], y[40:]), **arguments)


def saved(folder):
    """Returns {name: step} of what is there."""
    return {path.name: committed_steps(str(path))[0] for path in sorted(Path(folder).iterdir())}


class Scripted(keras.metrics.Metric):
    """Says what it is told to, a number for each evaluation; while training the number of evaluations so far."""

    def __init__(self, values, **settings):
        super().__init__(name="score", **settings)
        self._values = tf.constant(values, tf.float32)
        self.evaluations = self.add_weight("evaluations", initializer="zeros")

    def update_state(self, *arguments, **keywords):
        pass

    def result(self):
        return tf.gather(self._values, tf.cast(self.evaluations, tf.int32))

    def reset_state(self):
        pass


class Next(keras.callbacks.Callback):
    def __init__(self, metric):
        super().__init__()
        self._metric = metric

    def on_epoch_end(self, epoch, logs=None):
        self._metric.evaluations.assign(epoch + 1)


def scripted(values, direction=None):
    """Returns a program whose `val_score` are these values, and the callback that it needs last."""
    metric = Scripted([*values, values[-1]])
    if direction is not None:
        metric.direction = direction
    return lightly(Program(light()), metrics=[metric]), Next(metric)


KEPT = {
    "best": ({"save_best_only": True}, [1, 2, 5]),
    "lowest": ({"save_best_only": True, "mode": "min"}, [1, 4]),
    "above a threshold": ({"save_best_only": True, "initial_value_threshold": 0.7}, [5]),
    "all, as in Keras": ({"initial_value_threshold": 0.7}, [1, 2, 3, 4, 5, 6]),
    "best one": ({"save_best_only": True, "max_to_keep": 1}, [5]),
    "best two": ({"max_to_keep": 2}, [2, 5]),
    "best one and multiples": ({"max_to_keep": 1, "keep_every_n_steps": 15}, [3, 5]),
}


def test_which_are_kept_by_a_metric(tmp_path):
    """C1, C2, C6: strictly better ones, by the direction that the metric declares; equal and NaN are not better."""
    program, following = scripted([0.5, 0.7, 0.7, 0.4, 0.9, np.nan], direction="max")
    callbacks = {
        name: ProgramCheckpoint(tmp_path / name / "{epoch}", monitor="val_score", **settings)
        for name, (settings, _) in KEPT.items()
    }
    fit_validated(program, *callbacks.values(), following, epochs=6)
    for name, (_, epochs) in KEPT.items():
        assert {Path(folder).name for folder in callbacks[name].kept} == set(map(str, epochs)), name
        assert saved(tmp_path / name) == {str(epoch): epoch * STEPS for epoch in epochs}, name


def test_the_best_value_survives_by_itself(tmp_path):
    """C2: another process, with a callback that knows nothing, keeps what was better before."""
    for values in ([0.5, 0.9, 0.8], [0.85, 0.95, 0.1]):
        program, following = scripted(values, direction="max")
        fit_validated(
            program, ProgramCheckpoint(tmp_path / "best", monitor="val_score", save_best_only=True), following
        )
        (path,) = Path(tmp_path).glob("best/*.manifest.json")
        assert f'"val_score": {np.float32(max(values)).item()}' in path.read_text()


def test_steps_are_exact_whatever_runs_at_once(tmp_path):
    """C2, C3: at multiples of the global step, over the ends of epochs; other callbacks hear what they always hear."""
    heard, expected = diary_of(), diary_of()
    callback = ProgramCheckpoint(tmp_path / "{step:04d}-{epoch}-{batch}-{accuracy:.1f}", save_freq=3)
    fit(lightly(Program(light()), steps_per_execution=4), callback, heard)
    fit(lightly(Program(light()), steps_per_execution=4), expected)
    names = [name.rpartition("-")[0] for name in saved(tmp_path)]
    assert names == ["0003-1-3", "0006-2-1", "0009-2-4", "0012-3-2", "0015-3-5"]
    assert heard.calls == expected.calls


def test_a_step_that_ends_an_epoch_is_saved_before_the_next_begins(tmp_path):
    """C2: the state is that after the step, not what callbacks make of it for the next epoch."""

    class NextRate(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate.assign(0.1 / (epoch + 1))

    fit(lightly(Program(light())), NextRate(), ProgramCheckpoint(tmp_path / "{step}", save_freq=STEPS))
    for epoch in range(3):
        program = lightly(Program(light()))
        program.load(tmp_path / str((epoch + 1) * STEPS))
        assert program.model.optimizer.learning_rate.numpy() == np.float32(0.1 / (epoch + 1))


def test_several_may_share_a_directory(tmp_path):
    """C6: one path for the newest and one for the best, as with Keras's; what others put there is left alone."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    program, following = scripted([0.5, 0.4, 0.3], direction="max")
    newest = ProgramCheckpoint(tmp_path / "newest")
    best = ProgramCheckpoint(tmp_path / "best", monitor="val_score", save_best_only=True)
    both = ProgramCheckpoint(tmp_path / "{step:03d}", max_to_keep=2)
    fit_validated(program, newest, best, both, following)
    (tmp_path / "mine" / "file").unlink()
    for name in ("mine", "empty"):
        (tmp_path / name).rmdir()  # fails unless it is there, with nothing else in it
    assert saved(tmp_path) == {"newest": 3 * STEPS, "best": STEPS, "010": 2 * STEPS, "015": 3 * STEPS}


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        ("5", CheckpointError, r"5 belongs to '\{step\}', not to '5'; give one of them another"),
        ("{step}", ArgumentError, r"two have filepath='.*/\{step\}'; give one of them another"),
    ],
)
def test_one_name_of_two_is_refused(tmp_path, second, error, message):
    with pytest.raises(error, match=message):
        fit(lightly(Program(light())), *(ProgramCheckpoint(f"{tmp_path}/{name}") for name in ("{step}", second)))


CONTRADICTIONS = [
    ({"filepath": "a/{epoch"}, "cannot be read"),
    ({"filepath": "{epoch}/a"}, r"'\{epoch\}/a' has placeholders before its last '/'; only the name may have them"),
    ({"filepath": "a/{epoch:s}"}, r"cannot hold \{epoch:s\}.*it stands for a whole number"),
    ({"filepath": "best.h5"}, r"names a file of another format, .* tf_keras\.callbacks\.ModelCheckpoint"),
    ({"save_freq": "batch"}, "save_freq='batch'; allowed: 'epoch', or a number of steps from 1 on"),
    ({"save_freq": 0}, "save_freq=0; allowed"),
    ({"save_freq": True}, "save_freq=True; allowed"),
    ({"mode": "down", "monitor": "loss"}, "mode='down'; allowed: 'auto', 'min', 'max'"),
    ({"mode": "min"}, "mode='min' has no effect without monitor"),
    ({"initial_value_threshold": 0.5}, "initial_value_threshold=0.5 has no effect without monitor"),
    ({"max_to_keep": 0}, "max_to_keep=0; allowed: a number from 1 on, or None"),
    ({"keep_every_n_steps": -1}, "keep_every_n_steps=-1; allowed"),
]


def test_what_contradicts_itself_is_refused_at_once():
    """C2, C3: with the values that are allowed."""
    for arguments, message in CONTRADICTIONS:
        with pytest.raises(ArgumentError, match=message):
            ProgramCheckpoint(**{"filepath": "a/{epoch}", **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"filepath": "{val_acc:.2f}"}, ArgumentError, r"\{val_acc\} in '.*': there is no 'val_acc' after an epoch; "),
        ({"monitor": "val_acc"}, ArgumentError, "are loss, accuracy, val_loss, val_accuracy$"),
        ({"monitor": "val_loss", "save_freq": 2}, ArgumentError, "no 'val_loss' after a step, where there is no valid"),
        (
            {"monitor": "val_score"},
            MetricDirectionError,
            "Scripted does not declare it; set mode to max or min",
        ),
    ],
)
def test_what_fit_cannot_give_is_refused_before_the_first_step(tmp_path, arguments, error, message):
    """C1, C3"""
    program, _ = scripted([0.5]) if arguments.get("monitor") == "val_score" else (lightly(Program(light())), None)
    before = program.model.get_weights()
    filepath = tmp_path / arguments.pop("filepath", "{step}")
    with pytest.raises(error, match=message):
        fit_validated(program, ProgramCheckpoint(filepath, **arguments))
    assert all((a == b).all() for a, b in zip(program.model.get_weights(), before, strict=True))
    assert not list(tmp_path.iterdir())


BETTER = {"accuracy": "max", "mae": "min", "mse": "min", "loss": "min"}


def test_the_direction_of_what_compile_names_is_known(tmp_path):
    """C1: `auto` takes what Keras's own metrics mean, whatever they are called."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([6])
    program = Program(keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs)))
    program.compile("sgd", "mse", metrics=["accuracy", "mae", "mse"])
    x, y = examples()
    callbacks = [ProgramCheckpoint(tmp_path / m / "{epoch}", monitor=m, max_to_keep=1) for m in BETTER]
    history = program.fit(x, (y > 0).astype(np.float32), callbacks=callbacks, epochs=4, verbose=0).history
    for metric, direction in BETTER.items():
        best = (np.argmax if direction == "max" else np.argmin)(history[metric])
        assert list(saved(tmp_path / metric)) == [str(best + 1)], metric


def test_under_keras_alone_it_says_where_it_belongs(tmp_path):
    with pytest.raises(ArgumentError, match=r"is for Program\.fit; give keras\.Model\.fit a tf_keras\.callbacks\.Mod"):
        lightly(light()).fit(*examples(), callbacks=[ProgramCheckpoint(tmp_path / "{epoch}")], verbose=0)


def test_it_tells_what_it_does(tmp_path, capsys):
    program, following = scripted([0.5, 0.4], direction="max")
    callback = ProgramCheckpoint(tmp_path / "best", monitor="val_score", save_best_only=True, verbose=1)
    fit_validated(program, callback, following, epochs=2)
    printed = capsys.readouterr().out
    assert f"Epoch 1, step 5: val_score is 0.50000, saving to {tmp_path}/best" in printed
    assert "Epoch 2, step 10: val_score is 0.40000, not saved: not among those to keep" in printed


# Reading back.


def test_a_whole_program_goes_on(tmp_path):
    """C5: with its optimizer and its step, and as if it had never been away."""
    template = tmp_path / "{epoch:02d}-{loss:.2f}"
    unbroken = lightly(Program(light()), optimizer="adam")
    fit(unbroken, ProgramCheckpoint(template), epochs=2)
    fit(unbroken, epochs=4, initial_epoch=2)
    program = lightly(Program(light(seed=7)), optimizer="adam")
    program.load(template)  # the newest of the template's
    assert fit(program, epochs=4, initial_epoch=2).epoch == [2, 3]
    assert program.model.optimizer.iterations == 4 * STEPS
    weights, expected = program.model.get_weights(), unbroken.model.get_weights()
    assert all((a == b).all() for a, b in zip(weights, expected, strict=True))


@pytest.mark.full
def test_a_run_directory_says_itself_where_training_stands(tmp_path):
    """C5, K6: it may begin with weights of another run; its own count more."""
    first = lightly(Program(light()))
    fit(first, ProgramCheckpoint(tmp_path / "{epoch}"), epochs=2)
    program = lightly(Program(light(seed=7), str(tmp_path / "run")))
    with pytest.raises(
        ArgumentError, match=r"load: training continues at the checkpoint in .*/run\. Use load_weights\(\) for"
    ):
        program.load(tmp_path / "2")
    for epochs, expected in ((1, [0]), (2, [0, 1])):
        program = lightly(Program(light(seed=7), str(tmp_path / "run")))
        program.load_weights(tmp_path / "2")
        assert fit(program, epochs=epochs).epoch == expected
    unbroken = lightly(Program(light(seed=7)))
    unbroken.load_weights(tmp_path / "2")
    fit(unbroken, epochs=2)
    weights, expected = program.model.get_weights(), unbroken.model.get_weights()
    assert all((a == b).all() for a, b in zip(weights, expected, strict=True))


@pytest.mark.parametrize("save_weights_only", [True, full(False)])
def test_variables_alone(tmp_path, save_weights_only):
    """C5: out of either kind; the optimizer and the step stay as they are."""
    first = lightly(Program(light()), optimizer=keras.optimizers.Adam(0.001))
    fit(first, ProgramCheckpoint(tmp_path / "{epoch}", save_weights_only=save_weights_only), epochs=2)
    has_optimizer = any("optimizer" in name for name, _ in tf.train.list_variables(str(tmp_path / "2")))
    assert has_optimizer != save_weights_only
    program = lightly(Program(light(seed=7)), optimizer=keras.optimizers.SGD(0.5))
    program.load_weights(tmp_path / "2")
    assert all((a == b).all() for a, b in zip(program.model.get_weights(), first.model.get_weights(), strict=True))
    assert (float(program.optimizer.learning_rate), int(program.optimizer.iterations)) == (0.5, 0)
    fit(program, ProgramCheckpoint(tmp_path / "again" / "{step}"), epochs=1)
    assert saved(tmp_path / "again") == {str(STEPS): STEPS}


def test_latest_is_by_step(tmp_path):
    """C4: whatever the times of files and the order of names."""
    fit(lightly(Program(light())), ProgramCheckpoint(tmp_path / "{step}"))
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9 - committed_steps(str(tmp_path / path.relative_to(tmp_path).parts[0]))[0],) * 2)
    program = lightly(Program(light()))
    program.load(tmp_path / "{step}")
    assert program.model.optimizer.iterations == 3 * STEPS


def test_what_cannot_be_loaded_changes_nothing(tmp_path):
    """C5: there is nothing, it is damaged, it is of another model, or there is no optimizer in it."""
    fit(lightly(Program(light())), ProgramCheckpoint(tmp_path / "{step}", save_weights_only=True))
    program = lightly(Program(light(seed=7)))
    before = program.model.get_weights()
    refused = [
        (
            tmp_path / "{epoch}-{step}",
            r"no checkpoint with a name of the template '\{epoch\}-\{step\}'; there are checkpoints of '\{step\}'",
        ),
        (tmp_path, "holds no checkpoint: it holds 10, 15, 5"),
        (tmp_path / "none", r"none does not exist\. Name a directory with checkpoints"),
        (tmp_path / "5" / "ckpt-7", r"ckpt-7 does not exist\. Saved there: ckpt-5\. Name a directory"),
        (tmp_path / "5", r"ckpt-5 contains no optimizer: only variables were saved; use load_weights\(\)"),
    ]
    for path, message in refused:
        with pytest.raises(CheckpointError, match=message):
            program.load(path)
    (index,) = Path(tmp_path, "10").glob("*.index")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"ckpt-10 is damaged: ckpt-10\.index has \d+ bytes, not \d+"):
        program.load_weights(tmp_path / "10" / "ckpt-10")
    other = keras.Input([6])
    with pytest.raises(CheckpointError, match="checkpoint of another model; nothing was restored"):
        Program(keras.Model(other, keras.layers.Dense(2)(other))).load_weights(tmp_path / "5")
    with pytest.raises(ArgumentError, match=r"'sequential' has no variables yet; call it on a batch, or call model\.b"):
        Program(keras.Sequential([keras.layers.Dense(2)])).load_weights(tmp_path / "5")
    assert all((a == b).all() for a, b in zip(program.model.get_weights(), before, strict=True))


def saved_by_keras(model, folder, saved_as):
    """Saves as Keras does, and returns what `load_weights` takes."""
    path = f"{folder}/{saved_as}"
    if saved_as in ("whole.keras", "whole.h5", "saved_model"):
        model.save(path)
    elif saved_as == "checkpoints":
        tf.train.CheckpointManager(tf.train.Checkpoint(model=model), path, max_to_keep=2).save(7)
    else:
        model.save_weights(path, save_format="h5" if saved_as == "hdf5" else None)
    return path


@pytest.mark.parametrize(
    "saved_as",
    cases(
        ["whole.keras", "whole.h5", "saved_model", "some.weights.h5", "weights", "hdf5", "checkpoints"],
        *("whole.keras", "whole.h5", "weights", "hdf5", "checkpoints"),
    ),
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_weights_that_keras_has_saved_are_read(tmp_path, saved_as):
    """K9: files, a SavedModel, TensorFlow's own checkpoints; of another model nothing is assigned."""
    theirs = lightly(deep(), optimizer="adam")
    path = saved_by_keras(theirs, tmp_path, saved_as)
    ours, other = Program(deep(seed=2)), Program(light(seed=3))
    ours.load_weights(path)
    assert all(map(np.array_equal, ours.model.get_weights(), theirs.get_weights()))
    before = other.model.get_weights()
    with pytest.raises(CheckpointError, match=r"nothing was restored|the model, which is unchanged"):
        other.load_weights(path)
    assert all(map(np.array_equal, other.model.get_weights(), before))


@pytest.mark.parametrize(("saved_as", "rate"), [("weights", 0.001), ("some.weights.h5", 0.5)])
def test_the_optimizer_in_what_keras_has_saved_is_restored_as_keras_does(tmp_path, saved_as, rate):
    """K9: TensorFlow's formats have it, HDF5 has not."""
    path = saved_by_keras(lightly(light(), optimizer="adam"), tmp_path, saved_as)
    for owner in (light(seed=3), Program(light(seed=3))):
        lightly(owner, optimizer=keras.optimizers.SGD(0.5)).load_weights(path)
        assert float(owner.optimizer.learning_rate) == pytest.approx(rate)


def test_a_file_that_is_no_file_of_weights_is_named(tmp_path):
    """K9"""
    (tmp_path / "broken.h5").write_bytes(b"no HDF5")
    program = Program(light())
    for name in ("no.h5", "broken.h5", "no.keras"):
        with pytest.raises(CheckpointError, match=rf"{name} cannot be read into the model, which is unchanged"):
            program.load_weights(tmp_path / name)
