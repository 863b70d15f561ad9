"""Which cases of a test run every time, and which with `-m full` alone."""

import pytest


def cases(every, *quick):
    """Returns the cases of a parametrized test, where a tuple is several values; the `quick` ones always run."""
    assert set(quick) <= set(every), quick
    return [case if case in quick else full(case) for case in every]


def full(case):
    """Returns a case that runs with `-m full` alone."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
