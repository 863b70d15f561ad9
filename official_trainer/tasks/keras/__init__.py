"""What the engine needs of a model, an optimizer and a metric, for each Keras.

Owns: `Keras`, the narrow contract, and finding the implementation for an object: Keras 3 (`keras3.py`), or tf_keras,
that is Keras 2 (`keras2.py`), which is also that of modules without Keras. Does not own: what a Task returns
(`tasks/contract.py`), steps (`tasks/task.py`), the import of either (`lazy.py`).

An experiment chooses by what it builds. Both have the same words, and differ in what holds a value (`tf.Variable`, or
an object around one), in names, in the state of random layers, and in what an optimizer does with gradients. The rest
of the engine knows values, names and the functions below, and neither Keras.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from official_trainer import lazy
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert
from official_trainer.tasks.keras import custom

Pairs = Sequence[tuple[Any, Any]]
"""Gradients with their variables, as a step passes them to an optimizer."""


class AccumulationError(UserError, ValueError):
    """A training step, or an optimizer, whose gradients cannot be accumulated."""

    exit_code = ExitCode.CONFIG

    __init__ = Exception.__init__  # the only one that AutoGraph keeps when it adds the user's lines to the message


@dataclasses.dataclass(frozen=True)
class Averages:
    """The averages of a model's values.

    Attributes:
      weights: the values that are averaged.
      values: their averages.
      items: what a checkpoint holds of them, by name, also in place of another item of that name.
    """

    weights: Sequence[tf.Variable]
    values: Sequence[tf.Variable]
    items: Mapping[str, Any]


class Keras(Protocol):
    """The contract: `KERAS` of `keras2.py` and that of `keras3.py`. A method with a body here does for both.

    Size: it is all that the engine knows of a Keras.
    """

    NAME: str
    """For messages."""

    MODULE: Any
    """The Keras itself, for names that both have."""

    # Once for a process.

    def configure(self, *, policy: str | None = None, seed: int | None = None) -> None:
        """Sets what this Keras has once for a process; None leaves it.

        Args:
          policy: of layers that are built later: `float32`, `mixed_float16` or `mixed_bfloat16`.
          seed: of first weights, beside Python's, NumPy's and TensorFlow's seed.
        """
        if policy is not None:
            self.MODULE.mixed_precision.set_global_policy(policy)

    # A model, an optimizer or a metric.

    def variables(self, tree: Any, *, trainable: bool = False) -> list[tf.Variable]:
        """Returns the values of a model, optimizer or metric, in a fixed order, without states of random layers.

        Args:
          tree: the model, optimizer or metric.
          trainable: whether these are only the values of a model that gradients change.
        """

    def named(self, tree: Any, *, trainable: bool = False) -> Iterator[tuple[str, tf.Variable]]:
        """Yields the name of each of these values with the value; `dense/kernel`."""

    def values(self, part: Any) -> dict[str, tf.Variable]:
        """Returns the values of a layer, a model or a metric by their names in a checkpoint: `dense/kernel`."""

    def trackable(self, part: Any) -> Any:
        """Returns what a checkpoint holds of a model or a metric."""
        return part

    # A model.

    def prepare(self, model: Any) -> None:
        """Makes statistics of layers, such as those of batch norm, read as their mean over replicas.

        Warns of what a model has for Keras's own `fit` alone.
        """
        return None

    def whole_losses(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for a step in which a loss object returns the loss of its replica, not a share of it."""
        return contextlib.nullcontext()

    def layers(self, model: Any) -> list[Any]:
        """Returns all layers inside a model, and the model itself."""

    def signature_names(self, model: Any) -> tuple[list[str], list[str]]:
        """Returns a name for each of `model.inputs`, and for each output, of its layer, if they are known."""

    def saving(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which TensorFlow saves the values of a model and no functions of its layers."""
        return contextlib.nullcontext()

    def generators(self, model: Any, others: Sequence[Any] = ()) -> list[Any]:
        """Returns `others` and the random generators of all layers, each once; each has a `state` to assign."""

    def use(self, generators: Sequence[Any]) -> None:
        """Has draws without a seed use one of `generators`, in the thread of the replica that is traced."""
        return None

    def metrics(self, model: Any, *, compiled: bool) -> list[Any]:
        """Returns the metrics that a model has itself; with those of `compile`, if `compiled`."""
        return list(getattr(model, "metrics", ()))

    def tables(self, model: Any) -> list[Any]:
        """Returns the tables of words of a model that what `trackable` returns does not hold."""
        return []

    def averages(self, model: Any, optimizer: Any, *, trainable_only: bool) -> Averages:
        """Returns variables for the averages of a model's values."""

    # An optimizer.

    def build_optimizer(self, optimizer_config: Any, runtime_config: Any) -> Any:
        """Returns the optimizer of the section `trainer.optimizer_config`."""

    def build_slots(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        """Creates all variables of an optimizer, and makes it add up gradients over replicas before it uses them."""

    def optimizer_values(self, optimizer: Any, updated: Mapping[str, Any]) -> dict[str, tf.Variable]:
        """Returns the variables of an optimizer by their names in a checkpoint.

        Args:
          optimizer: which has them.
          updated: layers and models whose variables it may update, by what their names begin with; empty for nothing.
        """

    def trackable_optimizer(self, optimizer: Any, model: Any) -> Any:
        """Returns what a checkpoint holds as `optimizer`."""
        return optimizer

    def intercept(self, optimizer: Any, take: Callable[..., Any]) -> Callable[[], None]:
        """Has `take(apply, pairs)` called in place of `apply(pairs)`, however a step calls the optimizer.

        Returns:
          A function that takes this back.
        """

    def scale_loss(self, optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the loss scale of float16."""

    def unscale(self, optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
        """Returns what a step passes to the optimizer for gradients of a scaled loss."""
        return gradients

    def apply(self, optimizer: Any, pairs: Pairs, *, after: tf.Tensor) -> None:
        """Updates weights in a traced step; an update is not counted before `after`, scalar, is computed.

        Otherwise Keras's optimizers would count a step whose data never arrived.
        """
        with tf.control_dependencies([after]):
            convert(optimizer.apply_gradients)(pairs)

    def settings(self, optimizer: Any) -> list[tf.Variable]:
        """Returns the variables that hold an optimizer's settings: learning rate, decay, momentum."""
        rate = self.rate(optimizer)
        return [rate] if isinstance(rate, tf.Variable) else []

    def rate(self, optimizer: Any) -> Any:
        """Returns the learning rate as an optimizer keeps it: a variable, a schedule, or something else."""
        return value(getattr(inner(optimizer), "_learning_rate", None))  # the public attribute is a value

    def set_schedule(self, optimizer: Any, scaled: Callable[[Any], Any]) -> None:
        """Replaces the schedule of an optimizer's learning rate by `scaled(step)`."""
        config = self.rate(optimizer).get_config
        inner(optimizer).learning_rate = custom.as_schedule(self.MODULE, scaled, config)


def of(*things: Any) -> Keras:
    """Returns the implementation for objects: Keras 3 if one of them is of it.

    Example:
      >>> from official_trainer.lazy import keras
      >>> from official_trainer.tasks.keras import of
      >>> of(keras.layers.Dense(1)).NAME
      'Keras 2, that is tf_keras'
    """
    return _implementation(any(is_3(thing) for thing in things))


def _implementation(is_of_3: bool) -> Keras:
    if is_of_3:
        from official_trainer.tasks.keras import keras3

        return keras3.KERAS
    from official_trainer.tasks.keras import keras2

    return keras2.KERAS


def is_3(thing: Any) -> bool:
    """Whether an object, or a class, is of Keras 3."""
    return "keras" in _roots(thing)


def is_2(thing: Any) -> bool:
    """Whether an object, or a class, is of tf_keras."""
    return "tf_keras" in _roots(thing)


def kinds(thing: Any) -> set[str]:
    """Returns the names of the classes of either Keras that an object is of, such as `Mean` and `Metric`."""
    return {cls.__name__ for cls in type(thing).__mro__ if _root(cls) in ("keras", "tf_keras")}


def waits(metric: Any) -> bool:
    """Whether a metric of either Keras, or one inside it, creates variables only when it is used, as `F1Score` does."""
    if "Metric" not in kinds(metric):
        return any(map(waits, getattr(metric, "metrics", ())))  # of a task
    # There is no public way to ask.
    is_built = all(getattr(metric, name, True) for name in ("built", "_built"))
    inside = [part for part in vars(metric).values() if "Metric" in kinds(part)]
    return not is_built or not metric.variables or any(map(waits, inside))


def creating(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context, on a replica, for a step that is traced to create the variables of metrics, and never run.

    Those of Keras 3 get their values at its end, outside of the trace: inside, a replica cannot do so.
    """
    return of(model).MODULE.StatelessScope() if is_3(model) else contextlib.nullcontext()


def value(variable: Any) -> Any:
    """Returns the `tf.Variable` inside a variable of Keras 3; others as they are."""
    return variable.value if "Variable" in kinds(variable) else variable


def recurrent_states(model: Any) -> list[tf.Variable]:
    """Returns the states of recurrent layers that keep them from batch to batch (`stateful=True`)."""
    held = [getattr(layer, "states", None) for layer in of(model).layers(model) if getattr(layer, "stateful", False)]
    states = [value(state) for state in tf.nest.flatten(held) if state is not None]
    return list({id(state): state for state in states}.values())


def reset_recurrent(model: Any) -> None:
    """Sets the states of recurrent layers to zeros, with which they began."""
    for state in recurrent_states(model):  # Keras 3's own method fails for several cells in one layer
        state.assign(tf.zeros_like(state))


def inner(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`; others as they are."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def replace_method(optimizer: Any, name: str, method: Callable[..., Any]) -> Callable[[], None]:
    """Gives an optimizer a method of its own; returns a function that takes this back.

    It stays the same object, because tasks check its class, and some models of Model Garden have it themselves.
    """
    before = vars(optimizer).get(name)
    object.__setattr__(optimizer, name, method)  # Keras would track the function

    def take_back() -> None:
        if before is None:
            object.__delattr__(optimizer, name)
        else:
            object.__setattr__(optimizer, name, before)

    return take_back


def free_name(name: str, taken: Collection[str]) -> str:
    """Returns `name`, with the first unused number from 2 on if it is taken: `name_2`."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


_OF_FEATURE = "((?:float|integer|string)(?:_[a-z]+)?)(_[0-9]+)?_preprocessor"


def counted_names(parts: Sequence[Any]) -> list[str]:
    """Returns a name for each part of a layer; those that Keras has numbered count among these."""
    counts, names = collections.Counter[str](), dict[str, Any]()
    for part in parts:
        class_name = snake_case(type(part).__name__)
        class_name = "model" if class_name == "functional" and is_2(part) else class_name  # as tf_keras names it
        name = getattr(part, "name", class_name)  # which raises AttributeError for a FeatureSpace of tf_keras
        # Keras names both layers of a Bidirectional by the one that it is given, and those of a FeatureSpace by kind.
        pattern = f"((?:forward_|backward_)?{re.escape(class_name)})(_[0-9]+)?"
        if numbered := re.fullmatch(pattern, name) or re.fullmatch(_OF_FEATURE, name):
            number, name = counts[numbered[1]], numbered[1]
            counts[name] += 1
            name = f"{name}_{number}" if number else name
        names[free_name(name, names)] = part
    return [*names]


def snake_case(name: str) -> str:
    """Returns the name of a class as Keras writes it in the names of layers."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def layers_inside(layer: Any) -> list[Any]:
    """Returns the layers that a layer or a model holds itself."""
    return list(layer._flatten_layers(include_self=False, recursive=False))  # only models have `layers`


def tree_of(values: Mapping[str, Any]) -> Any:
    """Returns values as an object of a checkpoint, under keys such as `model/dense/kernel`."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = value
    holder = tf.train.Checkpoint(tree=tree)
    return holder.tree  # TensorFlow's own dictionary, which can be a part of a checkpoint


def _roots(thing: Any) -> set[str]:
    return {_root(cls) for cls in (thing if isinstance(thing, type) else type(thing)).__mro__}


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def in_use() -> list[Keras]:
    """Returns the implementations for the Kerases that this process uses; the one that is not is not imported."""
    return [_implementation(is_of_3) for is_of_3 in (True, False) if lazy.uses_keras(3 if is_of_3 else 2)]


def floatx() -> str:
    """Returns the type of floats in arrays, as set for the Keras of this process; for tf_keras, where it uses both."""
    return str(in_use()[-1].MODULE.backend.floatx())


@contextlib.contextmanager
def without_updates(optimizers: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """In a `with` block, steps that are traced with `optimizers` neither update weights nor create slots.

    Yields:
      The variables that each of them was to update.
    """
    updated: list[list[Any]] = [[] for _ in optimizers]

    def taking(variables: list[Any]) -> Callable[..., Any]:
        def take(apply: Callable[..., Any], pairs: Pairs, *args: Any, **kwargs: Any) -> Any:
            given = [variable for _, variable in pairs]
            variables.extend(one for one in given if not any(one is other for other in variables))
            return tf.no_op()

        return take

    with contextlib.ExitStack() as stack:
        for optimizer, variables in zip(optimizers, updated, strict=True):
            stack.callback(of(optimizer).intercept(optimizer, taking(variables)))
        yield updated
