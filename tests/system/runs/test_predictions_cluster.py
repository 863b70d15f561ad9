"""Predictions of several processes: the files that one process writes, whatever becomes of them and whoever goes on."""

import functools
import itertools
import json
import shutil
import signal

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.config import ConfigError, schema
from official_trainer.distributed.cluster import ClusterError
from official_trainer.engine.inference import Inference
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError
from official_trainer.runs import run
from official_trainer.runs.predict import Batches, predict_into
from official_trainer.runs.predictions import MANIFEST, PredictionFiles, PredictionSettings, Share
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


PIPELINES = list(itertools.product((arrays, records, stream), ("off", "mirrored2"), (4, 8, 40, None)))
QUICK = [(arrays, "off", 8), (records, "mirrored2", 40), (stream, "mirrored2", 8), (records, "off", None)]


@pytest.mark.parametrize(("pipeline", "strategy", "shard_size"), cases(PIPELINES, *QUICK))
def test_shares_of_any_data_are_what_one_process_writes(pipeline, strategy, shard_size, section, tmp_path, monkeypatch):
    """N18: in memory, in files, and data that nobody knows the size of and that is read over; draws are the same."""
    monkeypatch.setattr(Noisy, "pipeline", staticmethod(pipeline))
    monkeypatch.setattr("official_trainer.runs.predict._NEAR_BATCHES", 1)  # else no file is far away
    trainer = toy.build(task_cls=Noisy, strategy=strategy, train=False, evaluate=False)
    read = []
    with trainer.strategy.scope():
        inference = Inference(trainer.task, trainer.model)

    def write(folder, share):
        settings = {"format": "npy", "shard_size": shard_size}
        (tmp_path / folder).mkdir(exist_ok=True)
        target = PredictionFiles(str(tmp_path / folder), settings, batch_size=4, share=share)
        with trainer.strategy.scope():
            builder = DatasetBuilder(trainer.task, section(pipeline, 4), training=False, seed=0)
            batches = Batches(builder, inference, builder.build(), on_batch=lambda: read.append(share.index))
        return predict_into(target, batches)

    assert write("whole", Share())
    assert len(read) == 26
    read.clear()
    said = [write("shared", Share(index=index, count=3)) for index in (2, 0, 1)]
    assert said == ([False, False, True] if shard_size is not None else [False, True, True])
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")
    if shard_size is not None:  # else all is there for the third
        assert (len(read) < 3 * 26 - 6) == (pipeline is not stream)


def test_no_example_is_an_error_in_all_of_them(section, tmp_path, monkeypatch):
    """N18: and nothing is written."""
    monkeypatch.setattr(toy.ToyTask, "build_inputs", lambda self, params: toy.examples(0).batch(4))
    trainer = toy.build(train=False, evaluate=False)
    for index, shard_size in ((1, 4), (0, None)):
        settings, share = {"format": "npy", "shard_size": shard_size}, Share(index=index, count=2)
        builder = DatasetBuilder(trainer.task, section(stream, 4), training=False, seed=0)
        batches = Batches(builder, Inference(trainer.task, trainer.model), builder.build())
        target = PredictionFiles(str(tmp_path / "out"), settings, batch_size=4, share=share)
        with pytest.raises(DataError, match=r"there is nothing to predict: the data holds no example"):
            predict_into(target, batches)
    assert not (tmp_path / "out").exists()


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
    assert not json.loads((tmp_path / "out" / MANIFEST).read_text())["done"]
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
