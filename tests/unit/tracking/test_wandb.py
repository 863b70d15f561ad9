"""Which W&B run a run is, and where, with a W&B that only notes what it is asked."""

import json
import sys
import types

import pytest

from official_trainer.tracking import Place
from official_trainer.tracking.wandb import WandbConfig


class Run:
    """A run of W&B, online at an address."""

    url = "https://wandb.ai/me/digits/runs/1"

    def log(self, values, step):
        """Takes numbers."""

    def finish(self, exit_code):
        """Ends it."""


@pytest.fixture
def fake(monkeypatch):
    module = types.SimpleNamespace(init=lambda **asked: Run(), Settings=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def known(tmp_path, mode):
    tracker = WandbConfig(mode=mode).build(Place(directory=str(tmp_path), experiment="digits", name="a"))
    tracker.describe("digits", {})
    at_start = json.loads((tmp_path / "wandb.json").read_text())
    tracker.log("train", 5, {"loss": 1.0})
    tracker.close()
    return at_start, json.loads((tmp_path / "wandb.json").read_text())


def test_the_address_of_an_online_run_is_kept(tmp_path, fake):
    """N22: a report links to it, from the start of the run on, and after a restart."""
    at_start, at_end = known(tmp_path, "online")
    assert at_start["url"] == at_end["url"] == Run.url
    assert at_end["step"] == 5
    assert known(tmp_path, "online")[0] == at_end


def test_an_offline_run_has_no_address(tmp_path, fake):
    """N22: `wandb sync` uploads it."""
    assert "url" not in known(tmp_path, "offline")[1]
