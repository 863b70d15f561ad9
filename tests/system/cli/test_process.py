"""The process of a command: Ctrl-C at any moment of its start, standard streams that are closed or not read."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests import ROOT
from tests.support.cases import cases, full
from tests.support.terminal import on_a_terminal
from tests.support.workspace import copy_workspace

CTRL_C = ROOT / "tests" / "support" / "cli" / "ctrl_c"
PROGRAM = [sys.executable, "-m", "official_trainer"]
SCRIPT = [sys.executable, str(ROOT / "train.py")]
SMOKE = ["--experiment=digits_mlp", f"--config_file={ROOT}/configs/smoke/digits_mlp.yaml"]

COMMANDS = {
    "list": [*PROGRAM, "list"],
    "show": [*PROGRAM, "show", "digits_cnn"],
    "launch": [*PROGRAM, "launch", "local", "--dry_run", "digits_cnn"],
    "train.py": [*SCRIPT, *SMOKE, "trainer.train_stepz=1"],
}
LONG_COMMANDS = {
    "train": [*SCRIPT, *SMOKE, "--model_dir=run"],
    "launch": [*PROGRAM, "launch", "local", "--", *SMOKE, "--model_dir=run"],
}


@pytest.fixture
def workspace(tmp_path):
    """The experiments, of which that of digits prints, as a user's task may."""
    copy_workspace(tmp_path, "experiments")
    digits = tmp_path / "experiments" / "digits.py"
    begin = "        section = self.task_config.model\n"
    text = digits.read_text()
    assert text.count(begin) == 1
    digits.write_text(text.replace(begin, f"        print('a line of the task ' * 9999, flush=True)\n{begin}"))
    return tmp_path


@pytest.fixture(autouse=True)
def signals():
    """Signals are not ignored, as they would be if pytest ran under `nohup` or in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(command, cwd, at=0, count=""):
    environ = {**os.environ, "PYTHONPATH": f"{CTRL_C}:{ROOT}", "CTRL_C_AT": str(at), "CTRL_C_COUNT": str(count)}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=240)


def press(command, cwd, moments):
    """Presses Ctrl-C at so many moments between the first call and the last one; returns how the processes ended."""
    for _ in range(2):  # the first one leaves caches, so that later ones make fewer calls
        run(command, cwd, count=cwd / "count")
    calls = int((cwd / "count").read_text())
    assert calls > 1000
    return [run(command, cwd, at=1 + calls * moment // moments) for moment in range(moments)]


def assert_quiet(done, allowed):
    assert done.returncode in allowed, done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done
    assert len(done.stderr.splitlines()) <= 2, done


def test_compiled_code_that_crashes_is_placed_in_the_users_file(workspace):
    """N7: a wrong index in an operation may end the process; only the shell would say so."""
    digits = workspace / "experiments" / "digits.py"
    begin, crash = "        section = self.task_config.model", "        __import__('ctypes').string_at(0)"
    digits.write_text(digits.read_text().replace(begin, f"{crash}\n{begin}"))
    done = run([*PROGRAM, "check", *SMOKE], workspace)
    assert done.returncode == -signal.SIGSEGV
    line = digits.read_text().splitlines().index(crash) + 1
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert f'digits.py", line {line} in build_model' in done.stderr


@pytest.mark.parametrize("moments", [3, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", cases(list(COMMANDS), "list", "train.py"))
def test_ctrl_c_at_any_moment_of_a_command_ends_it_without_a_traceback(name, moments, workspace):
    """N6: while it imports, reads, prints: with 130, or by the signal, which a shell shows as 130; a run with 143."""
    for done in press(COMMANDS[name], workspace, moments):
        assert_quiet(done, {-signal.SIGINT, 130, 143})


TRAINING = 1_500_000
"""A call of a function in the midst of all that a training of some steps makes."""


@pytest.mark.parametrize(("name", "moments"), [("train", 2), *(full((name, 60)) for name in LONG_COMMANDS)])
def test_ctrl_c_while_tensorflow_is_imported_and_used_ends_a_command_without_a_traceback(name, moments, workspace):
    """N5, N6: a run ends with 143; before it has begun, with 130."""
    command = LONG_COMMANDS[name]
    few = [run(command, workspace, at=at) for at in (1, TRAINING)] if moments == 2 else []  # counting takes a run
    for done in few or press(command, workspace, moments):
        assert_quiet(done, {-signal.SIGINT, 130, 143})
        assert done.returncode != 143 or "stopped: " in done.stderr


# Streams


def shell(text, cwd):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    text = text.replace("TRAINER", f"{sys.executable} -m official_trainer")
    return subprocess.run(["bash", "-c", text], cwd=cwd, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("TRAINER list >&-", 0, ""),
        ("TRAINER list >&- 2>&- <&-", 0, ""),
        ("TRAINER lst 2>&-", 2, ""),
        ("TRAINER lst 2>/dev/full", 2, ""),
        ("TRAINER list | head -0; exit ${PIPESTATUS[0]}", 141, ""),
        ("TRAINER lst 2>&1 | head -0; exit ${PIPESTATUS[0]}", 2, ""),
        ("TRAINER list >/dev/full", 75, "error: No space left on device"),
    ],
)
def test_streams_that_are_closed_or_full(text, code, said, workspace):
    """N6: the exit code is that of the command; nothing but an error of the output itself is said."""
    done = shell(text, workspace)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said) and bool(said) == bool(done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(workspace):
    """N6: what is printed, by C code too, would be written into it."""
    look = "import os, sys; from official_trainer.cli import process; process.prepare(); f = open('file', 'w'); "
    look += "os.write(1, b'lost'); os.write(2, b'lost'); sys.exit(3 if f.fileno() > 2 else 4)"
    assert shell(f'{sys.executable} -c "{look}" <&- >&- 2>&-', workspace).returncode == 3
    assert (workspace / "file").read_text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "TRAINER train WORDS 2>/dev/full | head -1; exit ${PIPESTATUS[0]}",
        full("TRAINER train WORDS 2>&1 | head -0; exit ${PIPESTATUS[0]}"),
        full("TRAINER train WORDS >&- 2>&-"),
        full("TRAINER launch local --log_dir=logs -- WORDS | head -1; exit ${PIPESTATUS[0]}"),
    ],
)
def test_a_run_goes_on_when_nothing_reads_what_it_prints(text, workspace):
    """N5, N6: to its end, with the exit code of a run that is done."""
    words = [*SMOKE, "--mode=train", "--model_dir=run", "trainer.export.at_end=false"]
    done = shell(text.replace("WORDS", " ".join(words)), workspace)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert committed_steps(str(workspace / "run"))[-1] == 20
    status = json.loads((workspace / "run" / "status.json").read_text())
    assert (status["exit_code"], status["phase"]) == (0, "done")
    if "log_dir" in text:
        assert "finished at step 20" in (workspace / "logs" / "worker-0.log").read_text()


@pytest.mark.parametrize(
    "under", [pytest.param([], id="closed"), pytest.param(["nohup"], id="nohup", marks=pytest.mark.full)]
)
def test_a_terminal_that_is_closed_stops_a_run_unless_it_is_under_nohup(under, workspace):
    """N5: it saves and ends with 143, though it can say so nowhere; under `nohup` it goes on to its end."""
    steps = 500 if under else 10_000_000
    words = [*SMOKE, "--model_dir=run", "trainer.export.at_end=false", "trainer.checkpoint_interval=10000"]
    words += [f"trainer.train_steps={steps}", "trainer.validation_interval=10000", "trainer.summary_interval=100"]
    trains, status = (workspace / "run" / name for name in ("metrics.jsonl", "status.json"))
    with on_a_terminal([*under, *PROGRAM, "train", *words], workspace) as (process, ours):
        while not trains.exists():
            assert process.poll() is None
            select.select([ours], [], [], 0.1)
            with contextlib.suppress(OSError):  # `nohup` has closed the other end
                os.read(ours, 1 << 16)  # a terminal that is not read would hold the run up
        os.close(ours)
        code = process.wait(240)
    assert code == (0 if under else 143)
    assert json.loads(status.read_text())["exit_code"] == code
    assert committed_steps(str(workspace / "run"))
