"""State that is attached to a Task or a model beside the model's weights: what a checkpoint has to hold as well.

Owns: finding it by the attributes that lead to it, and its name, which is that path: `task/d_optimizer/iteration`,
`model/lstm/states/0`. Does not own: what a checkpoint holds already, saving it (`engine/checkpoint_state.py`), which
variables a step changes (`engine/changed_state.py`).

Found are optimizers, layers and models, metrics, variables of TensorFlow and of Keras 3, hash tables that can change,
and random generators, in attributes of a Task, of each layer, of a `tf.Module`, in lists, tuples and mappings of these.
Attributes of other objects are not looked at.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from official_trainer.config.errors import line_of_code
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.keras import free_name
from official_trainer.tasks.variables import has_unbuilt_layers
from official_trainer.user_code import is_users

_PLAIN = (str, bytes, bool, int, float, complex, type(None), type, types.FunctionType, types.MethodType)

_OF_COMPILE = {
    *("optimizer", "_optimizer", "compiled_metrics", "_compile_loss", "_compile_metrics", "_metrics", "_loss_tracker"),
    *("_train_counter", "_test_counter", "_predict_counter", "_steps_per_execution"),
}
"""Attributes of a model, or of a layer that adapts, that Keras makes for its own `fit`."""
_ADAPTED = {"Discretization", "FeatureSpace", "IndexLookup", "Normalization", "TextVectorization"}
"""Layers of which a checkpoint holds what they have seen (`vocabularies.py`), and not how they have counted it."""
_OF_TRACKING = "_self_"
"""How attributes begin in which TensorFlow notes what an object holds."""


class Attached:
    """What is attached to some objects.

    Attributes:
      values: variables and tables by their paths, without those of optimizers.
      states: those variables that are no weights: statistics, counters, states of recurrent layers, those of a Task.
      layers: those that are no part of another one, by their paths: what optimizers update.
      optimizers: by their paths.
      generators: random generators, of the layers that are attached, too.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        """Looks at the attributes of `roots`, each of which has the name that its paths begin with."""
        self.values: dict[str, Any] = {}
        self.states: list[tf.Variable] = []
        self.optimizers: dict[str, Any] = {}
        self.generators: list[Any] = []
        self.layers: dict[str, Any] = {}
        self._metrics: list[Any] = []
        self._added: set[int] = set()
        self._seen: dict[int, Any] = {}  # the objects, too: an id is that of another object later
        for path, root in roots.items():
            self.add(path, root)

    def add(self, path: str, root: Any) -> None:
        """Looks at one more, also where it is of a class of the user's own."""
        if kerases.kinds(root) & {"Layer", "Metric"}:
            self._visit(path, root)
        else:
            self._visit_attributes(path, root)

    @property
    def waits(self) -> bool:
        """Whether something creates its variables when a step calls it first."""
        layers = any(has_unbuilt_layers(layer) for layer in self.layers.values())
        return layers or any(map(kerases.waits, self._metrics)) or bool(self.unbuilt_optimizers)

    @property
    def unbuilt_optimizers(self) -> list[Any]:
        """The optimizers that have no slots yet."""
        inner = [(optimizer, kerases.inner(optimizer)) for optimizer in self.optimizers.values()]
        built = "built", "_built", "_hypers_created"  # Keras 3, tf_keras, its legacy ones
        return [optimizer for optimizer, held in inner if not any(getattr(held, name, False) for name in built)]

    def all_values(self) -> dict[str, Any]:
        """Returns `values`, and the variables that optimizers have now, whose names say what they update."""
        of_optimizers = {
            f"{path}/{name}": variable
            for path, optimizer in self.optimizers.items()
            for name, variable in kerases.of(optimizer).optimizer_values(optimizer, self.layers).items()
        }
        return {**self.values, **{path: value for path, value in of_optimizers.items() if id(value) not in self._added}}

    def matching(self, patterns: Iterable[str]) -> list[Any]:
        """Returns what has a path that one of the patterns matches."""
        values = self.all_values().items()
        return [value for path, value in values if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]

    def _visit(self, path: str, thing: Any) -> None:
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        kinds = kerases.kinds(thing)
        if isinstance(thing, tf.Variable) or is_table(thing) or "Variable" in kinds:
            self._add(path, kerases.value(thing))
        elif isinstance(thing, tf.random.Generator) or "SeedGenerator" in kinds:
            self.generators.append(thing)
        elif kinds & {"Optimizer", "OptimizerV2"}:
            self.optimizers[path] = thing
        elif "Metric" in kinds:
            self._metrics.append(thing)
            self._add_values(path, thing)
        elif "Layer" in kinds:
            self._visit_layer(path, thing)
        elif isinstance(thing, tf.Module):
            self._visit_attributes(path, thing)
        elif isinstance(thing, Mapping | list | tuple):
            self._visit_all(path, thing if isinstance(thing, Mapping) else dict(enumerate(thing)))

    def _visit_layer(self, path: str, layer: Any) -> None:
        implementation = kerases.of(layer)
        self.layers[path] = layer
        self._add_values(path, layer)
        self.generators += implementation.generators(layer)
        inside = implementation.layers(layer)
        self._seen |= {id(part): part for part in inside}  # they have the paths of their names, not of lists
        for part, name in zip(inside, kerases.counted_names(inside), strict=True):
            if not kerases.kinds(part) & _ADAPTED:
                self._visit_attributes(path if part is layer else f"{path}/{name}", part)

    def _visit_attributes(self, path: str, thing: Any) -> None:
        skipped = _OF_COMPILE if "Layer" in kerases.kinds(thing) else ()
        values = {name: value for name, value in vars(thing).items() if name not in skipped}
        self._visit_all(path, {name: value for name, value in values.items() if not name.startswith(_OF_TRACKING)})

    def _visit_all(self, path: str, values: Mapping[Any, Any]) -> None:
        for name, value in values.items():
            if not isinstance(value, _PLAIN):  # first, as there may be a million words
                self._visit(f"{path}/{str(name).replace('/', '_')}", value)

    def _add_values(self, path: str, thing: Any) -> None:
        for name, value in kerases.of(thing).values(thing).items():
            self._add(f"{path}/{name}", value, is_weight=value.trainable)

    def _add(self, path: str, value: Any, *, is_weight: bool = False) -> None:
        if id(value) in self._added:
            return
        self._added.add(id(value))
        self.values[free_name(path, self.values)] = value
        if isinstance(value, tf.Variable) and not is_weight:
            self.states.append(value)


def roots_of(task: Any, subtasks: Iterable[Any], model: Any) -> dict[str, Any]:
    """Returns what state is attached to, by the first word of its paths.

    Args:
      task: the Task.
      subtasks: of a task that is made of several, each with a name and its own task.
      model: of `build_model`; the variables of its layers have its paths, also where the Task has a layer as well.
    """
    return {"model": model, "task": task, **{f"task/{part.name}": part.task for part in subtasks}}


def unsaved_state(task: Any) -> tuple[str, ...]:
    """Returns the patterns of state that needs no checkpoint; Model Garden's tasks have none."""
    return tuple(getattr(task, "unsaved_state", ()))


def is_table(thing: Any) -> bool:
    """Whether an object is a hash table that can change."""
    return issubclass(type(thing), tables())  # asks no proxy for its class


def tables() -> types.UnionType:
    """Returns the classes of hash tables that can change."""
    return tf.lookup.experimental.MutableHashTable | tf.lookup.experimental.DenseHashTable


# Where variables were made.

_MADE: dict[int, tuple[types.CodeType, int, Any]] = {}
"""Code and line of the user's by the ids of variables that live, with what removes them later."""


def lines_noted() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which the user's line is noted for each variable that is made, for `made_at`."""
    return tf.variable_creator_scope(_note)


def made_at(variable: Any) -> str:
    """Returns the line of the user's that made a variable, `experiments/gan.py:12`; empty if it was not noted."""
    if (made := _MADE.get(id(variable))) is None:
        return ""
    return line_of_code(made[0].co_filename, made[1]).brief


def _note(next_creator: Any, **options: Any) -> Any:
    variable = next_creator(**options)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        key = id(variable)
        _MADE[key] = frame.f_code, frame.f_lineno, weakref.ref(variable, lambda _: _MADE.pop(key, None))
    return variable


_is_users = functools.cache(is_users)
