"""Mistakes in the user's code, met while it runs: the message, in a few lines, says where and what."""

from tests.support import mistakes
from tests.support.mistakes import Mistake


def test_the_task_itself_has_no_mistake(tmp_path, monkeypatch):
    """N28: what the rows change trains, evaluates and exports."""
    found = mistakes.outcome(Mistake(name="none", changes={}, code=0), tmp_path, monkeypatch)
    assert (found.code, found.message) == (0, ""), found.text
