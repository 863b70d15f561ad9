"""Which cases of a test run every time, and which with --chaos=full alone."""

import pytest


def cases(every, *quick):
    """Returns the cases of a parametrized test, those that are not `quick` marked as `full`; a tuple is several values."""
    assert set(quick) <= set(every), quick
    return [case if case in quick else _full(case) for case in every]


def _full(case):
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
