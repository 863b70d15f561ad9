"""Where the processes of a local job listen."""

import re

import pytest

from tests.support.distributed.workers import phase_of
from tests.support.processes.listening import ALL, connects, listening
from tests.support.processes.local_jobs import LocalJob
from tests.support.workspace import copy_workspace


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
