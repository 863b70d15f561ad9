"""The watchdog in real processes that hang, also where Python hangs with them, and that are paused."""

import os
import signal
import subprocess
import sys
import textwrap
import time

from official_trainer.errors import ExitCode
from tests import ROOT

CHILD_SECONDS = 120


_CHILD = """
import ctypes, functools, os, select, sys, threading, time
from official_trainer.config import RuntimeConfig
from official_trainer.runs.health.watchdog import Watchdog, dump_and_exit

model_dir = sys.argv[1]

def block_for_ever(*_):
    os.read(os.pipe()[0], 1)

def watchdog(seconds, record=lambda *stall: None, timeout_seconds=60):
    runtime = RuntimeConfig(stall_floor_seconds=seconds, stall_startup_seconds=seconds)
    end = functools.partial(dump_and_exit, folder=model_dir, told=[record], timeout_seconds=timeout_seconds)
    return Watchdog(runtime, model_dir, end=end)

"""


def child(tmp_path, body):
    script = tmp_path / "child.py"
    script.write_text(_CHILD + textwrap.dedent(body))
    (tmp_path / "run").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, str(script), str(tmp_path / "run")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environ, text=True, **pipes)


def finish(process, words=""):
    try:
        out, err = process.communicate(words, timeout=CHILD_SECONDS)
    finally:
        process.kill()
    return process.returncode, out, err


def test_a_stuck_process_ends_with_code_5_and_says_where(tmp_path):
    """N12, N6: code 5. On stderr and in the run directory, with the stacks of all threads."""
    body = """
    def load_the_batch_that_never_comes():
        threading.Event().wait()

    def generator_on_another_host():
        block_for_ever()

    threading.Thread(target=generator_on_another_host, name="reader", daemon=True).start()
    print("not flushed yet", end="")
    with watchdog(0.5, record=lambda message, code: open(model_dir + "/status", "w").write(message)) as dog:
        dog.enter("train", 41)
        dog.beat(42)
        dog.enter("save")
        load_the_batch_that_never_comes()
    """
    code, out, err = finish(child(tmp_path, body))
    assert code == ExitCode.STALLED == 5
    report = (tmp_path / "run" / "stall-1.txt").read_text()
    assert report in err
    assert report.startswith("error: no progress for ")
    assert "while saving a checkpoint at step 42" in report
    threads = report.split("\n\n")[2:]
    assert any("Thread MainThread (" in thread and "in load_the_batch_that_never_comes" in thread for thread in threads)
    assert any("Thread reader (" in thread and "in generator_on_another_host" in thread for thread in threads)
    assert report.startswith(f"error: {(tmp_path / 'run' / 'status').read_text()}")
    assert out == "not flushed yet"


def test_where_python_hangs_its_stacks_are_on_stderr(tmp_path):
    """N12: native code that keeps Python's lock stops all threads; then the process cannot tell it from a pause."""
    body = """
    def call_a_driver_that_never_returns():
        ctypes.PyDLL(None).sleep(1000)

    with watchdog(1) as dog:
        for _ in range(5):
            time.sleep(0.1)
            dog.beat()
        call_a_driver_that_never_returns()
    """
    process = child(tmp_path, body)
    try:
        lines = iter(process.stderr.readline, "")
        assert next(lines).startswith("Timeout (")
        assert any("in call_a_driver_that_never_returns" in line for line in lines)
        assert process.poll() is None
    finally:
        process.kill()
        finish(process)


def test_reports_are_numbered(tmp_path):
    """N12: a second stall of the run does not hide the first."""
    process = child(tmp_path, "with watchdog(0.3): block_for_ever()")
    (tmp_path / "run" / "stall-1.txt").write_text("the first")
    assert finish(process)[0] == ExitCode.STALLED
    assert (tmp_path / "run" / "stall-1.txt").read_text() == "the first"
    assert "no progress" in (tmp_path / "run" / "stall-2.txt").read_text()


def test_a_record_that_hangs_does_not_keep_the_process(tmp_path):
    """N12: often it is the file system that does not answer."""
    body = "with watchdog(0.3, record=block_for_ever, timeout_seconds=2): block_for_ever()"
    code, _, err = finish(child(tmp_path, body))
    assert code == ExitCode.STALLED
    assert "in block_for_ever" in err


def test_a_run_directory_that_is_gone_does_not_keep_the_process(tmp_path):
    """N12: it still ends, and says on stderr what it could not do."""
    body = "os.rmdir(model_dir)\nwith watchdog(0.3): block_for_ever()"
    code, _, err = finish(child(tmp_path, body))
    assert code == ExitCode.STALLED
    assert "in block_for_ever" in err
    assert "warning: while the stall was reported: FileNotFoundError" in err


def test_an_error_stream_that_nobody_reads_does_not_keep_the_process(tmp_path):
    """N12: a pipe that is full blocks whoever writes to it."""
    body = """
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
    with watchdog(0.3, timeout_seconds=2):
        block_for_ever()
    """
    process = child(tmp_path, body)
    try:
        assert process.wait(CHILD_SECONDS) == ExitCode.STALLED
    finally:
        finish(process)
    assert "in block_for_ever" in (tmp_path / "run" / "stall-1.txt").read_text()


def test_a_process_that_was_paused_is_left_alone(tmp_path):
    """N12: SIGSTOP for longer than the limit, then SIGCONT: at most its stacks are on stderr."""
    body = """
    with watchdog(1) as dog:
        dog.enter("train")
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            dog.beat()
    """
    process = child(tmp_path, body)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # a real pause: the kernel's clock is what is tested
        process.send_signal(signal.SIGCONT)
    finally:
        code, out, err = finish(process, "end\n")
    assert (code, out) == (0, "")
    assert "error:" not in err
