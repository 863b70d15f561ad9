"""Programs of Keras 3: all combinations of `compile` and `fit` beside Keras 3's own."""

from __future__ import annotations

import pytest

from tests.support.fits3 import COMBINATIONS, IN_SHORT, compare


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if name not in IN_SHORT])
def test_what_comes_of_arguments_is_what_keras_3_makes_of_them(name, tmp_path):
    """N38: history, calls of callbacks, weights, evaluation, predictions, and what callbacks write."""
    compare(name, tmp_path)
