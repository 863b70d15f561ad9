"""What each process does before it trains."""

import pytest

from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed.cluster import GIVEN_GPUS
from official_trainer.distributed.strategy import DeviceError
from official_trainer.engine import process
from official_trainer.lazy import tf


def test_a_process_that_sees_fewer_does_not_train(monkeypatch):
    """N20: with what to install; else it would train on the CPU, and nobody would know."""
    monkeypatch.setenv(GIVEN_GPUS, "2")
    said = rf"{GIVEN_GPUS}: this process was given 2 GPUs, and TensorFlow sees 0; install tensorflow\[and-cuda.*no GPUs"
    with pytest.raises(DeviceError, match=said):
        process.configure_process(RuntimeConfig())
    process.configure_process(RuntimeConfig(num_gpus=0))


def test_memory_grows_on_whole_gpus_alone(monkeypatch):
    """T16: TensorFlow refuses it for a GPU that a program has divided, whose parts have fixed shares."""
    grows = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["whole", "divided"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: None)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", {"whole": None, "divided": [1, 2]}.__getitem__)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, enable: grows.append((gpu, enable)))
    process._choose_gpus(None)
    assert grows == [("whole", True)]
