"""SIGKILL to `Program.fit` with a run directory: the same call ends with the same bits, its callbacks' files too."""

import functools
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.chaos import inside
from tests.support.runs import bits, differences

EPOCHS, STEPS = 4, 5

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preload"])


def _kills(hook, number):
    """Returns a callback that kills the process when it hears `hook` for the time `number`."""
    from official_trainer.lazy import keras

    class Killer(keras.callbacks.Callback):
        heard = 0

        def count(self, *arguments, **keywords):
            Killer.heard += 1
            if Killer.heard == number:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(Killer, hook, Killer.count)
    return Killer()


def _program(model_dir):
    from official_trainer.lazy import keras
    from official_trainer.program import Program

    keras.utils.set_random_seed(1)
    keras.backend.experimental.enable_tf_random_generator()
    pixels = keras.Input([6])
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(8, activation="tanh")(pixels))
    outputs = keras.layers.Dense(3)(keras.layers.BatchNormalization()(hidden))
    program = Program(keras.Model(pixels, outputs), model_dir, seed=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program.compile("adam", loss, metrics=["accuracy"], steps_per_execution=2)
    return program


def _fit(folder, first, killed):
    """What runs in a process of its own: a fit into `folder`; killed by what `first` sets up, or at a callback."""
    from official_trainer.lazy import keras
    from official_trainer.program import ProgramCheckpoint
    from tests.support.programs import examples

    if first is not None:
        first()
    program = _program(f"{folder}/run")
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy", patience=1, factor=0.5),
        ProgramCheckpoint(f"{folder}/run/best/{{epoch:02d}}-{{val_loss:.4f}}", monitor="val_loss", max_to_keep=2),
        ProgramCheckpoint(f"{folder}/run/newest/{{step:04d}}", save_freq=3, max_to_keep=2, keep_every_n_steps=9),
        *([_kills(*killed)] if killed else []),
    ]
    history = program.fit(
        *examples(), batch_size=8, epochs=EPOCHS, validation_split=0.2, callbacks=callbacks, verbose=0
    )
    result = [history.history, history.epoch, int(program.model.optimizer.iterations)]
    Path(folder, "result.json").write_text(json.dumps(result, default=float))  # a learning rate is NumPy's


def _run(folder, *, first=None, killed=None):
    """Returns the exit code of a process that fits."""
    Path(folder).mkdir(exist_ok=True)
    child = _context.Process(target=_fit, args=(str(folder), first, killed))
    child.start()
    child.join(240)
    return child.exitcode


def _named(folder):
    """Returns the bits of every checkpoint under a name, by its path."""
    found = sorted(Path(folder).glob("run/*/*/ckpt-*.index"))
    return {str(path.relative_to(folder)): bits(path.with_suffix("")) for path in found}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """An unbroken fit, and the number of writes that it takes."""
    folder = tmp_path_factory.mktemp("fit") / "unbroken"
    folder.mkdir()
    counter = folder / "writes"
    assert _run(folder, first=functools.partial(inside.kill_at_write, None, f"{folder}/run", str(counter))) == 0
    return folder, int(counter.read_text())


def _assert_alike(folder, unbroken):
    assert (folder / "result.json").read_text() == (unbroken / "result.json").read_text()
    assert differences(str(folder / "run"), str(unbroken / "run")) == []
    assert _named(folder) == _named(unbroken)
    assert len(_named(folder)) == 2 + 3  # the best two; the newest two and the one of step 9


MOMENTS = {
    "in an epoch": ("on_train_batch_end", 8),
    "between epochs": ("on_epoch_end", 2),
    "as an epoch begins": ("on_epoch_begin", 3),
    "in a validation": ("on_test_batch_begin", 3),
    "after a validation": ("on_test_end", 2),
    "before the first step": ("on_train_begin", 1),
    "at the end": ("on_train_end", 1),
}


@pytest.mark.parametrize("moment", cases(list(MOMENTS), "in an epoch"))
def test_a_fit_that_was_killed_ends_as_if_nothing_had_been(tmp_path, unbroken, moment):
    """K6, N1: weights, slots, history, rows, and the checkpoints of callbacks."""
    folder = tmp_path / "fit"
    assert _run(folder, killed=MOMENTS[moment]) == -signal.SIGKILL
    assert _run(folder) == 0
    _assert_alike(folder, unbroken[0])


@pytest.mark.parametrize("part", cases([0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 0.99], 0.45))
def test_a_fit_that_was_killed_between_two_writes(tmp_path, unbroken, part):
    """C2, K6: in a save of the run or of a callback; killed twice, the second time by chance."""
    folder = tmp_path / "fit"
    whole, writes = unbroken
    for number in (round(part * writes), random.Random(part).randint(1, writes // 3)):
        first = functools.partial(inside.kill_at_write, number, f"{folder}/run")
        assert _run(folder, first=first) in (-signal.SIGKILL, 0)
    assert _run(folder) == 0
    _assert_alike(folder, whole)


@pytest.mark.full
def test_a_fit_that_forgets_is_found_out(tmp_path, unbroken):
    """The comparison can fail: without the optimizer's slots a killed fit ends with other bits."""
    folder = tmp_path / "fit"
    assert _run(folder, killed=MOMENTS["in an epoch"]) == -signal.SIGKILL
    assert _run(folder, first=inside.forget_slots) == 0
    with pytest.raises(AssertionError):
        _assert_alike(folder, unbroken[0])
