"""Reading examples of a source, in threads or in worker processes, and which of them cannot be read.

Owns: the transforms of an example, the check that all are alike, the place and the reason of a bad one, worker
processes. Does not own: which examples are read (`random_access.py`), what a source is (`source.py`).

A bad example is found by reading it alone.
"""

from __future__ import annotations

import concurrent.futures
import errno
import inspect
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, reduction
from typing import Any

from official_trainer.errors import ExitCode
from official_trainer.inputs.context import DataError
from official_trainer.inputs.source import Leaves, Source, arrays_of, as_array, check_alike, flat, rebuilt, stack
from official_trainer.lazy import deferred

Transform = Callable[..., Any]

_COMPARED = 16  # of a source's samples
_SCANNED, _SCANNERS = 64, 16  # examples at a time, and threads that read them


class ExampleError(DataError):
    """An example that cannot be read, transformed or made part of a batch; the message has its place."""

    names_line = True


class UnreachableError(DataError):
    """What holds the examples does not answer, or this machine has run out of something: no example is at fault."""

    exit_code = ExitCode.RETRY


class Reader:
    """Reads examples by their numbers as arrays `[n, …]`; worker processes have a copy.

    Attributes:
      source: the examples.
      first: the leaves of the first example as arrays, each with its path; once `begin` has read it.
      structure: the structure of an example, of numbers that count its leaves.
      samples: a few of the source's.
    """

    def __init__(self, source: Source, transforms: Sequence[Transform], *, seed: int) -> None:
        """Reads nothing yet.

        Args:
          source: the examples.
          transforms: called with each example, one after the other.
          seed: of the transforms' random numbers.
        """
        self.source, self._seed = source, seed
        self._transforms = [_as_function(transform) for transform in transforms]
        self.first: Leaves = []
        self.structure: Any = None
        samples = source.samples()
        self.samples = samples[:: max(1, -(-len(samples) // _COMPARED))]

    def begin(self) -> None:
        """Reads the first example, and compares a few others with it.

        Raises:
          ExampleError: one of them cannot be read, or has other fields than the first.
          UnreachableError: the reason is not the example.
          DataError: it has no field.
        """
        for index in (0, *self.samples):
            try:
                example = self._example(index, index)
                if not self.first:
                    self.first = arrays_of(example)
                    self.structure = rebuilt(example, iter(range(len(self.first))))
                check_alike(arrays_of(example), self.first)
            except Exception as error:
                raise self._named(index, error) from error
            if not self.first:
                raise DataError(f"{self.source.where(index)}: it has no field")

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

    def read(self, indices: Any, positions: Any) -> list[Any]:
        """Returns the leaves of a batch.

        Args:
          indices: numbers of the examples, `[n]` int64.
          positions: their positions, counted over all epochs, `[n]` int64.

        Raises:
          ExampleError: an example is bad.
          UnreachableError: the reason is not the example.
        """
        try:
            return self._batch(indices, positions)
        except Exception as error:
            if _passes(error):
                raise self._named(int(indices[0]), error, "" if len(indices) == 1 else " or one after it") from error
            for row in range(len(indices)):
                try:
                    self._batch(indices[row : row + 1], positions[row : row + 1])
                except Exception as of_example:
                    raise self._named(int(indices[row]), of_example) from of_example
            raise ExampleError(f"{self.source.where(int(indices[0]))} and those after it: {error}") from error

    def scan(self) -> Iterator[tuple[int, DataError]]:
        """Yields the number of each bad example, and what is wrong with it; it reads all examples once.

        Raises:
          UnreachableError: the reason is not the example.
        """
        first: Leaves = []
        with concurrent.futures.ThreadPoolExecutor(_SCANNERS) as pool:
            for start in range(0, len(self.source), _SCANNED):
                numbers = range(start, min(start + _SCANNED, len(self.source)))
                for index, leaves in zip(numbers, pool.map(self._leaves, numbers), strict=True):
                    try:
                        if isinstance(leaves, Exception):
                            raise leaves
                        first = first or leaves
                        check_alike(leaves, first)
                    except Exception as error:
                        named = self._named(index, error)
                        if isinstance(named, UnreachableError):
                            raise named from error
                        yield index, named

    def _leaves(self, index: int) -> Leaves | Exception:
        try:
            return arrays_of(self._example(index, index))
        except Exception as error:
            return error

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

    def _named(self, index: int, error: Exception, or_which: str = "") -> DataError:
        where = self.source.where(index)
        reason = _reason(error)
        named: DataError = ExampleError(reason if reason.startswith(where) else f"{where}: {reason}")
        if _passes(error):
            what = "so the example itself may be good; start the run again once that is over"
            named = UnreachableError(f"{where}{or_which} could not be reached: {reason}, {what}")
        return named.with_traceback(error.__traceback__)


_PASSING = frozenset({"ConnectionError", "TimeoutError", "Timeout", "MemoryError"})
_ABOUT_DATA = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)  # None: the error of a decoder


def _passes(error: BaseException | None) -> bool:
    """Whether an error, or one behind it, says nothing about the example: of the network, memory, the storage.

    Names, because libraries that ask servers have classes of their own.
    """
    while error is not None:
        if any(cls.__name__ in _PASSING for cls in type(error).__mro__):
            return True
        if isinstance(error, OSError) and error.errno not in _ABOUT_DATA:
            return True
        error = error.__cause__
    return False


def _reason(error: Exception) -> str:
    is_worded = isinstance(error, DataError) or type(error) is ValueError
    return str(error) if is_worded else f"{type(error).__name__}: {error}"


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

    def read(self, indices: Any, positions: Any) -> list[Any]:
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


def _read(indices: Any, positions: Any) -> list[Any]:
    return _reader[0].read(indices, positions)
