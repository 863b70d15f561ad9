"""A training on a real terminal, from its first sign of life to Ctrl-C."""

import os
import select
import signal
import sys

import pytest

from tests.support.reports import kinds
from tests.support.terminal import on_a_terminal
from tests.support.workspace import copy_workspace

LIMIT_SECONDS = 240


def read_until(terminal, wanted):
    """Returns what is written up to the first of the `wanted` bytes; or to the end."""
    found = b""
    while not any(word in found for word in wanted):
        if not select.select([terminal], [], [], LIMIT_SECONDS)[0]:
            pytest.fail(f"nothing more came after {found!r}")
        try:
            found += os.read(terminal, 65536)
        except OSError:  # this is how Linux says that it is closed
            break
    return found


def test_something_is_said_before_tensorflow_is_there_and_ctrl_c_restores_the_terminal(tmp_path):
    command = [sys.executable, "-m", "official_trainer", "train", "digits_mlp"]
    with on_a_terminal(command, copy_workspace(tmp_path)) as (process, terminal):
        found = read_until(terminal, [b"importing TensorFlow"])
        process.send_signal(signal.SIGINT)
        found += read_until(terminal, [])
        assert process.wait(LIMIT_SECONDS) == 130  # there is nothing to save yet
    assert b"loading digits_mlp" in found
    assert b"parameters on" not in found
    assert found.rfind(b"\x1b[?25l") < found.rfind(b"\x1b[?25h")
    assert b"Traceback" not in found


def test_runs_are_watched_until_ctrl_c(tmp_path):
    """N29: the table follows the runs on a terminal of 80 columns, and Ctrl-C ends it well."""
    kinds.running(tmp_path / "runs" / "mine")
    command = [sys.executable, "-m", "official_trainer", "runs", "runs", "--watch"]
    with on_a_terminal(command, tmp_path, COLUMNS="80") as (process, terminal):
        found = read_until(terminal, [b"mine"])
        kinds.write_run(tmp_path / "runs" / "another", step=40)
        found += read_until(terminal, [b"another"])
        process.send_signal(signal.SIGINT)
        found += read_until(terminal, [b"\x1b[?25h"])
        assert process.wait(LIMIT_SECONDS) == 0
    assert b"Traceback" not in found
