"""Fixtures of every test that computes: two logical CPU devices, seeded generators, and no state of the test before."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _devices():
    import tensorflow as tf
    import tf_keras

    from tests.support.untuned import use_no_tuning

    use_no_tuning()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf_keras.backend.experimental.enable_tf_random_generator()


@pytest.fixture(autouse=True)
def _clean_keras():
    yield
    import tf_keras

    tf_keras.backend.clear_session()
    tf_keras.mixed_precision.set_global_policy("float32")
