"""Collective calls: methods that all processes of a run call at the same time. The chief leads, the others follow.

Owns: sending the chief's calls to the other processes, and what the chief may do alone between two calls. Does not own:
how values travel (`multi_worker.py`), or what the calls do.

A synchronous run computes in lockstep: a process that runs a window, or reads a sum over replicas, waits until all
others do the same. To guarantee that they do, only one process decides. The chief runs the loop, with its clock, its
files and its actions; the others wait for its calls of the methods marked with `collective` and make the same calls.
Between two calls, the chief reads values that differ by replica from its own replicas and waits for no other process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from official_trainer.distributed.multi_worker import peers_of
from official_trainer.distributed.replicas import aggregated, local_sum
from official_trainer.errors import ExitCode
from official_trainer.lazy import tf
from official_trainer.stopping import NOTHING_LOST, PreemptedError, StopRequest

_logger = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_MAX_ELEMENTS = 16_384
"""Of a variable that is sent with others; a larger one takes longer that way, to every process from every other."""

Method = TypeVar("Method", bound=Callable[..., Any])


class ProcessGroup:
    """The processes of a run as one of them sees it; a single process sends nothing.

    Attributes:
      peers: the processes.
      stop: asks this process to stop; the chief learns the reason from every process.
      is_waiting: whether this process waits for a message of the others now; any thread may read it.
    """

    def __init__(self, strategy: tf.distribute.Strategy, stop: StopRequest | None = None) -> None:
        """Takes the strategy of the processes: one of `multi_worker.py`, or any other for a single process."""
        self.peers = peers_of(strategy)
        self.stop = stop or StopRequest()
        self.is_waiting = False
        self._owners: dict[str, Any] = {}
        self._undo = contextlib.ExitStack()
        self._leads = self._is_chief_only = False
        self._depth = 0
        self._parts = _Parts()
        self._on_part: Callable[[], object] = lambda: None
        self._reduce = strategy.reduce
        self._strategy = strategy

    @property
    def is_alone(self) -> bool:
        """Whether there are no other processes."""
        return self.peers.count == 1

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, which alone writes to the run directory."""
        return self.peers.index == 0

    def register(self, owner: Any) -> None:
        """Adds an object whose `collective` methods the chief may call; every process registers the same classes."""
        self._owners[type(owner).__name__] = owner

    def use_stop(self, stop: StopRequest) -> None:
        """Replaces `stop`, for a trainer that serves several runs one after the other."""
        self.stop = stop

    def undo_at_next_call(self, undo: Callable[[], None]) -> None:
        """Calls `undo` before the next collective call, once."""
        self._undo.callback(undo)

    def after_parts(self, on_part: Callable[[], object]) -> None:
        """Has `on_part` called after each part of a long call; once more, it replaces what was called before."""
        self._on_part = on_part

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """The chief's part of a run: all processes make the calls in this block, and end when it ends or fails."""
        if self.is_alone:
            yield
            return
        assert self.is_chief, "only the chief leads"
        self._leads, exit_code = True, ExitCode.DONE
        self._strategy.reduce = self._reduce_alone  # how variables read what differs by replica
        self.peers.is_reached = lambda: self._depth > 0 and not self._is_chief_only
        try:
            yield
        except BaseException as error:
            exit_code = getattr(error, "exit_code", ExitCode.FAILED)
            raise
        finally:
            self._leads = False
            self._strategy.reduce = self._reduce
            del self.peers.is_reached
            if not self._depth:  # in the middle of a call the others wait for this one's part, and will miss it
                with contextlib.suppress(Exception):  # they may be gone already
                    self.exchange(int(exit_code))

    def follow(self, on_call: Callable[[str | None], None]) -> int:
        """Makes the chief's calls until the chief ends; returns the exit code of its process.

        Args:
          on_call: receives the name of each method before it is called, and None while the next call is awaited.
        """
        while True:
            on_call(None)
            message = self.exchange(None)[0]
            if isinstance(message, int):
                return message
            owner, name, arguments, options = message
            on_call(name)
            try:
                getattr(self._owners[owner], name)(*arguments, **options)
            except PreemptedError:
                _logger.debug("%s was interrupted, because the run stops", name)

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in their order; the chief learns which processes are asked to stop."""
        reasons, values = self._exchange(value)
        if self.is_chief:
            self._take_reason(reasons)
        return values

    @contextlib.contextmanager
    def calling(self, owner: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Iterator[None]:
        """For a collective call: the outermost one is sent to all processes."""
        if self.is_alone or self._depth:
            yield
            return
        self._undo.close()
        if self._leads:
            self.exchange((type(owner).__name__, name, arguments, options))
        self._depth += 1
        self._parts = _Parts()
        try:
            with self.peers.losses_explained():
                yield
        except PreemptedError:  # all processes left the call
            self._depth -= 1
            raise
        self._depth -= 1  # not after any other error: this process cannot make another call with the others

    @contextlib.contextmanager
    def chief_only(self) -> Iterator[None]:
        """For what the chief does in the middle of a collective call, and the others do not."""
        self._is_chief_only = True
        try:
            yield
        finally:
            self._is_chief_only = False

    @contextlib.contextmanager
    def reading(self, variables: Sequence[tf.Variable]) -> Iterator[None]:
        """For a block in which all processes read `variables`: sums and means over replicas are sent in one message.

        A message for one variable takes as long as for all of them. In the block a variable reads as it was at the
        beginning; a large one is left to TensorFlow.
        """
        small = [v for v in aggregated(variables, self.peers) if v.shape.num_elements() <= _MAX_ELEMENTS]
        if self.is_alone or not small:
            yield
            return
        totals = {}
        for variable, *local_sums in zip(small, *self.exchange([local_sum(v) for v in small]), strict=True):
            is_mean = variable.aggregation == tf.VariableAggregation.MEAN
            divisor = self._strategy.num_replicas_in_sync if is_mean else 1
            totals[id(variable)] = tf.constant(sum(local_sums) / divisor, variable.dtype)
        before = self._strategy.reduce

        def reduce(reduce_op: Any, value: Any, axis: Any = None) -> Any:
            total = totals.get(id(value))
            return before(reduce_op, value, axis=axis) if total is None else total

        self._strategy.reduce = reduce
        try:
            yield
        finally:
            self._strategy.reduce = before

    def check_stop(self) -> None:
        """For long calls, between their parts: leaves the call if this process is asked to stop.

        Processes that train together leave it at the same part if one of them is asked.

        Raises:
          PreemptedError: in all of them.
        """
        self._on_part()
        if self.is_alone:
            self.stop.check()
            return
        if not self._parts.is_check_due():
            return
        reasons, seconds = self._exchange(time.monotonic())
        self._take_reason(reasons)
        if any(reasons):
            raise PreemptedError(f"{self.stop.reason}; {NOTHING_LOST}")
        self._parts.plan_check(seconds[0])  # the chief's clock counts for all

    def _exchange(self, value: Any) -> tuple[list[str | None], list[Any]]:
        """Returns why each process is asked to stop, if it is, and the values of all processes."""
        self.is_waiting = True
        try:
            received = self.peers.exchange((self.stop.reason, value))
        finally:
            self.is_waiting = False
        return [reason for reason, _ in received], [value for _, value in received]

    def _take_reason(self, reasons: Sequence[str | None]) -> None:
        """Stops this process too if another one is asked to stop."""
        if self.stop.reason is None:
            named = [f"{reason} (worker {index})" for index, reason in enumerate(reasons) if reason is not None]
            self.stop.reason = next(iter(named), None)

    def _reduce_alone(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Replaces `Strategy.reduce` for the chief: outside of collective calls its own replicas stand for all."""
        if (self._depth and not self._is_chief_only) or not tf.executing_eagerly():
            return self._reduce(reduce_op, value, axis=axis)
        tensors = [tf.convert_to_tensor(part) for part in self._strategy.experimental_local_results(value)]
        mean = tf.add_n(tensors) / tf.cast(len(tensors), tensors[0].dtype) if len(tensors) > 1 else tensors[0]
        if axis is not None:
            raise RuntimeError("strategy.reduce over an axis needs all workers, and only the chief is here")
        is_sum = reduce_op in (tf.distribute.ReduceOp.SUM, "SUM")
        return mean * tf.cast(self._strategy.num_replicas_in_sync, mean.dtype) if is_sum else mean


class _Parts:
    """Counts the parts of a long call; about once a second, processes exchange their stop requests after a part."""

    def __init__(self) -> None:
        self._done = self._checked = 0
        self._next_check = 1
        self._checked_seconds = 0.0

    def is_check_due(self) -> bool:
        """Counts a part; returns whether processes exchange their stop requests after it."""
        self._done += 1
        return self._done >= self._next_check

    def plan_check(self, now_seconds: float) -> None:
        """Plans the next check by the duration of the parts since the last one."""
        before, self._checked_seconds = self._checked_seconds, now_seconds
        part_seconds = (now_seconds - before) / max(1, self._done - self._checked)
        self._checked = self._done
        self._next_check = self._done + max(1, int(_CHECK_SECONDS / max(part_seconds, 1e-6)))


def collective(method: Method) -> Method:
    """Marks a method that all processes call when the chief does; its owner is registered in its `process_group`."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.process_group.is_alone:
            return method(self, *arguments, **options)
        with self.process_group.calling(self, method.__name__, arguments, options):
            return method(self, *arguments, **options)

    return call  # type: ignore[return-value]
