"""Programs at events: what they are given, how long they may run, and that none is left behind."""

import json
import pathlib
import sys
import textwrap
import threading
import types

import pytest

from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.command import CommandConfig
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.action_runs import NAME, do
from tests.support.runs import differences
from tests.support.waiting import until


class Events:
    """A schedule with one action, and a run of 100 steps for it to see."""

    def __init__(self, action, model_dir, on_error="warn"):
        action.on_error = on_error
        self.action, self.schedule = action, Schedule([action])
        trainer = types.SimpleNamespace(process_group=types.SimpleNamespace(stop=StopRequest()))
        self.run = Run(state=LoopState(end_step=100), trainer=trainer, model_dir=str(model_dir), tracker=None)
        self.schedule.start(self.run)

    def step(self, step, **logs):
        self.run.state.step = self.run.summary_step = step
        self.run.train_logs = logs
        self.schedule.step(summarized=True, ended=step == 100)

    def eval(self, step, **logs):
        self.run.state.step = step
        self.schedule.evaluation(logs, ended=step == 100)

    def end(self, failure=None):
        self.schedule.end(failure)


WRITE = """
import json, os, sys
names = [name for name in os.environ if name.startswith("OFFICIAL_TRAINER_")]
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({**{name[17:]: os.environ[name] for name in names}}) + "\\n")
print("wrote", os.environ["OFFICIAL_TRAINER_EVENT"])
"""


def python(code, *arguments):
    return (sys.executable, "-c", textwrap.dedent(code), *arguments)


def yaml(argv):
    return json.dumps(list(argv))


def read(path):
    path = pathlib.Path(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def command(argv, events=("end", "failure"), **fields):
    return CommandConfig(argv=argv, events=events, **fields).build()


# Whole runs.


def test_a_run_tells_a_program_what_happens(model_dir, tmp_path):
    """Each event once, in order, with step and metrics; the run ends as one without, bit for bit."""
    told = tmp_path / "told"
    argv = yaml(python(WRITE, str(told)))
    do(model_dir, f"trainer.actions=[{{type: command, argv: {argv}, events: [start, step, eval, end, failure]}}]")
    rows = read(told)
    assert [(row["EVENT"], int(row["STEP"])) for row in rows] == [
        ("start", 0), ("step", 10), ("step", 20), ("eval", 20), ("step", 30), ("step", 40), ("eval", 40), ("end", 40)
    ]  # fmt: skip
    by_event = {row["EVENT"]: row for row in rows}
    assert by_event["end"]["METRICS"] == by_event["eval"]["METRICS"]
    assert "accuracy" in json.loads(by_event["end"]["METRICS"])
    assert "training_loss" in json.loads(by_event["step"]["METRICS"])
    assert by_event["start"] == {
        "EVENT": "start", "STEP": "0", "METRICS": "{}", "REASON": "",
        "MODEL_DIR": model_dir, "EXPERIMENT": NAME,
    }  # fmt: skip
    log = pathlib.Path(model_dir, "commands", "command.log").read_text()
    assert log.count("\nwrote ") == 8 and "(event end of step 40)\n" in log
    do(tmp_path / "plain")
    assert differences(model_dir, str(tmp_path / "plain")) == []


def test_the_best_evaluation_is_told_of(model_dir, tmp_path):
    """C1: each that is better than all before, with its metrics; not the others."""
    argv = yaml(python(WRITE, str(tmp_path / "told")))
    sets = ("trainer.best_checkpoint_eval_metric=accuracy", "trainer.best_checkpoint_export_subdir=best")
    do(model_dir, f"trainer.actions=[{{type: command, argv: {argv}, events: [best, eval]}}]", *sets)
    rows = read(tmp_path / "told")
    accuracies = [json.loads(row["METRICS"])["accuracy"] for row in rows if row["EVENT"] == "eval"]
    better = [number for number, value in enumerate(accuracies) if value > max(accuracies[:number], default=-1.0)]
    assert [int(row["STEP"]) for row in rows if row["EVENT"] == "best"] == [20 * (number + 1) for number in better]


def test_no_shell_reads_the_arguments(tmp_path):
    """What a reason is called can do nothing."""
    action = command((*python(WRITE, str(tmp_path / "told")), "$HOME; `touch oh` > x"), ("failure",))
    watched = Events(action, tmp_path)
    watched.end(RuntimeError("$(touch oh); 'no"))
    (row,) = read(tmp_path / "told")
    assert row["REASON"] == "RuntimeError: $(touch oh); 'no"


# Errors.


def test_an_exit_code_is_an_error_with_the_last_line_and_the_log(tmp_path, caplog):
    """And the others are told all the same."""
    action = command(python("print('one\\ntwo'); raise SystemExit(3)"), ("step", "end"))
    watched = Events(action, tmp_path)
    watched.step(10)
    watched.end()
    for event in ("step of step 10", "end of step 10"):
        assert f"(event {event}) ended with exit code 3: two; its output is in {tmp_path}/commands/" in caplog.text


def test_an_error_ends_the_run_if_asked_to(tmp_path):
    """With `on_error: fail`, at the step at which the program has failed."""
    watched = Events(command(python("raise SystemExit(1)"), ("step",)), tmp_path, "fail")
    with pytest.raises(ActionError, match=r"failed in on_step at step 10: .*\(event step of step 10\) ended with exit"):
        watched.step(10)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("no_such_program", "argv: 'no_such_program' is not on the PATH; give its path, or install it"),
        ("/no/such", "argv: '/no/such' is not an executable file; give its path"),
        ("echo hi", r"argv: 'echo hi' is not on the PATH; write each argument by itself: \[echo, hi\]"),
    ],
)
def test_a_program_that_is_not_there_is_said_at_the_start(program, message, tmp_path):
    """Not after days, when the run fails."""
    with pytest.raises(ActionError, match=message):
        Events(command((program,)), tmp_path, "fail")


# Processes.


def is_alive(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


FAMILY = ("/bin/sh", "-c", 'sleep 300 & echo $$ $! > "$0.new"; mv "$0.new" "$0"; wait')


def test_a_program_that_takes_too_long_is_killed_with_all_it_has_started(tmp_path, caplog):
    """No process and no zombie is left."""
    pids = tmp_path / "pids"
    Events(command((*FAMILY, str(pids)), ("start",), timeout_seconds=2), tmp_path)
    assert "(event start of step 0) had not ended after timeout_seconds=2 and was killed" in caplog.text
    parent, child = map(int, pids.read_text().split())
    until(lambda: not is_alive(child))
    assert not pathlib.Path(f"/proc/{parent}").exists()  # reaped


def test_a_stop_leaves_a_program_little_time(tmp_path, monkeypatch, caplog):
    """N5: far less than its own limit and the scheduler's; then it is killed, and the run saves."""
    monkeypatch.setattr("official_trainer.actions.command.STOP_SECONDS", 0.5)
    pids = tmp_path / "pids"
    watched = Events(command((*FAMILY, str(pids)), ("step", "preempted"), timeout_seconds=300), tmp_path)
    stop = watched.run.trainer.process_group.stop

    def ask():
        until(pids.exists)
        stop.reason = "SIGTERM"

    threading.Thread(target=ask).start()
    watched.step(10)
    with pytest.raises(PreemptedError) as stopped:
        stop.check()
    watched.end(stopped.value)
    for event in ("step", "preempted"):
        assert f"(event {event} of step 10) had not ended when the run was asked to stop (SIGTERM)" in caplog.text
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not is_alive(pid))


def test_a_program_that_is_quick_enough_ends_though_the_run_stops(tmp_path):
    """N5: it is told of as preempted."""
    watched = Events(command(python(WRITE, str(tmp_path / "told")), ("preempted", "failure")), tmp_path, "fail")
    watched.run.trainer.process_group.stop.reason = "SIGTERM"
    watched.end(PreemptedError("SIGTERM at step 10"))
    (row,) = read(tmp_path / "told")
    assert (row["EVENT"], row["REASON"]) == ("preempted", "SIGTERM at step 10")


def test_a_hanging_run_is_told_of(tmp_path):
    """N12: from the thread that ends the process."""
    watched = Events(command(python(WRITE, str(tmp_path / "told")), ("stall",)), tmp_path)
    watched.schedule.stall("no step for 300 s")
    (row,) = read(tmp_path / "told")
    assert (row["EVENT"], row["REASON"]) == ("stall", "no step for 300 s")


def test_an_end_that_nobody_planned_says_why(tmp_path):
    """The reason of whoever asked for it; and a failure's is the user's message."""
    action = command(python(WRITE, str(tmp_path / "told")))
    watched = Events(action, tmp_path)
    watched.run.state.stop_reason = "accuracy is no better"
    watched.end()
    watched = Events(action := command(python(WRITE, str(tmp_path / "told"))), tmp_path)
    watched.end(NonFiniteError("the loss is nan"))
    assert [row["REASON"] for row in read(tmp_path / "told")] == ["accuracy is no better", "the loss is nan"]
