"""Programs in an event loop that are cancelled, and begun again."""

from __future__ import annotations
import asyncio
import threading
import numpy as np
import pytest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.lazy import keras, tf
from official_trainer.program import BusyError, Program
from tests.support.cases import cases
from tests.support.programs import examples, light, lightly


class AfterEpochs(keras.callbacks.Callback):
    """Calls a function after each epoch, in the thread that trains."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def on_epoch_end(self, epoch, logs=None):
        self._function(epoch)


def arguments(**others):
    return {"epochs": 3, "batch_size": 8, "shuffle": False, "verbose": 0, **others}


def cancelled(program, *, epochs, after):
    """Trains until epoch `after` ends, then cancels; returns once the task has ended."""
    x, y = examples()

    async def run():
        loop, reached = asyncio.get_running_loop(), asyncio.Event()

        def epoch_ended(epoch):
            if epoch == after:
                loop.call_soon_threadsafe(reached.set)

        task = asyncio.ensure_future(
            program.fit_async(x, y, callbacks=[AfterEpochs(epoch_ended)], **arguments(epochs=epochs, shuffle=True))
        )
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_who_is_cancelled_has_stopped(tmp_path):
    """K2, K6: the thread trains no more, the run directory has the step, and the same call goes on from there."""
    x, y = examples()
    program = lightly(Program(light(), str(tmp_path / "run")))
    cancelled(program, epochs=100_000, after=1)
    stopped = program.model.optimizer.iterations.numpy()
    assert 2 * 7 <= stopped < 100_000
    assert committed_steps(str(tmp_path / "run"))[-1] == stopped
    epochs = int(stopped) // 7 + 2
    again = lightly(Program(light(), str(tmp_path / "run")))
    history = again.fit(x, y, **arguments(epochs=epochs, shuffle=True))
    whole = lightly(Program(light(), str(tmp_path / "whole")))
    assert history.history == whole.fit(x, y, **arguments(epochs=epochs, shuffle=True)).history
    found, expected = again.model.get_weights(), whole.model.get_weights()
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
