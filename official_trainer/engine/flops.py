"""The FLOPs of a training step, counted in the graph that TensorFlow has traced of it.

Owns: which operations count, and when the number is unknown. Does not own: the step (`train_steps.py`), the peak of a
device (`distributed/peak_flops.py`), speeds (`runs/health/time_account.py`).

Counted are matrix products and convolutions, forwards and backwards, 2 FLOPs for a multiplication with its addition, as
in the model FLOPs of PaLM (https://arxiv.org/abs/2204.02311, appendix B). What runs element by element is left out, and
what nothing depends on, which TensorFlow prunes. A graph does not say what is computed a second time to save memory
(`tf.recompute_grad`): that counts too.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

Shape = Sequence[int]
ShapeOf = Callable[[int], Shape]


class UnknownFlopsError(Exception):
    """The graph does not say how many FLOPs a step has; the message says why."""


class StepFlops:
    """The FLOPs of a training step on all devices of a run, once it is traced.

    Attributes:
      num_devices: how many devices a step runs on.
      per_step: FLOPs; None before the first trace, and where they are unknown.
      unknown: why they are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, processes: int, is_asynchronous: bool) -> None:
        """Takes the strategy, the number of processes, and whether these make steps of their own."""
        self.num_devices = strategy.num_replicas_in_sync
        self.per_step: float | None = None
        self.unknown = "workers make steps of their own" if is_asynchronous else None
        # The graph of a TPU has one replica, any other those of this process.
        self._graphs = self.num_devices if isinstance(strategy, tf.distribute.TPUStrategy) else processes

    def trace_ends(self, graph: tf.Graph) -> None:
        """Counts the FLOPs of a step that is traced; what goes wrong here concerns no run."""
        if self.unknown is not None:
            return
        try:
            found = count(graph) * self._graphs
            if self.per_step not in (None, found):
                raise UnknownFlopsError("batches have several shapes")
            self.per_step = found
        except Exception as error:
            self.per_step, self.unknown = None, f"{error}"
            known = isinstance(error, UnknownFlopsError)
            level, what = (logging.INFO, "") if known else (logging.WARNING, f"{type(error).__name__}: ")
            _logger.log(level, "the FLOPs of a step are unknown, and so is MFU: %s%s", what, error)


def count(graph: tf.Graph) -> float:
    """Returns the FLOPs of one run of a graph, which may still be traced.

    Raises:
      UnknownFlopsError: the graph does not say it.
    """
    traced = graph.as_graph_def(add_shapes=True)  # with all functions, whose graphs Python does not offer
    functions = {function.signature.name: function for function in traced.library.function}
    kinds = {node.op for nodes in (traced.node, *(f.node_def for f in functions.values())) for node in nodes}
    # A graph of one operation of each kind: the only public place of their definitions.
    one_of_each = tf.compat.v1.GraphDef(node=[tf.compat.v1.NodeDef(name=kind, op=kind) for kind in kinds])
    with tf.Graph().as_default():
        exported = tf.compat.v1.train.export_meta_graph(graph_def=one_of_each, collection_list=[])
    definitions = {op.name: op for op in exported.meta_info_def.stripped_op_list.op}
    return _Scope(functions, definitions, traced.node).flops([])


class _Scope:
    """Operations that run once, together: those of a graph, or of a function in one call.

    A value is named by a reference: `x` or `x:1`, in a function `x:output:1`, where `x` may be an argument.
    """

    def __init__(
        self, functions: dict[str, Any], definitions: dict[str, Any], nodes: Sequence[Any], function: Any = None
    ) -> None:
        """Takes all functions and definitions there are, the operations, and the function that they are."""
        self._functions, self._definitions, self._function = functions, definitions, function
        self.nodes = {node.name: node for node in nodes}
        self.arguments = [] if function is None else [each.name for each in function.signature.input_arg]
        self.constant_of: Callable[[int], int | None] = lambda number: None

    def flops(self, outputs: Collection[int]) -> float:
        """Returns the FLOPs of what changes a state, and of what these returned values depend on."""
        live = self._live(outputs)
        # In the order of the graph, so that the first that is not known is the same in every process.
        return math.fsum(self._flops_of(node, live[name]) for name, node in self.nodes.items() if name in live)

    def _live(self, outputs: Collection[int]) -> dict[str, set[int]]:
        """Returns the operations and arguments that are needed, each with its values that are."""
        waiting = [self.returned(number) for number in outputs]
        waiting += [f"^{name}" for name, node in self.nodes.items() if self._definitions[node.op].is_stateful]
        live: dict[str, set[int]] = {}
        while waiting:
            reference = waiting.pop()
            name, index = self._origin(reference.removeprefix("^"))
            if name not in live and name in self.nodes:
                waiting += self.nodes[name].input
            live.setdefault(name, set()).update([] if reference.startswith("^") else [index])
        return live

    def _flops_of(self, node: Any, outputs: set[int]) -> float:
        """Returns the FLOPs of an operation, of whose values these are needed."""
        if node.op in _PRODUCTS or _CONVOLUTION.fullmatch(node.op):
            formula = _PRODUCTS.get(node.op, _convolution)
            first = self._definitions[node.op].output_arg[0].name
            output = node.name if self._function is None else f"{node.name}:{first}:0"
            return float(formula(node, lambda number: self._shape(output if number < 0 else node.input[number])))
        if node.op in _LOOPS:
            return self._loop(node, outputs)
        called = [each for value in node.attr.values() for each in (value.func, *value.list.func) if each.name]
        found = [0.0 if "Dataset" in node.op else self._call(each.name, node).flops(outputs) for each in called]
        if node.op in _CALLS or (node.op in _BRANCHES and len(set(found)) == 1):
            return found[0]
        if any(found):
            raise UnknownFlopsError(f"{node.name} ({node.op}) decides at each step what is computed")
        if _OPAQUE.search(node.op) or not (node.op.startswith("_") or hasattr(tf.raw_ops, node.op)):
            raise UnknownFlopsError(f"what {node.name} ({node.op}) computes is not known")
        return 0.0

    def _call(self, name: str, node: Any) -> _Scope:
        """Returns the operations of a function in a call by `node`."""
        function = self._functions[name]
        scope = _Scope(self._functions, self._definitions, function.node_def, function)
        inputs = [each for each in node.input if not each.startswith("^")]
        first = len(inputs) - len(scope.arguments)  # before it is what chooses a branch
        scope.constant_of = lambda number: self._constant(inputs[first + number])
        return scope

    def _parts(self, loop: Any) -> tuple[_Scope, _Scope]:
        """Returns the body and the condition of a loop, which know of values only those that stay as they are."""
        body, condition = (self._call(loop.attr[name].func.name, loop) for name in ("body", "cond"))
        before = body.constant_of
        body.constant_of = condition.constant_of = lambda number: before(number) if body._keeps(number) else None
        return body, condition

    def _loop(self, node: Any, outputs: set[int]) -> float:
        body, condition = self._parts(node)
        needed, before = set(outputs), None
        while needed != before:  # a value that is needed may need others of the turn before
            before = set(needed)
            for scope, live in ((body, body._live(needed)), (condition, condition._live([0]))):
                needed.update(number for number, name in enumerate(scope.arguments) if name in live)
        in_a_turn = body.flops(needed)
        turns = self._turns(node, body, condition) if in_a_turn else 0
        if turns is None:
            raise UnknownFlopsError(f"how often the loop {node.name} turns is not known before it runs")
        return in_a_turn * turns

    def _turns(self, loop: Any, body: _Scope, condition: _Scope) -> int | None:
        """Returns how often a loop turns, if its condition asks no more than whether counters have reached limits."""
        limits, waiting = [], [condition.returned(0)]
        while waiting:
            test = condition.nodes.get(condition._source(waiting.pop())[0])
            if test is not None and test.op == "LogicalAnd":
                waiting += test.input[:2]
            elif test is not None and test.op == "Less":
                name, limit = condition._source(test.input[0])[0], condition._constant(test.input[1])
                number = condition.arguments.index(name) if name in condition.arguments else None
                start = None if number is None or not body._counts(number) else self._constant(loop.input[number])
                if start is None or limit is None:
                    return None
                limits.append(max(0, limit - start))
            elif test is None or test.op != "Const":  # a constant is true
                return None
        return min(limits, default=None)

    def _keeps(self, number: int) -> bool:
        """Whether the body of a loop returns an argument as it is."""
        return self._source(self.returned(number))[0] == self.arguments[number]

    def _counts(self, number: int) -> bool:
        """Whether the body of a loop adds 1 to an argument."""
        node = self.nodes.get(self._source(self.returned(number))[0])
        if node is None or node.op not in ("Add", "AddV2"):
            return False
        return self._source(node.input[0])[0] == self.arguments[number] and self._constant(node.input[1]) == 1

    def returned(self, number: int) -> str:
        """Returns the reference to a value that the function returns."""
        return str(self._function.ret[self._function.signature.output_arg[number].name])

    def _constant(self, reference: str) -> int | None:
        """Returns a whole number that is known before the graph runs, else None."""
        name, index = self._source(reference)
        if name in self.arguments:
            return self.constant_of(self.arguments.index(name))
        node = self.nodes[name]
        if node.op == "Const" and not node.attr["value"].tensor.tensor_shape.dim:
            return int(tf.make_ndarray(node.attr["value"].tensor))
        if node.op == "StridedSlice" and node.attr["shrink_axis_mask"].i == 1:  # a size of a shape, as of Keras 2
            whole, begin = (self.nodes.get(self._source(each)[0]) for each in node.input[:2])
            if whole is not None and begin is not None and whole.op == begin.op == "Const":
                sizes, place = (tf.make_ndarray(each.attr["value"].tensor) for each in (whole, begin))
                return int(sizes[place[0]])
        if node.op in _CALLS:
            called = self._call(node.attr["f"].func.name, node)
            return called._constant(called.returned(index))
        if node.op in _LOOPS and index == 0:  # its turns: the loop of its gradient has as many
            return self._turns(node, *self._parts(node))
        return None

    def _source(self, reference: str) -> tuple[str, int]:
        """Returns what has made a value, operation or argument, and which of its values it is."""
        name, index = self._origin(reference)
        node = self.nodes.get(name)
        # Keras takes the largest of one number.
        return self._source(node.input[0]) if node is not None and node.op in ("Identity", "Max") else (name, index)

    def _origin(self, reference: str) -> tuple[str, int]:
        """Returns the operation or argument of a reference, and which of its values."""
        name, *place = reference.split(":")
        if len(place) < 2:
            return name, int(place[0]) if place else 0
        node, index = self.nodes[name], int(place[1])
        for output in self._definitions[node.op].output_arg:
            if output.name == place[0]:
                break
            types = len(node.attr[output.type_list_attr].list.type) if output.type_list_attr else 1
            index += node.attr[output.number_attr].i if output.number_attr else types
        return name, index

    def _shape(self, reference: str) -> Shape:
        """Returns the shape of a value.

        Raises:
          UnknownFlopsError: not all of it is known.
        """
        name, index = self._origin(reference)
        if name in self.arguments:
            shapes, index = self._function.attr["_input_shapes"].list.shape, self.arguments.index(name)
        else:
            shapes = self.nodes[name].attr["_output_shapes"].list.shape
        if index >= len(shapes) or shapes[index].unknown_rank or any(each.size < 0 for each in shapes[index].dim):
            raise UnknownFlopsError(
                f"the shape of {name} is not known before it runs; drop_remainder, or padding, gives batches one shape"
            )
        return [each.size for each in shapes[index].dim]


def _product(node: Any, shape: ShapeOf) -> float:
    """Returns the FLOPs of `[…, m, k] × […, k, n]`; the shape -1 is that of the result."""
    is_transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return 2 * math.prod(shape(-1)) * shape(0)[-2 if is_transposed else -1]


def _einsum(node: Any, shape: ShapeOf) -> float:
    """Returns the FLOPs of one product for each combination of all indices; with one input there is none."""
    inputs = node.attr["equation"].s.decode().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for number, (before, dots, after) in enumerate(each.partition("...") for each in inputs):
        of_input = shape(number)
        broadcast = [f".{place}" for place in range(len(of_input) - len(before + after), 0, -1)] if dots else []
        for label, size in zip([*before, *broadcast, *after], of_input, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return 2 * math.prod(sizes.values()) if len(inputs) > 1 else 0


def _convolution(node: Any, shape: ShapeOf) -> float:
    """Returns the FLOPs of a convolution or of one of its gradients: the same, edges that are padded included."""
    of_kernel, is_gradient = "BackpropFilter" in node.op, "Backprop" in node.op
    result, kernel = shape(2 if is_gradient else -1), shape(-1 if of_kernel else 1)  # `[…, input, output channels]`
    return 2 * math.prod(result) * math.prod(kernel[: -2 if node.op.startswith("Depthwise") else -1])


_PRODUCTS: dict[str, Callable[[Any, ShapeOf], float]] = {
    **dict.fromkeys(["MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"], _product),
    "Einsum": _einsum,
}
_CONVOLUTION = re.compile(r"(Conv|Conv2D|Conv3D|DepthwiseConv2dNative)(Backprop(Input|Filter)(V2)?)?")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_OPAQUE = re.compile(r"MatMul|Conv\dD|Xla|RNN|LSTM|GRU|PyFunc")
"""Operations without a formula that multiply matrices, or may."""
