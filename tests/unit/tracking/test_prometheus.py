import pytest

from official_trainer.tracking.prometheus import PrometheusConfig


def test_an_address_is_that_of_an_interface():
    """N48: before the run starts."""
    ((place, problem),) = PrometheusConfig(address="localhost").problems()
    assert place == "address"
    assert problem == "is 'localhost'; it must be an IP address, such as 127.0.0.1 or 0.0.0.0"


@pytest.mark.parametrize("fields", [{}, {"port": 0, "address": "::1"}])
def test_other_sections_are_taken(fields):
    """N48."""
    assert not list(PrometheusConfig(**fields).problems())
