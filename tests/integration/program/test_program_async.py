"""Programs in an event loop: several at a time, without blocking it, and what cancelling means."""

from __future__ import annotations

import asyncio
import threading

import pytest

from official_trainer.lazy import tf
from official_trainer.program import BusyError, Program
from tests.support.async_fits import SECONDS, AfterEpochs, arguments, cancelled
from tests.support.programs import examples, light, lightly


def test_calls_of_one_program_wait_for_each_other():
    x, y = examples()
    once, twice = lightly(light()), lightly(Program(light()))
    expected = [once.fit(x, y, **arguments()).history for _ in range(2)]

    async def both():
        return await asyncio.gather(*(twice.fit_async(x, y, **arguments()) for _ in range(2)))

    assert [each.history for each in asyncio.run(both())] == expected


@pytest.mark.full
def test_a_strategy_is_that_of_the_model():
    """K2: its scope is of a thread; the one that trains enters it."""
    x, y = examples()
    # Without collectives: those of two strategies over the same devices would confuse each other.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    found = []
    for is_async in (False, True):
        with strategy.scope():
            program = lightly(Program(light()))
        call = program.fit_async(x, y, **arguments()) if is_async else None
        found.append((asyncio.run(call) if is_async else program.fit(x, y, **arguments())).history)
    assert found[0] == found[1]


def test_without_a_run_directory_a_cancelled_program_can_be_used_again():
    """K2"""
    program = lightly(Program(light()))
    cancelled(program, epochs=100_000, after=0)
    before = program.model.optimizer.iterations.numpy()
    assert program.fit(*examples(), **arguments()).epoch == [0, 1, 2]
    assert program.model.optimizer.iterations.numpy() == before + 3 * 7


def test_what_is_cancelled_before_its_turn_never_runs():
    x, y = examples()
    program, heard = lightly(Program(light())), []

    async def run():
        going, waiting = threading.Event(), []

        def first(epoch):
            going.wait(SECONDS)

        running = asyncio.ensure_future(program.fit_async(x, y, callbacks=[AfterEpochs(first)], **arguments(epochs=1)))
        waiting = asyncio.ensure_future(program.fit_async(x, y, callbacks=[AfterEpochs(heard.append)], **arguments()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        going.set()
        await running

    asyncio.run(run())
    assert heard == []
    assert program.fit(x, y, **arguments()).epoch == [0, 1, 2]  # the request to stop is forgotten


def test_another_thread_is_refused():
    x, y = examples()
    program = lightly(Program(light()))

    async def run():
        begun, going = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def wait(epoch):
            loop.call_soon_threadsafe(begun.set)
            going.wait(SECONDS)

        task = asyncio.ensure_future(program.fit_async(x, y, callbacks=[AfterEpochs(wait)], **arguments(epochs=1)))
        await begun.wait()
        try:
            with pytest.raises(BusyError, match="training or evaluating in another thread; await that call first"):
                program.evaluate(x, y, verbose=0)
        finally:
            going.set()
        await task

    asyncio.run(run())


@pytest.mark.full
def test_errors_come_to_who_awaits():
    program = lightly(Program(light()))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(program.fit_async(*examples(), callbacks=[AfterEpochs(lambda epoch: 1 / 0)], **arguments()))


def test_batches_are_trained_and_predicted_in_an_event_loop():
    """K3: as the methods without `_async`, one after the other."""
    x, y = examples()
    program, other = lightly(Program(light())), lightly(Program(light()))

    async def ours():
        return [
            await program.train_on_batch_async(x, y),
            await program.test_on_batch_async(x, y),
            await program.predict_on_batch_async(x),
        ]

    trained, evaluated, predicted = asyncio.run(ours())
    assert trained == other.train_on_batch(x, y)
    assert evaluated == other.test_on_batch(x, y)
    assert (predicted == other.predict_on_batch(x)).all()
