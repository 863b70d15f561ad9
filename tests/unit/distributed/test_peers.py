"""Waiting for the processes of a run, and the end of waits that nothing can interrupt."""

import signal
import socket
import subprocess
import sys

import pytest

from official_trainer.distributed.peers import RendezvousError, bounded, meet
from official_trainer.processes.local import free_ports

HANGS = """
import ctypes
from official_trainer.distributed.peers import bounded
with bounded(0.5, "worker 1: connecting"):
    ctypes.PyDLL(None).sleep(60)  # in C, and no other thread of Python may run
"""


def test_a_call_that_python_cannot_leave_is_ended_from_outside():
    """T16: TensorFlow waits for the others in C++, where neither signals nor timers of Python come through."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == (
        "worker 1: connecting took longer than 0.5 seconds: one of them must have died meanwhile. This process is "
        "killed; started again, the run continues\n"
    )


def test_a_call_that_ends_in_time_is_left_alone():
    """T16: also with an error."""
    with bounded(60, "this"):
        pass
    with pytest.raises(ValueError, match="mine"), bounded(60, "this"):
        raise ValueError("mine")


def test_those_who_meet_name_who_does_not_come():
    """T16: whoever waits listens too, and is seen."""
    ports = free_ports(2)
    members = {f"worker {index}": f"127.0.0.1:{port}" for index, port in enumerate(ports)}
    with pytest.raises(RendezvousError, match=rf"worker 1 \(127.0.0.1:{ports[1]}\) did not answer within 0.1 seconds"):
        meet("worker 0", members, 0.1)


def test_a_port_that_is_taken_is_said():
    """T16: the same worker may have been started twice."""
    (port,) = free_ports(1)
    with socket.create_server(("", port)):
        said = rf"worker 0 cannot listen at 127.0.0.1:{port}: Address already in use. Another process has that port"
        with pytest.raises(RendezvousError, match=said):
            meet("worker 0", {"worker 0": f"127.0.0.1:{port}"}, 1.0)
