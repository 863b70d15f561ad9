"""tf_keras, that is Keras 2, as the engine needs it; modules without Keras, and Model Garden's objects, too.

Owns: this implementation of the contract in `__init__.py`. Does not own: the import of tf_keras (`lazy.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.checkpoints import matching
from official_trainer.config import CustomOptimizerConfig, CustomScheduleConfig
from official_trainer.lazy import keras, load, tf
from official_trainer.tasks.autograph import convert
from official_trainer.tasks.keras import Averages, Keras, custom, inner, kinds, replace_method


class Keras2(Keras):
    """tf_keras, and what has no Keras.

    Size: that of the contract.
    """

    NAME = "Keras 2, that is tf_keras"
    MODULE = keras

    def configure(self, *, policy: str | None = None, seed: int | None = None) -> None:
        """Also has layers use generators whose state can be set."""
        super().configure(policy=policy)
        if seed is not None:
            keras.backend.experimental.enable_tf_random_generator()
            load("tf_keras.src.backend")._SEED_GENERATOR.generator = random.Random(seed)

    def variables(self, tree: Any, *, trainable: bool = False) -> list[tf.Variable]:
        listed = getattr(tree, "trainable_variables" if trainable else "variables", ())
        variables = listed() if callable(listed) else listed  # it is a method of some of Keras's optimizers
        return [v for v in variables if "TrackableWeightHandler" not in kinds(v)]  # of a lookup: no variable

    def named(self, tree: Any, *, trainable: bool = False) -> Iterator[tuple[str, tf.Variable]]:
        """Yields names, as tf_keras gave them, without `:0`."""
        for variable in self.variables(tree, trainable=trainable):
            yield str(variable.name).removesuffix(":0"), variable

    def values(self, part: Any) -> dict[str, tf.Variable]:
        """Returns values by the attributes that lead to them, as TensorFlow names them in checkpoints."""
        inside = matching.reachable({"": part})
        return {path.lstrip("/"): value for path, value in inside if isinstance(value, tf.Variable)}

    def optimizer_values(self, optimizer: Any, updated: Mapping[str, Any]) -> dict[str, tf.Variable]:
        values = self.values(optimizer)
        named = {id(value) for value in values.values()}  # the slots of a legacy one have no attribute
        slots = {str(i): value for i, value in enumerate(self.variables(optimizer)) if id(value) not in named}
        return {**values, **slots}

    def layers(self, model: Any) -> list[Any]:
        """Returns all layers of a model, or of all models and layers inside a module; some more than once."""
        if hasattr(model, "_flatten_layers"):
            return list(model._flatten_layers())
        modules = (*getattr(model, "sub_tasks", {}).values(), *getattr(model, "submodules", ()))
        inside = [module._flatten_layers() if hasattr(module, "_flatten_layers") else [module] for module in modules]
        return [model, *(layer for layers in inside for layer in layers)]

    def signature_names(self, model: Any) -> tuple[list[str], list[str]]:
        inputs = [tensor.name.split(":")[0] for tensor in getattr(model, "inputs", None) or ()]
        return inputs, list(getattr(model, "output_names", None) or ())

    def saving(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which Keras does not trace each layer of a model with its last inputs.

        That takes most of the time, and is impossible for layers that only training calls, such as samplers of boxes.
        There is no public name: `Model.save` has an argument for it, and saves no other signatures than its own.
        """
        utils = load("tf_keras.src.saving.legacy.saved_model.utils")
        context: contextlib.AbstractContextManager[Any] = utils.keras_option_scope(save_traces=False)
        return context

    def generators(self, model: Any, others: Sequence[Any] = ()) -> list[tf.random.Generator]:
        generators: dict[int, tf.random.Generator] = {id(generator): generator for generator in others}
        for layer in self.layers(model):
            for value in list(vars(layer).values()):
                generator = getattr(value, "_generator", value)  # Keras wraps the generators of its random layers
                if isinstance(generator, tf.random.Generator):
                    generators.setdefault(id(generator), generator)
        return list(generators.values())

    def averages(self, model: Any, optimizer: Any, *, trainable_only: bool) -> Averages:
        """Returns averages inside Model Garden's wrapper, which holds the optimizer too, as its driver saves both."""
        from official.modeling import optimization as garden_optimization

        wrapper = garden_optimization.ExponentialMovingAverage(
            tf.train.Checkpoint() if optimizer is None else optimizer, trainable_weights_only=trainable_only
        )
        wrapper.shadow_copy(model)
        weights = [v for v in self.variables(model, trainable=trainable_only) if v.dtype.is_floating]
        return Averages(weights, [wrapper.get_slot(weight, "average") for weight in weights], {"optimizer": wrapper})

    def build_optimizer(self, optimizer_config: Any, runtime_config: Any) -> Any:
        """Returns the optimizer with its learning-rate schedule, wrapped for loss scaling under float16.

        The factory is Model Garden's, so an experiment from there trains with the same optimizer classes. Its EMA
        wrapper is not used: `WeightAverage` replaces it.
        """
        from official.modeling import optimization as garden_optimization
        from official.modeling.optimization.optimizer_factory import WARMUP_CLS

        factory = garden_optimization.OptimizerFactory(optimizer_config.replace(ema=None))
        section, schedule = optimizer_config.optimizer.get(), optimizer_config.learning_rate.get()
        if isinstance(schedule, CustomScheduleConfig):
            rate, warmup = custom.schedule(schedule, keras), optimizer_config.warmup
            rate = WARMUP_CLS[warmup.type](rate, **warmup.get().as_dict()) if warmup.type else rate
        else:
            rate = factory.build_learning_rate()
        is_custom = isinstance(section, CustomOptimizerConfig)
        optimizer = custom.optimizer(section, rate) if is_custom else factory.build_optimizer(rate)
        if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
            return optimizer
        if runtime_config.loss_scale in (None, "dynamic"):
            return keras.mixed_precision.LossScaleOptimizer(optimizer)
        scale = runtime_config.loss_scale
        return keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=scale)

    def build_slots(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        if hasattr(optimizer, "build"):
            optimizer.build(trainable)
        elif hasattr(optimizer, "_create_all_weights"):  # a legacy one creates slots lazily; there is no public way
            optimizer._create_all_weights(trainable)

    def intercept(self, optimizer: Any, take: Callable[..., Any]) -> Callable[[], None]:
        apply = optimizer.apply_gradients

        @tf.autograph.experimental.do_not_convert
        def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            return take(apply, grads_and_vars, *args, **kwargs)

        return replace_method(optimizer, "apply_gradients", apply_gradients)

    def scale_loss(self, optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
        return convert(optimizer.get_scaled_loss)(loss) if hasattr(optimizer, "get_scaled_loss") else loss

    def unscale(self, optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
        if not hasattr(optimizer, "get_unscaled_gradients"):
            return gradients
        unscaled: Sequence[Any] = convert(optimizer.get_unscaled_gradients)(gradients)
        return unscaled

    def settings(self, optimizer: Any) -> list[tf.Variable]:
        wrapped = inner(optimizer)
        if not isinstance(wrapped, keras.optimizers.legacy.Optimizer):
            return super().settings(optimizer)
        # There is no public way to read them.
        return [value for value in wrapped._hyper.values() if isinstance(value, tf.Variable)]

    def rate(self, optimizer: Any) -> Any:
        wrapped = inner(optimizer)
        is_legacy = isinstance(wrapped, keras.optimizers.legacy.Optimizer)
        return wrapped.learning_rate if is_legacy else super().rate(optimizer)


KERAS = Keras2()
