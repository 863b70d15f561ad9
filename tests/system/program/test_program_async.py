"""Programs in an event loop that are cancelled, and begun again."""

from __future__ import annotations

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.program import Program
from tests.support.async_fits import arguments, cancelled
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
