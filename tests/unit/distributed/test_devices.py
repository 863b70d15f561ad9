"""The cores and GPUs of a process, found without TensorFlow."""

import os
import sys

import pytest

from official_trainer.distributed import devices
from tests.support.gpus import nvidia_smi


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ("0", "1", "2", "3")),
        ("2,0", ("2", "0")),
        (" 1 , 3 ", ("1", "3")),
        ("GPU-8932f937,MIG-1b2c", ("GPU-8932f937", "MIG-1b2c")),
        ("-1", ()),
        ("", ()),
        ("1,-1,2", ("1",)),
        ("0,4,1", ("0",)),
        ("none", ()),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(visible, expected, tmp_path):
    """N21: of `CUDA_VISIBLE_DEVICES` what comes before the first that is no GPU."""
    environ = nvidia_smi(tmp_path, 4) | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert devices.gpus(environ) == expected


def test_without_a_driver_there_is_no_gpu(tmp_path):
    """N21: also where `CUDA_VISIBLE_DEVICES` names some."""
    for environ in (nvidia_smi(tmp_path, 0), nvidia_smi(tmp_path, 4, code=9)):
        assert devices.gpus(environ | {"CUDA_VISIBLE_DEVICES": "0,1"}) == ()


def test_a_container_may_have_gpus_without_nvidia_smi(tmp_path):
    """N21: they are counted by their device files."""
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environ = {"PATH": str(tmp_path)}
    assert devices.gpus(environ, str(tmp_path)) == ("0", "1")
    assert devices.gpus(environ | {"CUDA_VISIBLE_DEVICES": "1"}, str(tmp_path)) == ("1",)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the cores of a process")
def test_the_cores_are_those_that_the_process_may_use():
    """N21: as Slurm and containers restrict them."""
    assert devices.cores() == tuple(sorted(os.sched_getaffinity(0)))
