"""Tests on a GPU: `GPU_TESTS=gpu` runs them, `GPU_TESTS=stand-in` tries their own code on two logical CPUs.

A GPU is split into two logical ones, so that one is enough for `mirrored`. The stand-in says nothing about GPUs.
"""

import functools
import os

import pytest

from official_trainer.distributed import devices
from tests.support.devices import _clean_keras, _freed_memory  # noqa: F401

MODE = os.environ.get("GPU_TESTS", "")
KIND = {"gpu": "GPU", "stand-in": "CPU"}.get(MODE)
_MEMORY_MIB = 8192  # of each logical GPU; the rest is for the processes that tests start


@functools.cache
def why_not():
    """Returns why these tests cannot run here; empty if they can."""
    if KIND is None:
        return "GPU_TESTS is not set; gpu runs them, stand-in tries the tests themselves on CPUs"
    if KIND == "GPU" and not devices.gpus(os.environ):
        return "no GPU: nvidia-smi lists none"
    return ""


def pytest_collection_modifyitems(items):
    if why_not():
        for item in items:
            if "/tests/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=why_not()))


def pytest_terminal_summary(terminalreporter):
    said = f"not run: {why_not()}" if why_not() else f"run on {'a GPU' if KIND == 'GPU' else 'CPUs, as a stand-in'}"
    terminalreporter.write_line(f"tests/gpu: {said}")


@pytest.fixture(scope="session", autouse=True)
def _devices():
    if why_not():
        return
    import tensorflow as tf
    import tf_keras

    from tests.support.untuned import use_no_tuning

    use_no_tuning()
    device = tf.config.list_physical_devices(KIND)[0]
    limit = {"memory_limit": _MEMORY_MIB} if KIND == "GPU" else {}
    if KIND == "GPU":
        tf.config.set_visible_devices([device], "GPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(**limit)] * 2)
    tf_keras.backend.experimental.enable_tf_random_generator()
    tf_keras.utils.set_random_seed(0)  # which deterministic operations need
    tf.config.experimental.enable_op_determinism()


@pytest.fixture(scope="session")
def kind(_devices):
    """Returns the kind of the devices: `GPU`, or `CPU` for the stand-in."""
    return KIND


@pytest.fixture(scope="session")
def strategy_on(kind):
    """Returns a function from a name to a strategy on these devices; always the same one for a name."""
    import tensorflow as tf

    @functools.cache  # the collectives of two strategies over the same devices get into each other's way
    def strategy_of(name):
        if name == "off":
            return tf.distribute.get_strategy()
        if name == "one_device":
            return tf.distribute.OneDeviceStrategy(f"{kind}:0")
        # Logical devices of one GPU cannot use NCCL: TensorFlow sums on one of them, and says so in its log.
        return tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"])

    return strategy_of
