"""tf.data service: training batches that separate processes prepare, from a dispatcher and its data workers.

Owns: what a process of these two roles runs, how a training dataset is sent through the service, and how long the start
waits for it. Does not own: starting processes (`cli/`), a service that stops to deliver (`runs/health/watchdog.py`).

Data workers take parts of a dataset on demand, so batches come in no fixed order, and those that a dead worker held are
lost. A finite dataset would wait for that worker for ever; therefore data from the service has no end.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import time
from typing import Any

from official_trainer import inputs
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.stopping import SignalPipe

_logger = logging.getLogger(__name__)

_HEARTBEAT_MS = 2_000
_PREFETCHED = 8  # batches on the network where the data section has no number
_ADDRESS = re.compile(r"grpc://(?P<host>[^:/]+|\[[^]]+\]):(?P<port>\d+)")


class DataServiceError(UserError, ConnectionError):
    """A part of the service that cannot be reached, or cannot be started where it should be."""

    exit_code = ExitCode.RETRY


class DataServiceUseError(UserError, ValueError):
    """Training data that cannot go through the service as it is configured."""

    exit_code = ExitCode.CONFIG


# The roles.


def serve(
    role: str,
    *,
    host: str = "localhost",
    port: int,
    dispatcher: str = "",
    work_dir: str = "",
    timeout_seconds: float = 60,
) -> None:
    """Runs a dispatcher or a data worker until SIGTERM, SIGINT or SIGHUP.

    Args:
      role: `dispatcher` or `data_worker`.
      host: name under which trainers reach this machine; a data worker sends it to the dispatcher.
      port: where it listens; 0 lets a data worker take any free port.
      dispatcher: `grpc://host:port` of the dispatcher, for a data worker.
      work_dir: where the dispatcher keeps its journal, so that after a restart it knows what it has handed out.
      timeout_seconds: how long a data worker waits at its start for the dispatcher.

    Raises:
      DataServiceError: the port is taken, or the dispatcher does not answer.
      DataServiceUseError: an argument is missing or wrong.
    """
    service = tf.data.experimental.service
    if port:
        _check_is_free(port)
    if role == "dispatcher":
        if not port:
            raise DataServiceUseError("port: a dispatcher needs a fixed port, which trainers and data workers can name")
        if work_dir:
            tf.io.gfile.makedirs(work_dir)
        config = service.DispatcherConfig(port=port, work_dir=work_dir or None, fault_tolerant_mode=bool(work_dir))
        server = service.DispatchServer(config)
    elif role == "data_worker":
        wait_for(dispatcher, timeout_seconds)
        config = service.WorkerConfig(
            dispatcher_address=dispatcher.removeprefix("grpc://"),
            worker_address=f"{host}:{port or '%port%'}",
            port=port,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            dispatcher_timeout_ms=int(timeout_seconds * 1000),
        )
        server = service.WorkerServer(config)
    else:
        raise DataServiceUseError(f"role {role!r} is unknown; use one of dispatcher, data_worker")
    signals = SignalPipe()
    _logger.info("%s listens at %s", role, getattr(server, "target", f"{host}:{port or 'a free port'}"))
    while not signals.read(None):
        pass
    signals.close()
    del server


def _check_is_free(port: int) -> None:
    # The server's own error is a line of C++, and it may share a port with another one.
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise DataServiceError(f"port {port}: {os.strerror(error.errno or 0)}; use another port") from error


def wait_for(address: str, timeout_seconds: float) -> None:
    """Waits until a server listens at `address`.

    Args:
      address: `grpc://host:port`.
      timeout_seconds: how long at most.

    Raises:
      DataServiceUseError: it is not such an address.
      DataServiceError: no server answers.
    """
    parsed = _ADDRESS.fullmatch(address)
    if parsed is None:
        raise DataServiceUseError(f"{address!r} is not an address of a tf.data service; write grpc://HOST:PORT")
    began = time.monotonic()
    while True:
        try:
            socket.create_connection((parsed["host"].strip("[]"), int(parsed["port"])), timeout=2.0).close()
            return
        except OSError as error:
            if time.monotonic() - began >= timeout_seconds:
                raise DataServiceError(
                    f"the dispatcher of the tf.data service at {address} does not answer ({error.strerror or error}), "
                    f"{timeout_seconds:.0f} s after the start. Start it, or correct "
                    "task.train_data.tf_data_service_address; runtime.rendezvous_timeout_seconds sets how long to wait"
                ) from error
        time.sleep(0.2)


# The trainer's side.


def is_used(params: Any) -> bool:
    """Whether the data of a section goes through a service."""
    return bool(getattr(params, "enable_tf_data_service", False))


def read_here(params: Any) -> Any:
    """Returns a data section for a task's `build_inputs`, whose dataset is sent through the service afterwards.

    Readers of Model Garden would send it themselves, so that the data workers would wait for the service that they are.
    """
    return params.replace(enable_tf_data_service=False) if is_used(params) else params


def check_pipelines(params: Any, pipelines: int) -> None:
    """Refuses several input pipelines that would each receive all the data from the service.

    Raises:
      DataServiceUseError: they have no common job name.
    """
    if pipelines > 1 and not params.tf_data_service_job_name:
        raise DataServiceUseError(
            f"task.train_data.tf_data_service_job_name is needed with {pipelines} input pipelines: without a common "
            "name, each of them would receive all the data. Set it to a name that only this run uses"
        )


def distribute(dataset: Any, params: Any, *, start: Any, timeout_seconds: float) -> Any:
    """Returns training data from the service: in no fixed order, and without end.

    Args:
      dataset: what one process would read: the data of all input pipelines.
      params: the data section.
      start: where the data begins, such as step and seed. A job of the same name that begins elsewhere, or reads other
        data, must be another job: the dispatcher would silently continue with the data of the old one.
      timeout_seconds: how long to wait for the dispatcher.

    Raises:
      DataServiceError: it does not answer.
      DataServiceUseError: the dataset cannot be sent to another process.
    """
    address, name = params.tf_data_service_address, params.tf_data_service_job_name
    wait_for(address, timeout_seconds)
    if int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        dataset = dataset.repeat()
    content = repr((params, dataset.element_spec, start))
    digest = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    service = tf.data.experimental.service
    try:
        served = dataset.apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.DYNAMIC,
                service=address,
                job_name=f"{name}-{digest}" if name else None,
            )
        )
    except (tf.errors.OpError, ValueError) as error:
        what = str(getattr(error, "message", error)).splitlines()[0]
        raise DataServiceUseError(
            f"the training data cannot be sent through the tf.data service at {address}: {what}. Data workers cannot "
            "run Python functions and generators of this process, or use its resources"
        ) from error
    ahead = _PREFETCHED if params.prefetch_buffer_size is None else params.prefetch_buffer_size
    return inputs.without_tuning(served.prefetch(ahead) if ahead else served)
