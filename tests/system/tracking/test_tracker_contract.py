"""Trackers of libraries, MLflow and W&B, keep to what every tracker does."""

import pytest

from tests.support.tracking.contract import SERVICES, check_points, check_unused, no_network  # noqa: F401


@pytest.mark.parametrize("name", SERVICES)
def test_a_tracker_keeps_its_contract(name, place, capfd):
    """B6, T18: each point is there once, whatever was rewound and opened again; and it prints nothing."""
    check_points(name, place, capfd)


@pytest.mark.parametrize("name", SERVICES)
def test_a_tracker_that_was_never_used_leaves_nothing(name, place):
    """B6: also where a run ends before its first number."""
    check_unused(name, place)
