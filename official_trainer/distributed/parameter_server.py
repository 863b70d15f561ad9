"""Training under a coordinator: the strategy of the chief, and the servers of all other processes.

Owns: which parts of a config are not supported there, connecting to the cluster, the life of a worker's or parameter
server's process. Does not own: the windows of steps and the workers' data (`engine/coordinator.py`).

Workers and parameter servers run TensorFlow's server and no part of the trainer: the chief sends them all computations.
So they look whether it answers, and how its run has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer import files
from official_trainer.distributed import devices
from official_trainer.distributed.cluster import CHIEF, PS, WORKER, Cluster
from official_trainer.distributed.peers import answers, processes_of, wait_for
from official_trainer.errors import ExitCode, UserError
from official_trainer.files import STATUS_FILE
from official_trainer.lazy import tf
from official_trainer.stopping import PreemptedError

_logger = logging.getLogger(__name__)

SERVING = (WORKER, PS)
"""Roles whose processes run a server of TensorFlow."""

_CONNECTED = (CHIEF, *SERVING)  # an evaluator does not communicate with the others

POLL_SECONDS = 0.5
"""How often a server checks whether the chief is still alive."""


class CoordinatorError(UserError, ValueError):
    """This process or config cannot take part in training under a coordinator."""

    exit_code = ExitCode.CONFIG


class ChiefGoneError(UserError, RuntimeError):
    """The chief has ended, or has not started; starting again helps once it runs."""

    exit_code = ExitCode.RETRY


def unsupported(config: Any) -> Iterator[tuple[str, str, str]]:
    """Yields what a config asks for that a coordinator does not support: its path, the reason, and the fix."""
    runtime, trainer = config.runtime, config.trainer
    if runtime.mixed_precision_dtype == "float16":
        why = "is float16, whose loss scale workers that update one after the other cannot agree on"
        yield "runtime.mixed_precision_dtype", why, "use bfloat16, which needs none"
    if runtime.enable_xla:
        why = "is true, but XLA cannot compile a step whose variables are elsewhere"
        yield "runtime.enable_xla", why, "set it off"
    if runtime.run_eagerly:
        yield "runtime.run_eagerly", "is true, but only traced steps can be sent to workers", "set it off"
    if getattr(getattr(config.task, "train_data", None), "enable_tf_data_service", False):
        why = "is true, but workers under a coordinator read streams of their own"
        yield "task.train_data.enable_tf_data_service", why, "leave it out"
    for name in ("train_tf_function", "train_tf_while_loop"):
        if not getattr(trainer, name):
            yield f"trainer.{name}", "is false, but workers are sent traced loops of steps", "set it to true"
    if trainer.on_data_end == "stop":
        why = "is stop, but the workers come to the end of the data at different steps"
        yield "trainer.on_data_end", why, "use repeat, and set trainer.train_steps or trainer.train_epochs"
    if trainer.recovery_max_trials > 0 and trainer.recovery_data == "skip_batch":
        why = "is skip_batch, but steps of several workers never come again in the same order, so none can be left out"
        yield "trainer.recovery_data", why, "use skip or repeat"


ORDER_OF_EXAMPLES = (
    "not that of one device: worker w of W reads the global batches w, w + W, w + 2 W, … of the same order at its own "
    "speed, and updates come as workers are done. After a restart at step S all go on from batch S, so batches that a "
    "fast worker had before are read again, and those that a slow one had not are left out; a worker that comes back "
    "goes on from the last window. The number of steps is exact."
)
"""Written to `run.json` of a run under a coordinator."""


def build(runtime: Any, cluster: Cluster | None) -> tf.distribute.Strategy:
    """Returns the chief's strategy, once all workers and parameter servers answer.

    Raises:
      CoordinatorError: there is no such cluster, this process is not its chief, or a worker has several GPUs.
      RendezvousError: not all of them answered in time.
    """
    asked = "runtime.distribution_strategy=parameter_server"
    if cluster is None:
        raise CoordinatorError(
            f"{asked}: the environment describes no cluster. Set TF_CONFIG to a cluster with the roles "
            "chief, worker and ps, or start all processes with `official-trainer launch`"
        )
    if missing := missing_roles(cluster):
        raise CoordinatorError(f"{asked}: the cluster of {cluster.source} has no {' and no '.join(missing)}")
    if cluster.role != CHIEF:
        raise CoordinatorError(f"{asked}: {cluster.name} cannot train; the chief does")
    servers = {role: cluster.addresses[role] for role in SERVING}
    wait_for(processes_of(servers), runtime.rendezvous_timeout_seconds)
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver(_CONNECTED))
    if strategy.num_replicas_in_sync > 1:
        raise CoordinatorError(
            f"runtime.num_gpus: each worker has {strategy.num_replicas_in_sync} GPUs, and under a coordinator a worker "
            "uses one; set it to 1, and start a worker for each GPU"
        )
    # Evaluations run here on purpose; TensorFlow warns about each call that is not sent to a worker.
    strategy.extended._allow_run_without_coordinator = True
    counts = ", ".join(f"{len(cluster.addresses[role])} {name}" for role, name in ((WORKER, "workers"), (PS, "ps")))
    _logger.info("strategy parameter_server: %s", counts)
    return strategy


def addresses_of(strategy: Any) -> Mapping[str, tuple[str, ...]]:
    """Returns `host:port` of the workers and parameter servers of a strategy, by role."""
    listed = strategy._cluster_resolver.cluster_spec().as_dict()  # it has no public name
    return {role: tuple(listed.get(role, ())) for role in SERVING}


def missing_roles(cluster: Cluster) -> list[str]:
    """Returns the roles that training under a coordinator needs and a cluster does not have."""
    return [role for role in _CONNECTED if not cluster.addresses.get(role)]


def serve(cluster: Cluster, runtime: Any, model_dir: str) -> None:
    """Runs the server of a worker or parameter server until the chief's run is done.

    Args:
      cluster: with the role and index of this process.
      runtime: the section of the config.
      model_dir: the run directory, which shows how the chief's run has ended.

    Raises:
      PreemptedError: the chief was asked to stop and has saved.
      ChiefGoneError: the chief has failed, or did not start (again) in time.
      CoordinatorError: the address of this process is in use.
    """
    watch = ChiefWatch(cluster.addresses[CHIEF][0], model_dir, runtime.rendezvous_timeout_seconds)
    settings = tf.compat.v1.ConfigProto()
    settings.gpu_options.allow_growth = True
    # TensorFlow derives its number of threads from that of the cores which this process may use.
    if len(devices.cores()) == 1:
        settings.inter_op_parallelism_threads = 2  # a thread that waits for a variable would block the only one
    if runtime.num_gpus is not None:
        settings.device_count["GPU"] = runtime.num_gpus
    try:
        spec = cluster.resolver(_CONNECTED).cluster_spec()
        server = tf.distribute.Server(spec, cluster.role, cluster.index, protocol="grpc", config=settings, start=True)
    except tf.errors.OpError as error:
        address = cluster.addresses[cluster.role][cluster.index]
        raise CoordinatorError(f"{cluster.name} cannot serve at {address}: {error.message}") from error
    _logger.info("%s serves at %s", cluster.name, server.target)
    while (code := watch.look(time.monotonic())) is None:
        time.sleep(POLL_SECONDS)
    if code == ExitCode.PREEMPTED:
        raise PreemptedError(f"the chief was asked to stop; {cluster.name} has nothing to save")
    if code != ExitCode.DONE:
        raise ChiefGoneError(f"{cluster.name} ends: {watch.reason}; start all processes again to continue")


class ChiefWatch:
    """Whether a server is still needed: while the chief answers, and for a time in which it may come or come back.

    Attributes:
      reason: why it is not needed any more, in words.
    """

    def __init__(
        self, address: str, model_dir: str, timeout_seconds: float, connects: Callable[[str], bool] = answers
    ) -> None:
        """Takes the chief.

        Args:
          address: its `host:port`.
          model_dir: the run directory.
          timeout_seconds: how long a server waits for an absent chief.
          connects: whether a process answers at an address.
        """
        self.reason = ""
        self._address, self._connects = address, connects
        self._status_path = files.join(model_dir, STATUS_FILE)
        self._status_before = _content(self._status_path)  # an earlier run's
        self._timeout_seconds = timeout_seconds
        self._has_come = False
        self._answered_seconds: float | None = None

    def look(self, now: float) -> ExitCode | None:
        """Returns the exit code with which a server has to end at `now` (in seconds), or None while it is needed."""
        if self._connects(self._address):
            self._has_come, self._answered_seconds = True, now
            return None
        status = _content(self._status_path)
        ended = None if status == self._status_before else _exit_code(status)
        if ended not in (None, ExitCode.RETRY):
            self.reason = f"the chief has ended with exit code {ended}"
            return ExitCode(ended) if ended in (ExitCode.DONE, ExitCode.PREEMPTED) else ExitCode.RETRY
        if self._answered_seconds is None:
            self._answered_seconds = now
        silent_seconds = now - self._answered_seconds
        if silent_seconds < self._timeout_seconds:
            return None
        self.reason = f"the chief {'is gone' if self._has_come else 'did not come'} for {silent_seconds:.0f} seconds"
        return ExitCode.RETRY


def _exit_code(status: bytes | None) -> int | None:
    """Returns the exit code of a run by its status; None if it has not ended, or left a damaged file."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return int(json.loads(status or b"null")["exit_code"])
    return None


def _content(path: str) -> bytes | None:
    try:
        return files.read_bytes(path)
    except Exception:  # TensorFlow's errors for URLs are not OSErrors; the next attempt may succeed
        return None
