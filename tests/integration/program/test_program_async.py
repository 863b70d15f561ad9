"""Programs in an event loop, which goes on while they train."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import Program
from official_trainer.program.data import ArgumentError
from tests.support.programs import examples, light, lightly

SECONDS = 60  # a call that takes longer hangs
X, Y = examples()
FIT = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}


class AfterEpochs(keras.callbacks.Callback):
    """Calls a function after each epoch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch, logs=None):
        self.function(epoch)


def test_two_programs_train_in_one_loop_that_goes_on_meanwhile():
    """K2: each epoch of both waits for the other's and for the loop, so neither could have the thread to itself."""
    expected = [lightly(light(seed=seed)).fit(X, Y, **FIT).history for seed in (1, 2)]
    together = threading.Barrier(2)

    async def both():
        loop, ticks = asyncio.get_running_loop(), []

        async def tick():
            ticks.append(None)

        def after(epoch):
            together.wait(SECONDS)
            asyncio.run_coroutine_threadsafe(tick(), loop).result(SECONDS)

        programs = [lightly(Program(light(seed=seed))) for seed in (1, 2)]
        fits = [each.fit_async(X, Y, callbacks=[AfterEpochs(after)], **FIT) for each in programs]
        histories = await asyncio.gather(*fits)
        results = await asyncio.gather(*(each.evaluate_async(X, Y, verbose=0) for each in programs))
        outputs = await asyncio.gather(*(each.predict_async(X, verbose=0) for each in programs))
        return programs, len(ticks), [each.history for each in histories], results, outputs

    programs, ticks, histories, results, outputs = asyncio.run(both())
    assert histories == expected
    assert ticks == 2 * 3
    assert results == [each.evaluate(X, Y, verbose=0) for each in programs]
    for found, program in zip(outputs, programs, strict=True):
        np.testing.assert_array_equal(found, program.predict(X, verbose=0))


def test_batches_are_trained_and_predicted_in_an_event_loop():
    """K3, K8: as the methods without `_async`, one after the other; an error comes to who awaits."""
    program = lightly(Program(light()))
    start = program.get_weights()

    async def ours():
        return [
            await program.train_on_batch_async(X, Y),
            await program.test_on_batch_async(X, Y),
            await program.predict_on_batch_async(X),
        ]

    trained, evaluated, predicted = asyncio.run(ours())
    program.set_weights(start)
    assert trained == program.train_on_batch(X, Y)
    assert evaluated == program.test_on_batch(X, Y)
    assert (predicted == program.predict_on_batch(X)).all()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(program.fit_async(X, Y, callbacks=[AfterEpochs(lambda epoch: 1 / 0)], **FIT))


def test_a_second_call_of_a_program_that_trains_is_refused():
    """K2: the first one is not disturbed."""
    expected = lightly(light()).fit(X, Y, **FIT).history
    program = lightly(Program(light()))

    async def both():
        begun, done = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def after(epoch):
            loop.call_soon_threadsafe(begun.set)
            assert done.wait(SECONDS)

        first = asyncio.create_task(program.fit_async(X, Y, callbacks=[AfterEpochs(after)], **FIT))
        await asyncio.wait_for(begun.wait(), SECONDS)
        with pytest.raises(ArgumentError, match=r"trains or evaluates in another thread; await that call"):
            await program.evaluate_async(X, Y, verbose=0)
        done.set()
        return (await first).history

    assert asyncio.run(both()) == expected
