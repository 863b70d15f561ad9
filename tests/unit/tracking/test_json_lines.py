"""`--log_format=json`: whatever is printed, each line is an object."""

import io
import json
import logging
import sys
import threading
import time

import pytest

from official_trainer import cli
from official_trainer.cli import terminal
from official_trainer.cli.verbs import train as train_verb
from official_trainer.errors import ExitCode, UserError
from official_trainer.processes.output import Printer
from official_trainer.tracking import json_lines
from official_trainer.tracking.console import Console, can_redraw
from official_trainer.tracking.json_lines import JsonLines
from official_trainer.tracking.record import RunRecord


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def shown(monkeypatch):
    """Runs `train --log_format=json` with a function instead of training; returns its objects of stdout and stderr."""
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "JOBSET_NAME", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)

    def run(function, capsys, *words, code=0):
        monkeypatch.setattr(train_verb, "run", lambda arguments: function() or 0)
        assert cli.main(["train", "--log_format=json", *words]) == code
        assert not isinstance(sys.stdout, JsonLines) and not isinstance(sys.stderr, JsonLines)
        return tuple(map(objects, capsys.readouterr()))

    return run


def test_what_is_printed_becomes_objects(shown, capsys):
    """N51: of code of a user's too; a line without an end comes at the end; an empty one is none."""

    def work():
        print("one", 2)
        print("\nbar\r50 %")
        print("warnings", file=sys.stderr, end="")
        logging.getLogger("official_trainer.sources").warning("of %d\nlines", 2)
        terminal.report_error("--x has no effect", "warning", "yellow")
        terminal.report_error("it was asked", "stopped")

    out, err = shown(work, capsys)
    assert [each["message"] for each in out] == ["one 2", "50 %"]
    assert [(each["level"], each["message"]) for each in err] == [
        ("warning", "of 2\nlines"),
        ("warning", "--x has no effect"),
        ("info", "stopped: it was asked"),
        ("info", "warnings"),
    ]
    assert err[0]["logger"] == "official_trainer.sources"
    assert all(each["time"].endswith("+00:00") and set(each) <= {"time", "level", "message", "logger"} for each in out)


def test_errors_are_objects(shown, capsys, monkeypatch):
    """N51: those of users, with their exit code; and an uncaught one with its traceback in one object."""

    class FullError(UserError, OSError):
        exit_code = ExitCode.RETRY

    def fail(error):
        raise error

    _, (user,) = shown(lambda: fail(FullError("the disk\nis full")), capsys, code=int(ExitCode.RETRY))
    assert (user["level"], user["message"]) == ("error", "the disk\nis full")
    _, (whole, mistake) = shown(lambda: fail(KeyError("a")), capsys, "--traceback", code=1)
    assert (whole["level"], whole["error"], mistake["level"]) == ("error", "KeyError", "error")
    assert whole["message"].startswith("Traceback (most recent call last):") and "KeyError: 'a'" in mistake["message"]
    monkeypatch.setattr(train_verb, "run", None)
    assert cli.main(["train", "--log_format=json"]) == 1
    (bug,) = objects(capsys.readouterr().err)
    assert bug["error"] == "TypeError" and bug["message"].endswith("'NoneType' object is not callable")


def test_an_error_before_the_flag_is_known_is_text(capsys):
    """N51: the flag itself may be what is wrong."""
    assert cli.main(["train", "--log_format=xml"]) == 2
    assert "expected" in capsys.readouterr().err
    assert cli.main(["train", "--log_format=json", "--no_such_flag"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_metrics_are_numbers(shown, capsys, tmp_path, monkeypatch):
    """N51: with run, worker, step, phase and the job's ids; what is not finite is text, as JSON asks."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_PROCID", "1")

    def work():
        json_lines.note(run="runs/a", worker="worker 1")
        launch = {"experiment": "digits", "mode": "train", "argv": [], "imports": [], "config_digest": "0"}
        record = RunRecord(str(tmp_path), launch)
        record.start()
        record.phase("train", 10)
        console = Console(sys.stdout, end_step=40, monitored="accuracy")
        console.log("train", 20, {"training_loss": 0.5, "rate": float("nan")})
        console.log("validation", 20, {"accuracy": 0.75})
        console.message("saved ckpt-20")
        console.hint("next")
        console.close()

    (train, validation, saved), _ = shown(work, capsys)
    known = {"level": "info", "run": "runs/a", "worker": "worker 1", "phase": "train", "step": 20}
    assert train.items() >= known.items() and validation.items() >= known.items() and saved.items() >= known.items()
    assert train["job"] == {"slurm_job_id": "77", "slurm_procid": "1"}
    assert train["metrics"] == {"loss": 0.5, "rate": "NaN"} and train["end_step"] == 40
    assert (train["split"], train["message"]) == ("train", "step 20/40  loss 0.5  rate nan")
    assert (validation["split"], validation["metrics"]) == ("validation", {"accuracy": 0.75})
    assert "metrics" not in saved


def test_a_result_that_is_json_stays_it(monkeypatch, capsys):
    """N51: `--json` prints one value; what is said beside it is in objects."""

    def run(arguments):
        print(json.dumps({"accuracy": 0.5}, indent=2))
        terminal.report_error("slow", "warning")
        return 0

    monkeypatch.setattr("official_trainer.cli.verbs.eval.run", run)
    assert cli.main(["eval", "--log_format=json", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"accuracy": 0.5} and objects(err)[0]["message"] == "slow"


def test_threads_do_not_mix_their_lines():
    """N51: each `print` is two writes."""
    stream = io.StringIO()
    lines = JsonLines(stream, {})

    def work(name):
        for number in range(200):
            print(name, number, file=lines)
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [each["message"] for each in objects(stream.getvalue())]
    assert sorted(found) == sorted(f"{name} {number}" for name in "abcd" for number in range(200))


def test_output_of_several_processes_is_one_stream():
    """N51: each line keeps its object and gets the name of its process; a line of a C library becomes one."""
    stream = io.StringIO()
    printer = Printer(stream, relay=JsonLines(stream, {"job": {"slurm_job_id": "7"}}).relay)
    printer.expect(["worker 0", "worker 1"])
    printer.say("started")
    one = printer.lines_of("worker 1")
    inner = json.dumps({"time": "t", "level": "error", "message": "no", "step": 3, "worker": "worker"})
    one.feed(f"{inner}\nI0000 grpc\n[1, 2]\n".encode())
    one.feed(b'{"time": "cut')
    one.end()
    said, error, native, other, cut = objects(stream.getvalue())
    assert (said["message"], said["worker"], said["job"]) == ("started", "launch", {"slurm_job_id": "7"})
    assert error == {"time": "t", "level": "error", "message": "no", "step": 3, "worker": "worker 1"}
    assert [each["message"] for each in (native, other, cut)] == ["I0000 grpc", "[1, 2]", '{"time": "cut']
    assert all(each["worker"] == "worker 1" for each in (native, other, cut))


def test_nothing_is_drawn_and_a_reader_that_has_gone_changes_nothing():
    """N51: no bar on a terminal; the run goes on."""

    class Broken(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

    lines = JsonLines(Broken(), {})
    assert not can_redraw(lines)
    print("x", file=lines)
    with pytest.raises(io.UnsupportedOperation):
        lines.fileno()
