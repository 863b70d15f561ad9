"""Why trials fail, and when a sweep ends for it."""

import json

import pytest

from official_trainer.errors import ExitCode
from official_trainer.sweeps.failures import failure_of, refuse_more, unfinished
from official_trainer.sweeps.observer import PlainLines
from official_trainer.sweeps.trial import SweepError, Trial

REPORT = """experiments/broken.py:86 in build_model, while building the model
    raise ValueError("a bug of mine")
  called from experiments/broken.py:44 in inner
  ValueError: a bug of mine
  the shapes are these
  traceback: runs/sweep/trials/0/run/traceback.txt (--traceback prints it)"""


def failure(tmp_path, error, code=1, last=()):
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"run_id": "x", "error": error}))
    return failure_of(str(tmp_path), f"ended with exit code {code}", code, last)


def failed(number, cause="", reason="a reason"):
    return Trial(number=number, values={}, state="failed", reason=reason, cause=cause)


def complete(number):
    return Trial(number=number, values={}, state="complete", value=1.0, step=1)


def test_an_error_in_the_users_code_is_one_line_with_its_place(tmp_path):
    """N21: and the file with the traceback; its report, of at most 15 lines, is printed once."""
    found = failure(tmp_path, REPORT)
    assert found.reason == "experiments/broken.py:86 in build_model: ValueError: a bug of mine"
    assert found.cause == "ValueError at experiments/broken.py:86"
    assert found.path == "runs/sweep/trials/0/run/traceback.txt"
    printed = []
    lines = PlainLines({}, printed.append)
    for number in (0, 1):
        lines.end(failed(number), f"failed: {found.reason}", found)
    short = [f"trial {{}} failed: {found.reason}", "  runs/sweep/trials/0/run/traceback.txt"]
    assert printed == [
        short[0].format(0),
        short[1],
        *(f"  {line}" for line in REPORT.splitlines()),
        short[0].format(1),
        short[1],
    ]


def test_another_error_is_its_first_line(tmp_path):
    """N21: with its output as the place for more; without a record, its last line, or that of the error."""
    found = failure(tmp_path, "task.train_data holds no files\nname another folder", ExitCode.DATA)
    assert (found.reason, found.cause) == ("task.train_data holds no files", "data")
    assert found.path == str(tmp_path / "output.log")
    assert failure(tmp_path, "a.b: must be at least 1", ExitCode.CONFIG).cause == ""
    printed = failure(tmp_path, None, last=["one", "  two"])
    assert (printed.reason, printed.cause) == ("ended with exit code 1: two", "")
    refused = failure(tmp_path, None, ExitCode.CONFIG, last=["one", "error: a.b: must be 1", "  a.b=2", "      ^"])
    assert (refused.reason, refused.cause) == ("ended with exit code 2: a.b: must be 1", "")
    lines, long = [], failure(tmp_path, "word " * 100)
    PlainLines({}, lines.append).end(failed(0), f"failed: {long.reason}", long)
    assert len(lines[0]) == 120 and lines[0].endswith("…")


def test_the_same_error_in_the_first_two_trials_ends_a_sweep_and_so_do_five_failures_in_a_row():
    """N21: what is wrong, and how it goes on; a third trial would fail too."""
    alike = [failed(0, "ValueError at a.py:3", "a.py:3 in f: ValueError: x"), failed(1, "ValueError at a.py:3")]
    with pytest.raises(SweepError, match=r"trials 0 and 1 failed by the same error, .*: a.py:3 in f: V") as raised:
        refuse_more("runs/sweep", alike)
    assert "`official-trainer sweep retry runs/sweep`" in str(raised.value)
    assert raised.value.exit_code == ExitCode.FAILED
    with pytest.raises(SweepError) as raised:
        refuse_more("runs/sweep", [failed(0, "data"), failed(1, "data")])
    assert raised.value.exit_code == ExitCode.DATA
    with pytest.raises(SweepError, match="the last 5 trials failed; the last one: a reason"):
        refuse_more("runs/sweep", [complete(0), *map(failed, range(1, 6))])


@pytest.mark.parametrize(
    "found",
    [
        [],
        [failed(0, "ValueError at a.py:3")],
        [failed(0, "ValueError at a.py:3"), failed(1, "ValueError at a.py:4")],
        [failed(0), failed(1)],
        [complete(0), failed(1, "x"), failed(2, "x")],
        [failed(0), complete(1), *map(failed, range(2, 6))],
    ],
)
def test_other_failures_do_not_end_it(found):
    """N21: a combination that the config refuses, or a bug that not all trials meet."""
    refuse_more("runs/sweep", found)


def test_too_little_memory_is_no_reason_to_end_it(tmp_path):
    """N21: at the same line, but for another batch size."""
    found = failure(tmp_path, REPORT.replace("ValueError: a bug of mine", "ResourceExhaustedError: OOM"))
    assert found.cause == "" and found.reason.endswith("ResourceExhaustedError: OOM")


def test_a_run_that_its_process_left_in_the_middle_is_unfinished(tmp_path):
    """N21: os._exit(0) in the user's code looks like an end; the evaluations until then are no result."""
    assert unfinished(str(tmp_path)) == ""  # a function may train without a run directory
    for status, what in (
        ("done", ""),
        ("running", "its process ended with exit code 0 in the middle of the run; look for os._exit in your code"),
    ):
        (tmp_path / "run.json").write_text(json.dumps({"run_id": "x", "status": status}))
        assert unfinished(str(tmp_path)) == what
