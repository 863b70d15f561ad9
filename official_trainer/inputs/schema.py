"""Records of another schema: which file holds the record that TensorFlow could not parse, and what is in it.

Owns: reading the features of records for a message. Does not own: parsing them for training, which the task does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from official_trainer.lazy import tf
from official_trainer.shown import first_few

_MOST_RECORDS = 100_000
"""As many records are searched; they take a few seconds."""

_LACKS = re.compile(r"Feature: (\S+) \(data type: (\w+)\) is required but could not be found")
_OF_TYPE = re.compile(r"Key: (\S+?)\.\s+Data types don't match\..*?[Ee]xpected type: (\w+)")
_OF_SIZE = re.compile(r"Key: (\S+?)\.\s+(?:Number of \w+ values|Can't parse serialized Example)")
_KINDS = {"float_list": "float", "int64_list": "int64", "bytes_list": "string"}
"""TensorFlow's names for the lists of a feature, and for the dtypes that they are parsed as."""

Features = Mapping[str, Any]


def find_misfit(message: str, paths: Iterable[str]) -> str:
    """Returns the first record that TensorFlow could not parse, with its file and what it holds; empty if unknown.

    Args:
      message: TensorFlow's.
      paths: of the files that were read.
    """
    if "Could not parse example input" in message:
        for path, number, features in _records(paths):
            if features is None:
                return f"{path}: record {number} is no tf.train.Example; it was written in another way"
        return ""
    if found := _OF_SIZE.search(message):
        return _of_another_size(found[1], paths)
    is_misfit = _test_of(message)
    for path, number, features in _records(paths) if is_misfit is not None else ():
        if features is not None and is_misfit is not None and (what := is_misfit(features)):
            return f"{path}: record {number} {what}"
    return ""


def _test_of(message: str) -> Callable[[Features], str] | None:
    """Returns a function that says what is wrong with the features of a record; empty for a record that fits."""
    if found := _LACKS.search(message):
        name = found[1]
        return lambda features: (
            "" if name in features else f"has no feature {name!r}; it has {first_few(sorted(features)) or 'none'}"
        )
    if found := _OF_TYPE.search(message):
        name, kind = found[1], found[2]
        return lambda features: (
            f"has {name!r} as {_shown(features[name])}, and {kind} is read"
            if name in features and _kind(features[name]) not in (kind, "")
            else ""
        )
    return None


def _of_another_size(name: str, paths: Iterable[str]) -> str:
    """Returns the first record in which a feature has another size than in the first; if all are equal, that one."""
    first = what = ""
    for path, number, features in _records(paths):
        if features is None or name not in features:
            continue
        held = _shown(features[name])
        if first and held != first:
            return f"{path}: record {number} has {name!r} as {held}, and the first record as {first}"
        if not first:
            what, first = f"{path}: record {number} has {name!r} as {held}", held
    return what


def _kind(feature: Any) -> str:
    return _KINDS.get(feature.WhichOneof("kind") or "", "")


def _shown(feature: Any) -> str:
    kind = feature.WhichOneof("kind")
    return f"{_kind(feature) or 'nothing'}[{len(getattr(feature, kind).value) if kind else 0}]"


def _records(paths: Iterable[str]) -> Iterator[tuple[str, int, Features | None]]:
    """Yields the path, the number and the features of records; None for a record that is no `tf.train.Example`."""
    from google.protobuf.message import DecodeError

    left = _MOST_RECORDS
    for path in paths:
        try:
            for number, record in enumerate(tf.data.TFRecordDataset(path)):
                if not (left := left - 1):
                    return
                try:
                    yield path, number, tf.train.Example.FromString(record.numpy()).features.feature
                except DecodeError:
                    yield path, number, None
        except tf.errors.OpError:  # a damaged file has an error of its own
            continue
