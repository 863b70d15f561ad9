"""What is tried before the first trial, by one of the drivers that begin at the same time."""

import pytest

from official_trainer.lock import DirectoryLock
from official_trainer.processes.starter import Slot
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps import rehearsal
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import SweepError, Trial


class Processes:
    """Each process prints `text`, leaves what a check that is killed would leave, and ends with `code`."""

    def __init__(self, directory, code=0, text=b""):
        self.started, self._directory, self._code, self._text = 0, directory, code, text

    def start(self, process):
        self.started += 1
        assert not (self._directory / "check").exists()
        (self._directory / "check").mkdir()
        process.lines.feed(self._text)
        self._process = process

    def wait(self, seconds):
        return self._process, self._code


class Signals:
    asked = None

    def __init__(self, *waits):
        self._waits = list(waits)

    def read(self):
        pass

    def wait(self, seconds):
        return self._waits.pop(0)() or False


def rehearse(directory, processes, signals=None):
    rehearsal.rehearse(["check"], str(directory), processes, signals or Signals(), slot=Slot())


def left(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".check")


def test_nothing_is_left_of_a_check_also_not_of_one_that_was_killed(tmp_path):
    """N21: the directory ends with the files of a sweep that was never killed."""
    (tmp_path / "check" / ".check").mkdir(parents=True)
    (tmp_path / "check.log").write_text("killed here")
    rehearse(tmp_path, Processes(tmp_path))
    assert left(tmp_path) == []
    (tmp_path / "check").mkdir()
    (tmp_path / ".check.json.tmp-1-0123abcd").write_text("{")
    rehearsal.clean_up(str(tmp_path))
    assert left(tmp_path) == []


def test_the_error_of_a_check_is_shown_also_if_it_printed_nothing_else(tmp_path):
    """N21: with its exit code; the log stays."""
    for text in (b"error: --set: no\n", b"ok  config\nerror: --set: no\n"):
        with pytest.raises(SweepError, match=r"^--set: no\nThis was found before the first trial") as caught:
            rehearse(tmp_path, Processes(tmp_path, 2, text))
        assert caught.value.exit_code == 2 and (tmp_path / "check.log").read_bytes() == text


def test_one_of_several_drivers_tries_the_first_trial(tmp_path):
    """N21: the others wait for it; if it was killed, the next one tries, unless a trial is there by then."""
    other = DirectoryLock(tmp_path, name="check")
    for is_recorded in (False, True):
        assert other.try_acquire()
        (tmp_path / "check.log").write_text("")

        def end(is_recorded=is_recorded):
            if is_recorded:
                trials.write(str(tmp_path), Trial(number=0, values={}))
            other.release()

        processes = Processes(tmp_path)
        rehearse(tmp_path, processes, Signals(lambda: None, end))
        assert processes.started == (not is_recorded) and "check.log" not in left(tmp_path)


def test_a_signal_ends_the_wait_for_another_driver(tmp_path):
    """N21: and its check goes on."""
    with DirectoryLock(tmp_path, name="check"):
        (tmp_path / "check").mkdir()
        with pytest.raises(PreemptedError, match="no trial was started; the same command begins again"):
            rehearse(tmp_path, Processes(tmp_path), Signals(lambda: True))
        rehearsal.clean_up(str(tmp_path))
        assert (tmp_path / "check").exists()
