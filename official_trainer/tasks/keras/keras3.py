"""Keras 3 as the engine needs it.

Owns: this implementation of the contract in `__init__.py`: values inside Keras's variables, stable names, gradients
that are added up over replicas before an optimizer clips or checks them, and random layers whose state can differ by
replica. Does not own: the optimizer of a config (`optimizers3.py`), the import of Keras 3 (`lazy.py`).

Names. A value is named by the layers around it, from the model inwards: `encoder/dense/kernel`. Keras numbers layers
that have no name of their own in a process, so that a model's first layer may be `dense_7`. Here such a name counts
among the layers of the same layer or model, in their order: `dense`, `dense_1`. So a checkpoint fits whatever was built
before. Other names that the user gave stay; `dense_3` of a `Dense` cannot be told from Keras's own, and counts. A layer
that is used twice has its shortest name. Checkpoints hold values under these names, so that a model which has changed
is told by names.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_trainer.shown import first_few
from official_trainer.tasks.keras import (
    AccumulationError,
    Averages,
    Keras,
    Pairs,
    counted_names,
    free_name,
    inner,
    is_3,
    layers_inside,
    replace_method,
    tree_of,
)
from official_trainer.tasks.keyed_draws import Replaced

_logger = logging.getLogger(__name__)

_RANDOM_STATE = "seed_generator_state"


class Keras3(Keras):
    """Keras 3.

    Size: that of the contract.
    """

    NAME = "Keras 3"
    MODULE = keras

    def variables(self, tree: Any, *, trainable: bool = False) -> list[tf.Variable]:
        return [variable.value for variable in _of(tree, trainable)]

    def named(self, tree: Any, *, trainable: bool = False) -> Iterator[tuple[str, tf.Variable]]:
        """Yields stable names: of a model `dense/kernel`, of an optimizer `adam/dense_kernel_momentum`."""
        names = _names(tree)
        for variable in _of(tree, trainable):
            yield names.get(id(variable), str(variable.path)), variable.value

    def values(self, part: Any) -> dict[str, tf.Variable]:
        if isinstance(part, keras.Layer):
            return dict(self.named(part))
        values: dict[str, tf.Variable] = {}
        for name, value in self.named(part):
            values[free_name(name.rpartition("/")[2], values)] = value
        return values

    def trackable(self, part: Any) -> Any:
        """Returns the values of a model, of a metric, or of the metrics of a task, under their names, nested."""
        if not is_3(part):
            return tf.train.Checkpoint(loss=part.loss, metrics=[self.trackable(metric) for metric in part.metrics])
        return tree_of(self.values(part))

    def prepare(self, model: Any) -> None:
        """Makes statistics of layers read as their mean over replicas, as those of tf_keras do.

        Keras gives each replica its own, and reads, evaluates and saves those of the first. They are values that no
        gradient changes; those of frozen layers stay. Warns of the preprocessor of a model of KerasHub, and of batch
        norm of which the weights are frozen and the statistics are not.
        """
        is_of_hub = any(cls.__module__.startswith("keras_hub.") for cls in type(model).__mro__)
        if is_of_hub and (preprocessor := getattr(model, "preprocessor", None)) is not None:
            _logger.warning(
                "%s of %s is called by Keras's own fit and predict alone, not here: call it where the data is read, "
                "and build the model with preprocessor=None",
                type(preprocessor).__name__,
                type(model).__name__,
            )
        half_frozen = [layer.name for layer in self.layers(model) if _moves_while_frozen(layer)]
        if half_frozen:
            _logger.warning(
                "the weights of %s are frozen, and the mean and variance still move with each batch: set "
                "trainable=False on the layer, not on its weights",
                first_few(half_frozen),
            )
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return
        mean = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
        statistics = [variable for layer in self.layers(model) for variable in layer._non_trainable_variables]
        for variable in {id(variable): variable for variable in statistics}.values():
            value = variable.value
            if value.dtype.is_floating and value.aggregation == tf.VariableAggregation.NONE:
                # There is no public way to tell a layer what kind of variable it creates.
                variable._value = tf.Variable(value.numpy(), trainable=False, name=variable.name, **mean)

    def whole_losses(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which a loss object returns the loss of its replica.

        Keras divides it by the number of replicas, and the engine does so for any loss: twice, and the weights would be
        others without a word. There is no public way to tell Keras, nor to see whether a loss is such a share.
        """
        is_alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
        return contextlib.nullcontext() if is_alone else _LOSSES.in_place()

    def layers(self, model: Any) -> list[Any]:
        return list({id(layer): layer for layer in model._flatten_layers()}.values())  # `layers` has those of one level

    def signature_names(self, model: Any) -> tuple[list[str], list[str]]:
        """Returns the names of the inputs, `inputs`, `inputs_1` where the user gave none, and of the output layers.

        Names of layers count within the model.
        """
        inputs: dict[str, Any] = {}
        for tensor in getattr(model, "inputs", None) or ():
            is_unnamed = re.fullmatch("keras_tensor(_[0-9]+)?", tensor.name)
            inputs[free_name("inputs" if is_unnamed else tensor.name, inputs)] = tensor
        operations = getattr(model, "operations", [])
        stable = dict(zip([operation.name for operation in operations], counted_names(operations), strict=True))
        return [*inputs], [stable.get(name, name) for name in getattr(model, "output_names", [])]

    def generators(self, model: Any, others: Sequence[Any] = ()) -> list[Any]:
        """Returns `others`, the seed generators of all layers, and that of draws without a seed, which comes last.

        Their states may differ by replica.

        Call it under the strategy's scope, before a step is traced.
        """
        # What `keras.random.normal(shape)` draws from; there is no public way to it.
        from keras.src.random.seed_generator import global_seed_generator

        values = [*others, *(value for layer in self.layers(model) for value in vars(layer).values())]
        # Those that Keras tracks are in lists of layers, too.
        values += [listed for layer in self.layers(model) for listed in getattr(layer, "_seed_generators", ())]
        generators = [value for value in values if isinstance(value, keras.random.SeedGenerator)]
        last = global_seed_generator()
        unique = [*{id(generator): generator for generator in generators if generator is not last}.values(), last]
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for generator in unique:
                _let_differ(generator)
        return unique

    def use(self, generators: Sequence[Any]) -> None:
        # Keras has one for each thread, and so for each replica; there is no public way to set it.
        from keras.src.backend.common import global_state

        global_state.set_global_attribute("global_seed_generator", generators[-1])

    def metrics(self, model: Any, *, compiled: bool) -> list[Any]:
        metrics = super().metrics(model, compiled=compiled)
        if compiled:
            return metrics
        # Models of KerasHub compile themselves.
        loss, *of_compile = (getattr(model, f"_compile_{name}", None) for name in ("loss", "metrics"))
        of_compile += [getattr(model, "_loss_tracker", None), *getattr(loss, "metrics", ())]
        return [metric for metric in metrics if not any(metric is other for other in of_compile)]

    def tables(self, model: Any) -> list[Any]:
        inside = tf.train.TrackableView(model).descendants()
        return [item for item in inside if isinstance(item, tf.saved_model.experimental.TrackableResource)]

    def averages(self, model: Any, optimizer: Any, *, trainable_only: bool) -> Averages:
        """Returns averages, which a checkpoint holds as `average`, under the names of what they average."""
        weights = {name: v for name, v in self.named(model, trainable=trainable_only) if v.dtype.is_floating}
        values = {name: tf.Variable(v, trainable=False, name="average") for name, v in weights.items()}
        return Averages([*weights.values()], [*values.values()], {"average": tree_of(values)})

    def build_optimizer(self, optimizer_config: Any, runtime_config: Any) -> Any:
        from official_trainer.tasks.keras import optimizers3

        return optimizers3.build_optimizer(optimizer_config, runtime_config)

    def build_slots(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        """Creates the variables of an optimizer; on several replicas has it take the sum of their gradients.

        Keras clips gradients, and looks for those that are not finite, on each replica, and adds them up later. So
        results would depend on the number of replicas, and an infinite gradient of one would reach the weights.
        """
        if not optimizer.built:
            optimizer.build(list(trainable))
        wrapped = inner(optimizer)
        steps = wrapped.gradient_accumulation_steps
        if tf.distribute.get_strategy().num_replicas_in_sync > 1 and steps:
            raise AccumulationError(
                f"{type(wrapped).__name__} has gradient_accumulation_steps={steps}, and Keras cannot accumulate on "
                f"several replicas (keras#20582): leave it out, and set trainer.gradient_accumulation_steps={steps}"
            )
        clips = any(getattr(wrapped, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm"))
        checks = wrapped is not optimizer
        if (clips or checks) and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            self.intercept(optimizer, lambda apply, pairs: apply(_shares(pairs)))

    def optimizer_values(self, optimizer: Any, updated: Mapping[str, Any]) -> dict[str, tf.Variable]:
        """Returns the values of an optimizer: its own, and under `slots` those of each variable that it updates."""
        names, counts = dict[int, str](), collections.Counter[str]()
        of_path, values = collections.defaultdict[str, list[str]](list), dict[str, tf.Variable]()
        for prefix, layer in updated.items():
            inside = _names(layer)
            for variable in layer.trainable_variables:
                if id(variable) not in names:
                    names[id(variable)] = f"{prefix}/{inside[id(variable)]}".lstrip("/")
                    of_path[str(variable.path).replace("/", "_")].append(names[id(variable)])
        for variable in optimizer.variables:
            name = slot = str(variable.path).rpartition("/")[2]
            owner = max((path for path in of_path if name.startswith(f"{path}_")), key=len, default=None)
            if owner is not None:  # layers of two nested models may have one path; their slots come in their order
                purpose, number = name.removeprefix(f"{owner}_"), counts[name] % len(of_path[owner])
                counts[name] += 1
                slot = f"slots/{of_path[owner][number]}/{purpose}"
            values[free_name(slot, values)] = variable.value
        return values

    def trackable_optimizer(self, optimizer: Any, model: Any) -> Any:
        return tree_of(self.optimizer_values(optimizer, {"": model}))

    def intercept(self, optimizer: Any, take: Callable[..., Any]) -> Callable[[], None]:
        original = optimizer.apply  # which apply_gradients calls, too

        def apply_pairs(pairs: Pairs) -> Any:
            gradients, of_gradients = zip(*pairs, strict=True)
            return original(list(gradients), list(of_gradients))

        @tf.autograph.experimental.do_not_convert
        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            updated = optimizer._trainable_variables if trainable_variables is None else trainable_variables
            return take(apply_pairs, list(zip(grads, updated, strict=True)))

        return replace_method(optimizer, "apply", apply)

    def scale_loss(self, optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
        return optimizer.scale_loss(loss)


KERAS = Keras3()


def _of(tree: Any, trainable: bool) -> list[Any]:
    if trainable:
        return list(tree.trainable_variables)
    variables = tree.weights if isinstance(tree, keras.Layer) else tree.variables
    return list({id(variable): variable for variable in variables}.values())


def _names(tree: Any) -> dict[int, str]:
    """Returns the names of a model's variables by their ids; they differ, and none is a folder of another."""
    names = dict[int, str]()
    queue, seen = collections.deque([(tree, "")] if isinstance(tree, keras.Layer) else []), {id(tree)}
    while queue:
        layer, prefix = queue.popleft()
        children = layers_inside(layer)
        inside = [*children, *own_variables(layer)]
        for item, name in zip(inside, counted_names(inside), strict=True):
            if not isinstance(item, keras.Layer):
                names.setdefault(id(item), f"{prefix}{name}")
            elif id(item) not in seen:
                seen.add(id(item))
                queue.append((item, f"{prefix}{name}/"))
    return names


def _moves_while_frozen(layer: Any) -> bool:
    """Whether a layer of batch norm has frozen weights, but updates its statistics."""
    has_weights = isinstance(layer, keras.layers.BatchNormalization) and (layer.scale or layer.center)
    return has_weights and layer.trainable and not layer.trainable_variables


def _undivided(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        is_divided = self.reduction not in (None, "none")
        return loss * tf.distribute.get_strategy().num_replicas_in_sync if is_divided else loss

    return call


_LOSSES = Replaced(lambda: [(keras.losses.Loss, "__call__", _undivided)])


def own_variables(layer: Any) -> list[Any]:
    """Returns the variables that a layer holds beside those of the layers inside it."""
    of_others = {id(variable) for inside in layers_inside(layer) for variable in inside.weights}
    return [variable for variable in layer.weights if id(variable) not in of_others]


def _let_differ(generator: Any) -> None:
    """Gives a generator a state that each replica has for itself."""
    if generator.state.synchronization != "on_read":
        options = {"synchronization": "on_read", "aggregation": "only_first_replica", "dtype": "int64"}
        generator.state = keras.Variable([0, 0], trainable=False, name=_RANDOM_STATE, **options)


def _shares(pairs: Pairs) -> Pairs:
    """Returns gradients whose sum over replicas is that of `pairs`: the first replica has the sum, the others zeros.

    All that an optimizer does with gradients before it adds them up is then done with the sum. If that is not finite,
    every replica has it, so that each of them skips the update.
    """
    context = tf.distribute.get_replica_context()
    given = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.convert_to_tensor(gradient) for gradient, _ in given])
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in summed])
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    keeps = tf.logical_or(is_first, tf.logical_not(is_finite))
    shares = [tf.where(keeps, gradient, tf.zeros_like(gradient)) for gradient in summed]
    return [(share, variable) for share, (_, variable) in zip(shares, given, strict=True)]
