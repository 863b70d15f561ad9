"""A run that is killed before some of its writes, from start to end, beside one that never was."""

import functools
import signal

import numpy as np

from tests.support.chaos import compare, inside


def check_kills(train, folder, sets, kills):
    """Has `train(folder, name, *sets, first=…)` killed again and again: it ends with everything as if it never was."""
    counter = folder / "writes"
    first = functools.partial(inside.kill_at_write, None, str(folder / "whole"), str(counter))
    whole = train(folder, "whole", *sets, first=first).wait()
    assert whole.code == 0, whole.err
    writes = int(counter.read_text())
    killed = 0
    for number in np.linspace(writes * 0.3, writes * 0.8, kills).astype(int):
        first = functools.partial(inside.kill_at_write, int(number) // kills, str(folder / "broken"))
        command = train(folder, "broken", *sets, "trainer.steps_per_loop=3", first=first)
        command.process.join(240)
        assert command.process.exitcode in (-signal.SIGKILL, 0), command.err
        killed += command.process.exitcode != 0
    assert train(folder, "broken", *sets).wait().code == 0
    assert killed > kills / 2
    assert compare.differences(folder / "broken", folder / "whole") == {}
