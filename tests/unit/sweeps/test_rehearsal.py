"""What is tried before the first trial; that one driver tries it is in `test_driver.py`."""

import pytest

from official_trainer.processes.starter import Slot
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps import rehearsal
from official_trainer.sweeps.trial import SweepError


class Processes:
    """Each process prints `text`, leaves what a check that is killed would leave, and ends with `code`."""

    def __init__(self, directory, code=0, text=b""):
        self._directory, self._code, self._text = directory, code, text

    def start(self, process):
        assert not (self._directory / "check").exists()
        (self._directory / "check").mkdir()
        process.lines.feed(self._text)
        self._process = process

    def wait(self, seconds):
        return self._process, self._code


class Signals:
    asked, insisted = None, False

    def read(self):
        pass


def rehearse(directory, processes, signals=Signals):
    rehearsal.rehearse(["check"], str(directory), processes, signals(), Slot())


def test_nothing_is_left_of_a_check_also_not_of_one_that_was_killed(tmp_path):
    """N21: the directory ends with the files of a sweep that was never killed."""
    (tmp_path / "check" / ".check").mkdir(parents=True)
    (tmp_path / "check.log").write_text("killed here")
    rehearse(tmp_path, Processes(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_check_is_shown_also_if_it_printed_nothing_else(tmp_path):
    """N21: with its exit code; the log stays."""
    for text in (b"error: --set: no\n", b"ok  config\nerror: --set: no\n"):
        with pytest.raises(SweepError, match=r"^--set: no\nThis was found before the first trial") as caught:
            rehearse(tmp_path, Processes(tmp_path, 2, text))
        assert caught.value.exit_code == 2 and (tmp_path / "check.log").read_bytes() == text


def test_a_signal_ends_a_check(tmp_path):
    """N21: and the sweep, without a trial."""
    with pytest.raises(PreemptedError, match="no trial was started; the same command begins again"):
        rehearse(tmp_path, Processes(tmp_path, -15), type("Asked", (Signals,), {"asked": "SIGTERM"}))
