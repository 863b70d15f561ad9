"""Some 300 stops: both signals, both Kerases, alone and mirrored, in each phase of a run (N5, N1).

Of two workers, and under a coordinator, see `tests/system/distributed/test_strikes.py`: 48 of the stops.
"""

import functools
import random
import signal

import pytest

from tests import ROOT
from tests.support.chaos.contract import RUN, Broken, Case, Phase
from tests.support.chaos.runs import Variant, digits
from tests.support.forked import Command

MIRRORED = "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"


def _start(sets, shared, folder, *more, first=None):
    words = [f"--set={word}" for word in (*sets, *more)]
    argv = ["train", "--experiment=keras3_chaos", f"--model_dir={folder}/{RUN}", *words]
    workspace = ROOT / "tests" / "support" / "keras3" / "workspace"
    return Command(argv, cwd=workspace, folder=folder, first=first)


CASES = {
    "keras2": digits(Variant()),
    "keras2-mirrored": digits(Variant("mirrored2", several="evaluations")),
    "keras3": Case("keras3", functools.partial(_start, ())),
    "keras3-mirrored": Case("keras3-mirrored", functools.partial(_start, (MIRRORED,))),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT)
QUICK = {("keras2", signal.SIGTERM, 0), ("keras3-mirrored", signal.SIGINT, 0)}
TRIALS = [
    pytest.param(name, by, number, marks=() if (name, by, number) in QUICK else pytest.mark.full)
    for name in CASES
    for by in SIGNALS
    for number in range(7)
]
"""Each has five stops."""


@pytest.mark.parametrize(("name", "by", "number"), TRIALS)
def test_stopped_in_each_phase(name, by, number, shared, tmp_path, request):
    """N5, N6: the right exit code, what was trained is saved, and in the end all is as unbroken, bit by bit."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{name}/{by}/{number}")
    sets = f"trainer.steps_per_loop={chance.choice((1, 3, 7))}", "runtime.stop_grace_seconds=120"  # it has to trace
    broken = Broken(shared, CASES[name], tmp_path / "run", sets)
    start = chance.choice(("build", "restore"))
    assert broken.is_struck(Phase(start, by=by, saves=False, leaves=0))
    for phase in ("train", "evaluate", "save"):
        assert broken.is_struck(Phase(phase, chance.choice((0.0, 0.01, 0.03)), by=by, gains=phase == "train"))
    broken.finish(first=Phase("export", by=by).first(None, None))  # which ends in time
    broken.check_end()
