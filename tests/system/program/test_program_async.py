"""Programs in an event loop that are cancelled, and begun again."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.program import Program
from tests.support.async_fits import SECONDS, AfterEpochs, arguments, cancelled, in_event_loop
from tests.support.cases import cases
from tests.support.programs import examples, light, lightly


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


@pytest.mark.parametrize("keeps", cases([False, True], False))
def test_two_programs_train_in_one_loop_that_goes_on_meanwhile(tmp_path, keeps):
    """K2: each epoch of both waits for the other's and for the loop, so neither could have the thread to itself."""
    x, y = examples()
    expected = [lightly(light(seed)).fit(x, y, **arguments()).history for seed in (1, 2)]
    together = threading.Barrier(2)

    async def both():
        loop, ticks = asyncio.get_running_loop(), []

        async def tick():
            ticks.append(None)

        def after(epoch):
            together.wait(SECONDS)
            asyncio.run_coroutine_threadsafe(tick(), loop).result(SECONDS)

        runs = [str(tmp_path / name) if keeps else None for name in ("first", "second")]
        programs = [lightly(Program(light(seed), run)) for seed, run in zip((1, 2), runs, strict=True)]
        fits = [each.fit_async(x, y, callbacks=[AfterEpochs(after)], **arguments()) for each in programs]
        histories = await asyncio.gather(*fits)
        results = await asyncio.gather(*(each.evaluate_async(x, y, verbose=0) for each in programs))
        outputs = await asyncio.gather(*(each.predict_async(x, verbose=0) for each in programs))
        return programs, len(ticks), [each.history for each in histories], results, outputs

    programs, ticks, histories, results, outputs = in_event_loop(both())
    assert histories == expected
    assert ticks == 2 * 3
    assert results == [each.evaluate(x, y, verbose=0) for each in programs]
    for found, program in zip(outputs, programs, strict=True):
        np.testing.assert_array_equal(found, program.predict(x, verbose=0))
