"""Cloud TPUs, as far as a machine without one can show: addresses, connections, and every way to have none.

No test here runs on a TPU, and none ever did.
"""

import os

import pytest
import tensorflow as tf

from official_trainer import lazy
from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed import strategy, tpu
from official_trainer.errors import ExitCode
from official_trainer.processes.local import free_ports
from official_trainer.tasks.step_updates import StepUpdates
from tests.support import toy
from tests.support.cases import cases
from tests.support.config.sample import problems


def runtime(where=None, **fields):
    return RuntimeConfig(distribution_strategy="tpu", tpu=where, **fields)


@pytest.fixture(autouse=True)
def _no_tpu(monkeypatch):
    """No TPU in this machine, and none in the environment."""
    monkeypatch.setattr(tpu, "tpu_devices", list)
    for name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)


def test_where_the_address_comes_from():
    """T16: the field, then what the environment says, in TensorFlow's order."""
    for field, environ, expected in (
        (None, {}, None),
        ("", {}, None),
        ("local", {"TPU_NAME": "x"}, "local"),
        ("", {"TPU_NAME": "my-tpu"}, "my-tpu"),
        (None, {"TPU_NAME": "x", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://h:1"}, "grpc://h:1"),
        ("grpc://a:8470,grpc://b:8470", {}, "grpc://a:8470,grpc://b:8470"),
        ("a:1, b:2", {}, "grpc://a:1,grpc://b:2"),
    ):
        assert tpu.address(runtime(field), environ) == expected, (field, environ)


def test_auto_takes_a_tpu_that_is_named(monkeypatch):
    """T16: by the config or by the environment; TPU devices alone are no order to use them."""
    assert strategy.strategy_name(RuntimeConfig(), None) == "auto"
    assert strategy.strategy_name(RuntimeConfig(tpu="local"), None) == "tpu"
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    assert strategy.strategy_name(RuntimeConfig(), None) == "tpu"
    assert strategy.strategy_name(RuntimeConfig(distribution_strategy="off"), None) == "off"


def refused(*args, **fields):
    with pytest.raises(tpu.TPUError) as caught:
        strategy.build_strategy(runtime(*args, **fields))
    return caught.value


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            None,
            "runtime.tpu: is not set, nor is TPU_NAME: this machine has no TPU (neither /dev/accel0 nor /dev/vfio/0)",
        ),
        ("local", "runtime.tpu: local: this machine has no TPU (neither /dev/accel0 nor /dev/vfio/0); run on"),
    ],
)
def test_places_without_a_tpu(where, said):
    """T16: at once, without a device file, an answer or a wait; starting again does not help."""
    error = refused(where)
    assert str(error).startswith(said)
    assert error.exit_code == ExitCode.CONFIG


def test_what_is_no_address():
    """T16: says what one looks like."""
    for where in ("grpc://h:x", "grpc://:8470", "grpc://h:99999", "grpc://a:1,,grpc://b:2"):
        assert "Check the address: grpc://host:8470, several with commas between" in str(refused(where)), where


def test_an_address_where_nobody_listens():
    """T16: in seconds; a TPU that was preempted may be back when the run is started again."""
    (port,) = free_ports(1)
    error = refused(f"grpc://127.0.0.1:{port}")
    assert f"no answer from 127.0.0.1:{port}. Check the address: grpc://host:8470" in str(error)
    assert error.exit_code == ExitCode.RETRY


@pytest.mark.parametrize(
    ("devices", "name", "expected"),
    [
        ([], None, "0"),
        ([], "local", "0"),
        (["/dev/accel0"], None, None),
        (["/dev/accel0"], "local", None),
        (["/dev/accel0"], "my-tpu", "0"),
    ],
)
def test_tensorflow_looks_for_a_tpu_only_where_it_is_to_use_one(monkeypatch, devices, name, expected):
    """T16: off a TPU host that look would take more than a minute; on a pod it would take the chips."""
    monkeypatch.setattr(lazy, "tpu_devices", lambda: devices)
    monkeypatch.delenv("TPU_LOAD_LIBRARY", raising=False)
    monkeypatch.setenv("TPU_NAME", name) if name else monkeypatch.delenv("TPU_NAME", raising=False)
    lazy.load("tensorflow")
    assert os.environ.get("TPU_LOAD_LIBRARY") == expected
    monkeypatch.setenv("TPU_LOAD_LIBRARY", "0")  # as it was set when the tests began, and put back after this


def test_what_the_look_up_of_a_name_says(monkeypatch):
    """T16: a TPU that is not ready yet may be later; one that is unknown will not."""
    resolver = "official_trainer.distributed.tpu.tf.distribute.cluster_resolver.TPUClusterResolver"

    def fail_with(error):
        def resolve_(_):
            raise error

        monkeypatch.setattr(resolver, resolve_)

    fail_with(RuntimeError('TPU "n" is not yet ready; state: "PREEMPTED"'))
    error = refused("n")
    assert 'runtime.tpu: n: TPU "n" is not yet ready; state: "PREEMPTED". The same command' in str(error)
    assert error.exit_code == ExitCode.RETRY
    fail_with(ValueError("Could not lookup TPU metadata from name 'n'."))
    error = refused("n")
    assert "runtime.tpu: n: there is no TPU (Could not lookup TPU metadata from name 'n'.)" in str(error)
    assert error.exit_code == ExitCode.CONFIG
    fail_with(tf.errors.UnavailableError(None, None, "failed to connect to all addresses"))
    assert refused("n").exit_code == ExitCode.RETRY
    fail_with(KeyError("a bug"))
    with pytest.raises(KeyError):
        strategy.build_strategy(runtime("n"))


# What TPUs cannot do.


SENSELESS = [
    (["runtime={distribution_strategy: tpu, mixed_precision_dtype: float16}"], "not in float16; use bfloat16"),
    (
        ["runtime={distribution_strategy: tpu, num_gpus: 2}"],
        "num_gpus: has no effect with distribution_strategy=tpu",
    ),
    (["runtime={distribution_strategy: tpu, num_logical_cpus: 2}"], "num_logical_cpus: has no effect"),
    (["runtime={distribution_strategy: tpu, num_packs: 2}"], "num_packs: has no effect"),
    (["runtime={distribution_strategy: tpu, all_reduce_alg: nccl}"], "all_reduce_alg: nccl has no effect"),
    (["runtime={distribution_strategy: tpu, enable_xla: on}"], "enable_xla: has no effect"),
    (["runtime={distribution_strategy: tpu, run_eagerly: on}"], "run_eagerly: TPUs run traced steps only"),
    (["runtime={distribution_strategy: off, tpu: x}"], "tpu: has no effect with distribution_strategy=off"),
    (
        ["runtime.distribution_strategy=tpu", "task.train_data.drop_remainder=off"],
        "task.train_data.drop_remainder: runtime.distribution_strategy=tpu needs batches that are all of one size",
    ),
    (
        ["runtime.distribution_strategy=tpu", "trainer={train_tf_function: off, train_tf_while_loop: off}"],
        "trainer.train_tf_function: TPUs run traced steps only",
    ),
]


def test_what_makes_no_sense_on_a_tpu():
    """T16: refused with the config, in milliseconds."""
    for sets, said in SENSELESS:
        assert said in problems(*sets)[0]


def test_auto_is_checked_as_well():
    """T16: what the config could not know while the strategy was open."""
    with pytest.raises(tpu.TPUError, match=r"runtime.enable_xla: has no effect"):
        strategy.build_strategy(RuntimeConfig(tpu="local", enable_xla=True))


def test_xla_is_not_asked_of_a_tpu():
    """T16: it compiles every step itself, and experiments of Model Garden leave the option on."""
    assert not strategy.needs_xla(object.__new__(tf.distribute.TPUStrategy), is_enabled=True)
    assert strategy.needs_xla(tf.distribute.get_strategy(), is_enabled=True)


# A TPU that is taken away.


LOST = [
    tf.errors.UnavailableError(None, None, "Socket closed"),
    tf.errors.AbortedError(None, None, "Session is gone"),
]
KEPT = [
    tf.errors.InvalidArgumentError(None, None, "Incompatible shapes"),
    tf.errors.ResourceExhaustedError(None, None, "Ran out of memory in memory space hbm"),
    tf.errors.UnavailableError(None, None, "Error executing an HTTP request: reading gs://bucket/file"),
    ValueError("Socket closed"),
    KeyboardInterrupt(),
]


def test_errors_that_mean_that_the_tpu_is_gone():
    """T16, N6: exit code 75, and which error it was; others are told as they are."""
    for error in LOST:
        failure = tpu.as_lost_error(error, runtime("local"))
        assert failure.exit_code == ExitCode.RETRY
        said = f"the TPU was taken away, by a preemption or a restart of its host ({type(error).__name__}: "
        assert said in str(failure) and "continues from the newest checkpoint" in str(failure)
        assert tpu.as_lost_error(error, RuntimeConfig()) is None, "without a TPU they mean something else"
    for error in KEPT:
        assert tpu.as_lost_error(error, runtime("local")) is None, error


@pytest.mark.parametrize("micro_batches", cases([1, 5], 5))
def test_steps_can_be_put_into_a_tpus_program(micro_batches):
    """T16: the graph that TPUStrategy would hand to a TPU is traced, also of a batch of open size; nothing runs it."""
    trainer = toy.build(toy.experiment(batch=10, gradient_accumulation_steps=micro_batches))

    step, evaluation = trainer.windows.step, trainer.evaluation

    def train(features, labels):
        def replica(*inputs):
            return step.run_on_replica(inputs, step.step_of_task(), StepUpdates(), publishes=False)

        tf.compat.v1.tpu.replicate(replica, [[features, labels]])

    def evaluate(features, labels):
        def replica(*inputs):
            return evaluation.own_set.run_on_replica(inputs, trainer.task.validation_step)

        shapes = [tf.TensorShape([None, None]), tf.TensorShape([None])]
        tf.compat.v1.tpu.replicate(replica, [[features, labels]], maximum_shapes=shapes)

    for traced, size in ((train, 10), (evaluate, None)):
        batch = (tf.TensorSpec([size, 6]), tf.TensorSpec([size], tf.int32))
        operations = tf.function(traced).get_concrete_function(*batch).graph.get_operations()
        assert [op for op in operations if op.type == "TPUReplicateMetadata"]
