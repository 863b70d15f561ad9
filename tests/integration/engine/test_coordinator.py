"""What a coordinator and its servers decide, without any of them; see `tests/system/distributed/` for the real ones."""

import functools
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official_trainer import inputs
from official_trainer.config import DataConfig, RuntimeConfig
from official_trainer.distributed.cluster import Cluster
from official_trainer.distributed.parameter_server import ChiefWatch, CoordinatorError
from official_trainer.distributed.peers import explain_loss
from official_trainer.distributed.strategy import build_strategy
from official_trainer.engine.coordinator import closure_lengths
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import InputContext
from tests.support.cases import cases


@given(st.integers(1, 20_000), st.integers(1, 9), st.integers(1, 2000))
def test_closures_hold_all_steps_and_give_each_worker_one(num_steps, num_workers, least):
    """T7: no window leaves a worker without work."""
    lengths = closure_lengths(num_steps, num_workers, least)

    assert sum(lengths) == num_steps
    assert min(lengths) > 0
    assert len(lengths) >= min(num_workers, num_steps)
    assert sorted(lengths, reverse=True) == lengths
    assert len(lengths) <= num_workers * 32  # of 64 slots


def test_closures_become_shorter_towards_the_end_and_no_shorter_than_is_worth_sending():
    assert closure_lengths(100, 2, 1) == [25, 25, 13, 12, 7, 6, 3, 3, 2, 1, 1, 1, 1]
    assert closure_lengths(100, 2, 10) == [25, 25, 13, 12, 10, 10, 3, 2]


# How long a server lives.


class Chief:
    """Answers, or not, and writes what a chief leaves in a run directory."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.answers = False
        self.ends = 0

    def end(self, exit_code):
        self.answers = False
        self.ends += 1
        with open(f"{self.model_dir}/status.json", "w") as status:
            json.dump({"exit_code": exit_code, "ends": self.ends}, status)


@pytest.fixture
def chief(tmp_path):
    return Chief(tmp_path)


def watch_of(chief):
    return ChiefWatch("chief:1", chief.model_dir, timeout_seconds=60, connects=lambda address: chief.answers)


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (143, 143), (1, 75), (2, 75), (4, 75), (5, 75)])
@pytest.mark.parametrize("has_answered", [True, False])
def test_a_server_ends_with_the_run(chief, ended, code, has_answered):
    """T7: at once, also if the chief failed before it connected."""
    watch = watch_of(chief)
    assert watch.look(0.0) is None
    chief.answers = has_answered
    assert watch.look(1.0) is None
    chief.end(ended)

    assert watch.look(2.0) == code
    assert code != 75 or f"exit code {ended}" in watch.reason


def test_a_server_ends_if_the_chief_never_comes(chief):
    """T7: in the time for which processes wait for each other."""
    watch = watch_of(chief)

    assert watch.look(0.0) is None
    assert watch.look(59.0) is None
    assert watch.look(60.0) == 75
    assert "did not come" in watch.reason


def test_what_an_earlier_run_left_says_nothing_about_this_one(chief):
    """T7: the exit code of a run that ended before this process began."""
    chief.end(0)
    watch = watch_of(chief)
    assert watch.look(0.0) is None
    assert watch.look(30.0) is None

    chief.answers = True
    assert watch.look(50.0) is None
    chief.end(0)
    assert watch.look(51.0) == 0


@pytest.mark.parametrize("ended", [None, 75])
def test_a_server_waits_for_a_chief_that_may_come_back(chief, ended):
    """T7: one that was killed, or that says itself that it may be started again."""
    watch = watch_of(chief)
    watch.look(0.0)
    chief.answers = True
    watch.look(1.0)
    chief.answers = False
    if ended is not None:
        chief.end(ended)
    assert watch.look(60.0) is None

    chief.answers = True
    assert watch.look(70.0) is None
    chief.answers = False
    assert watch.look(129.0) is None
    assert watch.look(130.0) == 75
    assert "is gone" in watch.reason


def test_a_chief_that_answers_is_there(chief):
    """T7: whatever the run directory says."""
    chief.answers = True
    watch = watch_of(chief)
    for second in range(0, 1000, 5):
        assert watch.look(float(second)) is None


# Whose death an error tells of.

ADDRESSES = {"worker": ("a:1", "b:1"), "ps": ("c:1",)}


UNAVAILABLE, ABORTED = tf.errors.UnavailableError, tf.errors.AbortedError
LOSSES = {
    "it names one": (
        UNAVAILABLE,
        "recvmsg from remote target /job:ps/replica:0/task:0 while …",
        {"c:1"},
        "lost ps 0 (c:1): ",
    ),
    "it names none, and some do not answer": (ABORTED, "gone", {"a:1", "b:1"}, "lost worker 0 (a:1), worker 1 (b:1)"),
    "the named one was started anew": (
        UNAVAILABLE,
        "of /job:worker/replica:0/task:1: and",
        set(),
        "lost worker 1 (b:1)",
    ),
    "a parameter server died before a function was traced for it": (
        tf.errors.InvalidArgumentError,
        "/job:ps/replica:0/task:0/device:CPU:0 unknown device.",
        {"c:1"},
        "lost ps 0 (c:1): it has died",
    ),
    "one was held by a debugger": (
        tf.errors.DeadlineExceededError,
        "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat",
        set(),
        "lost touch with the other processes of the run: one of them was stopped, or could",
    ),
}


def is_heard(silent, address):
    return address not in silent


def test_an_error_names_the_process_that_it_is_about():
    """T16: whom TensorFlow names, or who does not answer; heartbeats that it misses are no failure of this process."""
    for name, (kind, text, silent, said) in LOSSES.items():
        found = explain_loss(kind(None, None, text), ADDRESSES, connects=functools.partial(is_heard, silent))
        assert found.exit_code == 75, name
        assert str(found).startswith(said), name


def test_other_errors_are_left_alone():
    for error in (
        ValueError("/job:ps/replica:0/task:0"),
        tf.errors.InvalidArgumentError(None, None, "/job:ps/replica:0/task:0"),
        tf.errors.InvalidArgumentError(None, None, "/job:ps/replica:0/task:0/device:CPU:0 unknown device."),
        tf.errors.UnavailableError(None, None, "the disk"),
    ):
        assert explain_loss(error, ADDRESSES, connects=lambda address: True) is None, error


# Who may take part.


def cluster_of(role, index=0, **addresses):
    return Cluster(addresses=addresses, role=role, index=index, source="TF_CONFIG")


FULL = {"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)}


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (None, "TF_CONFIG"),
        (cluster_of("chief", chief=("a:1",), worker=("b:1",)), "has no ps"),
        (cluster_of("worker", worker=("b:1",), ps=("c:1",)), "has no chief"),
        (cluster_of("worker", **FULL), "worker 0 cannot train"),
    ],
)
def test_only_the_chief_of_a_whole_cluster_can_train(cluster, said):
    runtime = RuntimeConfig(distribution_strategy="parameter_server")
    with pytest.raises(CoordinatorError, match=said):
        build_strategy(runtime, cluster)


# Which batches a worker reads.

NUM_EXAMPLES, BATCH = 26, 4


def with_seeds(batch, seeds):
    return tf.stack([tf.cast(batch, tf.int64), seeds[:, 1]], axis=1)


def number_of(record):
    return tf.strings.to_number(record, tf.int64)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Objects that build data as tasks of several kinds do."""
    path = str(tmp_path_factory.mktemp("records") / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(NUM_EXAMPLES):
            writer.write(str(number).encode())

    def arrays(params, input_context=None):
        return inputs.from_arrays(np.arange(NUM_EXAMPLES), params, input_context, transform_fn=with_seeds)

    def starting(params, input_context=None):
        numbers = np.arange(input_context.start_here() * BATCH, 1000) % NUM_EXAMPLES
        return tf.data.Dataset.from_tensor_slices(numbers).batch(BATCH)

    def plain(params, input_context=None):
        return tf.data.Dataset.from_tensor_slices(np.arange(NUM_EXAMPLES)).repeat().batch(BATCH)

    def finite(params, input_context=None):
        return tf.data.Dataset.from_tensor_slices(np.arange(NUM_EXAMPLES)).batch(BATCH, drop_remainder=True)

    def records(params, input_context=None, cache=False):
        params = params.replace(input_path=path, cache=cache)
        return inputs.from_tfrecords(params, input_context, parse_fn=number_of, transform_fn=with_seeds)

    def cached(params, input_context=None):
        return records(params, input_context, cache=True)

    kinds = (arrays, starting, plain, finite, records, cached)
    return {kind.__name__: types.SimpleNamespace(build_inputs=kind) for kind in kinds}


@pytest.mark.parametrize(
    ("kind", "num_workers", "start"),
    cases(
        [
            (kind, num_workers, start)
            for kind in ("arrays", "starting", "plain", "finite", "records", "cached")
            for num_workers in (1, 2, 3)
            for start in (0, 5)
        ],
        ("arrays", 3, 5),
        ("starting", 3, 5),
        ("plain", 2, 0),
        ("finite", 2, 5),
        ("cached", 2, 0),
    ),
)
def test_the_workers_streams_are_the_batches_of_one_device(tasks, kind, num_workers, start):
    """T7: all workers together read what one device reads, whatever a pipeline knows of workers."""
    task = tasks[kind]
    params = DataConfig(global_batch_size=BATCH, seed=3).replace(is_training=True)
    count = 12
    whole = iter(task.build_inputs(params, InputContext(seed=3)).repeat())
    expected = [batch.numpy().tolist() for _, batch in zip(range(start + count), whole, strict=False)]

    found = {}
    for worker in range(num_workers):
        feed = DatasetBuilder(task, params, training=True, seed=3)
        stream = iter(feed.of_worker(start + worker, num_workers, repeats=True))
        for _ in range(count // num_workers):
            number, batch = next(stream)
            found[int(number)] = batch.numpy().tolist()

    if kind == "starting":  # its start is right, and that is all it promises
        expected = [[(step * BATCH + i) % NUM_EXAMPLES for i in range(BATCH)] for step in range(start + count)]
    assert sorted(found) == list(range(start, start + count))
    assert [found[number] for number in sorted(found)] == expected[start:]
