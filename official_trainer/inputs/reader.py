"""Reading examples of a source, in threads or in worker processes, and which of them cannot be read.

Owns: the transforms of an example, the check that all are alike, the place and the reason of a bad one and what takes
its place, worker processes. Does not own: which examples (`random_access.py`), what a source is
(`source.py`).

A bad example is found by reading it alone. Where bad ones are skipped, a good one that is drawn takes its place in
training; an evaluation has one example less. It is drawn by the position, because bad ones often are neighbours: the
next good one would stand for all of them. So which examples a batch has depends on nothing but the data and the seed.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import errno
import hashlib
import inspect
import itertools
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import connection, reduction
from typing import Any

from official_trainer.errors import ExitCode
from official_trainer.inputs.context import DataError
from official_trainer.inputs.source import Source, arrays_of, as_array, check_alike, flat, rebuilt, stack
from official_trainer.lazy import deferred

Transform = Callable[..., Any]

_MOST_TRIED = 1000  # examples for one place
_TRIED_OF_GROUP = 8
_COMPARED = 16  # of a source's samples


class ExampleError(DataError):
    """An example that cannot be read, transformed or made part of a batch; the message has its place."""

    names_line = "behind"


class UnreachableError(DataError):
    """What holds the examples does not answer, or this machine has run out of something: no example is at fault."""

    exit_code = ExitCode.RETRY


@dataclasses.dataclass(frozen=True)
class Bad:
    """An example that cannot be read: its number, its place in the data, the reason, the position that needs it."""

    index: int
    where: str
    reason: str
    position: int


class Reader:
    """Reads examples by their numbers as arrays `[n, …]`; worker processes have a copy.

    Attributes:
      source: the examples.
      first: the leaves of the first good example as arrays, each with its path.
      structure: the structure of an example, of numbers that count its leaves.
      samples: a few of the source's.
    """

    def __init__(
        self,
        source: Source,
        transforms: Sequence[Transform],
        *,
        seed: int,
        skips: bool = False,
        repeats: bool = True,
    ) -> None:
        """Reads the first example.

        Args:
          source: the examples.
          transforms: called with each example, one after the other.
          seed: of the transforms' random numbers.
          skips: whether bad examples are left out.
          repeats: whether another one takes the place of a bad example.

        Raises:
          ExampleError: the first example is bad, or with `skips` a thousand are; or a sample has other fields.
          UnreachableError: the reason is not the example.
          DataError: it has no field.
        """
        self.source, self._seed, self._skips, self._repeats = source, seed, skips, repeats
        self._ends: dict[int, list[int]] = {}  # of the groups, by the number of the first example of a mixture's part
        self._transforms = [_as_function(transform) for transform in transforms]
        for index in (0, *(self._drawn(0, 0, number) for number in range(1, _MOST_TRIED if skips else 1))):
            try:
                example = self._example(index, index)
                self.first = arrays_of(example)
                break
            except Exception as error:
                failed = self._named(index, error)
                if _passes(error):
                    raise failed from error
        else:
            raise self._given_up(failed) if skips else failed
        if not self.first:
            raise DataError(f"{source.where(index)}: it has no field")
        self.structure = rebuilt(example, iter(range(len(self.first))))
        samples = source.samples()
        self.samples = samples[:: max(1, -(-len(samples) // _COMPARED))]
        for index in () if skips else self.samples:
            self._check_alike(index)

    def _check_alike(self, index: int) -> None:
        try:
            check_alike(arrays_of(self._example(index, index)), self.first)
        except Exception as error:
            raise self._named(index, error) from error

    @property
    def reads_many(self) -> bool:
        """Whether many examples in a call are quicker than one by one."""
        return self.source.takes_many and not self._transforms

    @property
    def num_bytes(self) -> int:
        """The size of the first example, whose texts count as 1 KiB at least: those of others may be longer."""
        arrays = [array for _, array in self.first]
        texts = [sum(map(len, array.flat)) for array in arrays if array.dtype.kind == "O"]
        numbers = sum(array.nbytes for array in arrays if array.dtype.kind != "O")
        return numbers + (max(1024, sum(texts)) if texts else 0)

    def read(self, indices: Any, positions: Any) -> tuple[list[Any], list[Bad]]:
        """Returns the leaves of a batch, and which examples are bad.

        Args:
          indices: numbers of the examples, `[n]` int64.
          positions: their positions, counted over all epochs, `[n]` int64.

        Raises:
          ExampleError: an example is bad, and none is skipped.
          UnreachableError: the reason is not the example.
        """
        try:
            return self._batch(indices, positions), []
        except Exception as error:
            if _passes(error):
                raise self._named(int(indices[0]), error, "" if len(indices) == 1 else " or one after it") from error
            parts, bad = [], []
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
                part, found = self._read_one(index, position)
                parts += part
                bad += found
            if not bad:
                raise ExampleError(f"{self.source.where(int(indices[0]))} and those after it: {error}") from error
            return self._joined(parts), bad

    def seconds(self, indices: Sequence[int]) -> dict[str, float]:
        """Returns how long a thread takes for good examples: the source, and the transforms if there are any."""
        start = time.perf_counter()
        if not self._transforms:
            self.source.take(indices)
            return {"source": time.perf_counter() - start}
        examples = self.source.__getitems__(indices)
        between = time.perf_counter()
        for example, index in zip(examples, indices, strict=True):
            arrays_of(self._transformed(example, index))
        return {"source": between - start, "transforms": time.perf_counter() - between}

    def _read_one(self, index: int, position: int) -> tuple[list[list[Any]], list[Bad]]:
        """Returns the example, or what takes its place, as a batch of one, and which examples are bad."""
        import numpy as np

        bad: list[Bad] = []
        while True:
            try:
                return [self._batch(np.asarray([index]), np.asarray([position]))], bad
            except Exception as error:
                failed = self._named(index, error)
                if _passes(error) or not self._skips:
                    raise failed from error
                bad.append(Bad(index, self.source.where(index), _reason(error), position))
                if len(bad) == _MOST_TRIED:
                    raise self._given_up(failed) from error
            if not self._repeats:
                return [], bad
            index = self._drawn(bad[0].index, position, len(bad))

    def _drawn(self, bad: int, position: int, number: int) -> int:
        """Returns the example that is tried in place of a bad one at a position, the first, second, and so on.

        It is one of the same part of a mixture, which so keeps its share, and of the same group, then of another one
        for all that are bad there, as a group may be decoded whole.
        """
        part, start = self.source.part_of(bad)
        if start not in self._ends:
            self._ends[start] = list(itertools.accumulate(part.groups or [len(part)], initial=start))[1:]
        ends, turn = self._ends[start], number // _TRIED_OF_GROUP
        group = bisect.bisect_right(ends, bad)
        if turn:
            group = self._hash("group", group, position // len(self.source), turn) % len(ends)
        first = ends[group - 1] if group else start
        return first + self._hash("example", position, number) % (ends[group] - first)

    def _hash(self, *parts: str | int) -> int:
        text = "/".join(map(str, (self._seed, *parts)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    def _given_up(self, failed: DataError) -> DataError:
        what = f"{_MOST_TRIED:,} examples were tried in its place (on_bad_record: skip), and all are bad"
        return ExampleError(f"{failed}; {what}").with_traceback(failed.__traceback__)

    def _batch(self, indices: Any, positions: Any) -> list[Any]:
        if self._transforms:
            examples = self.source.__getitems__(indices.tolist())
            pairs = zip(examples, positions.tolist(), strict=True)
            batch = stack([self._transformed(example, position) for example, position in pairs])
        else:
            batch = self.source.take(indices.tolist())
        arrays = [(path, as_array(leaf, path)) for path, leaf in flat(batch)]
        check_alike(arrays, self.first, batched=True)
        return [array for _, array in arrays]

    def _example(self, index: int, position: int) -> Any:
        return self._transformed(self.source[index], position)

    def _transformed(self, example: Any, position: int) -> Any:
        for transform in self._transforms:
            example = transform(example, self._seed, position)
        return example

    def _joined(self, parts: list[list[Any]]) -> list[Any]:
        import numpy as np

        empty = [np.empty([0, *array.shape], array.dtype) for _, array in self.first]
        return [np.concatenate([part[leaf] for part in parts] or [none]) for leaf, none in enumerate(empty)]

    def _named(self, index: int, error: Exception, or_which: str = "") -> DataError:
        where = self.source.where(index)
        reason = _reason(error)
        named: DataError = ExampleError(reason if reason.startswith(where) else f"{where}: {reason}")
        if _passes(error):
            what = "so the example itself may be good, and is not left out; start the run again once that is over"
            named = UnreachableError(f"{where}{or_which} could not be reached: {reason}, {what}")
        return named.with_traceback(error.__traceback__)


_PASSING = frozenset({"ConnectionError", "TimeoutError", "Timeout", "MemoryError"})
_ABOUT_DATA = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)  # None: the error of a decoder


def _passes(error: BaseException | None) -> bool:
    """Whether an error, or one behind it, says nothing about the example: of the network, memory, the storage.

    Names, because libraries that ask servers have classes of their own.
    """
    while error is not None:
        if any(kind.__name__ in _PASSING for kind in type(error).__mro__):
            return True
        if isinstance(error, OSError) and error.errno not in _ABOUT_DATA:
            return True
        error = error.__cause__
    return False


def _reason(error: Exception) -> str:
    own = isinstance(error, DataError) or type(error) is ValueError
    return str(error) if own else f"{type(error).__name__}: {error}"


def _as_function(transform: Transform) -> Callable[[Any, int, int], Any]:
    """Returns a transform as a function of an example, the seed and the position."""
    for method in ("random_map", "map"):  # of Grain's transforms
        if not callable(transform) and hasattr(transform, method):
            transform = getattr(transform, method)
            return _Drawing(transform) if method == "random_map" else _Plain(transform)
    if not callable(transform):
        what = f"a transform must be a function of an example, or a Map of Grain, got a {type(transform).__name__}"
        raise DataError(f"from_source(): {what}")
    try:
        draws = "rng" in inspect.signature(transform).parameters
    except ValueError:  # a function of C
        draws = False
    return _Drawing(transform, by_name=True) if draws else _Plain(transform)


class _Plain:
    def __init__(self, function: Transform) -> None:
        self._function = function

    def __call__(self, example: Any, seed: int, position: int) -> Any:
        return self._function(example)


class _Drawing:
    def __init__(self, function: Transform, *, by_name: bool = False) -> None:
        self._function, self._by_name = function, by_name

    def __call__(self, example: Any, seed: int, position: int) -> Any:
        import numpy as np

        rng = np.random.Generator(np.random.Philox(key=[seed, position]))
        return self._function(example, rng=rng) if self._by_name else self._function(example, rng)


class Workers:
    """Processes that read for this one; they end with it, however it ends."""

    def __init__(self, reader: Reader, processes: int) -> None:
        """Pickles `reader`; processes start with the first read.

        Raises:
          DataError: it cannot be pickled.
        """
        try:
            pickled = bytes(reduction.ForkingPickler.dumps(reader))
        except Exception as error:
            fix = "define transforms at the top level of a module, or leave use_multiprocessing out"
            raise DataError(f"cannot be sent to processes: {error}; {fix}", field="use_multiprocessing") from error
        self._pool = concurrent.futures.ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), _begin, (pickled,)
        )
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def read(self, indices: Any, positions: Any) -> tuple[list[Any], list[Bad]]:
        """Does what `Reader.read` does, in a worker process."""
        try:
            return self._pool.submit(_read, indices, positions).result()
        except concurrent.futures.BrokenExecutor as error:
            why = "one of the processes that read examples was killed, or could not start"
            raise DataError(f"{why}; is there enough memory for so many?", field="workers") from error


_reader: list[Reader] = []  # of a worker process


def _begin(pickled: bytes) -> None:
    """Makes this process a worker."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal and Slurm tell all processes; the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    with deferred("tensorflow", "keras", "tf_keras"):  # the user's modules name them, and reading needs none
        _reader.append(reduction.ForkingPickler.loads(pickled))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _read(indices: Any, positions: Any) -> tuple[list[Any], list[Bad]]:
    return _reader[0].read(indices, positions)
