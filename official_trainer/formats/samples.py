"""What formats are made from and compared with: some validation data, and the model as a function of its features.

Owns: reading a few batches, features as named inputs, the function whose inputs they are.
Does not own: reading data in general (`runs/predict.py`), signatures for serving (`tasks/export.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.engine.inference import num_examples_of
from official_trainer.formats.kinds import SIGNATURE, FormatError
from official_trainer.formats.readers import Arrays, host
from official_trainer.lazy import tf
from official_trainer.runs.predict import data_of
from official_trainer.runs.predictions import DATA_SECTIONS
from official_trainer.tasks import export
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.task import features_and_labels

_EXAMPLES, _BATCHES = 256, 8
_FREE = (2, 32, 32, 32, 32, 32)  # for sizes that a signature leaves free, where no feature has as many


def read(trainer: Any, section: str | None = None) -> list[Any]:
    """Returns the features of the first batches of a section: validation data, or training data without them."""
    task = trainer.config.task
    wanted = DATA_SECTIONS if section is None else (section,)
    section = next((name for name in wanted if getattr(task, name, None) is not None), None)
    if section is None:
        raise FormatError(f"formats are made and compared with data, and the task has no {' and no '.join(wanted)}")
    batches: list[Any] = []
    count = 0
    with trainer.strategy.scope():
        builder, _, dataset = data_of(trainer, section, trainer.config.runtime.seed)
    with builder.errors_explained():
        for batch in itertools.islice(dataset, _BATCHES):
            for replica_batch in trainer.strategy.experimental_local_results(batch):
                features, _ = features_and_labels(replica_batch)
                if size := int(num_examples_of(features)):
                    batches.append(features)
                    count += size
            if count >= _EXAMPLES:
                break
    if not batches:
        raise FormatError(f"formats are compared on task.{section}, and it holds no example")
    return batches


def named(model: Any, features: Any) -> dict[str, Any]:
    """Returns features as inputs by the names that a signature has for them: tensors `[batch, …]`.

    They have the type and the rank of the inputs, as Keras gives them to a model.

    Raises:
      FormatError: the model has other inputs.
    """
    leaves = tf.nest.flatten(features)
    for value in leaves:
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise FormatError(f"features are a {type(value).__name__}; files of other formats take dense tensors")
        if value.dtype == tf.bfloat16:
            what = "features are bfloat16, which files of other formats do not take"
            raise FormatError(f"{what}; read them as float32, by task.validation_data.dtype=float32 or in build_inputs")
    if not getattr(model, "inputs", None):
        return dict(zip(_feature_names(features), leaves, strict=True))
    names = kerases.of(model).signature_names(model)[0]
    structure = getattr(model, "input", model.inputs[0])
    if isinstance(features, Mapping):
        if set(names) <= set(features):
            leaves = [features[name] for name in names]
        elif isinstance(structure, Mapping) and set(structure) <= set(features):
            leaves = [features[key] for key in sorted(structure)]
    if len(leaves) != len(names):
        raise FormatError(f"the model has {len(names)} inputs, {', '.join(names)}, and the data {len(leaves)} features")
    inputs = zip(names, leaves, model.inputs, strict=True)
    return {name: _as_input(value, tensor, name) for name, value, tensor in inputs}


def _as_input(value: Any, tensor: Any, name: str) -> Any:
    dtype, shape = tf.as_dtype(tensor.dtype), tf.TensorShape(tensor.shape)
    fits = (value.dtype == tf.string) == (dtype == tf.string)
    fitted = tf.cast(value, dtype) if fits and value.dtype != dtype else value
    if fitted.shape.rank == shape.rank - 1 and shape[-1] == 1:
        fitted = tf.expand_dims(fitted, -1)
    elif fitted.shape.rank == shape.rank + 1 and fitted.shape[-1] == 1:
        fitted = tf.squeeze(fitted, -1)
    if not (fits and shape[1:].is_compatible_with(fitted.shape[1:])):
        have = f"{value.dtype.name} {list(value.shape)}"
        fix = "make such features of them in build_inputs, or what predict_step makes of them in the model"
        raise FormatError(
            f"the input {name!r} of the model is {dtype.name} {list(shape)}, and the data give {have}; {fix}"
        )
    return fitted


def arrays(model: Any, features: Any) -> dict[str, Any]:
    """Returns what `named` does, as NumPy arrays."""
    return host(named(model, features))


def for_signature(function: Any, features: Sequence[Arrays]) -> tuple[Sequence[Arrays], Sequence[Arrays]] | None:
    """Returns inputs for a signature, and its outputs: features, or else one batch of random numbers.

    Args:
      function: of a SavedModel that is written now.
      features: batches of named features, which it may take.

    Returns:
      None for a signature that takes texts, which cannot be made up, or refuses what was made up.
    """
    import numpy as np

    traced = function if hasattr(function, "structured_input_signature") else function.get_concrete_function()
    leaves = tf.nest.flatten(traced.structured_input_signature)  # of an argument that is left out: None
    specs = [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
    inputs: Sequence[Arrays] = features
    if {spec.name: spec.dtype.name for spec in specs} != {
        name: value.dtype.name for name, value in features[0].items()
    }:
        if any(spec.dtype == tf.string or spec.shape.rank is None for spec in specs):
            return None
        rng = np.random.default_rng(0)
        random_inputs = {}
        for spec in specs:
            like = next((array.shape for array in features[0].values() if array.ndim == spec.shape.rank), _FREE)
            shape = [size or (like[axis] if axis else 2) for axis, size in enumerate(spec.shape)]
            highest = 255 if spec.dtype == tf.uint8 else 1  # 1 is a number of a word, of a mask and of a segment
            drawn = rng.random(shape) if spec.dtype.is_floating else rng.integers(0, highest, shape, endpoint=True)
            random_inputs[spec.name] = drawn.astype(spec.dtype.as_numpy_dtype)
        inputs = [random_inputs]
    outputs = []
    with tf.device("CPU:0"):
        for batch in inputs:
            values = [
                tf.constant(batch[leaf.name], leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf
                for leaf in leaves
            ]
            args, kwargs = tf.nest.pack_sequence_as(traced.structured_input_signature, values)
            try:
                outputs.append(host(traced(*args, **kwargs)))
            except tf.errors.InvalidArgumentError:
                return None
    return inputs, outputs


def _feature_names(features: Any) -> Iterator[str]:
    if isinstance(features, Mapping) and all(tf.is_tensor(value) for value in features.values()):
        yield from sorted(features)
    else:
        leaves = tf.nest.flatten(features)
        yield from ["inputs"] if len(leaves) == 1 else [f"inputs_{number}" for number in range(len(leaves))]


def function_of(task: Any, model: Any, features: Any) -> Any:
    """Returns a traced function from named inputs to named outputs, as `predict` computes them.

    A model that was not built with `keras.Input` takes features of the form that the data have.
    """
    if getattr(model, "inputs", None):
        return export.default_signatures(task, model)[SIGNATURE].get_concrete_function()
    return export.function_of(task, model, list(_feature_names(features)), features).get_concrete_function()
