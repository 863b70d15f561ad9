"""State that a training step changes and that no checkpoint holds: it is refused before the first step runs.

Owns: which variables and tables a traced step changes, read from its graph, and the message. Does not own: what a
checkpoint holds (`checkpoint_state.py`), what is attached to a Task (`tasks/attached.py`).

The graph is read, not the code: so it does not matter what changes a variable, the Task, a layer, an optimizer or a
library. A step that is not traced (`trainer.train_tf_function=false`) is not looked at.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.distributed.replicas import copies
from official_trainer.lazy import tf
from official_trainer.tasks import attached
from official_trainer.tasks.contract import ContractError, line_of_operation
from official_trainer.user_code import during, is_defined_by_user

_READS = {
    *("DisableCopyOnRead", "Identity", "LookupTableExportV2", "LookupTableFindV2", "LookupTableSizeV2", "NoOp"),
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VarIsInitializedOp", "VariableShape"),
}
"""Operations that take the handle of a variable or of a table and leave it as it is."""
_MOST_NAMES = 5


class ChangedState:
    """Compares what traced steps change with what checkpoints hold."""

    def __init__(self, task: Any, find: Callable[[], Mapping[str, Any]]) -> None:
        """Takes the task, and a function that returns what is attached to it and the model now, by path."""
        self._task, self._find = task, find
        self._kept: dict[int, Any] = {}  # with the handles: an id is that of another object later
        self._held: Callable[[], Iterable[Any]] = tuple

    def keep(self, values: Iterable[Any], held: Callable[[], Iterable[Any]] = tuple) -> None:
        """Takes variables and tables that checkpoints hold, or that the engine sets anew for each step.

        Args:
          values: those that are there.
          held: returns all that checkpoints hold by then: TensorFlow restores what tf_keras creates later.
        """
        self._kept |= {id(handle): handle for value in values for handle in _handles(value)}
        self._held = held

    @contextlib.contextmanager
    def of_traced(self) -> Iterator[None]:
        """For a block that traces a step.

        Raises:
          ContractError: the step changes something that was not kept. It never ran.
        """
        if tf.executing_eagerly():
            yield
            return
        graph: Any = tf.compat.v1.get_default_graph()
        before = {id(outer) for outer, _ in graph.captures}  # of what reads the batch
        yield
        lost = [pair for pair in _changed(graph) if id(pair[0]) not in self._kept.keys() | before]
        if lost:
            self.keep(self._held(), self._held)
            lost = [pair for pair in lost if id(pair[0]) not in self._kept]
        if lost and (named := self._named(lost)):
            method = "train_step" if is_defined_by_user(self._task, "train_step") else "build_model"
            with during(task=self._task, method=method, line=line_of_operation(named[0][-1], self._task)):
                raise ContractError(_message(named))

    def _named(self, lost: Sequence[tuple[Any, Any]]) -> list[tuple[str, str, bool, Any]]:
        """Returns what handles lead to: its name, what it is, whether it is attached now, what changes it."""
        by_handle = {id(handle): (path, value) for path, value in self._find().items() for handle in _handles(value)}
        if any(id(handle) not in by_handle for handle, _ in lost):
            by_handle = {**_everywhere(), **by_handle}
        unsaved, named, once = attached.unsaved_state(self._task), [], {}
        for handle, operation in reversed(lost):
            path, value = by_handle.get(id(handle), ("", None))
            once[id(value)] = path, value, operation
        for path, value, operation in reversed(once.values()):
            if value is None:  # an iterator, a writer of summaries
                continue
            name = str(getattr(value, "name", None) or type(value).__name__).removesuffix(":0")
            if not any(fnmatch.fnmatchcase(word, pattern) for word in (path, name) for pattern in unsaved):
                is_variable = isinstance(value, tf.Variable)
                what = f"{value.dtype.base_dtype.name} {list(value.shape)}" if is_variable else type(value).__name__
                made = attached.made_at(value)
                named.append((path or name, f"{what}, made at {made}" if made else what, bool(path), operation))
        return named


def _message(named: Sequence[tuple[str, str, bool, Any]]) -> str:
    name, what, is_late, _ = named[0]
    lines = [f"the step changes {name} ({what}), which no checkpoint holds: a run that continues would lose it."]
    lines += [f"  also {name} ({what})" for name, what, *_ in named[1:_MOST_NAMES]]
    lines += [f"  and {len(named) - _MOST_NAMES} more"] if len(named) > _MOST_NAMES else []
    if is_late:
        fix = "It is made in the first step; make it in build_model, before a checkpoint is read"
    else:
        fix = "Make it in build_model, and keep it as an attribute of the Task or of a layer"
    word = f"{name.rpartition('/')[0]}/*" if "/" in name and len(named) > 1 else name
    lines.append(f'{fix}. If nothing depends on it, say so in the Task: unsaved_state = ("{word}",)')
    return "\n  ".join(lines)


def _handles(value: Any) -> list[Any]:
    """Returns the handles of a variable, one for each of its copies or shards, or that of a table."""
    if attached.is_table(value):
        return [value.resource_handle]
    shards = getattr(value, "variables", [value])
    return [copy.handle for shard in shards for copy in copies(shard)]


def _everywhere() -> dict[int, tuple[str, Any]]:
    """Returns an empty path and the variable or table, by the ids of handles, of all that the process holds.

    Of a variable with copies it is the one that has them all. There are a million objects to look at.
    """
    gc.unfreeze()  # what was there before TensorFlow was imported is left out else
    things, wanted = gc.get_objects(), tf.Variable | attached.tables()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, wanted)}
    with_handles: list[tuple[list[Any], Any]] = []
    for thing in things:
        if type(thing) in kinds:
            with contextlib.suppress(Exception):  # it is no longer whole
                with_handles.append((_handles(thing), thing))
    gc.freeze()
    with_handles.sort(key=lambda pair: len(pair[0]), reverse=True)
    by_handle: dict[int, tuple[str, Any]] = {}
    for handles, value in with_handles:
        for handle in handles:
            by_handle.setdefault(id(handle), ("", value))
    return by_handle


def _changed(graph: Any) -> list[tuple[Any, Any]]:
    """Returns the handles that operations of a graph change, each with the first of these operations."""
    functions = _Functions(graph)
    resources = [(outer, inner) for outer, inner in graph.captures if inner.dtype == tf.resource]
    changing = [
        (outer, next((op for op in inner.consumers() if functions.changes(op, inner)), None))
        for outer, inner in resources
        if not tf.is_symbolic_tensor(outer)
    ]
    return [(outer, operation) for outer, operation in changing if operation is not None]


def _reads(op_type: str) -> bool:
    """Whether operations of a kind leave what a handle leads to as it is, also tokens that order collective ones."""
    return op_type in _READS or op_type.startswith("Collective")


def _sets_first_value(operation: Any) -> bool:
    """Whether an operation gives a variable that is made in the step the value that it begins with."""
    return operation.type == "If" and operation.inputs[0].op.type == "VarIsInitializedOp"


class _Functions:
    """The functions that operations of a graph call: the bodies of loops and branches, other traced functions."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._of_name: dict[str, Any] | None = None

    def changes(self, operation: Any, handle: Any) -> bool:
        """Whether an operation changes what a handle, which is one of its inputs, leads to."""
        if _reads(operation.type) or _sets_first_value(operation):
            return False
        inputs = [tensor is handle for tensor in operation.inputs]
        return self._node_changes(operation.node_def, inputs)

    def _node_changes(self, node: Any, is_handle: Sequence[bool]) -> bool:
        called = [one.name for value in node.attr.values() for one in (value.func, *value.list.func) if one.name]
        if not called:
            return True
        if self._of_name is None:  # the whole graph is written for it, so only where there is such an operation
            library = self._graph.as_graph_def().library
            self._of_name = {function.signature.name: function for function in library.function}
        return any(self._function_changes(self._of_name[name], is_handle) for name in called)

    def _function_changes(self, function: Any, is_handle: Sequence[bool]) -> bool:
        arguments = [argument.name for argument in function.signature.input_arg]
        handles = {name for name, held in zip(arguments, is_handle[-len(arguments) :], strict=True) if held}
        for node in function.node_def:
            inputs = [name in handles for name in node.input if not name.startswith("^")]
            if any(inputs) and not _reads(node.op) and self._node_changes(node, inputs):
                return True
        return False
