"""From `RuntimeConfig` to a `tf.distribute.Strategy`, and the process-wide settings a run needs.

Owns: the table of strategies, which devices are used and how, precision, eager mode, seeds. Called once, before
anything is built. Does not own: who takes part in a cluster (`cluster.py`), or how its processes, or a TPU (`tpu.py`),
are connected.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from official_trainer.distributed import multi_worker, parameter_server, tpu
from official_trainer.distributed.cluster import PS, Cluster
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)


class DeviceError(UserError, ValueError):
    """The runtime section asks for devices that this machine does not have."""

    exit_code = ExitCode.CONFIG


def build_strategy(runtime: Any, cluster: Cluster | None = None, *, trains: bool = True) -> tf.distribute.Strategy:
    """Returns the strategy that `runtime.distribution_strategy` names.

    One replica, under `auto` or `mirrored`, means TensorFlow's default strategy: MirroredStrategy over a single device
    gives the same numbers and takes about twice as long for a step of a small model.

    Args:
      runtime: the section of the config.
      cluster: the processes of the run; None for this one alone.
      trains: whether it is for training. Coordinators and evaluators evaluate, and export, on their own devices.
    """
    name = strategy_name(runtime, cluster)
    is_alone = cluster is None or len(cluster.training) < 2
    if not trains and (name == "parameter_server" or (name == "multi_worker_mirrored" and is_alone)):
        name = "auto"
    if builder := _CLUSTER_BUILDERS.get(name):
        return builder(runtime, cluster)
    devices = _devices()
    if name == "auto":
        several_gpus = len(devices) > 1 and devices[0].startswith("GPU")
        name = "mirrored" if several_gpus or (runtime.num_logical_cpus or 1) > 1 else "off"
    _check_effects(name, devices, runtime)
    if name == "mirrored" and len(devices) == 1:
        _logger.info("mirrored over one device is the same as off")
        name = "off"
    strategy = _BUILDERS[name](devices, runtime)
    is_default = name == "mirrored" and devices[0].startswith("GPU") and runtime.num_gpus is None
    level = logging.DEBUG if trains else logging.INFO  # the first line of a training run says it too
    _logger.log(level, "running on %s%s", described(strategy), " (all that can be seen)" if is_default else "")
    return strategy


def strategy_name(runtime: Any, cluster: Cluster | None) -> str:
    """Returns which strategy a process takes, as far as that is known before its devices are: `auto` may be left."""
    if runtime.distribution_strategy != "auto":
        return runtime.distribution_strategy
    if cluster is not None and len(cluster.training) > 1:
        return "parameter_server" if cluster.addresses.get(PS) else "multi_worker_mirrored"
    return "auto" if tpu.address(runtime) is None else "tpu"


def _check_effects(name: str, devices: list[str], runtime: Any) -> None:
    """Refuses what has no effect on the devices that there are; what never has any, the config has refused."""
    has_gpus = devices[0].startswith("GPU")
    if has_gpus and runtime.num_logical_cpus is not None:
        raise DeviceError("runtime.num_logical_cpus: has no effect with GPUs; leave it out, or set num_gpus to 0")
    if name != "mirrored" and (runtime.num_gpus or 0) > 1:
        raise DeviceError(f"runtime.num_gpus: strategy {name} uses one of {runtime.num_gpus}; set it to 1, or mirrored")
    if runtime.num_packs > 1 and (name != "mirrored" or not has_gpus):
        raise DeviceError("runtime.num_packs: has no effect without GPUs; leave it at 1")
    algorithm = runtime.all_reduce_alg
    if algorithm is not None and name != "mirrored":
        raise DeviceError(f"runtime.all_reduce_alg: {algorithm} has no effect on one device; leave it out")
    if algorithm == "ring":
        raise DeviceError("runtime.all_reduce_alg: ring is for multi_worker_mirrored; leave it out, or use nccl")
    if algorithm == "nccl" and not has_gpus:
        raise DeviceError("runtime.all_reduce_alg: nccl sums on GPUs, and there are none; use hierarchical_copy")


@functools.cache  # the collectives of two such strategies in one process get into each other's way, and hang
def _mirrored(devices: tuple[str, ...], all_reduce_alg: str | None, num_packs: int) -> tf.distribute.Strategy:
    if all_reduce_alg is None and num_packs == 1:
        return tf.distribute.MirroredStrategy(devices)
    hierarchical = all_reduce_alg == "hierarchical_copy"
    operations = tf.distribute.HierarchicalCopyAllReduce if hierarchical else tf.distribute.NcclAllReduce
    return tf.distribute.MirroredStrategy(devices, operations(num_packs=num_packs))


_BUILDERS: dict[str, Callable[[list[str], Any], tf.distribute.Strategy]] = {
    "off": lambda devices, runtime: tf.distribute.get_strategy(),
    "one_device": lambda devices, runtime: tf.distribute.OneDeviceStrategy(devices[0]),
    "mirrored": lambda devices, runtime: _mirrored(tuple(devices), runtime.all_reduce_alg, runtime.num_packs),
}

_CLUSTER_BUILDERS: dict[str, Callable[[Any, Cluster | None], tf.distribute.Strategy]] = {
    "multi_worker_mirrored": multi_worker.build,
    "parameter_server": parameter_server.build,
    "tpu": tpu.build_strategy,
}


def _devices() -> list[str]:
    """Returns the GPUs that TensorFlow may use, else the logical CPUs."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [f"{device.device_type}:{i}" for i, device in enumerate(devices)]


def described(strategy: tf.distribute.Strategy) -> str:
    """Returns what a strategy runs on, in words: `1 CPU`, `8 GPUs, mirrored`, `4 GPUs of 2 workers, mirrored`."""
    replicas, workers = strategy.num_replicas_in_sync, multi_worker.peers_of(strategy).count
    devices = strategy.extended.worker_devices if replicas > 1 else _devices()[:1]
    types = " and ".join(sorted({tf.DeviceSpec.from_string(device).device_type for device in devices}))
    if replicas == 1:
        return f"1 {types}"
    where = f" of {workers} workers" if workers > 1 else ""
    is_mirrored = not isinstance(strategy, tf.distribute.TPUStrategy)
    return f"{replicas} {types}s{where}{', mirrored' if is_mirrored else ''}"


def needs_xla(strategy: tf.distribute.Strategy, is_enabled: bool) -> bool:
    """Returns whether XLA has to be asked to compile the steps; those of a TPU it compiles unasked.

    Raises:
      DeviceError: the strategy sums gradients over devices that are no GPUs.
    """
    if not is_enabled or isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    if strategy.num_replicas_in_sync == 1:
        return True
    devices = strategy.extended.worker_devices
    if not all("GPU" in device for device in devices):
        raise DeviceError(
            f"runtime.enable_xla: XLA cannot compile a step that sums gradients over {len(devices)} CPU devices; "
            "set it to false, or use one device"
        )
    return True
