"""A job in a network of its own; and where a job listens that is not."""

import ctypes
import os
import re
import subprocess
import sys

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.processes import isolation
from tests.support.distributed.workers import phase_of
from tests.support.processes.listening import ALL, connects, listening
from tests.support.processes.local_jobs import LocalJob
from tests.support.workspace import copy_workspace

NOBODY = 65534
PR_SET_DUMPABLE = 4


@pytest.fixture
def namespaces():
    """Skips a test where the system forbids network namespaces."""
    try:
        isolation.check_possible()
    except isolation.IsolationError as error:
        pytest.skip(str(error))


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
        (["--workers=1", "--data_workers=1"], {"worker 0"}),
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


def test_isolated_workers_train_and_cannot_be_reached_from_outside(tmp_path, namespaces):
    """N20: a cluster of two; what it writes is the user's."""
    with Job(tmp_path, "--workers=2", "--isolated", new_starter=True) as job:
        pids = job.pids()
        assert len(pids) == 2
        for pid in pids.values():
            ports = [port for _, port in listening(pid)]
            assert ports  # it listens, but not here
            assert not any(connects(port) for port in ports)
            assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        assert job.stop() == 143, job.output
    assert committed_steps(str(job.model_dir))
    assert {path.stat().st_uid for path in job.model_dir.rglob("*")} == {os.getuid()}


def test_a_user_without_rights_stays_the_same_user(tmp_path, namespaces):
    """N20: in a user namespace, with own files and no new rights; there is loopback and nothing else."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    is_root = os.getuid() == 0
    user = NOBODY if is_root else os.getuid()
    file = os.open(folder, os.O_RDONLY)  # its parents may be closed to the user
    if is_root:
        os.chown(folder, NOBODY, NOBODY)

    def become():
        if is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as of a process that this user has started
        os.fchdir(file)
        isolation.enter()

    look = "id -u; grep CapEff /proc/self/status; tail -n +3 /proc/net/dev | cut -d: -f1; : > file"
    done = subprocess.run(["/bin/sh", "-c", look], preexec_fn=become, capture_output=True, text=True, check=False)
    os.close(file)
    assert done.stdout.split() == [str(user), "CapEff:", "0" * 16, "lo"], done.stderr
    assert (folder / "file").stat().st_uid == user


def test_a_system_that_forbids_it_is_told_apart(monkeypatch):
    """N20: what the kernel says, and what an administrator would have to change."""
    refuse = "import sys; sys.exit('[Errno 1] Operation not permitted: unshare')"
    monkeypatch.setattr(isolation, "isolated", lambda command: [sys.executable, "-c", refuse])
    with pytest.raises(
        isolation.IsolationError, match=r"--isolated: this system .* \(\[Errno 1\] .*user.max_user_name"
    ):
        isolation.check_possible()
