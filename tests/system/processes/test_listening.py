"""Where the processes of a local job listen."""

import contextlib
import os
import re
import socket
from pathlib import Path

import pytest

from tests.support.distributed.workers import phase_of
from tests.support.processes.local_jobs import LocalJob
from tests.support.workspace import copy_workspace

_LISTENS = "0A"
ALL = {"0.0.0.0", "::"}


def listening(pid):
    """Returns the addresses and ports at which a process listens, in its own network: `{("::", 12345)}`."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and inode in inodes:
                address, port = local.split(":")
                found.add((_address(family, address), int(port, 16)))
    return found


def _address(family, text):
    """Returns an address from words of 32 bits in the order of this machine, each in hexadecimal digits."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(words))


def connects(port, host="127.0.0.1"):
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


class Job(LocalJob):
    """`launch local` for two workers that train for longer than a test takes."""

    def __init__(self, folder, *words, **options):
        copy_workspace(folder, "experiments")
        self.model_dir = folder / "run"
        argv = [*words, "--", "--experiment=digits_mlp", f"--model_dir={self.model_dir}", "trainer.train_steps=1000000"]
        super().__init__(argv, cwd=folder, folder=folder / "job", **options)

    def until(self, is_so):
        super().until(is_so)
        assert self.runs(), self.output

    def pids(self):
        """Returns the pids of the processes by their names, once they train."""
        self.until(lambda: phase_of(self.model_dir) == "train")
        (line,) = re.findall(r"^\[launch\] +started (.*)$", self.out, flags=re.MULTILINE)
        return {name: int(pid) for name, pid in re.findall(r"([\w ]+?) \(pid (\d+)\)", line)}

    def stop(self):
        self.tell()
        return self.wait()


@pytest.mark.parametrize(
    ("words", "silent"),
    [
        (["--workers=1", "--ps=1"], set()),
        pytest.param(["--workers=2", "--evaluator"], {"evaluator"}, marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_where_the_processes_of_a_job_listen(tmp_path, words, silent):
    """N20: as docs/design/security.md says: on all interfaces, but not a process alone and not an evaluator."""
    mode = ["--mode=train"] if "--evaluator" in words else []
    with Job(tmp_path, *words, *mode) as job:
        found = {name.strip(", "): listening(pid) for name, pid in job.pids().items()}
        assert {name for name, places in found.items() if not places} == silent, found
        for places in found.values():
            assert {address for address, _ in places} <= ALL, found
            assert all(connects(port) for _, port in places)
        assert job.stop() == 143, job.output
