"""Requests that a server answers before it takes others, in a SavedModel, where TensorFlow Serving finds them.

Owns: that file, and that each request fits its signature: a server does not load a model with one that fails.
Does not own: which requests there are (`Task.build_warmup_requests`), the folder (`export.py`).

A record is a `PredictionLog` of tensorflow-serving-api. Four of its messages are needed, each with one or two fields,
so they are encoded here: an export at the end of a long run has to need nothing that may not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import UserError
from official_trainer.lazy import message, tf
from official_trainer.nearest import did_you_mean

FOLDER, FILE = "assets.extra", "tf_serving_warmup_requests"
MAX_REQUESTS = 1000
"""TensorFlow Serving refuses a model with more."""

# Fields of tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _SIGNATURE_NAME, _INPUTS, _KEY, _VALUE = 6, 1, 1, 3, 2, 1, 2


class WarmupError(UserError, ValueError):
    """A warm-up request does not fit the exported model."""

    names_line = "before"


def write(directory: str, requests: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes warm-up requests beside a SavedModel; nothing if there are none.

    Args:
      directory: the SavedModel, which is complete otherwise.
      requests: for the name of each signature: the inputs of each request, by their names.

    Raises:
      WarmupError: a request does not fit its signature, or there are more than a server takes.
    """
    records = []
    for name, inputs in _checked(directory, requests):
        request = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, name.encode()))
        for key in sorted(inputs):
            request += _field(_INPUTS, _field(_KEY, key.encode()) + _field(_VALUE, inputs[key].SerializeToString()))
        records.append(_field(_PREDICT_LOG, _field(_REQUEST, request)))  # a `PredictionLog`
    if len(records) > MAX_REQUESTS:
        raise WarmupError(
            f"build_warmup_requests returns {len(records)} requests; a server takes {MAX_REQUESTS} at most"
        )
    if not records:
        return
    files.make_dirs(files.join(directory, FOLDER))
    with tf.io.TFRecordWriter(files.join(directory, FOLDER, FILE)) as writer:
        for record in records:
            writer.write(record)


def _checked(
    directory: str, requests: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the signature and the `TensorProto`s of each request."""
    content = files.read_bytes(files.join(directory, "saved_model.pb"))
    (graph,) = message("SavedModel").FromString(content).meta_graphs
    signatures = {
        name: found for name, found in graph.signature_def.items() if not name.startswith("__")
    }  # TensorFlow's
    for name, each in requests.items():
        if name not in signatures:
            raise WarmupError(f"build_warmup_requests: {_unknown('signature', name, signatures)}")
        known = signatures[name].inputs
        for number, inputs in enumerate(each):
            place = f"build_warmup_requests: request {number} of {name!r}"
            for extra in [key for key in inputs if key not in known]:
                raise WarmupError(f"{place}: {_unknown('input', extra, known)}")
            if missing := sorted(known.keys() - inputs.keys()):
                raise WarmupError(f"{place} lacks {', '.join(missing)}")
            yield name, {key: _tensor(f"{place}: {key}", value, known[key]) for key, value in inputs.items()}


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> str:
    return f"there is no {what} {name!r}; known: {', '.join(sorted(known))}{did_you_mean(name, known)}"


def _tensor(place: str, value: Any, known: Any) -> Any:
    """Returns the `TensorProto` of an input, which has the type and a shape that the signature takes."""
    dtype, shape = tf.as_dtype(known.dtype), tf.TensorShape(known.tensor_shape)
    try:
        tensor = tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        raise WarmupError(f"{place} must be {dtype.name} {_shown(shape)}: {error}") from error
    if not shape.is_compatible_with(tensor.shape):
        raise WarmupError(f"{place} has shape {_shown(tensor.shape)}; the signature takes {_shown(shape)}")
    return tf.make_tensor_proto(tensor)


def _shown(shape: Any) -> str:
    return "of any shape" if shape.rank is None else f"[{', '.join('…' if n is None else str(n) for n in shape)}]"


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of a protocol buffer that holds bytes, a text or a message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
