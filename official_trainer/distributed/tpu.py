"""Cloud TPUs: finding the configured one, connecting to it, and detecting that it is lost.

Owns: the TPU's address, TPUStrategy, every check that is possible before TensorFlow waits for it, and which errors mean
that it is lost. Does not own: the table of strategies (`strategy.py`), creating TPUs.

This has never run on a TPU. Tests use TensorFlow servers without one: they cover addresses, connections and errors.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.metadata
import importlib.util
import logging
import os
import socket
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

PROBE_SECONDS = 5.0
"""How long a host may take to answer. TensorFlow itself would wait for minutes without a message."""

_ENVIRONMENT = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME")  # in the order in which TensorFlow reads them
_METADATA_HOST = "metadata.google.internal"


class TPUError(UserError, RuntimeError):
    """The configured TPU does not exist, or cannot be used as configured."""

    exit_code = ExitCode.CONFIG


class TPULostError(UserError, ConnectionError):
    """The TPU does not answer, or has stopped answering; starting the run again may help."""

    exit_code = ExitCode.RETRY


def address(runtime: Any, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the TPU that a run is to use, from `runtime.tpu` or the environment; None if neither names one.

    Returns:
      `local`, a name, or `grpc://host:port`, several of them with commas between.
    """
    named = getattr(runtime, "tpu", None) or next((environ[name] for name in _ENVIRONMENT if environ.get(name)), None)
    if named is None or named == LOCAL:
        return named
    parts = [part.strip() for part in named.split(",")]
    if not any(":" in part for part in parts):
        return named
    return ",".join(part if part.startswith("grpc://") else f"grpc://{part}" for part in parts)


def build_strategy(runtime: Any, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Returns TPUStrategy over all cores of the TPU.

    Raises:
      TPUError: there is no such TPU, or the runtime section asks for what TPUs cannot do.
      TPULostError: it is known but does not answer.
    """
    for name, problem in runtime.replace(distribution_strategy="tpu").problems():
        raise TPUError(f"runtime.{name}: {problem}")
    where = address(runtime) or (LOCAL if tpu_devices() else None)
    if where is None:
        raise TPUError(
            "runtime.tpu: is not set, nor is TPU_NAME, and this machine has no TPU; set it to the TPU's name or to "
            f"grpc://host:{PORT}, or choose another runtime.distribution_strategy"
        )
    check_reachable(where)
    return _strategy_over(where)


def check_reachable(where: str) -> None:
    """Refuses at once what TensorFlow would wait for: for minutes, some of it.

    Raises:
      TPUError: there is no TPU at this address.
      TPULostError: a host of it does not answer.
    """
    if where == LOCAL:
        _check_local()
        return
    if tpu_devices() and os.environ.get("TPU_LOAD_LIBRARY") != "0":
        raise TPUError(
            f"runtime.tpu: {where} is reached over the network, but this process has taken the TPU of its own machine, "
            "from which that one cannot be made up; start it with TPU_LOAD_LIBRARY=0 in the environment"
        )
    if not where.startswith("grpc://"):
        _check_name(where)
        return
    hosts = hosts_of(where)
    with concurrent.futures.ThreadPoolExecutor(min(32, len(hosts))) as pool:
        failures = [failure for failure in pool.map(_connect, hosts) if failure is not None]
    unknown = [text for is_unknown, text in failures if is_unknown]
    if unknown:
        raise TPUError(f"runtime.tpu: {where}: {first_few(unknown)}; check the spelling, or use the IP address")
    if failures:
        raise TPULostError(
            f"runtime.tpu: {where}: {first_few([text for _, text in failures])}. Either the TPU was preempted or is "
            "still starting, and the same command will do once it is back; or this is not its address; or the service "
            "tpu-runtime does not run there"
        )


def hosts_of(where: str) -> list[tuple[str, int]]:
    """Returns host and port of every part of `grpc://…,grpc://…`.

    Raises:
      TPUError: a part is none.
    """
    hosts = []
    for part in where.split(","):
        host, _, port = part.removeprefix("grpc://").partition(":")
        if not host or (port and not port.isdecimal()) or not 0 < int(port or PORT) < 2**16:
            raise TPUError(
                f"runtime.tpu: {part!r} is no address; expected grpc://host:{PORT}, several with commas between, the "
                f"name of a TPU, or {LOCAL}"
            )
        hosts.append((host, int(port or PORT)))
    return hosts


def _check_local() -> None:
    if not tpu_devices():
        raise TPUError(
            f"runtime.tpu: {LOCAL}: this machine has no TPU (neither /dev/accel0 nor /dev/vfio/0); run on a TPU VM, "
            f"or set it to the name of a TPU or to grpc://host:{PORT}"
        )
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        version = importlib.metadata.version("tensorflow")
        raise TPUError(
            f"runtime.tpu: {LOCAL}: libtpu is not installed; pip uninstall tensorflow, then pip install "
            f"tensorflow-tpu=={version}, which takes its place and brings libtpu"
        )


def _connect(host: tuple[str, int]) -> tuple[bool, str] | None:
    """Returns None if `host` answers; else whether its name is unknown, and what is wrong."""
    name = f"{host[0]}:{host[1]}"
    try:
        with socket.create_connection(host, timeout=PROBE_SECONDS) as connection:
            # gRPC speaks HTTP/2, which answers with a frame of settings.
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _NO_SETTINGS)
            with connection.makefile("rb") as answer:
                frame = answer.read(len(_NO_SETTINGS))
            if len(frame) < len(_NO_SETTINGS) or frame[3] != _SETTINGS:
                return False, f"what listens at {name} is no TensorFlow server"
    except socket.gaierror:
        return True, f"no machine is called {host[0]}"
    except TimeoutError:
        return False, f"{name} does not answer within {PROBE_SECONDS:g} s"
    except OSError as error:
        return False, f"no process listens at {name} ({error.strerror or error})"
    return None


_SETTINGS = 4  # RFC 9113, section 6.5
_NO_SETTINGS = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


def _check_name(name: str) -> None:
    metadata = os.environ.get("GCE_METADATA_IP") or os.environ.get("GCE_METADATA_HOST") or _METADATA_HOST
    if not answers(metadata if ":" in metadata else f"{metadata}:80"):
        raise TPUError(
            f"runtime.tpu: {name!r} is a name, which only a machine on Google Cloud can look up, and this is none "
            f"({metadata} does not answer); start the run there, or give the address, grpc://host:{PORT}, or {LOCAL}"
        )
    if importlib.util.find_spec("googleapiclient") is None or importlib.util.find_spec("oauth2client") is None:
        raise TPUError(
            f"runtime.tpu: {name!r} is a name, and looking it up needs the Google API client; pip install "
            f"google-api-python-client oauth2client, or give the address, grpc://host:{PORT}"
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
    except tf.errors.NotFoundError as error:
        version = tf.version.VERSION
        raise TPUError(
            f"runtime.tpu: {where}: there is no TPU ({error.message}). Servers that were reached have none that "
            f"TensorFlow {version} can use: their tpu-runtime has to be of the same version"
        ) from error
    except ValueError as error:  # of the look-up of a name; TensorFlow raises nothing more specific
        raise TPUError(f"runtime.tpu: {where}: {error}") from error
    except Exception as error:
        if (reason := lost(error)) is None:
            raise
        raise TPULostError(f"runtime.tpu: {where}: {reason}. {_AGAIN}") from error
    _logger.info("strategy tpu over %d cores of %s", strategy.num_replicas_in_sync, where)
    return strategy


_AGAIN = "The same command, started again, continues from the newest checkpoint once the TPU is back or created again."


def lost(error: BaseException) -> str | None:
    """Returns why the TPU is gone, if that is what an error means; for runs on one, whose errors these are."""
    if isinstance(error, UserError) or not isinstance(error, Exception):
        return None
    text = str(getattr(error, "message", error))
    if "gs://" in text or "storage.googleapis.com" in text:
        return None  # storage errors contain the same words
    first_line = next((line for line in text.splitlines() if line.strip()), "")[:300]
    if isinstance(error, RuntimeError) and "is not yet ready; state:" in text:
        return first_line
    if not isinstance(error, tf.errors.OpError):
        return None
    is_gone = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
    if not is_gone and not any(sign in text.lower() for sign in _SIGNS):
        return None
    return f"{type(error).__name__}: {first_line}"


_SIGNS = (
    "socket closed",
    "connection reset by peer",
    "broken pipe",
    "failed to connect to all addresses",
    "health check failed",
    "unhealthy",
    "preempted",
    "heartbeat",
    "incarnation",  # the server is another process than the one that was connected to
    "unable to find a context_id",  # the same, in an error of that process
    "tpu system has been shut down",
)


def as_lost_error(error: BaseException, runtime: Any) -> TPULostError | None:
    """Returns `error` in words for the user if the run uses a TPU and it means that this one is gone; else None."""
    strategy = runtime.distribution_strategy
    is_meant = strategy == "tpu" or (strategy == "auto" and address(runtime) is not None)
    reason = lost(error) if is_meant else None
    if reason is None:
        return None
    return TPULostError(f"the TPU was taken away, by a preemption or a restart of its host ({reason}). {_AGAIN}")


def check_static(dataset: Any, source: str) -> None:
    """Refuses training batches without a fixed shape, because a TPU would compile the step for each size.

    Raises:
      TPUError: names the part of the batch.
    """
    open_shapes = [str(spec.shape) for spec in tf.nest.flatten(dataset.element_spec) if None in list(spec.shape)]
    if open_shapes:
        raise TPUError(
            f"{source}: a TPU trains on batches of one fixed shape, and these have {first_few(open_shapes)}; batch "
            "with drop_remainder=True, and give what differs in length one length (padded_batch, ensure_shape)"
        )
