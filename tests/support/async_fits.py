"""Fits in an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from official_trainer.lazy import keras
from tests.support.programs import examples

SECONDS = 120
"""After which a wait in another thread means that nobody will ever answer."""


def in_event_loop(coroutine):
    """Runs it in a thread of its own, because the browser of other tests has an event loop in this one."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


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

    in_event_loop(run())
