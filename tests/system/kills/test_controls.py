"""The comparison of the kill tests fails when one item of state is left out."""

import shutil

import pytest

from tests.support.cases import cases
from tests.support.chaos import inside
from tests.support.chaos.contract import Broken, Step
from tests.system.kills.cases import DIGITS_WITHOUT_EXPORTS, FIT, SIGTERM, STEP_BY_STEP

STOP = Step(18, by=SIGTERM, leaves=18)
"""Three steps after a summary, four before the end of the first epoch."""

DIGITS = DIGITS_WITHOUT_EXPORTS, STOP, (STEP_BY_STEP,)
CONTROLS = {
    "random streams": (*DIGITS, inside.forget_random, {"variables"}),
    "data position": (*DIGITS, inside.forget_position, {"variables", "ids"}),
    "optimizer slots": (*DIGITS, inside.forget_slots, {"variables"}),
    "metrics": (*DIGITS, inside.forget_metrics, {"rows", "events"}),
    "averaged weights": (*DIGITS, inside.forget_average, {"variables", "saved"}),
    "slots of a fit": (FIT, Step(8), (), inside.forget_slots, {"variables", "result", "weights"}),
}


@pytest.mark.parametrize("item", cases(CONTROLS, "random streams", "data position", "optimizer slots"))
def test_a_run_that_forgets_is_found_out(item, shared, tmp_path):
    """N1, N2, K6: leave one item of state out, and the comparison says so."""
    case, strike, sets, forget, kinds = CONTROLS[item]
    folder = shutil.copytree(shared.struck(case, strike, *sets), tmp_path / "copy")
    broken = Broken(shared, case, folder, sets)
    broken.finish(first=forget)
    found = broken.differences()
    assert kinds <= found.keys(), found
