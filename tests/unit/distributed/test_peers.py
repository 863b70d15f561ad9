"""Waiting for the processes of a run."""

import socket

import pytest

from official_trainer.distributed.peers import RendezvousError, meet
from official_trainer.processes.local import free_ports


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
