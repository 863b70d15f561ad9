"""A tf.data service beside a job: its processes start with it, end with it, and come back while it trains."""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.processes.jobs import Launched
from tests.support.processes.local_jobs import LocalJob

SERVED = {"worker": 1, "dispatcher": 1, "data_worker": 2}


# Scripted processes.


def test_who_served_data_ends_when_training_has_ended(tmp_path):
    """N20: with SIGTERM, or, if that does not help, with SIGKILL; neither makes a failure of it."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); touch('ready'); forever()"
    source = "on_term(lambda: sys.exit(0)); touch('ready too'); forever()"
    sources = {"worker": "wait('ready'); wait('ready too')", "dispatcher": deaf, "data_worker": source}
    job = Launched(tmp_path, SERVED, sources)
    assert job.wait() == 0, job.err
    assert "training goes on" not in job.out and "waiting up to" not in job.out


def test_one_that_dies_is_started_again_at_its_port_while_training_goes_on(tmp_path):
    """N20: under --supervise, the dispatcher and data workers each alone."""
    died = "if lives() == 1: os.kill(os.getpid(), signal.SIGKILL)\nforever()"
    worker = "lives(); wait('dispatcher 2'); wait('data worker 0 2'); wait('data worker 1 1')"
    sources = {"worker": worker, "dispatcher": died, "data worker 0": died, "data worker 1": "lives(); forever()"}
    job = Launched(tmp_path, SERVED, sources, supervise=True)
    assert job.wait() == 0, job.err
    assert not (tmp_path / "worker 0 2").exists()
    assert not (tmp_path / "data worker 1 2").exists()
    assert "data worker 0 was killed by SIGKILL (out of memory?); the others go on; it starts again in" in job.out


def test_without_supervision_the_last_data_worker_ends_the_job(tmp_path):
    """N20: one of two is only told of; without any, or without the dispatcher, training would starve."""
    first = "wait('pid of data worker 1'); os.kill(os.getpid(), signal.SIGKILL)"
    second = "wait_for_end('data worker 0'); wait('go'); sys.exit(3)"
    worker = "wait_for_end('data worker 0'); touch('go'); wait_for_end('data worker 1'); sys.exit(75)"
    sources = {
        "worker": worker,
        "dispatcher": "forever()",
        "data worker 0": first,
        "data worker 1": second,
    }
    job = Launched(tmp_path, SERVED, sources)
    assert job.wait() == 3, job.err
    assert "data worker 0 was killed by SIGKILL (out of memory?); training goes on with the other data" in job.out
    assert "data worker 1 ended with exit code 3 (data)" in job.err


def test_a_job_that_is_stopped_reads_on_until_it_has_saved(tmp_path):
    """N20, N5: the service is told after those who train."""
    ends = "on_term(lambda: (touch(NAME + ' told'), sys.exit(0))); touch(NAME + ' ready'); forever()"
    worker = (
        "on_term(lambda: touch('told')); touch('ready'); wait('told'); sys.exit(0 if has('dispatcher told') else 143)"
    )
    job = Launched(tmp_path, SERVED, {"worker": worker, "dispatcher": ends, "data_worker": ends})
    job.until("ready", "dispatcher ready", "data worker 0 ready", "data worker 1 ready")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.err
    assert (tmp_path / "dispatcher told").exists()


# Commands.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data_workers=two"], "--data_workers=two: expected a number from 0"),
        (["--data_workers=1", "--tf_data_service=grpc://a:1"], "--tf_data_service names one; keep one of the two"),
        (["--data_workers=1", "--ps=1"], "--data_workers=1 with --ps=1: workers of parameter servers read by"),
        (
            ["--data_workers=1", "trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch"],
            "skip_batch needs batches in a fixed order",
        ),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, capsys, words, said):
    monkeypatch.chdir(ROOT)
    assert cli.main(["launch", "local", "--dry_run", "digits_mlp", *words]) == ExitCode.CONFIG
    assert said in capsys.readouterr().err


def test_the_plan_has_the_service(monkeypatch, capsys, tmp_path):
    """N20: everybody knows the dispatcher, and several workers share one pass over the data."""
    monkeypatch.chdir(ROOT)
    words = ["--workers=2", "--data_workers=2", "digits_mlp", f"--model_dir={tmp_path}/run"]
    assert cli.main(["launch", "local", "--dry_run", *words]) == 0
    out = capsys.readouterr().out
    port = re.search(r"--role=dispatcher --work_dir=(\S+)/run/\.data_service/(\d+) --port=\2\n", out)[2]
    address = f"grpc://localhost:{port}"
    assert len(re.findall(rf"--role=data_worker --dispatcher={address} --port=\d+\n", out)) == 2
    assert len(re.findall(rf"train digits_mlp .*--tf_data_service={address} .*job_name=launch", out)) == 2
    assert "# data worker 1\npython -m" in out
    assert not (tmp_path / "run").exists()


class Real(LocalJob):
    """`launch local` of a small experiment, with a data service."""

    def __init__(self, folder, *words):
        self.model_dir = folder / "run"
        argv = ["--workers=2", "--data_workers=2", *words, "--experiment=digits_mlp", f"--model_dir={self.model_dir}"]
        super().__init__([*argv, "--mode=train"], cwd=ROOT, folder=folder / "job")

    def until(self, is_so):
        super().until(is_so)
        assert self.runs(), self.output

    def step(self):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            return json.loads((self.model_dir / "status.json").read_text())["step"] or 0
        return 0


def test_two_workers_train_on_what_two_data_workers_prepare(tmp_path):
    """N20: processes of a real job, forked, from the first batch to the end of all."""
    with Real(tmp_path, "trainer.train_steps=40", "trainer.summary_interval=20") as job:
        assert job.wait() == 0, job.output
    run = json.loads((job.model_dir / "run.json").read_text())
    assert run["steps"]["current"] == 40
    assert run["input"]["order"] == "service"
    assert not list((job.model_dir / ".data_service").iterdir())
    assert "finished at step 40" in job.out


def listener(port):
    """Returns which process listens at a port of this machine; None for none."""
    listening = "0A"
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for words in map(str.split, Path(table).read_text().splitlines()[1:]):
            if words[3] == listening and int(words[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{words[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in sockets:
                return int(link.parts[2])
    return None


@pytest.mark.full
def test_a_data_worker_and_the_dispatcher_are_killed_and_come_back(tmp_path):
    """N20: training goes on, with new processes at the same ports; asked to stop, all ends, and the run is saved."""
    words = ("--supervise", "trainer.train_steps=1000000", "trainer.checkpoint_interval=1000000")
    with Real(tmp_path, *words) as job:
        job.until(lambda: job.step() > 0)
        (work_dir,) = (job.model_dir / ".data_service").iterdir()
        dispatcher = int(work_dir.name)
        journal = b"".join(path.read_bytes() for path in work_dir.rglob("*") if path.is_file())
        worker = next(port for port in map(int, re.findall(rb"localhost:(\d+)", journal)) if port != dispatcher)
        for port in (worker, dispatcher):
            kill_and_see_it_back(job, port)
        job.tell()
        assert job.wait() == 143, job.output
    assert job.out.count("was killed by SIGKILL (out of memory?); the others go on; it starts again in 1 s") == 2
    assert listener(worker) is None
    assert listener(dispatcher) is None
    assert json.loads((job.model_dir / "run.json").read_text())["last_checkpoint_step"] > 0


def kill_and_see_it_back(job, port):
    """Kills who listens at a port; returns when somebody else does, and training has gone on since."""
    victim = listener(port)
    os.kill(victim, signal.SIGKILL)
    job.until(lambda: listener(port) not in (None, victim))
    reached = job.step()
    job.until(lambda: job.step() > reached)
