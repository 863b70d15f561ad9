"""What each process does before it trains."""

import pytest

from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed.cluster import GIVEN_GPUS
from official_trainer.distributed.strategy import DeviceError
from official_trainer.engine import process


def test_a_process_that_sees_fewer_does_not_train(monkeypatch):
    """N20: with what to install; else it would train on the CPU, and nobody would know."""
    monkeypatch.setenv(GIVEN_GPUS, "2")
    with pytest.raises(DeviceError, match=r"was given 2 GPUs, and TensorFlow sees 0; install tensorflow\[and-cuda"):
        process.configure_process(RuntimeConfig())
    process.configure_process(RuntimeConfig(num_gpus=0))
