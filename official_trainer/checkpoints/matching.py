"""Which variables of a checkpoint belong to which variables of a program, decided before any value is read.

Owns: walking the object graph saved in a TensorFlow checkpoint together with the live objects, and `RestoreReport`.
Does not own: what is acceptable, or assigning values; `restore.py` does both.

TensorFlow restores what it can match and does not report the rest. This module finds the rest. It follows
TensorFlow's rule: objects correspond when the same names lead to them from the root, and an optimizer's slot
variables belong to (optimizer, variable, slot name). Optimizers that have not created their variables yet receive
the values from TensorFlow when they do; the report calls these deferred.
"""

from __future__ import annotations

import collections
import dataclasses
import glob
import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.lazy import load, message, tf

_VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_STATE_SUFFIX = "/.ATTRIBUTES/py_state"  # of a PythonState: the vocabulary of a layer
SLOT = "/.OPTIMIZER_SLOT/"
"""In the key of a slot of a legacy optimizer, between the variable and the rest."""
_SLOT_3, _AVERAGE_3 = "optimizer/slots/", "average/"  # of Keras 3, before the name of a weight

AVERAGE = f"{SLOT}optimizer/average/"
"""In the key of an average of weights, a slot of Model Garden's wrapper, which holds the optimizer."""

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SHOWN = 5
# tf.train.Checkpoint.save counts its own calls here. Our steps name the files, so it means nothing to us.
_IGNORED_ROOT_NAMES = frozenset({"save_counter"})


Trackable = Any
"""Anything that `tf.train.Checkpoint` can hold."""


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """One saved or live value.

    Attributes:
      key: path of attribute names from the root, `model/layer_with_weights-0/kernel`.
      name: the name that Keras gave it, `dense/kernel`.
      shape: None for values that are not variables, such as lookup tables.
      dtype: name of the dtype.
    """

    key: str
    name: str = ""
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of the value; 0 where the shape is not known."""
        if self.shape is None or None in self.shape or not self.dtype:
            return 0
        return math.prod(size or 0 for size in self.shape) * max(tf.as_dtype(self.dtype).size, 1)

    @property
    def weight(self) -> str:
        """The key of the weight that a slot, or an average, is of; its own key for all else."""
        if self.key.startswith(_AVERAGE_3):
            return f"model/{self.key.removeprefix(_AVERAGE_3)}"
        if self.key.startswith(_SLOT_3):
            return f"model/{self.key.removeprefix(_SLOT_3).rpartition('/')[0]}"
        return self.key.partition(SLOT)[0]

    @property
    def is_of_weight(self) -> bool:
        """Whether it is a slot, or an average, of a weight."""
        return self.weight != self.key

    @property
    def is_average(self) -> bool:
        """Whether it is the average of a weight."""
        return self.key.startswith(_AVERAGE_3) or f"{self.key}/".endswith(AVERAGE)

    @property
    def layout(self) -> str:
        """Dtype and shape as text."""
        return "" if self.shape is None else f"{self.dtype} {list(self.shape)}"

    def __str__(self) -> str:
        name = "" if not self.name or self.name == self.key else f"({self.name})"
        return " ".join(part for part in (self.key, name, self.layout) if part)


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A value that both sides have, in different shapes or dtypes."""

    saved: VariableSpec
    live: VariableSpec

    def __str__(self) -> str:
        name = f" ({self.live.name})" if self.live.name else ""
        return f"{self.live.key}{name}: {self.saved.layout} in the checkpoint, {self.live.layout} in the program"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoreReport:
    """What a checkpoint and a program have in common.

    Attributes:
      path: prefix of the checkpoint.
      step: global step; None for checkpoints that have none.
      restored: values that both sides have.
      missing: values of the program that the checkpoint lacks.
      extra: values of the checkpoint that the program lacks.
      wrong_shape: values whose shape or dtype differs.
      deferred: values that wait until an optimizer or a metric creates its variables.
      vocabularies: what the code makes otherwise than the checkpoint holds it, where shapes differ, which may be why.
    """

    path: str
    step: int | None = None
    restored: tuple[VariableSpec, ...] = ()
    missing: tuple[VariableSpec, ...] = ()
    extra: tuple[VariableSpec, ...] = ()
    wrong_shape: tuple[Mismatch, ...] = ()
    deferred: tuple[VariableSpec, ...] = ()
    vocabularies: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether nothing is missing, extra or of another shape."""
        return not (self.missing or self.extra or self.wrong_shape)

    def __str__(self) -> str:
        step = "" if self.step is None else f" (step {self.step})"
        size = format_bytes(sum(spec.size_bytes for spec in self.restored))
        lines = [f"{self.path}{step}: {len(self.restored)} variables match, {size}"]
        lines += _section("missing: in the program, not in the checkpoint", self.missing)
        lines += _section("extra: in the checkpoint, not in the program", self.extra)
        lines += _section("wrong shape or dtype", self.wrong_shape)
        lines += _section("other vocabularies, which may be why: make them as in the checkpoint", self.vocabularies)
        if self.deferred:
            lines.append(
                f"  {len(self.deferred)} more are restored when an optimizer or a metric creates its variables"
            )
        return "\n".join(lines)


def format_bytes(count: float) -> str:
    """Returns a size for people: `1.2 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def saved_specs(prefix: str) -> dict[str, VariableSpec]:
    """Returns key → shape and dtype of all that a checkpoint holds, without its object graph."""
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = sorted(reader.get_variable_to_shape_map().items())
    return {k: VariableSpec(k, shape=tuple(s), dtype=dtypes[k].name) for k, s in shapes if k != _GRAPH_KEY}


def graph_specs(prefix: str) -> dict[str, VariableSpec]:
    """Returns key → path, name, shape and dtype of the values that a checkpoint's object graph has, but no slots."""
    specs, specs_in_graph = saved_specs(prefix), dict[str, VariableSpec]()
    for node in _read_graph(prefix):
        for attribute in node.attributes:
            if (key := attribute.checkpoint_key) in specs and SLOT not in key:
                path, name = key.removesuffix(_VALUE_SUFFIX), attribute.full_name
                specs_in_graph[key] = dataclasses.replace(specs[key], key=path, name=name)
    return specs_in_graph


def never_updated(prefix: str) -> tuple[str, ...]:
    """Returns patterns of slots that a checkpoint of Model Garden does not hold, because no gradient has reached them.

    Its driver creates slots with the first update, of what has a gradient then; here all are created at the start. A
    checkpoint without any slot is one of another optimizer.
    """
    names = [key.removesuffix(_VALUE_SUFFIX) for key in saved_specs(prefix)]
    names = [name for name in names if not name.endswith("/average")]  # of weights, created at the start there too
    updated = {name.partition(SLOT)[0] for name in names if SLOT in name}
    waiting = [name for name in names if SLOT not in name and name not in updated] if updated else []
    return tuple(f"{glob.escape(name)}{SLOT}*" for name in waiting)


class Matching:
    """Pairs the values of a checkpoint with those reachable from `items`, by name from the root.

    Attributes:
      prefix: of the checkpoint.
      items: the live objects, by name, without what is ignored.
      item_is_root: whether the only item is the root of the checkpoint's graph, as Keras `save_weights` makes a model.
      roots: what the checkpoint holds at its top: names with their nodes.
      pairs: what the last report found restored: live values, each with its key in the checkpoint.
      live: all objects below the items, by the path to them, slots of legacy optimizers too.
    """

    def __init__(self, prefix: str, items: Mapping[str, Trackable]) -> None:
        self.prefix = prefix
        self.pairs: list[tuple[Any, str]] = []
        self._specs = saved_specs(prefix)
        self._nodes = _read_graph(prefix)
        self.items = {name: item for name, item in items.items() if name not in _IGNORED_ROOT_NAMES}
        self.live: dict[str, Any] = dict(reachable(self.items))
        self._object_of: dict[int, Any] = {}  # saved node → live object
        self._node_of: dict[int, int] = {}  # id(live object) → saved node
        self._deferred: set[int] = set()  # saved nodes below optimizers that have no variables yet
        self.roots = {c.local_name: c.node_id for c in self._nodes[0].children}
        self.item_is_root = len(self.items) == 1 and not self.items.keys() & self.roots.keys()
        at_root = dict.fromkeys(self.items, 0) if self.item_is_root else self.roots
        self._starts = [(at_root[name], item) for name, item in self.items.items() if name in at_root]
        self._walk()
        self._match_slots()

    def report(self, *, step: int | None = None, items_only: bool = False) -> RestoreReport:
        """Compares both sides.

        Args:
          step: for the report.
          items_only: whether the report leaves out what the checkpoint holds in addition to the items.
        """
        restored, missing, wrong = list[VariableSpec](), list[VariableSpec](), list[Mismatch]()
        self.pairs.clear()
        for path, live in self.live.items():
            if not _has_value(live):
                continue
            spec = self._unless_named(_live_spec(path, live))
            attribute = self._attribute(self._node_of.get(id(live)))
            if attribute is None:
                if not isinstance(live, tf.train.experimental.PythonState):  # a vocabulary: that of the code is kept
                    missing.append(spec)
                continue
            saved = self._saved_spec(attribute)
            if _fits(saved, live):
                restored.append(dataclasses.replace(saved, key=path, name=spec.name))
                self.pairs.append((live, attribute.checkpoint_key))
            else:
                wrong.append(Mismatch(saved, spec))
        extra, deferred = self._unmatched(items_only)
        return RestoreReport(
            path=self.prefix,
            step=step,
            restored=tuple(restored),
            missing=tuple(missing),
            extra=tuple(extra),
            wrong_shape=tuple(wrong),
            deferred=tuple(deferred),
            vocabularies=self.differing_vocabularies(wrong),
        )

    def differing_vocabularies(self, wrong_shape: Sequence[Mismatch]) -> tuple[str, ...]:
        """Returns, in words, how those of the program differ, if shapes do."""
        differences = [live.difference(saved) for live, saved in self.vocabularies() if saved] if wrong_shape else ()
        return tuple(filter(None, differences))

    def vocabularies(self) -> Iterator[tuple[Any, bytes | None]]:
        """Yields those of the program, each with what the checkpoint holds; None if that is nothing."""
        reader = tf.compat.v1.train.NewCheckpointReader(self.prefix)
        for live in self.live.values():
            if isinstance(live, tf.train.experimental.PythonState):
                attribute = self._attribute(self._node_of.get(id(live)))
                yield live, None if attribute is None else reader.get_tensor(attribute.checkpoint_key)

    def _walk(self) -> None:
        queue = collections.deque(self._starts)
        while queue:
            node_id, live = queue.popleft()
            # The first way to an object decides, as in TensorFlow. Variables that are shared on one side only are
            # then unmatched, and are in the report.
            if node_id in self._object_of or id(live) in self._node_of:
                continue
            self._object_of[node_id] = live
            self._node_of[id(live)] = node_id
            children = tf.train.TrackableView.children(live)
            for child in self._nodes[node_id].children:
                if child.local_name in children:
                    queue.append((child.node_id, children[child.local_name]))
            if _is_of_keras(live, "metrics.Metric") or _is_unbuilt_optimizer(live):
                self._deferred.update(self._descendants(node_id))

    def _match_slots(self) -> None:
        """Pairs slot variables of Keras's legacy optimizers, which hang on (optimizer, variable, slot name)."""
        variables = [(path, live) for path, live in self.live.items() if isinstance(live, tf.Variable)]
        slots: list[tuple[str, Any]] = []
        for optimizer_path, optimizer in self.live.items():
            if not (hasattr(optimizer, "get_slot_names") and hasattr(optimizer, "get_slot")):
                continue
            names = list(optimizer.get_slot_names())
            for path, variable in variables:
                for name in names:
                    if (slot := _slot(optimizer, variable, name)) is not None:
                        slots.append((f"{path}{SLOT}{optimizer_path}/{name}", slot))
            self._match_slots_of(optimizer, has_slots=bool(names))
        self.live.update(slots)

    def _match_slots_of(self, optimizer: Any, *, has_slots: bool) -> None:
        node_id = self._node_of.get(id(optimizer))
        for saved in () if node_id is None else self._nodes[node_id].slot_variables:
            variable = self._object_of.get(saved.original_variable_node_id)
            if variable is None:
                continue
            if not has_slots:
                self._deferred.add(saved.slot_variable_node_id)
            elif (slot := _slot(optimizer, variable, saved.slot_name)) is not None:
                self._object_of[saved.slot_variable_node_id] = slot
                self._node_of[id(slot)] = saved.slot_variable_node_id

    def _unmatched(self, items_only: bool) -> tuple[list[VariableSpec], list[VariableSpec]]:
        if items_only:
            candidates = {node for start, _ in self._starts for node in self._descendants(start)}
        else:
            candidates = set(range(len(self._nodes)))
            candidates -= {self.roots[name] for name in _IGNORED_ROOT_NAMES if name in self.roots}
        extra: list[VariableSpec] = []
        deferred: list[VariableSpec] = []
        for node_id in sorted(candidates):
            attribute = self._attribute(node_id)
            if attribute is not None and not _has_value(self._object_of.get(node_id)):
                (deferred if node_id in self._deferred else extra).append(self._saved_spec(attribute))
        return extra, deferred

    def _descendants(self, start: int) -> set[int]:
        descendants, queue = {start}, [start]
        while queue:
            for child in self._nodes[queue.pop()].children:
                if child.node_id not in descendants:
                    descendants.add(child.node_id)
                    queue.append(child.node_id)
        return descendants

    def _attribute(self, node_id: int | None) -> Any:
        attributes = () if node_id is None else self._nodes[node_id].attributes
        return attributes[0] if attributes else None

    def _saved_spec(self, attribute: Any) -> VariableSpec:
        spec = self._specs.get(attribute.checkpoint_key, VariableSpec(attribute.checkpoint_key))
        key = attribute.checkpoint_key.removesuffix(_VALUE_SUFFIX).removesuffix(_STATE_SUFFIX)
        return self._unless_named(dataclasses.replace(spec, key=key, name=attribute.full_name))

    def _unless_named(self, spec: VariableSpec) -> VariableSpec:
        """Leaves out Keras's name where the key is made of names, which unlike Keras's do not depend on the process."""
        item = self.items.get(spec.key.partition("/")[0])
        return dataclasses.replace(spec, name="") if isinstance(item, Mapping) else spec


def names_in(prefix: str, path: str) -> list[str]:
    """Returns the names of what a checkpoint holds in the object at a path; none if it has no such object.

    Raises:
      CheckpointError: it has no object graph.
    """
    nodes = _read_graph(prefix)
    node = nodes[0]
    for name in path.split("/"):
        number = next((child.node_id for child in node.children if child.local_name == name), None)
        if number is None:
            return []
        node = nodes[number]
    return [child.local_name for child in node.children]


def _read_graph(prefix: str) -> Sequence[Any]:
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    if not reader.has_tensor(_GRAPH_KEY):
        what = "has no object graph: it was written by TensorFlow 1"
        raise CheckpointError(f"{prefix} {what}. Convert it with TensorFlow 2 first.")
    return message("TrackableObjectGraph").FromString(reader.get_tensor(_GRAPH_KEY)).nodes


def reachable(items: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields every object below `items` once, with the shortest path to it."""
    queue = collections.deque(items.items())
    seen: dict[int, Any] = {}  # with the objects: some are created by the call that returns them, and ids are reused
    while queue:
        path, live = queue.popleft()
        if id(live) in seen:
            continue
        seen[id(live)] = live
        yield path, live
        queue.extend((f"{path}/{name}", child) for name, child in tf.train.TrackableView.children(live).items())


def _has_value(live: Any) -> bool:
    """Whether a checkpoint stores something for the object itself, not only for what it holds."""
    if live is None or isinstance(live, tf.Variable):
        return live is not None
    # What tf.train.Checkpoint itself calls when it saves; there is no public function that writes nothing.
    saving = load("tensorflow.python.training.saving.saveable_object_util")
    return bool(saving.saveable_objects_from_trackable(live))


def _is_unbuilt_optimizer(live: Any) -> bool:
    """Whether a Keras optimizer, of either kind, has not created its variables yet."""
    optimizer = getattr(live, "_optimizer", live)  # what Model Garden's averages wrap
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # what a LossScaleOptimizer wraps
    if _is_of_keras(optimizer, "optimizers.legacy.Optimizer"):
        return not optimizer._hypers_created
    return _is_of_keras(optimizer, "optimizers.Optimizer") and not getattr(optimizer, "_built", False)


def _is_of_keras(live: Any, name: str) -> bool:
    """Whether an object is of a class of tf_keras; without importing it, for a process that has no such object."""
    keras = sys.modules.get("tf_keras")
    return keras is not None and isinstance(live, operator.attrgetter(name)(keras))


def _slot(optimizer: Any, variable: Any, name: str) -> Any:
    try:
        return optimizer.get_slot(variable, name)
    except KeyError:
        return None


def _live_spec(path: str, live: Any) -> VariableSpec:
    shape = getattr(live, "shape", None)
    name = str(getattr(live, "name", "")).removesuffix(":0")
    if shape is None or not hasattr(live, "dtype"):
        return VariableSpec(path, name)
    return VariableSpec(path, name, tuple(shape.as_list()), live.dtype.base_dtype.name)


def _fits(saved: VariableSpec, live: Any) -> bool:
    if saved.shape is None or not isinstance(live, tf.Variable):
        return True
    return live.shape.is_compatible_with(saved.shape) and live.dtype.base_dtype.name == saved.dtype


def _section(title: str, entries: Sequence[Any]) -> list[str]:
    if not entries:
        return []
    lines = [f"  {title} ({len(entries)}):", *(f"    {entry}" for entry in entries[:_SHOWN])]
    if len(entries) > _SHOWN:
        lines.append(f"    … and {len(entries) - _SHOWN} more")
    return lines
