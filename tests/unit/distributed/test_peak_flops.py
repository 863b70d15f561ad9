"""The table of what devices can do at most."""

import types

import pytest

from official_trainer.distributed import peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "bfloat16", 312),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "float16", 756),
        ("NVIDIA H100 NVL", "float16", 835),
        ("NVIDIA H200", "bfloat16", 989),
        ("NVIDIA B200", "bfloat16", 2250),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", None),
        ("Tesla T4", "float16", 65),
        ("Tesla T4", "bfloat16", None),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla V100-PCIE-16GB", "float32", 14),
        ("NVIDIA A100-SXM4-40GB", "float32", 156),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090", "float16", None),
        ("", "float32", None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name, precision, tflops):
    """N51: no number for another form of it, a part of it, or a precision that it does not have."""
    peak = None if tflops is None else tflops * 1e12
    assert peak_flops.of_gpus([name], precision, allows_tf32=True) == peak


def test_several_gpus():
    """N51: are known if they are alike; float32 is not TF32 where that is off."""
    one, other = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"
    assert peak_flops.of_gpus([one, one], "float32", allows_tf32=False) == 67e12
    assert peak_flops.of_gpus([one, one], "float32", allows_tf32=True) == 494.5e12
    assert peak_flops.of_gpus([one, other], "float32", allows_tf32=True) is None
    assert peak_flops.of_gpus([], "float32", allows_tf32=True) is None


@pytest.mark.parametrize(
    ("accelerator_type", "num_devices", "tflops"),
    [
        ("v4-8", 4, 275),
        ("v4-8", 8, 137.5),
        ("v5litepod-8", 8, 197),
        ("v5p-16", 8, 459),
        ("v6e-4", 4, 918),
        ("v99-4", 4, None),
        ("", 8, None),
    ],
)
def test_a_tpu_is_known_by_its_type(accelerator_type, num_devices, tflops):
    """N51: in which v4 and v5p count cores, two of a chip, and the others chips."""
    assert peak_flops.of_tpu(accelerator_type, num_devices) == (None if tflops is None else tflops * 1e12)


def test_the_field_is_stronger_than_the_table():
    """N51: nothing else is asked then."""
    assert peak_flops.per_device(types.SimpleNamespace(peak_flops_per_device=2e12), strategy=None) == 2e12
