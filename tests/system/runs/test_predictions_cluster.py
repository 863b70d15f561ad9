"""Predictions of several processes: the files that one process writes, whatever becomes of them and whoever goes on."""

import functools
import json
import signal

import pytest

from official_trainer import config as configuration
from official_trainer.config import ConfigError
from official_trainer.distributed.cluster import ClusterError
from official_trainer.runs.predictions import MANIFEST, PredictionSettings
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import jobs
from tests.support.cases import cases
from tests.support.chaos import disk
from tests.support.distributed.clusters import LocalCluster
from tests.support.forked import Command, run_command, trained_digits
from tests.support.runs import contents

# Who takes part.


def told(role, index=0, **counts):
    ports = iter(range(1, 99))
    cluster = {name: [f"a:{next(ports)}" for _ in range(count)] for name, count in counts.items()}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def start(monkeypatch, tmp_path, tf_config, *sets, mode="predict"):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    resolved = configuration.resolve(registry.get_config("digits_mlp", ROOT), experiment="digits_mlp", sets=sets)
    prediction = PredictionSettings(output_dir=str(tmp_path / "out"))
    return jobs.run("digits_mlp", resolved, mode=mode, model_dir=str(tmp_path), quiet=True, prediction=prediction)


def test_servers_have_nothing_to_do_and_evaluators_are_refused(monkeypatch, tmp_path):
    """N18: at once; a TPU has one process."""
    assert start(monkeypatch, tmp_path, told("ps", chief=1, worker=2, ps=1)) == {}
    with pytest.raises(
        ClusterError, match=r"mode predict has no evaluator, but TF_CONFIG makes this process one; make it"
    ):
        start(monkeypatch, tmp_path, told("evaluator", chief=1, worker=2))
    with pytest.raises(ConfigError, match=r"runtime.tpu: 2 processes predict, .* only one process can use a TPU"):
        start(monkeypatch, tmp_path, told("worker", worker=2), "runtime.tpu=local")
    assert list(tmp_path.iterdir()) == []


# Real processes.


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return trained_digits(tmp_path_factory.mktemp("digits"))


def words(digits, output, *more, shard_size=50):
    base = ["predict", f"--model_dir={digits}", f"--output={output}", "--format=jsonl"]
    return [*base, f"--shard_size={shard_size}", "task.validation_data.global_batch_size=17", *more]


@pytest.fixture(scope="module")
def unbroken(digits):
    """What one process writes, by the rows of a file."""

    @functools.cache
    def of(shard_size):
        folder = digits.parent / f"alone-{shard_size}"
        folder.mkdir()
        done = run_command(words(digits, folder / "out", shard_size=shard_size), cwd=ROOT, folder=folder)
        assert done.code == 0, done.err
        return contents(folder / "out")

    return of


def cluster(digits, tmp_path, *more, roles=None, shard_size=50):
    argv = words(digits, tmp_path / "out", *more, shard_size=shard_size)
    return LocalCluster(roles or {"worker": 2}, argv=argv, cwd=ROOT, folder=tmp_path / "output")


def alone(digits, tmp_path):
    folder = tmp_path / "alone"
    folder.mkdir()
    return Command(words(digits, tmp_path / "out"), cwd=ROOT, folder=folder).wait()


SHARED_OUT = [
    ("worker=2", "auto", 50),
    ("worker=3", "multi_worker_mirrored", 200),
    ("chief=1 worker=1 ps=1", "parameter_server", 360),
]


@pytest.mark.parametrize(("roles", "strategy", "shard_size"), cases(SHARED_OUT, SHARED_OUT[0]))
def test_processes_write_what_one_does(roles, strategy, shard_size, digits, unbroken, tmp_path):
    """N18: unconnected, under the strategies that others train with; fewer files than processes, none to spare."""
    sets = [] if strategy == "auto" else [f"runtime.distribution_strategy={strategy}"]
    counts = {role: int(count) for role, count in (word.split("=") for word in roles.split())}
    with cluster(digits, tmp_path, *sets, roles=counts, shard_size=shard_size) as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
    written, expected = contents(tmp_path / "out"), dict(unbroken(shard_size))
    if sets:  # the manifest says so
        assert json.loads(written.pop(MANIFEST))["settings"]["runtime.distribution_strategy"] == strategy
        expected.pop(MANIFEST)
    assert written == expected
    assert not list((tmp_path / "out").glob(".predictions-*"))


def test_one_that_is_killed_does_not_disturb_the_other(digits, unbroken, tmp_path):
    """N18: which writes its share and ends well; one process alone goes on with the rest. Other kills: system/kills."""
    disk.require()
    started = cluster(digits, tmp_path)
    with started:
        started.first("worker", 1, functools.partial(disk.arm, str(tmp_path / "out"), 12, -signal.SIGKILL))
        codes = started.start_all().wait_all()
        assert codes == {("worker", 0): 0, ("worker", 1): -9}, started.outputs()
    there = {path.name for path in (tmp_path / "out").glob("predictions-*.jsonl")}
    assert {f"predictions-0000{number}.jsonl" for number in (0, 2, 4, 6)} <= there
    assert len(there) < 8
    assert not json.loads((tmp_path / "out" / MANIFEST).read_text())["done"]
    done = alone(digits, tmp_path)
    assert done.code == 0, done.err
    assert contents(tmp_path / "out") == unbroken(50)
