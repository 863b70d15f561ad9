"""N34: many mutated configurations; what this has found has a test of its own in tests/unit/config/."""

import pytest

from tests.support.cases import cases
from tests.support.config.fuzzing import Campaign


@pytest.mark.parametrize("count", cases([200, 5_000, 150_000], 200))
def test_mutated_configurations(tmp_path, count):
    """N7, N34: nothing but a ConfigError escapes, nothing hangs, and what is accepted can be read back."""
    campaign = Campaign(tmp_path)
    campaign.run(count)
    assert campaign.accepted > count / 20
