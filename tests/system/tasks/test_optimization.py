"""What is put around an update changes nothing of it: the optimizers and settings that the quick tests leave out."""

import pytest
import tf_keras as keras

from tests.support.optimizers import (
    KINDS,
    QUICK_KINDS,
    QUICK_SETTINGS,
    SETTINGS,
    check_kind,
    check_large_model,
    check_setting,
)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in KINDS if name not in QUICK_KINDS])
def test_an_update_is_that_of_the_optimizer(name):
    """T3, K2: dense and sparse gradients."""
    check_kind(name)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in QUICK_SETTINGS])
def test_settings_of_an_optimizer_count(name):
    """T3, K2: schedules, decay, clipping, loss scales."""
    check_setting(name)


def test_a_large_model_is_updated_alike_by_a_legacy_optimizer(monkeypatch):
    """T3: its updates wait until all gradients are there."""
    check_large_model(keras.optimizers.legacy.Adam, monkeypatch)
