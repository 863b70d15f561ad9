"""What several tests of trackers need."""

import pytest

from official_trainer.tracking import Place


@pytest.fixture
def place(tmp_path):
    return Place(directory=str(tmp_path), experiment="digits", name="run")
