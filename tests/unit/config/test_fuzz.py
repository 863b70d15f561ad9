"""N34: configurations from real files, mutated, end as a configuration that can be read back or as a ConfigError."""

from tests.support.config.fuzzing import Campaign


def test_mutated_configurations(tmp_path):
    """N7, N34: a few of them each time; tests/system/config/test_fuzz.py tries many."""
    campaign = Campaign(tmp_path)
    campaign.run(25)
    assert campaign.counts["accepted"] > 0
