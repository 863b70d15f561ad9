"""Cloud TPUs: the configured one, its strategy, and the errors that mean that it is gone.

Owns: the TPU's address, TPUStrategy. Does not own: the table of strategies (`strategy.py`),
creating TPUs.

This has never run on a TPU. Tests use TensorFlow servers without one: they cover addresses, connections and errors.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from typing import Any

from official_trainer.distributed.cluster import Cluster
from official_trainer.distributed.peers import answers
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf, tpu_devices
from official_trainer.shown import first_few

_logger = logging.getLogger(__name__)

LOCAL = "local"
"""The address of this machine's own TPU."""

PORT = 8470
"""The port of a TPU host whose address has none."""

_ENVIRONMENT = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME")  # in the order in which TensorFlow reads them
_AGAIN = "The same command, started again, continues from the newest checkpoint once the TPU is back or created again"


class TPUError(UserError, RuntimeError):
    """The configured TPU cannot be used; if it is only gone, starting the run again may help."""

    exit_code = ExitCode.CONFIG

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def address(runtime: Any, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the TPU that a run is to use, from `runtime.tpu` or the environment; None if neither names one.

    Returns:
      `local`, a name, or `grpc://host:port`, several of them with commas between.
    """
    named = getattr(runtime, "tpu", None) or next((environ[name] for name in _ENVIRONMENT if environ.get(name)), None)
    if named is None or ":" not in named:
        return named
    hosts = [host.strip() for host in named.split(",")]
    return ",".join(host if host.startswith("grpc://") else f"grpc://{host}" for host in hosts)


def build_strategy(runtime: Any, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Returns TPUStrategy over all cores of the TPU.

    Raises:
      TPUError: there is no such TPU, it does not answer, or the runtime section asks for what TPUs cannot do.
    """
    for name, problem, *_ in runtime.replace(distribution_strategy="tpu").problems():
        raise TPUError(f"runtime.{name}: {problem}")
    named = address(runtime)
    where = named or LOCAL
    if where == LOCAL and not tpu_devices():
        raise TPUError(
            f"runtime.tpu: {named or 'is not set, nor is TPU_NAME'}: this machine has no TPU (neither /dev/accel0 nor "
            f"/dev/vfio/0); run on a TPU VM, or set it to the TPU's name or to grpc://host:{PORT}, or choose another "
            "runtime.distribution_strategy"
        )
    if where.startswith("grpc://"):
        _check_answers(where)
    return _strategy_over(where)


def _check_answers(where: str) -> None:
    """Refuses hosts that do not answer, for which TensorFlow would wait for minutes without a message."""
    hosts = [host.removeprefix("grpc://") for host in where.split(",")]
    if silent := [host for host in hosts if not answers(host if ":" in host else f"{host}:{PORT}")]:
        raise TPUError(
            f"runtime.tpu: {where}: no answer from {first_few(silent)}. Check the address: grpc://host:{PORT}, several "
            f"with commas between, the name of a TPU, or {LOCAL}. {_AGAIN}",
            ExitCode.RETRY,
        )


@functools.cache  # initializing a TPU again deletes everything on it
def _strategy_over(where: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(where)
        if where != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        assignment = None  # lets TensorFlow decide which device each replica has; the newest TPUs need to be told
        if hasattr(tf.tpu.experimental, "HardwareFeature"):
            feature = tf.tpu.experimental.HardwareFeature(resolver.tpu_hardware_feature)
            if feature.embedding_feature == tf.tpu.experimental.HardwareFeature.EmbeddingFeature.V2:
                num_cores = resolver.get_tpu_system_metadata().num_cores
                assignment = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=num_cores)
        strategy = tf.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)
    except (tf.errors.NotFoundError, ValueError) as error:  # ValueError: a name that is unknown
        raise TPUError(
            f"runtime.tpu: {where}: there is no TPU ({error}). Servers that were reached have none that TensorFlow "
            f"{tf.version.VERSION} can use: their tpu-runtime has to be of the same version"
        ) from error
    except (tf.errors.OpError, RuntimeError) as error:  # RuntimeError: a TPU that is not ready yet
        raise TPUError(f"runtime.tpu: {where}: {error}. {_AGAIN}", ExitCode.RETRY) from error
    _logger.info("strategy tpu over %d cores of %s", strategy.num_replicas_in_sync, where)
    return strategy


def as_lost_error(error: BaseException, runtime: Any) -> TPUError | None:
    """Returns `error` in words for the user if the run uses a TPU and it means that this one is gone; else None."""
    strategy = runtime.distribution_strategy
    is_on_tpu = strategy == "tpu" or (strategy == "auto" and address(runtime) is not None)
    if not is_on_tpu or not isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return None
    text = str(error.message)
    if "gs://" in text:  # storage fails with the same classes
        return None
    reason = f"{type(error).__name__}: {text.partition(chr(10))[0][:300]}"
    what = f"the TPU was taken away, by a preemption or a restart of its host ({reason}). {_AGAIN}"
    return TPUError(what, ExitCode.RETRY)
