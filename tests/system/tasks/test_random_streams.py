"""Seeds by name, on several replicas and under XLA, which is refused over CPU replicas."""

import pytest

from tests.support.seeded_runs import check_two_parts_draw_what_one_does


@pytest.mark.parametrize(("strategy", "enable_xla"), [("mirrored2", False), ("off", True)])
def test_a_run_in_two_parts_draws_what_one_in_one_does(strategy, enable_xla, model_dir):
    """B11, N1: dropout by name, weights and slots bit by bit after a restore into another trainer."""
    check_two_parts_draw_what_one_does(strategy, enable_xla, model_dir)
