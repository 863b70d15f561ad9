import pytest

from official_trainer.config.addresses import secret_problem

FIX = "set url_env"


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("https://hooks.slack.com/services/T0AA/B0BB/aB3dE5gH7jK9mN1pQ3sT5uV7", "a token"),
        ("https://discord.com/api/webhooks/123456789012345678/aB3dE5gH7jK9mN1pQ3sT5_-uV7", "a token"),
        ("https://chat.example/v1/spaces/A/messages?key=K", "a query"),
        ("postgresql://me:word@db/mlflow", "a user or a password"),
    ],
)
def test_what_looks_like_a_secret_is_found_and_not_repeated(address, what):
    """N6: the fix is in the message, the address is not."""
    problem = secret_problem(address, FIX)
    assert problem == (
        f"holds {what}, which would be written to params.yaml, checkpoints and trackers with the config; {FIX}"
    )


@pytest.mark.parametrize(
    "address",
    [
        "https://monitor.example/runs/digits",
        "http://127.0.0.1:5000",
        "https://h/a-long-name-of-a-project",
        "https://[x",
    ],
)
def test_other_addresses_may_stand_in_a_config(address):
    assert secret_problem(address, FIX) is None
