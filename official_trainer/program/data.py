"""Data as `fit` and `evaluate` take it: arrays in memory, `tf.data`, generators, `keras.utils.Sequence`.

Owns: `Source`, batches `(x, y, sample_weight)` of any of these from any batch on, how many make an epoch, dividing a
batch among replicas, and the errors about arguments that do not fit together. Does not own: what a step does with a
batch (`trainer.py`).

The order of a shuffled epoch of arrays follows from (seed, epoch) alone, so training continues in the middle of an
epoch exactly as if it had never stopped.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.config import DataConfig
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import DataError, InputContext, skip
from official_trainer.inputs.order import epoch_seed, shuffled, window_length
from official_trainer.lazy import tf
from official_trainer.nearest import nearest
from official_trainer.program.rows import as_rows, cut_rows, gather
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.returned import other_library

DEFAULT_BATCH_SIZE = 32  # Keras's
_NO_END = 2**62
_BLOCK_STEPS = 32
_ALL = 2**31 - 1  # rows: one batch of all there are


class ArgumentError(UserError, ValueError):
    """An argument of a Program's method is wrong, or contradicts another."""

    exit_code = ExitCode.CONFIG


def check_one_keras(model: Any, **arguments: Any) -> None:
    """Refuses objects of another Keras than the model, and of PyTorch.

    Args:
      model: the model.
      **arguments: arguments by name, and nests of objects.

    Raises:
      ArgumentError: names both Kerases, and where to get all from.
    """
    is_3 = kerases.is_3(model)
    for place, argument in arguments.items():
        for value in tf.nest.flatten(argument):
            check_library(place, value)
            if kerases.is_2(value) if is_3 else kerases.is_3(value):
                kind = value if isinstance(value, type) else type(value)
                which = f"{kind.__name__} is of {kerases.of(kind).NAME}, and the model {type(model).__name__}"
                fix = "import keras" if is_3 else "from official_trainer.lazy import keras"
                raise ArgumentError(f"{place}: {which} of {kerases.of(model).NAME}: take both from `{fix}`")


def check_library(place: str, value: Any) -> None:
    """Refuses an object of PyTorch.

    Raises:
      ArgumentError: names the argument and the class.
    """
    if said := other_library(value):
        raise ArgumentError(f"{place}: {said}")


def check_known(module: Any, place: str, *values: Any) -> None:
    """Refuses a class in place of an object, and a name that Keras does not know.

    Args:
      module: tf_keras or Keras 3.
      place: the argument of `compile`: `optimizer`, `loss`, `metrics` or `weighted_metrics`.
      *values: what it holds.

    Raises:
      ArgumentError: names the nearest that Keras knows.
    """
    known: Any = {"optimizer": module.optimizers, "loss": module.losses}.get(place, module.metrics)
    for value in values:
        if isinstance(value, type):
            raise ArgumentError(f"{place}: {value.__name__} is a class; write {value.__name__}(…), an object of it")
        if not isinstance(value, str) or (known is module.metrics and value in _OF_ANY_OUTPUT):
            continue
        try:
            found = known.get(value)
        except ValueError:
            found = value
        if isinstance(found, str):  # `keras.metrics.get` returns names that it does not know
            names = [*_OF_ANY_OUTPUT, *(name for name in dir(known) if not name.startswith("_"))]
            hint = f"; did you mean {near[0]!r}?" if (near := nearest(value, names)) else ""
            raise ArgumentError(f"{place}: Keras knows no {value!r}{hint}")


_OF_ANY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
"""Names of metrics for which `compile` chooses a class by the shapes of the output."""


def check_names(place: str, argument: Any, names: Sequence[str], *, which: str = "outputs") -> None:
    """Refuses a dict with other names, or a list of another length.

    Args:
      place: the argument's name.
      argument: its value.
      names: those allowed.
      which: whose names they are.

    Raises:
      ArgumentError: lists what is allowed.
    """
    if isinstance(argument, list | tuple) and len(argument) != len(names):
        raise ArgumentError(
            f"{place} needs one entry for each of the {len(names)} {which} ({', '.join(names)}), None for no value; it "
            f"has {len(argument)}"
        )
    for name in argument if isinstance(argument, Mapping) else ():
        if name not in names:
            near = nearest(str(name), names)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"{place}[{name!r}]: the {which} are {', '.join(names)}{hint}")


def names_of_outputs(model: Any) -> Sequence[str] | None:
    """Returns the names of a model's outputs, in the order of their structure.

    None if only a batch shows them, and for outputs within outputs.
    """
    if getattr(model, "outputs", None) is None:
        return None
    output = model.output
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    if any(map(tf.nest.is_nested, entries)):
        return None
    return sorted(output) if isinstance(output, Mapping) else list(model.output_names)


class Source:
    """Batches of repeated passes over data; each `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Attributes:
      batches_per_epoch: batches of an epoch; None for data without an end, or of unknown length.
      is_endless: whether there is another pass after each; else training ends where the data does.
    """

    def __init__(self, batches_per_epoch: int | None = None, *, is_endless: bool = True) -> None:
        self.batches_per_epoch, self.is_endless = batches_per_epoch, is_endless
        self._class_weights: tf.Tensor | None = None

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
        batches = self.batches(context.start_here()) if params.is_training else self.one_pass()
        return divided(self._weigh(batches), context.elements_per_step, weighted=weighted)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch."""
        return self._weigh(self.one_pass()).element_spec

    def first_batch(self) -> tf.data.Dataset:
        """Returns the first batch of a pass alone; training and evaluating on it later sees it again."""
        return self._weigh(self.one_pass().take(1))

    def use_class_weight(self, class_weight: Mapping[int, float]) -> None:
        """Multiplies the weight of each example by the weight of its class, 0 to n - 1.

        Raises:
          ArgumentError: a class has no weight.
        """
        if sorted(class_weight) != list(range(len(class_weight))):
            raise ArgumentError(
                f"class_weight has weights for the classes {sorted(class_weight)}; it must have one for each of "
                f"0 … {max(class_weight)}"
            )
        weights = [class_weight[number] for number in sorted(class_weight)]
        self._class_weights = tf.constant(weights, kerases.floatx())

    def _weigh(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if (weights := self._class_weights) is None:
            return batches

        def weighted(*batch: Any) -> Any:
            x, y, weight = unpacked(batch)
            if y is None or tf.nest.is_nested(y):
                raise ArgumentError("class_weight needs a model with one output, and y as one array of classes")
            is_one_hot = y.shape.rank is not None and y.shape.rank > 1 and y.shape[-1] != 1
            classes = tf.argmax(y, axis=-1) if is_one_hot else tf.reshape(y, [tf.shape(y)[0]])
            of_class = tf.gather(weights, tf.cast(classes, tf.int64))
            return x, y, of_class if weight is None else of_class * tf.cast(weight, of_class.dtype)

        return batches.map(weighted)

    def batches(self, first: int) -> tf.data.Dataset:
        """Returns all batches from number `first` on, counted over epochs."""
        raise NotImplementedError

    def one_pass(self) -> tf.data.Dataset:
        """Returns the batches of one pass, in order."""
        raise NotImplementedError

    def count(self) -> None:
        """Counts the batches of a pass where that is unknown, if the data can be read again."""

    def cut(self, steps: int, epochs: int) -> None:
        """Makes epochs `steps` batches long, as Keras does; the data may end before the last epoch.

        Args:
          steps: batches of an epoch.
          epochs: number of epochs.
        """
        self.batches_per_epoch = steps

    def split(self, fraction: float, batch_size: int | None, steps: int | None) -> tuple[Source, Source]:
        """Returns the first rows, and the last `fraction` of the rows in batches of `batch_size`, or so many `steps`.

        Raises:
          ArgumentError: these are no arrays, or one of them would be empty.
        """
        raise ArgumentError(f"validation_split={fraction} is for arrays; give validation_data for other data")

    def batch_sizes(self) -> Mapping[str, int]:
        """Returns the known sizes of batches by description, such as "the last batch of an epoch"."""
        size = tf.nest.flatten(self.one_pass().element_spec)[0].shape[0]
        return {} if size is None else {"a batch": size}


class Own(Source):
    """The data of an experiment, which its Task builds as in a run.

    Attributes:
      section: its section of the config.
    """

    def __init__(self, section: Any, build: Callable[..., tf.data.Dataset], batches: int | None = None) -> None:
        """Takes the section, the Task's `build_inputs`, and the batches of a call; None for all."""
        super().__init__(batches)
        self.section, self._build = section, build

    def build_inputs(self, params: Any, input_context: Any = None, *, weighted: bool = False) -> tf.data.Dataset:
        takes_context = "input_context" in inspect.signature(self._build).parameters
        return self._build(params, **({"input_context": input_context} if takes_context else {}))

    def batch_sizes(self) -> Mapping[str, int]:
        return {"a batch": self.section.global_batch_size}


class Arrays(Source):
    """Arrays in memory."""

    def __init__(
        self, data: Any, *, batch_size: int | None, steps: int | None = None, shuffle: bool | str = False, seed: int = 0
    ) -> None:
        """Takes rows, and how they make batches.

        Args:
          data: `(x, y, sample_weight)` in nested structures of arrays, each with a row for each example.
          batch_size: None for what makes `steps` batches of them; without steps too, 32.
          steps: batches of an epoch.
          shuffle: as for `source_of`.
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

    def batches(self, first: int) -> tf.data.Dataset:
        first_epoch, first_batch = divmod(first, self._num_batches)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            return self._epoch(
                number, tf.where(number == first_epoch, tf.constant(first_batch, tf.int64), 0), self._shuffle
            )

        passes = tf.data.Dataset.range(first_epoch, self._num_passes)
        return passes.flat_map(do_not_convert(epoch)).prefetch(_BLOCK_STEPS)

    def one_pass(self) -> tf.data.Dataset:
        return self._epoch(0, 0, False).prefetch(_BLOCK_STEPS)

    def batch_sizes(self) -> Mapping[str, int]:
        last = self.num_examples - (self._num_batches - 1) * self._batch_size
        others = {"a batch": self._batch_size} if self._num_batches > 1 else {}
        return {**others, "the last batch of an epoch": last}

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

    def split(self, fraction: float, batch_size: int | None, steps: int | None) -> tuple[Source, Source]:
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


class Batches(Source):
    """A dataset of batches."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        count = int(dataset.cardinality())
        super().__init__(count if count >= 0 else None, is_endless=count != tf.data.UNKNOWN_CARDINALITY)

    def count(self) -> None:
        if self.batches_per_epoch is None and not self.is_endless:
            self.batches_per_epoch = int(
                self._dataset.reduce(tf.constant(0, tf.int64), lambda total, *batch: total + 1)
            )
            self.is_endless = True

    def cut(self, steps: int, epochs: int) -> None:
        self.is_endless = steps == self.batches_per_epoch
        super().cut(steps, epochs)

    def batches(self, first: int) -> tf.data.Dataset:
        return skip(self._dataset.repeat() if self.is_endless else self._dataset, first)

    def one_pass(self) -> tf.data.Dataset:
        return self._dataset


class Items(Source):
    """A `keras.utils.Sequence`, of Keras 3 a `PyDataset`; its `on_epoch_end` is called after each epoch of training."""

    def __init__(self, sequence: Any, *, shuffle: bool | str, seed: int) -> None:
        super().__init__(len(sequence))
        self._sequence, self._shuffle, self._seed = sequence, shuffle, seed
        if not self.batches_per_epoch:
            raise DataError(f"{type(sequence).__name__} has no batch: its len() is 0")
        self._signature = _signature(sequence[0])

    def cut(self, steps: int, epochs: int) -> None:
        self.is_endless = steps <= len(self._sequence)
        super().cut(steps, epochs)

    def batches(self, first: int) -> tf.data.Dataset:
        assert self.batches_per_epoch is not None
        first_epoch, first_item = divmod(first, self.batches_per_epoch)

        def items() -> Iterator[Any]:
            for _ in range(first_epoch):
                self._sequence.on_epoch_end()
            for epoch in itertools.count(first_epoch):
                order = tf.range(len(self._sequence), dtype=tf.int64)
                if self._shuffle:
                    seed = epoch_seed(self._seed, "items", tf.constant(epoch, tf.int64))
                    order = tf.random.experimental.stateless_shuffle(order, tf.stack([seed, 0]))
                skipped = first_item if epoch == first_epoch else 0
                for number in order.numpy().tolist()[skipped : self.batches_per_epoch]:
                    yield _as_batch(self._sequence[number])
                if not self.is_endless:
                    return
                self._sequence.on_epoch_end()

        return tf.data.Dataset.from_generator(items, output_signature=self._signature)

    def one_pass(self) -> tf.data.Dataset:
        def items() -> Iterator[Any]:
            return (_as_batch(self._sequence[number]) for number in range(len(self._sequence)))

        return tf.data.Dataset.from_generator(items, output_signature=self._signature)


class Generated(Batches):
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


CallData = dict[bool, Source | None]
"""The data of the call that runs: to train on (True), and to evaluate on (False); None for none."""


def source_of(
    data: tuple[Any, Any, Any],
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
) -> Source:
    """Returns the source of the data arguments of `fit` or `evaluate`.

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
        return Batches(x)
    return Generated(x) if isinstance(x, Iterator) else Items(x, shuffle=shuffle, seed=seed)


def validation_of(data: Any, batch_size: int | None, steps: int | None) -> Source:
    """Returns the source of `validation_data`: `(x, y)` or `(x, y, sample_weight)` of arrays, or batches."""
    if isinstance(data, tuple | list):
        return source_of(unpacked(tuple(data)), batch_size=batch_size, steps=steps)
    return source_of((data, None, None), steps=steps)


def unpacked(batch: Any) -> tuple[Any, Any, Any]:
    """Returns `(x, y, sample_weight)` of a batch, with None for what it does not have.

    Raises:
      DataError: it has more.
    """
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if len(parts) not in (1, 2, 3):
        raise DataError(f"a batch has {len(parts)} parts; allowed: (x,), (x, y) or (x, y, sample_weight)")
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight


def packed(x: Any, y: Any, sample_weight: Any) -> Any:
    """Returns arrays in the structure of a batch."""
    return (x,) if y is None and sample_weight is None else (x, y) if sample_weight is None else (x, y, sample_weight)


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


def _signature(item: Any) -> Any:
    def spec(array: Any) -> tf.TensorSpec:
        tensor = tf.convert_to_tensor(array)
        return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

    return tf.nest.map_structure(spec, _as_batch(item))


# Replicas.


def divided(dataset: tf.data.Dataset, num_replicas: int, *, weighted: bool = False) -> tf.data.Dataset:
    """Returns one part of each batch for each replica, as TensorFlow divides it: the last may be smaller, or empty.

    Args:
      dataset: batches.
      num_replicas: parts of a batch.
      weighted: whether a part has the weights for `share_of`: with them, the mean over parts is the mean of the batch.
    """
    if num_replicas == 1:
        return dataset

    def parts(*batch: Any) -> tf.data.Dataset:
        size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        length = -(-size // num_replicas)

        def part(replica: tf.Tensor) -> Any:
            start = tf.minimum(replica * length, size)
            stop = tf.minimum(start + length, size)
            rows = tf.nest.map_structure(lambda tensor: cut_rows(tensor, start, stop), batch)
            return (rows, tf.fill([stop - start], num_replicas / tf.cast(size, tf.float32))) if weighted else rows

        return tf.data.Dataset.range(num_replicas).map(do_not_convert(part))

    return dataset.flat_map(do_not_convert(parts)).prefetch(num_replicas)


def share_of(inputs: Any) -> tuple[Any, tf.Tensor | None]:
    """Returns a replica's part of a training batch, and the factor of its mean; None if the part is the batch."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return inputs, None
    rows, weights = inputs
    return rows, tf.reduce_sum(weights)
