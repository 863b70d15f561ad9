"""Runs that publish values from inside their steps, in one part and in two."""

import pytest

from tests.support.cases import cases
from tests.support.publishing_runs import PUBLISHING, assert_the_same_but_for_what_is_published, do
from tests.support.runs import differences


@pytest.mark.parametrize("strategy", cases(["off", "mirrored"], "off"))
def test_a_run_that_publishes_ends_as_one_that_does_not(model_dir, tmp_path, strategy):
    """B7, B11, N1: bit by bit; and so does one in two parts, with the same rows."""
    sets = [f"runtime.distribution_strategy={strategy}"]
    silent, whole = str(tmp_path / "silent"), str(tmp_path / "whole")
    do(silent, *sets)
    do(whole, *sets, PUBLISHING)
    assert_the_same_but_for_what_is_published(whole, silent)
    do(model_dir, *sets, PUBLISHING, "trainer.train_steps=40")
    do(model_dir, *sets, PUBLISHING, "trainer.steps_per_loop=3")
    assert [row for row in differences(whole, model_dir) if "validation" not in row] == []
