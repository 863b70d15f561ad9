"""Data as `fit` and `evaluate` take it: arrays in memory, `tf.data`, generators, `keras.utils.Sequence`.

Owns: `Batches`, batches `(x, y, sample_weight)` of any of these from any batch on, how many make an epoch, when
hooks of data are called, and the errors about arguments that do not fit together. Does not own: rows (`rows.py`), what
a step does with a batch (`trainer.py`).

The order of a shuffled epoch of arrays follows from (seed, epoch) alone, so training continues in the middle of an
epoch exactly as if it had never stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.config import DataConfig
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import DataError, InputContext, skip
from official_trainer.inputs.order import epoch_seed, shuffled, window_length
from official_trainer.lazy import tf
from official_trainer.nearest import nearest
from official_trainer.program.rows import as_rows, divided, gather
from official_trainer.tasks import contract
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import do_not_convert

DEFAULT_BATCH_SIZE = 32  # Keras's
_NO_END = 2**62
_NUMBER = (int, float, np.number)
_BLOCK_STEPS = 32
_ALL = 2**31 - 1  # rows: one batch of all there are


class ArgumentError(UserError, ValueError):
    """An argument of a Program's method is wrong, or contradicts another."""

    exit_code = ExitCode.CONFIG


def check_kerases(model: Any, **arguments: Any) -> None:
    """Refuses objects of another Keras than the model.

    Args:
      model: the model.
      **arguments: arguments by name, and nests of objects.

    Raises:
      ArgumentError: names both Kerases, and where to get all from.
    """
    for name, argument in arguments.items():
        if what := contract.other_keras(model, tf.nest.flatten(argument)):
            raise ArgumentError(f"{name}: {what}")


def check_names(argument_name: str, argument: Any, names: Sequence[str], *, which: str = "outputs") -> None:
    """Refuses a dict with other names, or a list of another length.

    Args:
      argument_name: for messages.
      argument: its value.
      names: those allowed.
      which: whose names they are.

    Raises:
      ArgumentError: lists what is allowed.
    """
    if isinstance(argument, list | tuple) and len(argument) != len(names):
        raise ArgumentError(
            f"{argument_name} needs one entry for each of the {len(names)} {which} ({', '.join(names)}), None for no "
            f"value; it has {len(argument)}"
        )
    for name in argument if isinstance(argument, Mapping) else ():
        if name not in names:
            near = nearest(str(name), names)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"{argument_name}[{name!r}]: the {which} are {', '.join(names)}{hint}")


def names_of_outputs(model: Any) -> Sequence[str] | None:
    """Returns the names of a model's outputs, in the order of their structure.

    None if only a batch shows them, and for outputs within outputs.
    """
    if getattr(model, "outputs", None) is None:
        return None
    if not (names := getattr(model, "output_names", None)):
        return [model.layers[-1].name]  # of a Sequential of Keras 3, which has no `output` before its first call
    output = model.output
    if isinstance(output, Mapping):
        return None if any(map(tf.nest.is_nested, output.values())) else sorted(output)
    if isinstance(output, list | tuple) and any(map(tf.nest.is_nested, output)):
        return None
    return list(names)


def counts(**arguments: Any) -> Sequence[Any]:
    """Returns whole numbers as those of Python, and None as it is.

    Raises:
      ArgumentError: one is no whole number, or too small; names the argument.
    """
    for name, value in arguments.items():
        least = 0 if name in ("epochs", "initial_epoch") else 1
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is not None and not (is_integer and value >= least):
            raise ArgumentError(f"{name}={value!r}; allowed: whole numbers from {least} on")
    return [None if value is None else int(value) for value in arguments.values()]


class Batches:
    """The batches of a call, of repeated passes over data; each `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Attributes:
      batches_per_epoch: batches of an epoch; None for data without an end, or of unknown length.
      is_endless: whether there is another pass after each; else training ends where the data does.
    """

    def __init__(self, batches_per_epoch: int | None = None, *, is_endless: bool = True) -> None:
        self.batches_per_epoch, self.is_endless = batches_per_epoch, is_endless
        self._class_weights: tf.lookup.StaticHashTable | None = None

    section: Any = DataConfig(is_training=False)
    """The section of the config to predict with."""

    def build_inputs(self, params: Any, input_context: Any = None, *, weighted: bool = False) -> tf.data.Dataset:
        """Returns the batches for a step as a Task builds them: from a batch on to train on, else those of one pass.

        Args:
          params: the section of the config.
          input_context: what the batches are for.
          weighted: whether the parts of a batch have weights; see `divided`.
        """
        context = InputContext.adopt(input_context)
        batches = self.from_batch(context.start_here()) if params.is_training else self.one_pass()
        return divided(self._weigh(batches), context.elements_per_step, weighted=weighted)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch."""
        return self._weigh(self.one_pass()).element_spec

    def first_batch(self) -> tf.data.Dataset:
        """Returns the first batch of a pass alone; training and evaluating on it later sees it again."""
        return self._weigh(self.one_pass().take(1))

    def use_class_weight(self, class_weight: Mapping[int, float]) -> None:
        """Multiplies the weight of each example by the weight of its class; 1 for classes that are not named.

        Raises:
          ArgumentError: it is no dict of numbers by numbers.
        """
        if not (isinstance(class_weight, Mapping) and all(isinstance(number, _NUMBER) for number in class_weight)):
            raise ArgumentError(
                f"class_weight={class_weight!r}; allowed: a dict of weights by the numbers of classes, such as "
                "{0: 1.0, 1: 5.0}; a class that is not in it has the weight 1"
            )
        numbers = [int(number) for number in class_weight]
        weights = [float(weight) for weight in class_weight.values()]
        values = tf.lookup.KeyValueTensorInitializer(numbers, weights, tf.int64, tf.float32)
        self._class_weights = tf.lookup.StaticHashTable(values, 1.0)

    def _weigh(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if (weights := self._class_weights) is None:
            return batches

        def weighted(*batch: Any) -> Any:
            x, y, weight = unpacked(batch)
            if y is None or tf.nest.is_nested(y):
                raise ArgumentError("class_weight needs a model with one output, and y as one array of classes")
            is_one_hot = y.shape.rank is not None and y.shape.rank > 1 and y.shape[-1] != 1
            classes = tf.argmax(y, axis=-1) if is_one_hot else tf.reshape(y, [tf.shape(y)[0]])
            classes = tf.round(classes) if classes.dtype.is_floating else classes
            of_class = tf.cast(weights.lookup(tf.cast(classes, tf.int64)), kerases.floatx())
            return x, y, of_class if weight is None else of_class * tf.cast(weight, of_class.dtype)

        return batches.map(do_not_convert(weighted))  # AutoGraph would hide what it refuses

    def from_batch(self, first: int) -> tf.data.Dataset:
        """Returns all batches from number `first` on, counted over epochs."""
        raise NotImplementedError

    def one_pass(self) -> tf.data.Dataset:
        """Returns the batches of one pass, in order."""
        raise NotImplementedError

    @property
    def has_end(self) -> bool:
        """Whether a pass over the data ends."""
        return self.batches_per_epoch is not None or not self.is_endless

    # What data with hooks is told; see `Items`.

    ends_before_validation = True
    """Whether an epoch of training ends for the data before its validation."""

    def rewind(self) -> None:
        """Training, or an evaluation, is about to begin."""

    def begin_epoch(self, epoch: int = 0) -> None:
        """An epoch begins, or has begun; epochs are counted from 0, the one of the first batch."""

    def end_epoch(self, epoch: int = 0) -> None:
        """All batches of an epoch were used."""

    def count(self) -> None:
        """Counts the batches of a pass where that is unknown, if the data can be read again."""

    def cut(self, steps: int, epochs: int) -> None:
        """Makes epochs `steps` batches long, as Keras does; the data may end before the last epoch.

        Args:
          steps: batches of an epoch.
          epochs: number of epochs.
        """
        self.batches_per_epoch = steps

    def split(self, fraction: float, batch_size: int | None, steps: int | None) -> tuple[Batches, Batches]:
        """Returns the first rows, and the last `fraction` of the rows in batches of `batch_size`, or so many `steps`.

        Raises:
          ArgumentError: these are no arrays, or one of them would be empty.
        """
        raise ArgumentError(f"validation_split={fraction} is for arrays; give validation_data for other data")


class Arrays(Batches):
    """Arrays in memory."""

    def __init__(
        self, data: Any, *, batch_size: int | None, steps: int | None = None, shuffle: bool | str = False, seed: int = 0
    ) -> None:
        """Takes rows, and how they make batches.

        Args:
          data: `(x, y, sample_weight)` in nested structures of arrays, each with a row for each example.
          batch_size: None for what makes `steps` batches of them; without steps too, 32.
          steps: batches of an epoch.
          shuffle: as for `batches_of`.
          seed: of the order.

        Raises:
          DataError: there is no array, or they differ in their number of rows.
        """
        with tf.init_scope(), tf.device("CPU:0"):
            self._tensors = tf.nest.map_structure(as_rows, _as_batch(data))
        rows = {int(tensor.shape[0]) for tensor in tf.nest.flatten(self._tensors)}
        if len(rows) != 1 or not max(rows):
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in tf.nest.flatten(self._tensors))
            raise DataError(f"x, y and sample_weight need the same number of rows, at least one; their shapes: {sizes}")
        (self.num_examples,) = rows
        self._given = batch_size, steps
        self._shuffle, self._seed = shuffle, seed
        self._num_batches = -(-self.num_examples // self._batch_size)
        self._num_passes = _NO_END

        def of_batch(tensor: tf.Tensor) -> tf.TensorSpec:
            return tf.TensorSpec([self._batch_size, *tensor.shape[1:]], tensor.dtype)

        self._block_steps = 1  # tf.data cannot divide blocks of ragged or sparse rows
        if all(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(self._tensors)):
            self._block_steps = window_length(tf.nest.map_structure(of_batch, self._tensors), _BLOCK_STEPS)
        super().__init__(self._num_batches)

    @property
    def _batch_size(self) -> int:
        batch_size, steps = self._given
        return batch_size or (-(-self.num_examples // steps) if steps else DEFAULT_BATCH_SIZE)

    def cut(self, steps: int, epochs: int) -> None:
        if steps > self._num_batches:
            self._num_passes, self.is_endless = epochs, False

    def from_batch(self, first: int) -> tf.data.Dataset:
        first_epoch, first_batch = divmod(first, self._num_batches)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            return self._epoch(
                number, tf.where(number == first_epoch, tf.constant(first_batch, tf.int64), 0), self._shuffle
            )

        passes = tf.data.Dataset.range(first_epoch, self._num_passes)
        return passes.flat_map(do_not_convert(epoch)).prefetch(_BLOCK_STEPS)

    def one_pass(self) -> tf.data.Dataset:
        return self._epoch(0, 0, False).prefetch(_BLOCK_STEPS)

    def _epoch(self, number: Any, first_batch: Any, shuffle: bool | str) -> tf.data.Dataset:
        """Returns the batches of an epoch from `first_batch` on; one gather fetches many, which costs less."""
        size, examples, num_batches = self._batch_size, self.num_examples, self._num_batches
        steps = 1 if shuffle == "batch" else self._block_steps  # the smaller batch may be anywhere in the epoch

        def block(batch: tf.Tensor) -> Any:
            if shuffle == "batch":  # moves batches; the examples of a batch stay together
                batch = shuffled((number * num_batches + batch)[None], num_batches, self._seed)[0]
            start = batch * size
            rows = tf.range(start, tf.minimum(start + steps * size, examples))
            if shuffle and shuffle != "batch":
                rows = shuffled(number * examples + rows, examples, self._seed)
            return tf.nest.map_structure(lambda tensor: gather(tensor, rows), self._tensors)

        blocks = tf.data.Dataset.range(first_batch, num_batches, steps).map(do_not_convert(block))
        return blocks if steps == 1 else blocks.rebatch(size)

    def split(self, fraction: float, batch_size: int | None, steps: int | None) -> tuple[Batches, Batches]:
        at = int(self.num_examples * (1.0 - fraction))
        if not 0 < at < self.num_examples:
            raise ArgumentError(
                f"validation_split={fraction}: of {self.num_examples} examples, training would get {at} and validation "
                f"{self.num_examples - at}; each needs at least one"
            )
        head = tf.nest.map_structure(lambda tensor: tensor[:at], self._tensors)
        tail = tf.nest.map_structure(lambda tensor: tensor[at:], self._tensors)
        rest = Arrays(tail, batch_size=batch_size, steps=steps)
        size, of_training = self._given
        return Arrays(head, batch_size=size, steps=of_training, shuffle=self._shuffle, seed=self._seed), rest


def read_length(dataset: tf.data.Dataset) -> int:
    """Returns how many elements a dataset has, by reading all."""
    return int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *batch: total + 1))


class DatasetBatches(Batches):
    """The batches of a `tf.data.Dataset`."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        count = int(dataset.cardinality())
        super().__init__(count if count >= 0 else None, is_endless=count != tf.data.UNKNOWN_CARDINALITY)

    def count(self) -> None:
        if self.batches_per_epoch is None and not self.is_endless:
            self.batches_per_epoch = read_length(self._dataset)
            self.is_endless = True

    def cut(self, steps: int, epochs: int) -> None:
        self.is_endless = steps == self.batches_per_epoch
        super().cut(steps, epochs)

    def from_batch(self, first: int) -> tf.data.Dataset:
        return skip(self._dataset.repeat() if self.is_endless else self._dataset, first)

    def one_pass(self) -> tf.data.Dataset:
        return self._dataset


class Items(Batches):
    """A `Sequence` of tf_keras, or a `PyDataset` of Keras 3, which may have no end.

    Size: beside the methods that all batches have, those that call the hooks of a sequence once, in their order.
    Its hooks are called when Keras calls them, or earlier where batches are read ahead: always before the batches that
    Keras reads after them. Training that goes on in another process calls all again that were called before.
    """

    def __init__(self, sequence: Any, *, shuffle: bool | str, seed: int) -> None:
        self._sequence, self._shuffle, self._seed = sequence, shuffle, seed
        self._is_3 = self.ends_before_validation = "PyDataset" in kerases.kinds(sequence)
        self._count = sequence.num_batches if self._is_3 else len(sequence)
        if self._count is not None and self._count < 1:
            size = "num_batches" if self._is_3 else "len()"
            raise DataError(f"{type(sequence).__name__} has no batch: its {size} is {self._count}")
        super().__init__(self._count)
        self._signature = _signature(*[sequence[number] for number in range(min(2, self._count or 2))])
        self._num_told = 0  # hooks of epochs that were called: those of each begin and of each end
        self._lock = threading.Lock()

    def rewind(self) -> None:
        self._num_told = 0
        if self._is_3:
            self._sequence.on_epoch_end()

    def begin_epoch(self, epoch: int = 0) -> None:
        self._tell(2 * epoch + 1)

    def end_epoch(self, epoch: int = 0) -> None:
        self._tell(2 * epoch + 2)

    def _tell(self, count: int) -> None:
        """Calls the hooks up to number `count`, unless they were called."""
        with self._lock:
            while self._num_told < count:
                self._num_told += 1
                if self._num_told % 2 == 0:
                    self._sequence.on_epoch_end()
                elif self._is_3:
                    self._sequence.on_epoch_begin()

    def cut(self, steps: int, epochs: int) -> None:
        self.is_endless = self._count is None or steps <= self._count
        super().cut(steps, epochs)

    def from_batch(self, first: int) -> tf.data.Dataset:
        first_epoch, first_item = divmod(first, self.batches_per_epoch or 1)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            begin = tf.where(number == first_epoch, tf.constant(first_item, tf.int64), 0)
            return self._generated(self._epoch, number, begin).prefetch(tf.data.AUTOTUNE)

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # it would read on where an epoch ends
        epochs = tf.data.Dataset.range(first_epoch, _NO_END if self.is_endless else 1)
        return epochs.flat_map(do_not_convert(epoch)).with_options(options)

    def _epoch(self, number: int, first_item: int) -> Iterator[Any]:
        steps = self.batches_per_epoch or 0
        count = self._count
        self.begin_epoch(int(number))
        length = count if self._is_3 else steps  # a pass ends in Keras 3 where the data does, else with each epoch
        order = functools.cache(self._order)
        for batch in range(number * steps + first_item, (number + 1) * steps if self.is_endless else count or 0):
            yield self._batch(batch if length is None else order(batch // length)[batch % length])

    def _order(self, number: int) -> Sequence[int]:
        """Returns the numbers of the batches of a pass, in their order."""
        if not self._shuffle:
            return range(self._count or 0)
        seed = epoch_seed(self._seed, "items", tf.constant(number, tf.int64))
        items = tf.range(self._count, dtype=tf.int64)
        order: list[int] = tf.random.experimental.stateless_shuffle(items, tf.stack([seed, 0])).numpy().tolist()
        return order

    def one_pass(self) -> tf.data.Dataset:
        numbers = itertools.count if self._count is None else functools.partial(range, self._count)
        return self._generated(lambda: map(self._batch, numbers()))

    def _batch(self, number: int) -> Any:
        return _as_batch(self._sequence[number])

    def _generated(self, items: Callable[..., Iterator[Any]], *args: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(items, args=args, output_signature=self._signature)


class Generated(DatasetBatches):
    """A Python generator of batches, which can be read once; a call reads as many as it uses."""

    def __init__(self, generator: Iterator[Any]) -> None:
        try:
            head = next(generator)
        except StopIteration:
            raise DataError("the generator has no batch") from None
        self._head = _as_batch(head)
        batches = itertools.chain([self._head], map(_as_batch, generator))
        super().__init__(tf.data.Dataset.from_generator(lambda: batches, output_signature=_signature(head)))

    def first_batch(self) -> tf.data.Dataset:
        return self._weigh(tf.data.Dataset.from_tensors(self._head))

    def cut(self, steps: int, epochs: int) -> None:
        super().cut(steps, epochs)
        self._dataset = self._dataset.take(steps * epochs)  # before anything that reads ahead

    def count(self) -> None:
        """Does nothing: counting would read all batches."""


@dataclasses.dataclass
class CallData:
    """The data of the call that runs: to train on, and to evaluate on; None for none."""

    training: Batches | None = None
    validation: Batches | None = None


def batches_of(
    data: tuple[Any, Any, Any],
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
) -> Batches:
    """Returns the batches of the data arguments of `fit` or `evaluate`.

    Args:
      data: `(x, y, sample_weight)`; x is arrays, `tf.data`, a generator or a `keras.utils.Sequence`, and the others
        are for arrays only.
      batch_size: of arrays; None for what makes `steps` batches of them, as in Keras.
      steps: batches of an epoch; None if the data says it.
      shuffle: whether each epoch has another order; `"batch"` moves whole batches only.
      seed: of the order.

    Raises:
      ArgumentError: an argument repeats what the batches of `x` contain.
    """
    x, y, sample_weight = data
    is_sequence = bool({"Sequence", "PyDataset"} & kerases.kinds(x))
    if not isinstance(x, tf.data.Dataset | Iterator) and not is_sequence:
        return Arrays(packed(x, y, sample_weight), batch_size=batch_size, steps=steps, shuffle=shuffle, seed=seed)
    others = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
    if name := next((name for name, value in others.items() if value is not None), None):
        raise ArgumentError(f"{name}: the batches of a {type(x).__name__} already contain it; leave out {name}")
    if isinstance(x, tf.data.Dataset):
        return DatasetBatches(x)
    return Generated(x) if isinstance(x, Iterator) else Items(x, shuffle=shuffle, seed=seed)


def validation_batches(data: Any, batch_size: int | None, steps: int | None) -> Batches:
    """Returns the batches of `validation_data`: `(x, y)` or `(x, y, sample_weight)` of arrays, or batches."""
    if isinstance(data, tuple | list):
        return batches_of(unpacked(tuple(data)), batch_size=batch_size, steps=steps)
    return batches_of((data, None, None), steps=steps)


def unpacked(batch: Any) -> tuple[Any, Any, Any]:
    """Returns `(x, y, sample_weight)` of a batch, with None for what it does not have.

    Raises:
      DataError: it has more.
    """
    fields = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if len(fields) not in (1, 2, 3):
        raise DataError(f"a batch has {len(fields)} parts; allowed: (x,), (x, y) or (x, y, sample_weight)")
    x, y, sample_weight = (*fields, None, None)[:3]
    return x, y, sample_weight


def packed(x: Any, y: Any, sample_weight: Any) -> Any:
    """Returns arrays in the structure of a batch."""
    if sample_weight is not None:
        return x, y, sample_weight
    return (x,) if y is None else (x, y)


def one_batch(x: Any, y: Any, sample_weight: Any) -> Arrays:
    """Returns arrays of any size as one batch."""
    return Arrays(packed(x, y, sample_weight), batch_size=_ALL)


def _as_batch(item: Any) -> tuple[Any, ...]:
    return tuple(map(_with_tuples, item if isinstance(item, tuple | list) else (item,)))


def _with_tuples(structure: Any) -> Any:
    """Returns a structure with tuples for lists, because `tf.data` makes an array of a list; numbers become arrays."""
    first = structure
    while isinstance(first, tuple | list) and first:
        first = first[0]
    if first is not structure and isinstance(first, bool | int | float | str | bytes):  # as Keras looks at the first
        return np.asarray(structure)
    if isinstance(structure, Mapping):
        return {name: _with_tuples(value) for name, value in structure.items()}
    return tuple(map(_with_tuples, structure)) if isinstance(structure, tuple | list) else structure


def _signature(*items: Any) -> Any:
    """Returns what batches have in common, but their sizes."""

    def spec(*arrays: Any) -> tf.TensorSpec:
        tensors = [tf.convert_to_tensor(array) for array in arrays]
        sizes = zip(*[tensor.shape[1:] for tensor in tensors], strict=True)
        shared = [same[0] if len(set(same)) == 1 else None for same in sizes]
        return tf.TensorSpec([None, *shared], tensors[0].dtype)

    return tf.nest.map_structure(spec, *map(_as_batch, items))
