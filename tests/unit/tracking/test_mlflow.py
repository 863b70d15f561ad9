import pytest

from official_trainer.tracking.mlflow import MlflowConfig


def test_a_password_in_the_address_is_refused():
    """N6: it would be written to the run directory with the config; the message does not repeat it."""
    ((field, problem),) = MlflowConfig(tracking_uri="https://me:word@host").problems()
    assert field == "tracking_uri"
    assert "holds a user or a password" in problem
    assert "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for a server" in problem
    assert "word@" not in problem


@pytest.mark.parametrize("uri", [None, "http://localhost:5000", "sqlite:////home/me@work/mlflow.db", "databricks"])
def test_other_addresses_are_taken(uri):
    assert not list(MlflowConfig(tracking_uri=uri).problems())
