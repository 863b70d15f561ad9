"""The first weights of a model, from what `task.init_checkpoint` names: by names, strictly, all of them or nothing.

Owns: which value of a checkpoint belongs to which variable of a model, by their names and by those of
`task.init_checkpoint_names`; the report. Does not own: which checkpoint a user means
(`checkpoints/init_checkpoint.py`), restoring by the object graph, as Model Garden's models are
(`checkpoints/restore.py`), files of Keras (`tasks/keras/weight_files.py`), when it happens (`engine/first_weights.py`).

A value of a checkpoint is known by its place, `model/encoder/dense/kernel`, and by the name that tf_keras gave it, by
both also without their first part. A model of Keras 3 has the place as its name, so a checkpoint of a run with Keras 3
fits as it is, and one of tf_keras where its layers have the same names. Other checkpoints need a map of names.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from official_trainer.checkpoints import init_checkpoint, restore
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.matching import Matching, Mismatch, RestoreReport, VariableSpec, graph_specs
from official_trainer.lazy import tf
from official_trainer.nearest import did_you_mean
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.variables import flatten

_logger = logging.getLogger(__name__)

_NAMES = "task.init_checkpoint_names"
_NOT_A_MODEL = ("optimizer/", "training/", "average/", "save_counter/", "global_step/")
"""Places of a checkpoint that hold no weights of a model."""


class SavedValues(Protocol):
    """The values that a checkpoint, or a file of Keras, holds of one model.

    Attributes:
      specs: its values by key.
      keys: those of the model's variables that it holds, by `id` of the `tf.Variable`.
      left_to_layers: ids of variables that it does not hold, and that layers set when they load the rest.
    """

    specs: dict[str, VariableSpec]
    keys: dict[int, str]
    left_to_layers: set[int]

    def read(self, key: str) -> Any: ...
    def assign(self, pairs: Mapping[int, tf.Variable]) -> None: ...


def restore_model(
    model: Any, path: str, *, names: Mapping[str, str] | None = None, allow_missing: Sequence[str] = ()
) -> RestoreReport:
    """Restores a model of either Keras from `task.init_checkpoint`; the other arguments are the fields beside it.

    Raises:
      CheckpointError: nothing is there, it is damaged, or it does not restore every variable that must be. Nothing was
        assigned.
    """
    from official_trainer.tasks import vocabularies

    if not is_by_name(model, names):
        items = getattr(model, "checkpoint_items", None) or {"model": model}
        trackables = {name: vocabularies.in_checkpoint(item) for name, item in items.items()}
        return restore.read_init_checkpoint(path, trackables, allow_missing=allow_missing)
    try:
        saved = open_values(model, path, names)
        pairs, report = _compared(flatten(model), saved, path)
        matching = None
        if isinstance(saved, _Checkpoint):  # a file of Keras has its own for the words that a layer has learnt
            matching = Matching(saved.prefix, {"model": vocabularies.in_checkpoint(model)})
            report = dataclasses.replace(report, vocabularies=matching.differing_vocabularies(report.wrong_shape))
        held = {"/".join(spec.key.split("/")[:2]) for spec in saved.specs.values()}
        restore.check_init(report, [type(model).__name__], held, allow_missing)
    except CheckpointError as error:
        is_told = str(error).startswith(init_checkpoint.FIELD)
        raise error if is_told else CheckpointError(f"{init_checkpoint.FIELD}: {error}") from error
    saved.assign(pairs)
    if matching is not None:
        restore.read_vocabularies(matching, keeps_size=bool(report.wrong_shape))
    _logger.info("initial weights from %s", report)
    return report


def is_by_name(model: Any, names: Mapping[str, str] | None) -> bool:
    """Whether a model is restored by names, and not by its object graph."""
    return bool(names) or (kerases.is_3(model) and not getattr(model, "checkpoint_items", None))


def is_file_of_keras(model: Any, path: str) -> bool:
    """Whether a path is a file, or a directory, of Keras's own, and the model is of Keras 3, which reads them."""
    if not kerases.is_3(model):
        return False
    from official_trainer.tasks.keras import weight_files

    return weight_files.is_one(path)


def open_values(model: Any, path: str, names: Mapping[str, str] | None = None) -> SavedValues:
    """Returns the values that a path holds of a model; nothing is assigned.

    Raises:
      CheckpointError: there is nothing, or it is damaged, or `names` do not fit.
    """
    if is_file_of_keras(model, path):
        from official_trainer.tasks.keras import weight_files

        if names:
            raise CheckpointError(f"{path} is of Keras, whose values are found by their layers: leave {_NAMES} out")
        return weight_files.WeightFile(path, model)
    return _Checkpoint(init_checkpoint.find(path), flatten(model), names or {})


class _Checkpoint:
    """The values of a checkpoint of TensorFlow."""

    def __init__(self, prefix: str, live: Mapping[str, tf.Variable], names: Mapping[str, str]) -> None:
        self.specs = {key: spec for key, spec in graph_specs(prefix).items() if not key.startswith(_NOT_A_MODEL)}
        self.left_to_layers = set[int]()
        self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        self.prefix = prefix
        named = self._by_map(live, names)
        by_name = named | {name: key for name, key in self._by_itself(live).items() if name not in named}
        self.keys = {id(live[name]): key for name, key in by_name.items()}

    def _by_map(self, live: Mapping[str, tf.Variable], names: Mapping[str, str]) -> dict[str, str]:
        """Returns key by name in the model, of values to which a pattern of the map applies: the first of them."""
        keys: dict[str, str] = {}
        made: dict[str, list[str]] = {pattern: [] for pattern in names}
        for pattern, name in names.items():
            if name.count("*") > pattern.count("*"):
                raise CheckpointError(f"{self.prefix}: {_NAMES}: {name!r} has more * than {pattern!r}")
        for key, spec in self.specs.items():
            matches = ((pattern, _renamed(name, pattern, names[pattern])) for pattern in names for name in _names(spec))
            pattern, name = next(((pattern, name) for pattern, name in matches if name is not None), ("", ""))
            if not name:
                continue
            made[pattern].append(name)
            if name in live and keys.setdefault(name, key) != key:
                both = f"{self.specs[keys[name]].key} and {spec.key}"
                raise CheckpointError(f"{self.prefix}: {_NAMES} gives {both} the same name, {name}")
        for pattern, wanted in made.items():
            if not any(name in live for name in wanted):
                what = f"matches nothing of it; it holds {first_few([str(spec) for spec in self.specs.values()])}"
                if wanted:
                    near = did_you_mean(wanted[0], live, otherwise=f", whose names are like {next(iter(live))}")
                    what = f"makes the name {wanted[0]}, which no variable of the model has{near}"
                raise CheckpointError(f"{self.prefix}: {_NAMES}: {pattern!r} {what}")
        return keys

    def _by_itself(self, live: Mapping[str, tf.Variable]) -> dict[str, str]:
        """Returns key by name in the model, of values whose place is that name; or else, whose name in tf_keras is."""
        by_place = {spec.key.removeprefix("model/"): key for key, spec in self.specs.items()}
        by_name = {spec.name: key for key, spec in self.specs.items()}
        return {n: by_place[n] for n in live if n in by_place} or {n: by_name[n] for n in live if n in by_name}

    def read(self, key: str) -> Any:
        return self._reader.get_tensor(key)

    def assign(self, pairs: Mapping[int, tf.Variable]) -> None:
        for number, variable in pairs.items():
            variable.assign(tf.cast(self.read(self.keys[number]), variable.dtype))


def _names(spec: VariableSpec) -> Iterator[str]:
    for name in (spec.key, spec.name):
        yield from (name, name.partition("/")[2])


def _renamed(name: str, pattern: str, into: str) -> str | None:
    """Returns a name in which each `*` of `into` is what that of `pattern` stands for; None if it does not match."""
    match = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
    if match is None:
        return None
    first, *others = into.split("*")
    return first + "".join(group + other for group, other in zip(match.groups(), others, strict=False))


def _compared(
    live: Mapping[str, tf.Variable], values: SavedValues, path: str
) -> tuple[dict[int, tf.Variable], RestoreReport]:
    """Returns the variables that a source gives a value, by id, and the report."""
    pairs, restored, missing, wrong = dict[int, Any](), [], [], []
    for name, variable in live.items():
        spec = VariableSpec(f"model/{name}", "", tuple(variable.shape), variable.dtype.name)
        saved = values.specs.get(values.keys.get(id(variable), ""))
        if saved is not None and _fits(saved, variable):
            pairs[id(variable)] = variable
            restored.append(spec)
        elif saved is not None:
            wrong.append(Mismatch(saved, spec))
        elif id(variable) not in values.left_to_layers:
            missing.append(spec)
    used = {*values.keys.values()}
    extra = tuple(spec for key, spec in values.specs.items() if key not in used)
    return pairs, RestoreReport(
        path=path, restored=tuple(restored), missing=tuple(missing), wrong_shape=tuple(wrong), extra=extra
    )


def _fits(saved: VariableSpec, variable: tf.Variable) -> bool:
    if saved.shape is None or not variable.shape.is_compatible_with(saved.shape):
        return False
    return saved.dtype == variable.dtype.name or (variable.dtype.is_floating and tf.as_dtype(saved.dtype).is_floating)
