"""Values from inside a traced step: step by step, under XLA and on several replicas."""

import pytest

from tests.support.cases import full
from tests.support.publishing_task import STEP_BY_STEP, check_publishing_changes_nothing


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        full(("off", STEP_BY_STEP)),
        ("off", {"enable_xla": True}),
        full(("off", {"enable_xla": True, **STEP_BY_STEP})),
        full(("one_device", {"enable_xla": True})),
        ("mirrored2", {}),
        full(("mirrored2", STEP_BY_STEP)),
    ],
)
def test_a_run_that_publishes_is_the_same_bit_by_bit(strategy, options):
    """B7: weights, slots, averages, metrics and the step count, with dropout."""
    check_publishing_changes_nothing(strategy, options)
