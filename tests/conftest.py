"""Every test sees two logical CPU devices, no GPU, and seeded generators."""

import os
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

import pytest

from tests.chaos import summary

_cache = None


def pytest_configure(config):
    """Gives all processes of this run one cache of what is read from Model Garden, and none of an earlier run."""
    global _cache
    if not hasattr(config, "workerinput"):
        _cache = tempfile.TemporaryDirectory(prefix="cache")
        os.environ["XDG_CACHE_HOME"] = _cache.name


def pytest_addoption(parser):
    summary.add_options(parser)


def pytest_collection_modifyitems(config, items):
    """Leaves out what takes long, unless `--chaos=full` asks for it."""
    if config.getoption("--chaos") != "full":
        items[:] = [item for item in items if item.get_closest_marker("full") is None]


def pytest_terminal_summary(terminalreporter):
    summary.print_summary(terminalreporter)


@pytest.fixture(scope="session", autouse=True)
def _devices():
    import tensorflow as tf
    import tf_keras

    from tests.untuned import use_no_tuning

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


@pytest.fixture
def model_dir(tmp_path):
    return str(tmp_path / "run")
