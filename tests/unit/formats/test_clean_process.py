"""A function in a process of its own."""

import math
import os

import pytest

from official_trainer.formats import clean_process
from official_trainer.formats.kinds import FormatError


def test_what_a_function_returns_comes_back():
    """N46: from another process, without a GPU."""
    assert clean_process.call(os.getenv, "CUDA_VISIBLE_DEVICES") == "-1"


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (math.sqrt, (-1,), "ValueError: "),
        (os.abort, (), "the process that was to compute abort ended by signal 6"),
        (os._exit, (3,), "the process that was to compute _exit ended with 3"),
    ],
)
def test_an_error_and_a_crash_are_errors_here(function, args, said):
    """N46: a converter that crashes ends no training."""
    with pytest.raises(FormatError, match=said):
        clean_process.call(function, *args)
