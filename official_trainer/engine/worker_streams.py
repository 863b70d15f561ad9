"""The training data of workers: one stream of numbered batches for each; together they are those of one device.

Owns: creating the streams on the workers, and creating one again on a worker that comes back. Does not own: what is in
a stream (`train_iterator.py`), which steps read it (`coordinator.py`).

TensorFlow traces one function for the data of all workers, which does not depend on the worker. So each worker gets a
resource of its own here, by the calls that TensorFlow's own function consists of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.lazy import load, tf

_values = load("tensorflow.python.distribute.coordinator.values")
_input_lib = load("tensorflow.python.distribute.input_lib")


class WorkerStreams(_values.PerWorkerDistributedIterator):  # type: ignore[name-defined]
    """The iterators of all workers, over batches with their numbers; `schedule` passes each worker its own.

    Attributes:
      next_numbers: number of the global batch that each worker reads next, as far as the chief knows.
    """

    next_numbers: list[int]

    def record(self, worker: int, number: int) -> None:
        """Records that `worker` has trained on its batch `number`; any thread may call it."""
        self.next_numbers[worker] = number + len(self.next_numbers)

    @property
    def iterator_spec(self) -> Any:
        """The type of one worker's iterator, for which functions are traced."""
        return self._values[0]._type_spec


def create_streams(coordinator: Any, builder: DatasetBuilder, start_step: int, *, repeats: bool) -> WorkerStreams:
    """Creates a stream on each worker; a worker that comes back gets its own again, at its last position.

    Args:
      coordinator: of the workers.
      builder: builds the data of one worker.
      start_step: the first batch, of worker 0; that of worker 1 is the next one.
      repeats: whether data that ends starts again.
    """
    workers = coordinator._cluster.workers  # there is no public way to one worker
    numbers = [start_step + index for index in range(len(workers))]

    def traced(number: int) -> Any:
        """Returns the function that builds the dataset of the worker whose next batch has this number."""

        def make() -> tf.data.Dataset:
            return builder.of_worker(number, len(workers), repeats=repeats)

        with tf.device(None):  # in a worker's thread, the worker would read what is read now
            return tf.function(make, autograph=False).get_concrete_function()

    functions = [traced(number) for number in numbers]

    def creator(worker: int) -> Callable[[], Any]:
        """Returns a function that creates the stream of a worker from its number on; called in the worker's thread."""
        first: dict[int, Any] = {numbers[worker]: functions[worker]}

        def create() -> Any:
            number = numbers[worker]
            found = first.pop(number, None) or traced(number)
            return iter(found())

        return create

    made = [worker.create_resource(creator(worker.worker_index)) for worker in workers]
    spec = _input_lib.get_iterator_spec_from_dataset(coordinator.strategy, functions[0].structured_outputs)
    for value in made:
        value._type_spec = spec
    streams = WorkerStreams(made)
    streams.next_numbers = numbers
    return streams


class NumberedBatches:
    """A worker's iterator without the numbers of the batches. Created in the function that is traced.

    Attributes:
      number: number of the batch that was read last, scalar int64.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.number: Any = None

    def __iter__(self) -> NumberedBatches:
        return self

    def __next__(self) -> Any:
        self.number, batch = next(self._iterator)
        return batch

    get_next = __next__

    def read_value(self) -> tf.Tensor:
        """Returns the number, as a variable would return its value."""
        return self.number
