"""tf_keras, that is Keras 2, as the engine needs it; modules without Keras, and Model Garden's objects, too.

Owns: this implementation of the contract in `__init__.py`. Does not own: the import of tf_keras (`lazy.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_trainer.lazy import keras, load, tf
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.keras import Averages, Pairs

NAME = "Keras 2, that is tf_keras"

_SMALL_MODEL = 10_000  # weights


def floatx() -> str:
    """Returns the type of floats."""
    return str(keras.backend.floatx())


def configure(*, policy: str | None = None, seed: int | None = None) -> None:
    """Sets the policy of layers, and Keras's own seed; then layers use generators whose state can be set."""
    if policy is not None:
        keras.mixed_precision.set_global_policy(policy)
    if seed is not None:
        keras.backend.experimental.enable_tf_random_generator()
        load("tf_keras.src.backend")._SEED_GENERATOR.generator = random.Random(seed)


def variables(tree: Any) -> list[tf.Variable]:
    """Returns the values of a model, optimizer or metric; none of what has none."""
    return _of(tree, "variables")


def trainable(model: Any) -> list[tf.Variable]:
    """Returns the trainable values of a model."""
    return _of(model, "trainable_variables")


def named(tree: Any, *, trainable: bool = False) -> Iterator[tuple[str, tf.Variable]]:
    """Yields names, as tf_keras gave them, without `:0`."""
    for variable in _of(tree, "trainable_variables" if trainable else "variables"):
        yield str(variable.name).removesuffix(":0"), variable


def _of(tree: Any, attribute: str) -> list[tf.Variable]:
    found = getattr(tree, attribute, ())
    return list(found() if callable(found) else found)  # it is a method of some of Keras's optimizers


def prepare(model: Any) -> None:
    """Does nothing: tf_keras's statistics are of that kind."""


def whole_losses() -> contextlib.AbstractContextManager[Any]:
    """Returns a context without effect: tf_keras refuses loss objects that would divide."""
    return contextlib.nullcontext()


def layers(model: Any) -> list[Any]:
    """Returns all layers of a model, or of all models and layers inside a module; some more than once."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers())
    parts = (*getattr(model, "sub_tasks", {}).values(), *getattr(model, "submodules", ()))
    inside = [part._flatten_layers() if hasattr(part, "_flatten_layers") else [part] for part in parts]
    return [model, *(layer for each in inside for layer in each)]


def signature_names(model: Any) -> tuple[list[str], list[str]]:
    """Returns the names of the inputs and of the output layers."""
    inputs = [tensor.name.split(":")[0] for tensor in getattr(model, "inputs", None) or ()]
    return inputs, list(getattr(model, "output_names", None) or ())


def saving() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which Keras does not trace each layer of a model with its last inputs.

    That takes most of the time, and is impossible for layers that only training calls, such as samplers of boxes. There
    is no public name: `Model.save` has an argument for it, and saves no other signatures than its own.
    """
    utils = load("tf_keras.src.saving.legacy.saved_model.utils")
    context: contextlib.AbstractContextManager[Any] = utils.keras_option_scope(save_traces=False)
    return context


def generators(model: Any) -> list[tf.random.Generator]:
    """Returns the generators of all layers of `model`, each once, in the order of its layers."""
    found: dict[int, tf.random.Generator] = {}
    for layer in layers(model):
        for value in list(vars(layer).values()):
            generator = getattr(value, "_generator", value)  # Keras wraps the generators of its random layers
            if isinstance(generator, tf.random.Generator):
                found.setdefault(id(generator), generator)
    return list(found.values())


def use(generators: Sequence[Any]) -> None:
    """Does nothing: draws without a seed are those of TensorFlow (`tasks/keyed_draws.py`)."""


def metrics(model: Any, *, compiled: bool) -> list[Any]:
    """Returns the metrics of a model; those of `compile` are there after the first `fit` only."""
    return list(getattr(model, "metrics", ()))


def trackable(part: Any) -> Any:
    """Returns the model or metric itself: its object graph is that of Model Garden's checkpoints."""
    return part


def trackable_optimizer(optimizer: Any, model: Any) -> Any:
    """Returns the optimizer, as Model Garden's checkpoints hold it."""
    return optimizer


def resources(model: Any) -> list[Any]:
    """Returns nothing: the model holds all that its functions use."""
    return []


def averages(model: Any, optimizer: Any, *, trainable_only: bool) -> Averages:
    """Returns averages inside Model Garden's wrapper, which holds the optimizer and them, as its driver saves both."""
    from official.modeling import optimization as garden_optimization

    wrapper = garden_optimization.ExponentialMovingAverage(
        tf.train.Checkpoint() if optimizer is None else optimizer, trainable_weights_only=trainable_only
    )
    wrapper.shadow_copy(model)
    of_model = model.trainable_variables if trainable_only else model.variables
    weights = [weight for weight in of_model if weight.dtype.is_floating]
    return Averages(weights, [wrapper.get_slot(weight, "average") for weight in weights], {"optimizer": wrapper})


def build_optimizer(optimizer_config: Any, runtime_config: Any) -> Any:
    """Returns the optimizer with its learning-rate schedule, wrapped for loss scaling under float16.

    The factory is Model Garden's, so an experiment from there trains with the same optimizer classes. Its EMA wrapper
    is not used: `WeightAverage` replaces it.
    """
    from official.modeling import optimization as garden_optimization

    factory = garden_optimization.OptimizerFactory(optimizer_config.replace(ema=None))
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
        return optimizer
    if runtime_config.loss_scale in (None, "dynamic"):
        return keras.mixed_precision.LossScaleOptimizer(optimizer)
    scale = runtime_config.loss_scale
    return keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=scale)


def build_slots(optimizer: Any, trainable: Sequence[Any]) -> None:
    """Creates the optimizer's slot variables now, so that a checkpoint can be matched with all of them."""
    if hasattr(optimizer, "build"):
        optimizer.build(trainable)
    elif hasattr(optimizer, "_create_all_weights"):  # a legacy one creates slots lazily; there is no public way
        optimizer._create_all_weights(trainable)


def intercept(optimizer: Any, take: Callable[..., Any]) -> Callable[[], None]:
    """Has `take` called in place of `apply_gradients`."""
    before = vars(optimizer).get("apply_gradients")
    apply = optimizer.apply_gradients

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        return take(apply, grads_and_vars, *args, **kwargs)

    # Tasks check the class of an optimizer, so it stays the same object; and Keras would track the function.
    object.__setattr__(optimizer, "apply_gradients", apply_gradients)

    def take_back() -> None:
        if before is None:
            object.__delattr__(optimizer, "apply_gradients")
        else:
            object.__setattr__(optimizer, "apply_gradients", before)

    return take_back


def scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """Returns the loss times the loss scale of a `LossScaleOptimizer`."""
    return convert(optimizer.get_scaled_loss)(loss) if hasattr(optimizer, "get_scaled_loss") else loss


def unscale(optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """Returns the gradients over the loss scale, which a `LossScaleOptimizer` expects."""
    if not hasattr(optimizer, "get_unscaled_gradients"):
        return gradients
    unscaled: Sequence[Any] = convert(optimizer.get_unscaled_gradients)(gradients)
    return unscaled


@do_not_convert
def apply(optimizer: Any, pairs: Pairs, *, after: tf.Tensor) -> None:
    """Updates weights in a traced step; an update is not counted before `after`, scalar, is computed.

    Without that, Keras's optimizers would count a step whose data never arrived. They also sum the gradients of a
    single replica, which delays all updates until the last gradient is computed. That takes a twentieth of a small
    model's step, so it is left out there; a large model's step is faster with it, because updates do not compete with
    the remaining gradients.
    """
    strategy = tf.distribute.get_strategy()
    sums = strategy.num_replicas_in_sync > 1 or isinstance(strategy, tf.distribute.ParameterServerStrategy)
    is_small = sum(variable.shape.num_elements() or 0 for _, variable in pairs) <= _SMALL_MODEL
    options = {"experimental_aggregate_gradients": False} if is_small and not sums and _is_keras_own(optimizer) else {}
    with _counting_after(after, optimizer):
        convert(optimizer.apply_gradients)(pairs, **options)


@do_not_convert
def minimize(optimizer: Any, loss: tf.Tensor, weights: Sequence[tf.Variable], tape: tf.GradientTape) -> None:
    """Updates weights by the gradients of a loss, like `optimizer.minimize`, through `apply`."""
    if _is_keras_own(optimizer) and hasattr(optimizer, "compute_gradients"):
        apply(optimizer, list(optimizer.compute_gradients(loss, weights, tape)), after=loss)
    else:
        with tf.control_dependencies([loss]):
            optimizer.minimize(loss, weights, tape=tape)


def _is_keras_own(optimizer: Any) -> bool:
    """Whether an optimizer applies and aggregates gradients with Keras's own code."""
    kind = type(optimizer)
    parts = (kind, getattr(optimizer, "gradient_aggregator", kind))
    return all(part.__module__.startswith("tf_keras.") for part in parts)


def _counting_after(tensor: tf.Tensor, optimizer: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which an update is counted after `tensor` is computed."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if _is_keras_own(inner):
        if isinstance(inner, keras.optimizers.legacy.Optimizer):
            return contextlib.nullcontext()  # counts after it has updated the weights
        repeated = [inner.iterations, *settings(inner)]
        is_plain = all("_cached_value" in vars(variable) for variable in repeated)  # of one replica
        if is_plain and not inner.jit_compile:
            return _read_once(repeated, after=tensor)
    return tf.control_dependencies([tensor])


@contextlib.contextmanager
def _read_once(repeated: Sequence[tf.Variable], *, after: tf.Tensor) -> Iterator[None]:
    """Reads variables once, after a tensor is computed; in the `with` block, reading them returns that value.

    Keras's optimizers read their counter and rate again for each weight, so TensorFlow repeats the computations with
    both. That takes a tenth of a small model's step.
    """
    with tf.control_dependencies([after]):
        for variable in repeated:
            variable._cached_value = variable.read_value()  # as if it had a caching device
    try:
        yield
    finally:
        for variable in repeated:
            variable._cached_value = None


def settings(optimizer: Any) -> list[tf.Variable]:
    """Returns the variables that hold an optimizer's settings: learning rate, decay, momentum."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if optimizer is None:
        return []
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        found = list(optimizer._hyper.values())  # there is no public way to read them
    else:
        found = [getattr(optimizer, "_learning_rate", None)]
    return [value for value in found if isinstance(value, tf.Variable)]


def rate(optimizer: Any) -> Any:
    """Returns the variable or the schedule of a learning rate."""
    holder = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(holder, _rate_of(holder), None)


def set_schedule(optimizer: Any, scaled: Callable[[Any], Any]) -> None:
    """Replaces the schedule of a learning rate."""
    holder = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = getattr(holder, _rate_of(holder))

    class Scaled(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: tf.Tensor) -> tf.Tensor:
            return scaled(step)

        def get_config(self) -> dict[str, Any]:
            config: dict[str, Any] = schedule.get_config()
            return config

    setattr(holder, _rate_of(holder), Scaled())


def _rate_of(holder: Any) -> str:
    # The public attribute of the newer kind is a value.
    return "learning_rate" if isinstance(holder, keras.optimizers.legacy.Optimizer) else "_learning_rate"
