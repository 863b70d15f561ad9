"""Vocabularies, statistics and boundaries of preprocessing layers, as a part of what a checkpoint holds of a model.

Owns: what such a layer of either Keras computes with beside its weights, as JSON in a checkpoint, under the place of
the layer, `model/vocabularies/encoder/string_lookup/entries`; putting it back, and naming what the code makes otherwise
now. Does not own: pairing and assigning (`checkpoints/restore.py`), which checkpoint is read.

`StringLookup().adapt(file)` and `StringLookup(vocabulary=words)` make a table that cannot be filled again,
`Normalization` and `Discretization` make constants. TensorFlow saves neither, so a file with new rows would change what
the weights behind the layer mean. Therefore those of a checkpoint are used wherever its weights are: to go on, to
predict, evaluate and export, and to begin a new run.

Of Keras's layers these are the attributes named below, and of any layer its `tf.lookup.StaticHashTable`s. They become
text once, and again after another `adapt`, because saves are many, and words may be. A table that is put back is a new
one: a step that was traced before has to be traced again.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.inputs import DataError
from official_trainer.shown import shorten
from official_trainer.tasks import keras as kerases

_logger = logging.getLogger(__name__)

_ATTRIBUTES = {
    "IndexLookup": {"vocabulary": "lookup_table", "idf_weights": "idf_weights_const"},
    "Normalization": {"mean": "mean", "variance": "variance"},
    "Discretization": {"bin_boundaries": "bin_boundaries"},
}
"""By class of Keras, the attributes by the name that users know. That of a constant is also the one in a config."""
_NAME, _MOST_SHOWN = "vocabularies", 3


class Vocabulary(tf.train.experimental.PythonState):
    """What one layer computes with beside its weights.

    Attributes:
      layer: of either Keras.
    """

    def __init__(self, path: str, layer: Any) -> None:
        """Takes the layer, and its path in the model; its tables are made under the strategy in scope."""
        self._path, self.layer, self._strategy = path, layer, tf.distribute.get_strategy()
        self._is_inverted = bool(getattr(layer, "invert", False))
        self._learnt: Mapping[str, Any] = {}
        self._text = b""

    def serialize(self) -> bytes:
        """Returns the state as JSON: lists of numbers by name, and of a table its words and their numbers."""
        learnt = _learnt(self.layer)
        if not self._text or any(learnt.get(name) is not self._learnt.get(name) for name in {**learnt, **self._learnt}):
            self._text = json.dumps({name: self._listed(value) for name, value in learnt.items()}).encode()
            self._learnt = learnt
        return self._text

    def deserialize(self, string_value: bytes, *, keeps_size: bool = False) -> None:
        """Gives the layer the state of a checkpoint; warns if the code has made another one.

        Args:
          string_value: what `serialize` returned.
          keeps_size: whether the layer keeps what the code has made where that has another number of entries.

        Raises:
          CheckpointError: the layer cannot take it.
        """
        if string_value == self.serialize():
            return
        layer, saved, made = self.layer, json.loads(string_value), json.loads(self._text)
        said, is_empty = self.difference(string_value), not any(map(_entries, made.values()))
        is_resized = not is_empty and any(len(_entries(saved.get(name))) != len(_entries(made[name])) for name in made)
        if is_resized and keeps_size:
            _logger.warning("%s. That of the code is used, because weights have other shapes, too", said)
            return
        if is_resized and not getattr(layer, "pad_to_max_tokens", True) and layer.output_mode != "int":
            raise CheckpointError(
                f"{said}. With output_mode={layer.output_mode!r} the layer has an output for each, so it cannot take "
                "that of the checkpoint: make it with as many, or set max_tokens and pad_to_max_tokens=True"
            )
        if said and not is_empty:
            _logger.warning("%s. That of the checkpoint is used", said)
        with self._strategy.scope():
            for name, value in saved.items():
                if value != made.get(name) and (name in made or name == "idf_weights"):
                    self._set(name, value)
            if "vocabulary" in saved:
                layer.finalize_state()  # counts the words

    def difference(self, text: bytes) -> str:
        """Returns how the state differs from that of a checkpoint; empty if it is the same but for rounding."""
        saved, made = json.loads(text), json.loads(self.serialize())
        names = {**saved, **made}
        said = {name: _difference(_entries(saved.get(name)), _entries(made.get(name))) for name in names}
        others = [f"another {name} ({difference})" for name, difference in said.items() if difference]
        return f"layer {self._path}: the code makes {' and '.join(others)} than the checkpoint holds" if others else ""

    def keep(self) -> None:
        """For a checkpoint without it: computes again what the layer computes of variables that it may have."""
        _logger.warning(
            "layer %s: the checkpoint holds no vocabulary or statistics of it; the code's are used", self._path
        )
        if hasattr(self.layer, "finalize_state"):
            self.layer.finalize_state()

    def _listed(self, value: Any) -> Any:
        if not isinstance(value, tf.lookup.StaticHashTable):
            return None if value is None else np.asarray(value, "float64").tolist()
        pair = [_as_list(part) for part in value.export()] if int(value.size()) else [[], []]
        words, numbers = reversed(pair) if self._is_inverted else pair
        rows = sorted(zip(numbers, words, strict=True))
        return {"words": [word for _, word in rows], "numbers": [number for number, _ in rows]}

    def _set(self, name: str, saved: Any) -> None:
        layer, value = self.layer, cast(Any, self._learnt.get(name))
        attribute = _ATTRIBUTES["IndexLookup"].get(name, name)
        if isinstance(saved, Mapping):
            pair = saved["words"], saved["numbers"]
            keys, values = reversed(pair) if self._is_inverted else pair
            keys, values = _tensor(keys, value.key_dtype), _tensor(values, value.value_dtype)
            initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
            setattr(layer, attribute, tf.lookup.StaticHashTable(initializer, value.default_value))
        elif name == "idf_weights":
            layer.load_own_variables({name: np.asarray(saved, "float32")})
        else:
            setattr(layer, attribute, tf.constant(saved, value.dtype) if tf.is_tensor(value) else saved)
        if (given := getattr(layer, f"input_{name}", None)) is not None:  # what a file of Keras gets
            if name == "vocabulary":
                given = layer.get_vocabulary()
            elif name == "idf_weights":
                given = saved[: layer.vocabulary_size()]
            else:
                given = saved if name == "bin_boundaries" else np.resize(saved, np.shape(given)).tolist()
            setattr(layer, f"input_{name}", given)


def in_checkpoint(model: Any) -> Any:
    """Returns what a checkpoint holds of a model or a layer: its values, and the vocabularies inside, if any."""
    values, vocabularies = kerases.of(model).trackable(model), of(model)
    if not vocabularies:
        return values
    holder, children = tf.train.Checkpoint(), tf.train.TrackableView.children(values)
    children[kerases.free_name(_NAME, children)] = kerases.tree_of(
        {f"{path}/entries": vocabulary for path, vocabulary in vocabularies.items()}
    )
    for name, child in children.items():
        setattr(holder, name, child)
    return holder


def of(model: Any) -> dict[str, Vocabulary]:
    """Returns the vocabularies of all layers of a model, module or layer, by the path of the layer."""
    if not isinstance(model, tf.Module) and not hasattr(model, "_flatten_layers"):
        return {}
    root = kerases.counted_names([model])[0]
    layers = [(path or root, layer) for path, layer in _layers_inside(model, "", set()) if _learnt(layer)]
    return {path: Vocabulary(path, layer) for path, layer in layers}


def texts(model: Any) -> list[bytes]:
    """Returns what a checkpoint would hold of them."""
    return [vocabulary.serialize() for vocabulary in of(model).values()]


def check_finite(model: Any) -> None:
    """Refuses statistics that are NaN: an activation such as `relu` may hide what they do to a loss.

    Raises:
      DataError: a layer has such a number.
    """
    for path, vocabulary in of(model).items():
        for name, value in _learnt(vocabulary.layer).items():
            is_numbers = value is not None and not isinstance(value, tf.lookup.StaticHashTable)
            if is_numbers and np.isnan(np.asarray(value, "float64")).any():
                raise DataError(
                    f"layer {path}: its {name} is NaN, because adapt() has seen NaN; let a number take the place of "
                    "what is missing before adapt() and in build_inputs, and another feature say where"
                )


def _layers_inside(part: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields a part, and all parts inside, each once, with their paths."""
    if id(part) in seen:
        return
    seen.add(id(part))
    yield path, part
    if "FeatureSpace" in kerases.kinds(part):
        inside = dict(part.preprocessors)  # whose names may count the feature spaces of the process
    elif hasattr(part, "_flatten_layers"):
        layers = kerases.layers_inside(part)
        inside = dict(zip(kerases.counted_names(layers), layers, strict=True))
    else:
        inside = tf.train.TrackableView.children(part)
    for name, layer in inside.items():
        yield from _layers_inside(layer, f"{path}/{name}".lstrip("/"), seen)


def _learnt(layer: Any) -> dict[str, Any]:
    """Returns what a layer holds, by name."""
    named = [pair for cls in _ATTRIBUTES.keys() & kerases.kinds(layer) for pair in _ATTRIBUTES[cls].items()]
    values = {name: getattr(layer, attribute) for name, attribute in named if hasattr(layer, attribute)}
    attributes, of_keras = getattr(layer, "__dict__", {}), {attribute for _, attribute in named}
    tables = [name for name, value in attributes.items() if isinstance(value, tf.lookup.StaticHashTable)]
    return values | {name: attributes[name] for name in tables if name not in of_keras}


def _as_list(values: Any) -> list[Any]:
    listed = np.asarray(values).tolist()
    return [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in listed]


def _tensor(values: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
    is_text = dtype == tf.string
    return tf.constant([word.encode(errors="surrogateescape") for word in values] if is_text else values, dtype)


def _entries(listed: Any) -> list[tuple[Any, Any]]:
    if isinstance(listed, Mapping):
        return list(zip(listed["numbers"], listed["words"], strict=True))
    return [] if listed is None else list(enumerate(np.ravel(listed).tolist()))


def _difference(saved: Sequence[Any], made: Sequence[Any]) -> str:
    others = [pair for pair in itertools.zip_longest(saved, made) if pair[0] != pair[1] and not _is_close(*pair)]
    sizes = [f"{len(made)} entries, not {len(saved)}"] if len(made) != len(saved) else []
    shown = [f"entry {(old or new)[0]} is {_word(new)}, not {_word(old)}" for old, new in others[:_MOST_SHOWN]]
    more = [f"and {len(others) - _MOST_SHOWN} more"] if len(others) > _MOST_SHOWN else []
    return "; ".join([*sizes, *shown, *more])


def _word(entry: Any) -> str:
    if entry is None:
        return "nothing"
    return f"{entry[1]:g}" if isinstance(entry[1], float) else shorten(repr(entry[1]), 40)


def _is_close(old: Any, new: Any) -> bool:
    """Whether two numbers are the same but for rounding: sums over the same data may differ so."""
    if not (old and new and isinstance(old[1], float) and isinstance(new[1], float)):
        return False
    return math.isclose(old[1], new[1], rel_tol=1e-5, abs_tol=1e-8) or (math.isnan(old[1]) and math.isnan(new[1]))
