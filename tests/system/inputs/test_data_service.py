"""tf.data service with real processes and kills: what is delivered, and what is said when nothing is."""

import itertools
import os
import signal
import socket
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.engine.train_iterator import DatasetBuilder, TrainData
from official_trainer.errors import ExitCode
from official_trainer.inputs import data_service
from official_trainer.inputs.data_service import DataServiceError, DataServiceUseError
from official_trainer.processes.local import free_ports
from official_trainer.runs.resume import data_layout
from tests import ROOT
from tests.support.data_service import Service
from tests.support.forked import Command

NUMBERS = 40
"""Examples of the data of a test."""


@pytest.fixture
def service(tmp_path):
    found = Service(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A dispatcher with two data workers, which tests do not harm."""
    found = Service(tmp_path_factory.mktemp("service"))
    found.dispatcher()
    for _ in range(2):
        found.worker()
    yield found
    found.close()


class NumbersTask:
    """Numbered examples, from a source that the test chooses."""

    def __init__(self, source):
        self._source = source

    def build_inputs(self, params, input_context=None):
        return self._source(params, input_context)


def in_memory(params, context):
    return inputs.from_arrays(np.arange(NUMBERS), params, context)


def plain(params, context):
    return tf.data.Dataset.range(NUMBERS).batch(params.global_batch_size, drop_remainder=True)


def section(service, batch=4, **settings):
    address = {"enable_tf_data_service": True, "tf_data_service_address": service.address}
    return schema.DataConfig(global_batch_size=batch, **(address | settings))


def feed_of(service, source, **settings):
    return DatasetBuilder(
        NumbersTask(source),
        section(service, **settings),
        training=True,
        seed=0,
        service_timeout_seconds=60,
    )


def read(dataset, count):
    return [batch.numpy().tolist() for batch in itertools.islice(dataset, count)]


def test_every_example_comes_equally_often(running, tmp_path):
    """N1: data workers share the data out: no epoch of one is the epoch of another, and none is left out."""
    with tf.io.TFRecordWriter(str(tmp_path / "records")) as writer:
        for number in range(NUMBERS):
            writer.write(np.int32(number).tobytes())

    def files(params, context):
        return inputs.from_tfrecords(params, context, parse_fn=lambda record: tf.io.decode_raw(record, tf.int32)[0])

    for source, settings in [(in_memory, {}), (plain, {}), (files, {"input_path": str(tmp_path / "records")})]:
        dataset = feed_of(running, source, **settings).build()
        assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY  # a dead data worker would keep an end away
        batches = read(dataset, 100)
        assert all(len(batch) == 4 for batch in batches)
        counts = Counter(itertools.chain(*batches))
        assert set(counts) == set(range(NUMBERS)), source
        assert max(counts.values()) < 40, source


def test_epochs_are_counted_where_their_length_is_known(running):
    """G6: the end of the data does not show, so a run that waits for it would never end."""

    def filtered(params, context):
        return plain(params, context).filter(lambda batch: batch[0] > 3)

    def steps(source):
        step = tf.Variable(0, dtype=tf.int64)
        return TrainData(feed_of(running, source), step, on_data_end="stop").steps_per_epoch()

    assert (steps(in_memory), steps(plain)) == (NUMBERS / 4, NUMBERS / 4)
    with pytest.raises(inputs.DataError, match=r"from a tf\.data service its end cannot be seen"):
        steps(filtered)


def test_pipelines_of_one_job_share_a_pass_over_the_data(running):
    """N25: several hosts need one name; each then gets other batches. Another start is another job."""
    with pytest.raises(DataServiceUseError, match="tf_data_service_job_name is needed with 2 input pipelines"):
        data_service.check_pipelines(section(running), 2)
    params = section(running, tf_data_service_job_name="shared")
    data_service.check_pipelines(params, 2)

    def build(start):
        context = inputs.InputContext(start_step=start)
        dataset = inputs.from_arrays(np.arange(40_000), params.replace(is_training=True, shuffle=False), context)
        return iter(data_service.distribute(dataset, params, start=start, timeout_seconds=60))

    readers = [build(0), build(0)]
    seen = [tuple(next(reader).numpy()) for _ in range(20) for reader in readers]
    assert len(set(seen)) == 40
    later = build(90)
    assert min(int(next(later).numpy()[0]) for _ in range(3)) >= 4 * 90


def test_whoever_looks_at_data_aside_reads_it_in_this_process(running):
    """The job of the run is left alone."""
    aside = feed_of(running, in_memory).separate()
    assert not aside.is_served
    assert read(aside.build(), 1) == read(aside.build(), 1)


def test_batches_are_not_read_again_where_they_would_be_others(running):
    """N13: a report about the batch of a failed step must not show another one."""
    step = tf.Variable(3, dtype=tf.int64)
    feed = TrainData(feed_of(running, in_memory), step, on_data_end="error")
    assert list(itertools.islice(feed.batches(3), 1)) == []


def test_the_run_says_where_its_data_comes_from():
    """N25: on record, on the console; and who goes on later is not held to an order that there was not."""
    told = []
    context = inputs.InputContext()
    context.served_by = "grpc://host:1"
    layout = {"replicas": 1, "pipelines": 1, "order": "service", "service": "grpc://host:1"}
    assert data_layout.report(context, told.append) == layout
    assert "batches come in no fixed order, so a run that is interrupted continues near where it was" in told[0]


def test_dead_data_worker_and_dispatcher(service):
    """Chaos: endless data survives a killed data worker; a killed dispatcher goes on from its journal."""
    first = service.dispatcher()
    workers = [service.worker() for _ in range(2)]
    reader = iter(feed_of(service, in_memory).build())
    read(reader, 20)
    os.kill(workers[0].process.pid, signal.SIGKILL)
    assert len(read(reader, 200)) == 200
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join()
    service.dispatcher()
    assert len(read(reader, 200)) == 200


def test_a_dispatcher_that_does_not_answer(tmp_path):
    """N6: named, after a bounded wait, with the exit code that means: start me again."""
    address = f"grpc://localhost:{free_ports(1)[0]}"
    with pytest.raises(DataServiceError) as caught:
        data_service.wait_for(address, 0.3)
    assert caught.value.exit_code == ExitCode.RETRY
    assert f"the dispatcher of the tf.data service at {address} does not answer (Connection refused)" in str(
        caught.value
    )
    done = Command(
        ["data-service", "--role=data_worker", f"--dispatcher={address}"], cwd=tmp_path, folder=tmp_path, first=_hurry
    ).wait()
    assert done.code == ExitCode.RETRY and f"tf.data service at {address} does not answer" in done.err


def _hurry():
    data_service.serve.__kwdefaults__["timeout_seconds"] = 0.2


def test_roles_that_cannot_be_run(tmp_path):
    """N7: by their flags, with what to write instead."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DataServiceError, match=f"port {port}: Address already in use; use another port"):
            data_service.serve("dispatcher", port=port)
    for address in ("localhost:1", "grpc://localhost", "http://localhost:1", "grpc://a:b"):
        with pytest.raises(DataServiceUseError, match=r"is not an address of a tf.data service; write grpc://HOST"):
            data_service.wait_for(address, 60)
    with pytest.raises(DataServiceUseError, match="a dispatcher needs a fixed port"):
        data_service.serve("dispatcher", port=0)
    with pytest.raises(DataServiceUseError, match="role 'boss' is unknown; use one of dispatcher, data_worker"):
        data_service.serve("boss", port=1)


def test_roles_end_when_they_are_told_to(service):
    """N5: SIGTERM ends both, with exit code 0."""
    commands = [service.dispatcher(), service.worker()]
    data_service.wait_for(service.address, 60)
    read(feed_of(service, in_memory).build(), 1)  # so both of them are up
    for command in commands:
        os.kill(command.process.pid, signal.SIGTERM)
    assert [command.wait().code for command in commands] == [0, 0]


def train(service, name, *sets):
    """Starts a run of digits whose data comes through the service."""
    folder = service.folder / name
    folder.mkdir()
    through = [
        "task.train_data.enable_tf_data_service=true",
        f"task.train_data.tf_data_service_address={service.address}",
    ]
    argv = ["train", "--experiment=digits_mlp", f"--config_file={ROOT}/configs/smoke/digits_mlp.yaml", "--mode=train"]
    argv += [f"--model_dir={service.folder}/run", *through, "trainer.steps_per_loop=5", *sets]
    return Command(argv, cwd=ROOT, folder=folder)


def test_a_run_whose_dispatcher_is_not_there_ends_soon(service):
    """N6: exit code 75, with the address."""
    done = train(service, "absent", "runtime.rendezvous_timeout_seconds=0.5").wait()
    assert done.code == ExitCode.RETRY, done.err
    assert f"the dispatcher of the tf.data service at {service.address} does not answer" in done.err
