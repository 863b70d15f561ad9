"""Fixtures of every test that computes: two logical CPU devices, seeded generators, and no state of the test before."""

import ctypes
import gc
import platform
import sys

import pytest

_M_ARENA_MAX = -8  # of glibc's malloc.h
_libc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


@pytest.fixture(scope="session", autouse=True)
def _devices():
    if _libc:
        # Otherwise each of TensorFlow's threads may have an arena of its own, which keeps what is freed in it.
        _libc.mallopt(_M_ARENA_MAX, 2)
    import tensorflow as tf
    import tf_keras

    from tests.support.untuned import use_no_tuning

    use_no_tuning()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf_keras.backend.experimental.enable_tf_random_generator()
    gc.collect()
    gc.freeze()  # the modules: a collection does not visit them again, and waits for fewer new objects
    gc.set_threshold(50_000, 20, 100)  # traces make many objects, of which few are garbage: a twentieth of the time


@pytest.fixture(scope="module", autouse=True)
def _freed_memory(_devices):
    """Gives the memory of a module's models and graphs, which are cycles, back to the system after its last test."""
    yield
    gc.collect()
    gc.freeze()  # what is left: modules that its tests have imported
    if _libc:
        _libc.malloc_trim(0)


@pytest.fixture(autouse=True)
def _clean_keras():
    yield
    import tf_keras

    tf_keras.backend.clear_session()
    tf_keras.mixed_precision.set_global_policy("float32")
    if "keras.src" in sys.modules:  # Keras 3, which few tests import
        sys.modules["keras"].mixed_precision.set_global_policy("float32")
