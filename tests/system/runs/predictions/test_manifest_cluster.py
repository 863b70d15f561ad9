"""Predictions of several processes: the files that one process writes, whatever becomes of them and whoever goes on."""

import functools
import itertools
import json
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.config import ConfigError, schema
from official_trainer.distributed.cluster import ClusterError
from official_trainer.engine.inference import Inference
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError
from official_trainer.runs import run
from official_trainer.runs.predict import Reader
from official_trainer.runs.predictions.manifest import MANIFEST, Share, gather
from official_trainer.runs.predictions.shards import PredictionSettings, PredictionShards, predict_into
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import toy
from tests.support.cases import cases
from tests.support.chaos import disk
from tests.support.distributed.clusters import LocalCluster
from tests.support.forked import Command, run_command, trained_digits
from tests.support.predictions import Noisy, arrays, contents, records, stream

# The shares of processes, written one after the other in this one.


@pytest.fixture
def section(tmp_path):
    path = str(tmp_path / "x.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in toy.FEATURES:
            writer.write(row.tobytes())
    return lambda pipeline, batch_size: schema.DataConfig(
        global_batch_size=batch_size, is_training=False, input_path=path if pipeline is records else ""
    )


PIPELINES = list(itertools.product((arrays, records, stream), ("off", "mirrored2"), (2, 9, 40)))
QUICK = [(arrays, "off", 9), (records, "mirrored2", 40), (stream, "mirrored2", 9)]


@pytest.mark.parametrize(("pipeline", "strategy", "shard_size"), cases(PIPELINES, *QUICK))
def test_shares_of_any_data_are_what_one_process_writes(pipeline, strategy, shard_size, section, tmp_path, monkeypatch):
    """N18: in memory, in files, and data that nobody knows the size of and that is read over; draws are the same."""
    monkeypatch.setattr(Noisy, "pipeline", staticmethod(pipeline))
    monkeypatch.setattr("official_trainer.runs.predict._NEAR_BATCHES", 3)  # else no shard is far away
    trainer = toy.build(task_cls=Noisy, strategy=strategy, train=False, evaluate=False)
    params = section(pipeline, 4)
    starts = []
    with trainer.strategy.scope():
        inference = Inference(trainer.task, trainer.model)

    def write(folder, share):
        options = {"format": "npy", "shard_size": shard_size, "share": share}
        shards = PredictionShards(PredictionSettings(output_dir=str(tmp_path / folder), **options), {})
        first = shards.position.batch
        with trainer.strategy.scope():
            feed = DatasetBuilder(trainer.task, params, training=False, seed=0)
            build = feed.build
            feed.build = lambda first: starts.append(first) or build(first)
            reader = Reader(feed, inference, first, iter(feed.build(first)))
        predict_into(shards, reader)

    write("whole", Share())
    starts.clear()
    for index in (2, 0, 1):
        write("shared", Share(index=index, count=3, batch_size=4))
    gather(str(tmp_path / "shared"))
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")
    assert json.loads((tmp_path / "shared" / MANIFEST).read_text())["rows"] == toy.NUM_EXAMPLES
    assert (len(starts) > 3) == (shard_size == 9 and pipeline is not stream)


def test_data_that_begins_again_is_cut_there(tmp_path):
    """N18: as training data does; in the middle of a batch, and of a shard."""

    def endless(first):
        return ((batch, {"x": np.arange(5 * batch, 5 * batch + 5)}) for batch in itertools.count(first))

    def write(folder, share):
        options = {"format": "npy", "shard_size": 4, "share": share}
        shards = PredictionShards(PredictionSettings(output_dir=str(tmp_path / folder), **options), {})
        predict_into(shards, endless, max_rows=23)

    write("whole", Share())
    for index in (0, 1):
        write("shared", Share(index=index, count=2, batch_size=5))
    gather(str(tmp_path / "shared"))
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")
    assert json.loads((tmp_path / "shared" / MANIFEST).read_text())["rows"] == 23


def test_no_example_is_an_error_in_one_of_them(tmp_path):
    """N18: and never all there is."""
    for index in (1, 0):
        share = Share(index=index, count=2, batch_size=4)
        options = {"format": "npy", "shard_size": 3, "share": share}
        shards = PredictionShards(PredictionSettings(output_dir=str(tmp_path), **options), {})
        if index:
            predict_into(shards, lambda first: iter(()))
        else:
            with pytest.raises(DataError, match=r"there is nothing to predict: the data holds no example"):
                predict_into(shards, lambda first: iter(()))
    gather(str(tmp_path))
    assert not (tmp_path / MANIFEST).exists()


# Who takes part.


def told(role, index=0, **counts):
    ports = iter(range(1, 99))
    cluster = {name: [f"a:{next(ports)}" for _ in range(count)] for name, count in counts.items()}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def start(monkeypatch, tmp_path, tf_config, *sets, mode="predict"):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    resolved = configuration.resolve(registry.get_config("digits_mlp", ROOT), experiment="digits_mlp", sets=sets)
    prediction = PredictionSettings(output_dir=str(tmp_path / "out"))
    return run.run("digits_mlp", resolved, mode=mode, model_dir=str(tmp_path), quiet=True, prediction=prediction)


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
    return [*base, f"--shard_size={shard_size}", "task.validation_data.global_batch_size=33", *more]


@pytest.fixture(scope="module")
def unbroken(digits):
    """What one process writes, by the rows of a shard."""

    @functools.cache
    def of(shard_size):
        folder = digits.parent / f"alone-{shard_size}"
        folder.mkdir()
        done = run_command(words(digits, folder / "out", shard_size=shard_size), cwd=ROOT, folder=folder)
        assert done.code == 0, done.err
        return contents(folder / "out")

    return of


def cluster(digits, tmp_path, *more, roles=None, shard_size=50, **options):
    argv = words(digits, tmp_path / "out", *more, shard_size=shard_size)
    return LocalCluster(roles or {"worker": 2}, argv=argv, cwd=ROOT, folder=tmp_path / "output", **options)


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
    """N18: unconnected, under the strategies that others train with; fewer shards than processes, none to spare."""
    sets = [] if strategy == "auto" else [f"runtime.distribution_strategy={strategy}"]
    counts = {role: int(count) for role, count in (word.split("=") for word in roles.split())}
    with cluster(digits, tmp_path, *sets, roles=counts, shard_size=shard_size) as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
    found, expected = contents(tmp_path / "out"), dict(unbroken(shard_size))
    if sets:  # the manifest says so
        assert json.loads(found.pop(MANIFEST))["source"]["runtime.distribution_strategy"] == strategy
        expected.pop(MANIFEST)
    assert found == expected
    assert not list((tmp_path / "out").glob(".predictions-*"))


def killed_before(number, folder, **options):
    """Returns what kills a process before a change below `folder`."""
    disk.require()
    return functools.partial(disk.arm, str(folder), number, -signal.SIGKILL, **options)


def test_one_that_is_killed_does_not_disturb_the_other(digits, unbroken, tmp_path):
    """N18: which writes its share and ends well; one process alone goes on with the rest."""
    started = cluster(digits, tmp_path)
    with started:
        started.first("worker", 1, killed_before(12, tmp_path / "out"))
        codes = started.start_all().wait_all()
        assert codes == {("worker", 0): 0, ("worker", 1): -9}, started.outputs()
    there = {path.name for path in (tmp_path / "out").glob("predictions-*.jsonl")}
    assert {f"predictions-0000{number}.jsonl" for number in (0, 2, 4, 6)} <= there
    assert len(there) < 8
    assert not (tmp_path / "out" / MANIFEST).exists()
    done = alone(digits, tmp_path)
    assert done.code == 0, done.err
    assert contents(tmp_path / "out") == unbroken(50)


@pytest.mark.full
@pytest.mark.parametrize("number", [3, 14, 21, 33])
def test_killed_anywhere_the_same_commands_go_on(number, digits, unbroken, tmp_path):
    """N18: each at a change of its own; other numbers of processes, too; and again when all is there."""
    first = killed_before(number, tmp_path / "out")
    with cluster(digits, tmp_path, first=first) as started:
        assert -9 in started.start_all().wait_all().values(), started.outputs()
    with cluster(digits, tmp_path, roles={"worker": 3}) as started:
        started.first("worker", 2, first)
        codes = started.start_all().wait_all()
        assert (codes["worker", 0], codes["worker", 1]) == (0, 0), started.outputs()
    for _ in range(2):
        with cluster(digits, tmp_path) as started:
            assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
        assert contents(tmp_path / "out") == unbroken(50)
    assert "all predictions are there already" in alone(digits, tmp_path).err
    assert contents(tmp_path / "out") == unbroken(50)


@pytest.mark.full
def test_killed_while_it_says_that_all_is_there_the_same_command_says_it(digits, unbroken, tmp_path):
    """N18: at each of the last changes of the process that ends last."""
    with cluster(digits, tmp_path) as started:
        started.start("worker", 1)
        assert started.wait("worker", 1) == 0
    codes = []

    def end(name, number=0):
        out, folder = tmp_path / name / "out", tmp_path / name
        if not folder.exists():
            shutil.copytree(tmp_path / "out", out)
        with LocalCluster({"worker": 2}, argv=words(digits, out), cwd=ROOT, folder=folder / "output") as started:
            started.first("worker", 0, killed_before(number, out, log=tmp_path / "changes"))
            started.start("worker", 0)
            codes.append(started.wait("worker", 0))
        return contents(out)

    assert end("unbroken") == unbroken(50)
    changes = len((tmp_path / "changes").read_text().splitlines())
    for back in range(1, 19):
        end(str(back), changes - back)
        assert end(str(back)) == unbroken(50)
        assert not list((tmp_path / str(back) / "out").glob(".predictions-*"))
    assert codes == [0] + [-9, 0] * 18


@pytest.mark.full
def test_launch_local_starts_them(digits, unbroken, tmp_path):
    """N18, N20: on one machine, with the flags of `predict`."""
    given = words(digits, tmp_path / "out")[1:]
    argv = ["launch", "local", "--workers=2", "--", "--experiment=digits_mlp", "--mode=predict", *given]
    argv += ["--config_file=configs/smoke/digits_mlp.yaml", "trainer.export.at_end=false"]
    done = run_command(argv, cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.out + done.err
    assert contents(tmp_path / "out") == unbroken(50)
