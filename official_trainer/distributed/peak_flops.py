"""The most FLOPs that a device can do in a second, by its vendor's data sheet.

Owns: the table of devices and precisions. Does not own: the FLOPs of a step (`engine/flops.py`), or what was reached of
the peak (`runs/health/time_account.py`).

Numbers are those of dense matrices; NVIDIA's sheets give twice as much for sparse ones. None was checked on its device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from official_trainer.lazy import tf

_TFLOPS = 1e12
_GPUS: tuple[tuple[str, Mapping[str, float]], ...] = (  # https://www.nvidia.com/en-us/data-center/
    (r"(Tesla )?T4", {"float32": 8.1, "float16": 65}),
    (r"(Tesla )?V100-SXM.*", {"float32": 15.7, "float16": 125}),
    (r"(Tesla )?V100-PCIE.*", {"float32": 14, "float16": 112}),
    (r"A100(-SXM4|-PCIE| 80GB PCIe).*", {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}),
    (r"L4", {"float32": 30.3, "tf32": 60, "float16": 121, "bfloat16": 121}),
    (r"H100 PCIe", {"float32": 51, "tf32": 378, "float16": 756, "bfloat16": 756}),
    (r"(H100|H200) NVL", {"float32": 60, "tf32": 417.5, "float16": 835, "bfloat16": 835}),
    (r"H100( SXM.*| 80GB HBM3)?|H200( SXM.*)?", {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989}),
    (r"B200.*", {"float32": 75, "tf32": 1125, "float16": 2250, "bfloat16": 2250}),
)
"""What follows `NVIDIA` in a GPU's name, and its TFLOP/s."""

_TPUS = {"v4": (275.0, 2), "v5litepod": (197.0, 1), "v5p": (459.0, 2), "v6e": (918.0, 1)}
"""By the type of accelerator, https://cloud.google.com/tpu/docs/system-architecture-tpu-vm: TFLOP/s of a chip, in which
TPUs multiply float32 too, and what the number in the type counts for each chip. Never tried on a TPU."""


def per_device(runtime: Any, strategy: tf.distribute.Strategy, environ: Mapping[str, str] = os.environ) -> float | None:
    """Returns the peak of each device of a run in FLOP/s: what `runtime.peak_flops_per_device` says, or the table.

    None if neither knows it.
    """
    if (configured := getattr(runtime, "peak_flops_per_device", None)) is not None:
        return float(configured)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return of_tpu(environ.get("TPU_ACCELERATOR_TYPE", ""), strategy.num_replicas_in_sync)
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) != len(tf.config.list_logical_devices("GPU")):  # a logical device is a part of one
        return None
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "") for gpu in gpus]
    precision = getattr(runtime, "mixed_precision_dtype", None) or "float32"
    return of_gpus(names, precision, allows_tf32=tf.config.experimental.tensor_float_32_execution_enabled())


def of_gpus(names: Iterable[str], precision: str, *, allows_tf32: bool) -> float | None:
    """Returns the peak of each of several GPUs that are alike, in FLOP/s; None if it is not known.

    Args:
      names: as TensorFlow gives them, such as `NVIDIA A100-SXM4-80GB`.
      precision: `float32`, `float16` or `bfloat16`.
      allows_tf32: whether TensorFlow multiplies float32 as TF32 where a GPU can.
    """
    found = [
        [peaks for name_is, peaks in _GPUS if re.fullmatch(f"(?!.* MIG )(NVIDIA )?({name_is})", name)] for name in names
    ]
    if not found or not found[0] or any(peaks != found[0] for peaks in found):
        return None
    [peaks] = found[0]
    tflops = peaks.get("tf32") if precision == "float32" and allows_tf32 else None
    tflops = tflops or peaks.get(precision)
    return None if tflops is None else tflops * _TFLOPS


def of_tpu(accelerator_type: str, num_devices: int) -> float | None:
    """Returns the peak of each device of a TPU such as `v5litepod-8`, in FLOP/s; None if it is not known."""
    name, _, size = accelerator_type.partition("-")
    if name not in _TPUS or not size.isdecimal():
        return None
    tflops, per_chip = _TPUS[name]
    return tflops * _TFLOPS * int(size) / per_chip / num_devices
