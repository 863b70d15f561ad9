"""SIGKILL at random: the same command again ends with the same bits. Each campaign is another variant of the run."""

import pytest

from tests.chaos.campaign import Campaign, EndlessCampaign
from tests.chaos.summary import FULL, SHORT


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        is_full = metafunc.config.getoption("--chaos") == "full"
        metafunc.parametrize("number", range((FULL if is_full else SHORT)["campaigns"]))


@pytest.fixture
def strike(request, workspace, tallied, number):
    seed = request.config.getoption("--chaos-seed")
    amounts = FULL if request.config.getoption("--chaos") == "full" else SHORT

    def strike(strikes_at):
        campaign = Campaign(workspace, number, seed=seed, strikes_at=strikes_at)
        problem = campaign.run(amounts[strikes_at])
        tallied(campaign.tally)
        again = f"pytest 'tests/chaos/{request.node.nodeid.rpartition('/')[2]}' --chaos=full --chaos-seed={seed} -n 0"
        story = "\n".join(campaign.story)
        assert not problem, f"{problem}\n\nseed {seed}, campaign {number}; once more: {again}\n{story}"

    return strike


def test_kills_at_any_instant(strike):
    """N1, N3: uniform over the time of an unbroken run: start-up, restore, trace, train, save, evaluate, export."""
    strike("instants")


def test_kills_between_any_two_writes(strike):
    """N1, N3: just before any change that the run makes in its directory, where time alone hardly ever strikes."""
    strike("writes")


def test_a_directory_does_not_fill_up(workspace, tallied, request):
    """N3: one run, killed again and again between two writes, holds no more files than one that never was."""
    is_full = request.config.getoption("--chaos") == "full"
    campaign = EndlessCampaign(workspace, seed=request.config.getoption("--chaos-seed"))
    problem = campaign.run(150 if is_full else 2)
    tallied(campaign.tally)
    assert not problem, "\n".join([problem, *campaign.story])
