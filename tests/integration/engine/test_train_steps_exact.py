"""The numbers of a run do not depend on how its work is divided: over replicas, into batches."""

import pytest

from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed import strategy as distribute
from official_trainer.distributed.strategy import DeviceError
from official_trainer.engine import process
from official_trainer.lazy import tf
from tests.support.toy import Exact, assert_bitwise_equal, build, experiment, strategy_of, weights


def test_sums_that_are_exact_give_the_same_bits_on_two_replicas():
    """T16: where nothing has to be rounded, no bit differs."""
    one, two = (build(experiment(batch=16), task_cls=Exact, strategy=name) for name in ("off", "mirrored2"))
    assert float(one.train(1)["batch_loss"]) == float(two.train(1)["batch_loss"])
    assert_bitwise_equal(weights(one), weights(two))


@pytest.mark.parametrize(
    ("name", "devices", "fields", "said"),
    [
        ("mirrored", ["CPU:0"], {"num_packs": 2}, "num_packs: has no effect without GPUs"),
        ("off", ["GPU:0"], {"num_packs": 2}, "num_packs: has no effect"),
        ("off", ["CPU:0"], {"all_reduce_alg": "nccl"}, "all_reduce_alg: nccl has no effect on one device"),
        ("mirrored", ["CPU:0"], {"all_reduce_alg": "nccl"}, "nccl sums on GPUs, and there are none"),
        ("mirrored", ["GPU:0", "GPU:1"], {"all_reduce_alg": "ring"}, "ring is for multi_worker_mirrored"),
        ("mirrored", ["GPU:0"], {"num_logical_cpus": 2}, "num_logical_cpus: has no effect with GPUs"),
        ("off", ["GPU:0", "GPU:1"], {"num_gpus": 2}, "num_gpus: strategy off uses one of 2"),
    ],
)
def test_what_has_no_effect_on_the_devices_that_there_are(name, devices, fields, said):
    """T16: `auto` knows its devices only then."""
    with pytest.raises(DeviceError, match=f"runtime.{said}" if ":" in said else said):
        distribute._check_effects(name, devices, RuntimeConfig(**fields))


def test_the_sum_of_gradients_can_be_chosen():
    """T16: the strategy that is built sums as it was told to."""
    chosen = RuntimeConfig(distribution_strategy="mirrored", all_reduce_alg="hierarchical_copy")
    operations = distribute.build_strategy(chosen).extended._cross_device_ops
    assert type(operations).__name__ == "HierarchicalCopyAllReduce"


def test_what_a_run_is_said_to_run_on():
    """T16: with the kind of device, of which all are taken unless num_gpus says otherwise."""
    assert distribute.described(strategy_of("off")) == "1 CPU"
    assert distribute.described(strategy_of("mirrored2")) == "2 CPUs, mirrored"


def test_operations_are_made_deterministic_if_asked(monkeypatch):
    """T16: by TensorFlow's own switch, which is for the whole process; otherwise it is left alone."""
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append("on"))
    process.configure_process(RuntimeConfig())
    assert asked == []
    process.configure_process(RuntimeConfig(enable_op_determinism=True))
    assert asked == ["on"]
