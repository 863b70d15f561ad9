"""What TensorFlow sets once for a whole process: devices, precision, eager mode, seeds, what libraries print.

Owns: setting it from a `RuntimeConfig`, before anything is built. Does not own: the strategy
(`distributed/strategy.py`).
"""

from __future__ import annotations

import os
from typing import Any

from official_trainer import lazy
from official_trainer.distributed.cluster import GIVEN_GPUS, given_gpus
from official_trainer.distributed.strategy import DeviceError
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import random_streams


def configure_process(runtime: Any) -> None:
    """Sets what TensorFlow has once per process: logical devices, precision policy, eager mode, seeds.

    Of the Kerases only those are set that the process uses; `configure_keras` sets one that it comes to use later.

    Raises:
      DeviceError: the devices cannot be set up, because there are none or TensorFlow has started already.
    """
    _choose_gpus(runtime.num_gpus)
    _split_cpu(runtime.num_logical_cpus)
    for keras in kerases.in_use():
        keras.configure(policy=_policy(runtime))
    configure_steps(runtime)
    random_streams.enable(runtime.seed)
    lazy.drop_needless_warnings()


def configure_keras(kind: kerases.Keras, runtime: Any) -> None:
    """Sets precision and seeds of a Keras, before anything of it is built."""
    kind.configure(policy=_policy(runtime))
    random_streams.enable(runtime.seed)


def _policy(runtime: Any) -> str:
    policies = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
    return policies.get(runtime.mixed_precision_dtype or "", "float32")


def configure_steps(runtime: Any) -> None:
    """Sets what applies to steps on any devices, besides seeds: eager mode, deterministic operations."""
    tf.config.run_functions_eagerly(runtime.run_eagerly)
    if runtime.enable_op_determinism:
        tf.config.experimental.enable_op_determinism()


def _choose_gpus(num_gpus: int | None) -> None:
    """Hides all but the first `num_gpus` GPUs (None: hides none); memory grows on demand."""
    gpus = tf.config.list_physical_devices("GPU")
    given = given_gpus(os.environ)
    if num_gpus is None and given > len(gpus):
        raise DeviceError(
            f"{GIVEN_GPUS}: this process was given {given} GPUs, and TensorFlow sees {len(gpus)}; install "
            "tensorflow[and-cuda], check with nvidia-smi that the driver is installed, or request no GPUs"
        )
    if num_gpus is not None and num_gpus > len(gpus):
        raise DeviceError(f"runtime.num_gpus: asks for {num_gpus} GPUs, this process sees {len(gpus)}")
    chosen = gpus if num_gpus is None else gpus[:num_gpus]
    try:
        tf.config.set_visible_devices(chosen, "GPU")
        for gpu in chosen:
            if tf.config.get_logical_device_configuration(gpu) is None:  # else each part has a fixed share of memory
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # TensorFlow has started: its devices are final
        if len(tf.config.list_logical_devices("GPU")) != len(chosen):
            raise DeviceError(f"runtime.num_gpus: asks for {num_gpus}, but TensorFlow has already started") from None


def _split_cpu(num_logical_cpus: int | None) -> None:
    if num_logical_cpus is None:
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration()] * num_logical_cpus
    try:
        tf.config.set_logical_device_configuration(cpu, wanted)
    except RuntimeError:  # TensorFlow has started: fine if the CPU is split that way already
        have = len(tf.config.list_logical_devices("CPU"))
        if have != num_logical_cpus:
            raise DeviceError(
                f"runtime.num_logical_cpus: asks for {num_logical_cpus}, but TensorFlow has already started with {have}"
            ) from None
