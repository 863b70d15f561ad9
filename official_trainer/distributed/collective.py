"""What all processes of a run do at the same time: one leads, the others follow.

Owns: handing the chief's calls to the other processes, and what the chief may do alone between them. Does not own: how
values travel (`multi_worker.py`), or any of the calls.

A synchronous run computes in step: a process that runs a window, or reads a sum over replicas, waits until all others
do the same. So that they do, whatever happens, only one of them decides. The chief runs the loop, with its clock, its
files and its actions; the others wait for its calls of the methods marked `together` and make the same ones. Between
two of these calls the chief reads what replicas keep apart from its own replicas, so what it does there waits for
nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

_LOOK_SECONDS = 1.0
_MOST_ELEMENTS = 16_384
"""Of a variable that travels with others; a larger one takes longer that way, to every process from every other."""

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class _Call:
    name: str
    arguments: Sequence[Any]
    options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class End:
    """The chief's last word: how its process ends."""

    exit_code: int


class ProcessGroup:
    """The processes of a run as one of them sees it; with a process alone, nothing is ever said.

    Attributes:
      stop: who tells when to stop; what one process is told, the chief hears.
      peers: the processes.
      waits: whether this process waits for the others now, to hear from them; any thread may ask.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, on_call: Callable[[], None] = lambda: None) -> None:
        """Takes the strategy under which they train.

        Args:
          strategy: one of `multi_worker.py`, or any other for a process alone.
          on_call: called before each call that all processes make.
        """
        self.peers = peers_of(strategy)
        self.stop = StopRequest()
        self.waits = False
        self._on_call = on_call
        self._leads = self._is_apart = False
        self._depth = 0
        self._parts = self._looked_parts = self._next_look = 0
        self._looked_seconds = 0.0
        self._reduce = strategy.reduce
        self._strategy = strategy

    @property
    def is_alone(self) -> bool:
        """Whether there are no other processes."""
        return self.peers.count == 1

    @property
    def is_chief(self) -> bool:
        """Whether this process speaks for the run: it alone writes to the run directory."""
        return self.peers.index == 0

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """For the chief's part of a run: calls made here are made by all; at its end, however it ends, they end too."""
        if self.is_alone:
            yield
            return
        assert self.is_chief, "only the chief leads"
        self._leads, exit_code = True, ExitCode.DONE
        self._strategy.reduce = self._reduce_alone  # how variables read what replicas keep apart
        try:
            yield
        except BaseException as error:
            exit_code = getattr(self.stop.as_preempted(error), "exit_code", ExitCode.FAILED)
            raise
        finally:
            self._leads = False
            self._strategy.reduce = self._reduce
            if not self._depth:  # in the middle of a call the others wait for this one's part, and will miss it
                with contextlib.suppress(Exception):  # they may be gone already
                    self.exchange(End(int(exit_code)))

    def follow(self, owner: Any, on_call: Callable[[str | None], None]) -> End:
        """Makes the chief's calls of `owner`'s methods until it ends.

        Args:
          owner: has the methods.
          on_call: told the name of each call before it is made, and None while the next one is waited for.
        """
        while True:
            on_call(None)
            call = self.exchange(None)[0]
            if isinstance(call, End):
                return call
            on_call(call.name)
            try:
                getattr(owner, call.name)(*call.arguments, **call.options)
            except PreemptedError:
                _logger.debug("%s was left, because the run is to stop", call.name)

    def exchange(self, value: Any) -> list[Any]:
        """Returns what each process gives here, in their order; the chief hears who is asked to stop."""
        said = self._exchange((self.stop.reason, value))
        if self.is_chief:
            self._hear([reason for reason, _ in said])
        return [value for _, value in said]

    @contextlib.contextmanager
    def calling(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Iterator[None]:
        """For a call that all processes make: the outermost is announced; signals wait until it is over."""
        if self.is_alone or self._depth:
            yield
            return
        with self.stop.uninterruptible():
            self._on_call()
            if self._leads:
                self.exchange(_Call(name, arguments, options))
            self._depth += 1
            self._parts, self._looked_parts, self._next_look, self._looked_seconds = 0, 0, 1, 0.0
            try:
                with self.peers.losses_explained():
                    yield
            except PreemptedError:  # all of them left it
                self._depth -= 1
                raise
            self._depth -= 1  # not after any other error: whoever catches it cannot go on with the others

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """For what the chief does in the middle of a call that all make, and the others do not."""
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    @contextlib.contextmanager
    def reading(self, variables: Sequence[tf.Variable]) -> Iterator[None]:
        """For a block in which all processes read `variables`: sums and means over replicas travel at once.

        One by one each takes as long as all of them. In the block a variable reads as it was at its beginning; one
        that is large is left to TensorFlow.
        """
        small = [v for v in aggregated(variables, self.peers) if v.shape.num_elements() <= _MOST_ELEMENTS]
        if self.is_alone or not small:
            yield
            return
        totals = {}
        for variable, *parts in zip(small, *self.exchange([local_sum(v) for v in small]), strict=True):
            is_mean = variable.aggregation == tf.VariableAggregation.MEAN
            divisor = self._strategy.num_replicas_in_sync if is_mean else 1
            totals[id(variable)] = tf.constant(sum(parts) / divisor, variable.dtype)
        before = self._strategy.reduce

        def reduce(reduce_op: Any, value: Any, axis: Any = None) -> Any:
            total = totals.get(id(value))
            return before(reduce_op, value, axis=axis) if total is None else total

        self._strategy.reduce = reduce
        try:
            yield
        finally:
            self._strategy.reduce = before

    def look_up(self) -> None:
        """For long calls, between their parts: all processes leave the call together if one is asked to stop.

        Raises:
          PreemptedError: in all of them.
        """
        self._parts += 1
        if self.is_alone or self._parts < self._next_look:
            return
        said = self._exchange((self.stop.reason, time.monotonic()))
        self._hear([reason for reason, _ in said])
        if any(reason for reason, _ in said):
            raise PreemptedError(f"{self.stop.reason}; {NOTHING_LOST}")
        before, self._looked_seconds = self._looked_seconds, said[0][1]  # the chief's clock is everybody's
        pace = (self._looked_seconds - before) / max(1, self._parts - self._looked_parts)
        self._looked_parts = self._parts
        self._next_look = self._parts + max(1, int(_LOOK_SECONDS / max(pace, 1e-6)))

    def _exchange(self, value: Any) -> list[Any]:
        self.waits = True
        try:
            return self.peers.exchange(value)
        finally:
            self.waits = False

    def _hear(self, reasons: Sequence[str | None]) -> None:
        """Takes from the others that the run is to stop."""
        if self.stop.reason is None:
            named = [f"{reason} (worker {index})" for index, reason in enumerate(reasons) if reason is not None]
            self.stop.reason = next(iter(named), None)

    def _reduce_alone(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Stands for `Strategy.reduce`: outside of what is done together, this process's replicas speak for all."""
        if (self._depth and not self._is_apart) or not tf.executing_eagerly():
            return self._reduce(reduce_op, value, axis=axis)
        parts = [tf.convert_to_tensor(part) for part in self._strategy.experimental_local_results(value)]
        mean = tf.add_n(parts) / tf.cast(len(parts), parts[0].dtype) if len(parts) > 1 else parts[0]
        if axis is not None:
            raise RuntimeError("strategy.reduce over an axis needs all workers, and only the chief is here")
        is_sum = reduce_op in (tf.distribute.ReduceOp.SUM, "SUM")
        return mean * tf.cast(self._strategy.num_replicas_in_sync, mean.dtype) if is_sum else mean


def collective(method: Method) -> Method:
    """Marks a method of an owner of a `process_group` as one that all processes call when the chief does."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.process_group.calling(method.__name__, arguments, options):
            return method(self, *arguments, **options)

    return call  # type: ignore[return-value]
