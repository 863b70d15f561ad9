"""SIGKILL at random: the same command again ends with the same bits. Each campaign is another variant of the run."""

import pytest

from tests.support.cases import cases
from tests.support.chaos.campaign import Campaign, EndlessCampaign

CAMPAIGNS = 48


@pytest.fixture
def strike(request, workspace, tallied):
    seed = request.config.getoption("--chaos-seed")

    def strike(strikes_at, number, kills):
        campaign = Campaign(workspace, number, seed=seed, strikes_at=strikes_at)
        problem = campaign.run(kills)
        tallied(campaign.tally)
        again = f"pytest '{request.node.nodeid}' -m '' --chaos-seed={seed} -n 0"
        story = "\n".join(campaign.story)
        assert not problem, f"{problem}\n\nseed {seed}, campaign {number}; once more: {again}\n{story}"

    return strike


@pytest.mark.parametrize(("number", "kills"), cases([(0, 2), *((number, 5) for number in range(CAMPAIGNS))], (0, 2)))
def test_kills_at_any_instant(strike, number, kills):
    """N1, N3: uniform over the time of an unbroken run: start-up, restore, trace, train, save, evaluate, export."""
    strike("instants", number, kills)


@pytest.mark.parametrize(("number", "kills"), cases([(0, 1), *((number, 3) for number in range(CAMPAIGNS))], (0, 1)))
def test_kills_between_any_two_writes(strike, number, kills):
    """N1, N3: just before any change that the run makes in its directory, where time alone hardly ever strikes."""
    strike("writes", number, kills)


@pytest.mark.parametrize("kills", cases([2, 150], 2))
def test_a_directory_does_not_fill_up(workspace, tallied, request, kills):
    """N3: one run, killed again and again between two writes, holds no more files than one that never was."""
    campaign = EndlessCampaign(workspace, seed=request.config.getoption("--chaos-seed"))
    problem = campaign.run(kills)
    tallied(campaign.tally)
    assert not problem, "\n".join([problem, *campaign.story])
