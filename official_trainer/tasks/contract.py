"""Whether a user's code meets the contract of the engine: refused before the first step, or while it is traced.

Owns: the arguments that methods are called with, what those of a Task return that build its parts, data that has to
end, what a traced step must not do, and why a module or a factory fails, each with the user's line.
Does not own: what steps return (`engine/`), elements of datasets (`inputs/context.py`), errors while a run computes
(`runs/mistakes/`).

Python itself binds the arguments, so a method may name those that are passed by their position as it likes, but for the
name of another one, and have others with defaults, `*args` or `**kwargs`. A decorator counts as what it takes itself.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import logging
import math
import pkgutil
import re
import sys
import traceback
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from official_trainer.config import Origin, Problem
from official_trainer.config.errors import best_match, line_of_class, line_of_code
from official_trainer.errors import UserError
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.nearest import nearest
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import optimization
from official_trainer.user_code import definition_of, during, is_ours, is_users

_logger = logging.getLogger(__name__)
_PACKAGE = __name__.partition(".")[0]


class ContractError(UserError, TypeError):
    """A user's code does not meet the contract of the engine."""

    names_line = True


class EndlessError(DataError):
    """Data that is read to its end has none."""

    names_line = True


# The arguments of methods.

Calls = Mapping[str, tuple[str, ...]]
"""By the name of a method the ways in which it is called, one of which it has to take: `inputs, model=, metrics=`."""

_OF_TASK: Calls = {
    "build_model": ("",),
    "build_inputs": ("params, input_context=", "params"),
    "build_metrics": ("training=",),
    "initialize": ("model",),
    "train_step": ("inputs, model=, optimizer=, metrics=",),
    "validation_step": ("inputs, model=, metrics=",),
    "aggregate_logs": ("state, step_logs",),
    "reduce_aggregated_logs": ("aggregated_logs, global_step=",),
    "create_optimizer": ("optimizer_config, runtime_config",),
    "predict_step": ("inputs, model, labels", "inputs, model"),  # without labels in an export
    "build_actions": ("trainer",),
    "build_signatures": ("model",),
    "build_contract": ("model",),
}
_BY_STEPS = {
    "build_losses": ("labels, model_outputs", ("train_step", "validation_step")),
    "process_metrics": ("metrics, labels, model_outputs", ("train_step", "validation_step")),
    "after_step": ("model", ("train_step",)),
    "inference_step": ("inputs, model", ("validation_step", "predict_step")),
}
"""Methods that only these call, which a Task may replace, and then call the methods as it likes."""

OF_EVALUATIONS = ("validation_step", "aggregate_logs", "reduce_aggregated_logs")
"""Methods that a run without evaluations never calls."""


def check_task(task: Any, *, uncalled: Collection[str] = ()) -> None:
    """Refuses a Task, ours or Model Garden's, with methods that cannot be called as the engine calls them.

    Args:
      task: the task.
      uncalled: methods that are not called on it.

    Raises:
      ContractError: names each method, and how it is called.
    """
    calls = dict(_OF_TASK)
    owners = {name: base for base in reversed(type(task).__mro__) for name in vars(base)}
    for name, (call, steps) in _BY_STEPS.items():
        if any(_is_of_package(owners[step]) for step in steps if step in owners and step not in uncalled):
            calls[name] = (call,)
    check_calls(task, {name: ways for name, ways in calls.items() if name not in uncalled})


def check_calls(thing: Any, calls: Calls, *, on_error: str = "fail") -> None:
    """Refuses an object of a user's class with methods that cannot be called as they are.

    Args:
      thing: the object.
      calls: how its methods are called.
      on_error: of an action or a tracker; anything but `fail` logs a warning instead.

    Raises:
      ContractError: names each method, and how it is called.
    """
    refused = {}
    for name, ways in calls.items():
        declared = inspect.getattr_static(thing, name, None)
        if declared is None or isinstance(declared, property | functools.cached_property):
            continue  # what a property returns is not known before
        reasons = [why_not(getattr(thing, name), way) for way in ways]
        if all(reasons):
            what = f"the engine calls {name}({ways[0].replace('=', '=…')}), which fails: {reasons[0]}"
            declaration = f"def {name}({', '.join(filter(None, ['self', ways[0].replace('=', '')]))})"
            refused[name] = f"{type(thing).__name__}.{name}: {what}; write {declaration}"
    if refused and on_error == "fail":
        name = next(iter(refused))
        with during(task=thing, method=name, line=definition_of(thing, name)):
            raise ContractError("\n".join([*refused.values()][:3]))
    for message in refused.values():
        _logger.warning("%s", message)


def why_not(function: Any, way: str) -> str:
    """Returns why a function cannot be called in a way; empty if it can, or nothing is known of what it takes."""
    words = [word for word in way.split(", ") if word]
    by_position = [word for word in words if not word.endswith("=")]
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except TypeError:
        return ""
    except ValueError:  # of a function of C, or a method of Python that does not even take its object
        is_python = isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType)
        return "it takes no argument, not even its object" if is_python else ""
    try:
        bound = signature.bind(*by_position, **{word.rstrip("="): None for word in words if word.endswith("=")})
    except TypeError as error:
        return str(error)
    others = [(name, word) for name, word in bound.arguments.items() if name in by_position and word in by_position]
    return next((f"its '{name}' would be the {word}" for name, word in others if name != word), "")


def _is_of_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _PACKAGE


# A Task, and what its methods return.


def task_of(task_cls: Any, section: Any, logging_dir: str, *, evaluates: bool = True) -> Any:
    """Returns the task of a class and its section of the config.

    Args:
      task_cls: the class, or a function that finds that of Model Garden.
      section: of the config.
      logging_dir: the run directory.
      evaluates: whether the run evaluates; else methods for that may take any arguments.

    Raises:
      ContractError: the class is no Task, or it or one of its methods takes other arguments.
    """
    if isinstance(task_cls, type):
        check_class(task_cls)
        try:
            inspect.signature(task_cls).bind(section, logging_dir=logging_dir)
        except TypeError as error:
            what = f"a Task is made with (params, logging_dir=None, name=None), and {task_cls.__name__}: {error}"
            fix = "write def __init__(self, params, **options), and super().__init__(params, **options) in it"
            raise ContractError(str(Problem(what, fix=fix, origin=line_of_class(task_cls)))) from error
    task = task_cls(section, logging_dir=logging_dir)
    check_task(task, uncalled=() if evaluates else OF_EVALUATIONS)
    return task


def check_class(task_cls: type) -> None:
    """Refuses a class that is no Task, and warns of methods whose names are nearly those of a Task.

    Raises:
      ContractError: methods are missing.
    """
    needed = ("build_model", "build_inputs", "train_step", "validation_step")
    if missing := [name for name in needed if not hasattr(task_cls, name)]:
        what = f"{task_cls.__name__} has no {', '.join(missing)}"
        fix = f"write class {task_cls.__name__}(Task), with Task from {_PACKAGE}"
        raise ContractError(str(Problem(what, fix=fix, origin=line_of_class(task_cls))))
    called = [name for cls in task_cls.__mro__ if _is_of_package(cls) for name in vars(cls)]
    written = {name: value for cls in task_cls.__mro__ if not _is_of_package(cls) for name, value in vars(cls).items()}
    functions = (inspect.unwrap(getattr(value, "__func__", value)) for value in written.values())
    used = {name for function in functions for name in getattr(getattr(function, "__code__", None), "co_names", ())}
    free = [name for name in called if not name.startswith("_") and name not in written]
    for name in sorted(written.keys() - {*called} - used):
        if callable(getattr(task_cls, name)) and not name.startswith("_") and (near := nearest(name, free)):
            _logger.warning("nothing calls %s.%s; did you mean %s?", task_cls.__name__, name, near[0])


def model_of(task: Any) -> Any:
    """Returns the model of `build_model`.

    Raises:
      ContractError: it is none, or computes with variables that it does not hold.
    """
    model = task.build_model()
    is_model = isinstance(model, tf.Module) or hasattr(type(model), "trainable_variables")  # of several tasks
    if isinstance(model, type) or not is_model:
        raise _refusal(task, "build_model", "a model", model, "return a keras.Model")
    for variable in _beside_layers(model) if kerases.is_3(model) else _variables_of_others(model):
        what = f"the model computes with {variable.name!r}, which is no variable of its layers, so it would be neither "
        is_mixed = kerases.is_2(variable) or kerases.is_3(variable)
        fix = "take all layers from one Keras" if is_mixed else "create it in a layer, with add_weight"
        raise ContractError(f"{what}trained nor saved; {fix}")
    return model


def _beside_layers(model: Any) -> Iterator[Any]:
    """Yields variables of TensorFlow and layers of tf_keras that layers of Keras 3 hold, and Keras 3 does not see."""
    seen = {id(variable) for variable in kerases.of(model).variables(model)}
    for layer in kerases.of(model).layers(model):
        for attribute in vars(layer).values():
            for value in attribute if isinstance(attribute, list | tuple) else [attribute]:
                is_variable = isinstance(value, tf.Variable) and value.trainable and id(value) not in seen
                if is_variable or (kerases.is_2(value) and "Layer" in kerases.kinds(value)):
                    yield value


def _variables_of_others(model: Any) -> Iterator[Any]:
    """Yields trainable variables that operations between the layers of a functional model use, and no layer has."""
    if not getattr(model, "_is_graph_network", False):  # there is no public name
        return
    seen = {id(variable) for variable in model.variables}
    nodes = [node for layer in model.layers for node in layer.inbound_nodes]
    for value in tf.nest.flatten([(node.call_args, node.call_kwargs) for node in nodes]):
        if (isinstance(value, tf.Variable) and value.trainable and id(value) not in seen) or kerases.is_3(value):
            yield value


def optimizer_of(task: Any, config: Any, model: Any) -> Any:
    """Returns the optimizer of `create_optimizer`, for a whole config and a model.

    Raises:
      ContractError: it is no optimizer, or one of another Keras.
    """
    with during(task=task, method="create_optimizer"):
        with optimization.of_model(model):
            optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        if isinstance(optimizer, type) or not hasattr(optimizer, "apply_gradients"):
            fix = "return an object, such as keras.optimizers.Adam(1e-3)"
            setting = f"; or leave the method out and set trainer.optimizer_config.optimizer.type={optimizer}"
            fix += setting if isinstance(optimizer, str) else ""
            raise _refusal(task, "create_optimizer", "an optimizer", optimizer, fix)
        if what := other_keras(model, [optimizer]):
            raise ContractError(what)
        section = getattr(config.trainer.optimizer_config, "learning_rate", None)
        rate = kerases.of(optimizer).rate(optimizer)
        if section is not None and section.type and isinstance(rate, tf.Variable):
            is_constant = section.type == "constant" and config.trainer.optimizer_config.warmup.type is None
            if not (is_constant and math.isclose(rate.numpy(), section.get().learning_rate, rel_tol=1e-5)):
                _logger.warning(
                    "the optimizer is %s at all steps, and trainer.optimizer_config asks for another learning rate: "
                    "use that one where the optimizer is built, or do not set it",
                    optimization.described(optimizer),
                )
    return optimizer


def metrics_of(task: Any, model: Any, *, training: bool) -> list[Any]:
    """Returns the metrics of `build_metrics`, of training or of evaluations.

    Raises:
      ContractError: they are no list of metrics.
    """
    with during(task=task, method="build_metrics"):
        metrics = task.build_metrics(training=training)
        if isinstance(metrics, str | Mapping) or not isinstance(metrics, Iterable):
            fix = "return a list, such as [keras.metrics.MeanSquaredError(name='error')], or [] for none"
            raise _refusal(task, "build_metrics", "a list of metrics", metrics, fix)
        metrics = list(metrics)
        for metric in metrics:
            names = ("name", "result", "reset_state" if kerases.is_3(metric) else "reset_states")
            if isinstance(metric, type) or not all(hasattr(metric, name) for name in names):
                fix = "return objects of keras.metrics; MeanMetricWrapper makes one of a function"
                raise _refusal(task, "build_metrics", "a list of metrics", metric, fix, item="a list with ")
        if what := other_keras(model, metrics):
            raise ContractError(what)
    return metrics


def _refusal(task: Any, method: str, wanted: str, value: Any, fix: str, item: str = "") -> ContractError:
    shown = f"{item}{value!r}"
    if isinstance(value, type):
        shown, fix = f"{item}the class {value.__name__}", f"write {value.__name__}(…), which makes an object of it"
    elif value is None:
        shown, fix = f"{item}None" if item else "nothing (None)", f"{fix}; is a `return` missing?"
    elif not isinstance(value, str | int | float):
        shown = f"{item}a {type(value).__name__}"
    return ContractError(f"{type(task).__name__}.{method} must return {wanted}, and returned {shown}; {fix}")


def other_keras(model: Any, values: Iterable[Any]) -> str:
    """Returns what to say of the first value, or class, that is of another Keras than the model; empty if none is."""
    is_3 = kerases.is_3(model)
    for value in values:
        if kerases.is_2(value) if is_3 else kerases.is_3(value) and kerases.is_2(model):
            cls = value if isinstance(value, type) else type(value)
            fix = "import keras" if is_3 else f"from {_PACKAGE}.lazy import keras"
            theirs = f"the model {type(model).__name__} of {kerases.of(model).NAME}"
            return f"{cls.__name__} is of {kerases.of(value).NAME}, and {theirs}: take both from `{fix}`"
    return ""


# Data that has to end.


def length_of(dataset: Any) -> float | None:
    """Returns how many elements a dataset has, infinity without an end; None for a generator or a distributed one."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    length = int(dataset.cardinality())
    return {tf.data.INFINITE_CARDINALITY: math.inf, tf.data.UNKNOWN_CARDINALITY: None}.get(length, length)


# What a traced step must not do.


def check_trainable(task: Any, model: Any, trainable: Collection[int]) -> None:
    """Refuses a model without a weight to train, or of which others are trainable than when slots were created.

    Args:
      task: whose model it is.
      model: the model.
      trainable: ids of the weights, tf.Variables, that were trainable then.

    Raises:
      ContractError: names the weights.
    """
    now = {id(variable) for variable in kerases.of(model).variables(model, trainable=True)}
    named = kerases.of(model).named(model)
    others = [name for name, variable in named if (id(variable) in now) != (id(variable) in trainable)]
    with during(task=task, method="build_model", line=definition_of(task, "build_model")):
        if others:
            raise ContractError(
                f"{len(others)} weights were frozen, or made trainable, after build_model: {first_few(others)}. The "
                "optimizer has slots for those that build_model leaves trainable, and a run that continues does not "
                "call initialize: set `trainable` in build_model"
            )
        if not now and definition_of(task, "train_step") is None:
            raise ContractError(
                f"no weight of {type(model).__name__} is trainable, so nothing can be learned: set `trainable = True` "
                "in build_model on a layer that has weights"
            )


def line_of_operation(operation: Any, task: Any) -> tuple[str, int, str] | None:
    """Returns file, line and function of the user's last frame that made an operation, behind one of this package."""
    frames = list(operation.traceback)
    first = next((number for number, frame in enumerate(frames) if is_ours(frame.filename)), len(frames))
    users = [frame for frame in frames[first:] if is_users(frame.filename, type(task).__module__)]
    return (users[-1].filename, users[-1].lineno, users[-1].name) if users else None


def operations() -> list[Any]:
    """Returns the operations of the graph that is traced now; none where there is no graph."""
    return [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()


def warn_of_pairs(task: Any, labels: Any, outputs: Any, before: int) -> None:
    """Warns once for a class if a loss has combined all labels, `[batch]`, with all outputs, `[batch, 1]`.

    TensorFlow extends both to `[batch, batch]`, the loss falls all the same, and the model learns the mean.

    Args:
      task: whose `build_losses` was called.
      labels: that it was called with.
      outputs: that it was called with.
      before: how many operations there were before.
    """
    pair = (labels, outputs)
    if not all(isinstance(tensor, tf.Tensor) for tensor in pair) or sorted(map(_columns, pair)) != [0, 1]:
        return
    combining = [op for op in operations()[before:] if op.type in ("SquaredDifference", "Sub", "Mul")]
    if any(sorted(map(_columns, operation.inputs)) == [0, 1] for operation in combining):
        _warn_of_pairs(type(task).__name__, *(f"{tensor.dtype.name} {tensor.shape}" for tensor in pair))


def check_metric(metric: Any, labels: Any, outputs: Any) -> None:
    """Refuses class numbers for a metric that takes vectors, which would count the first class as each label.

    Raises:
      ValueError: labels are `[batch]` or `[batch, 1]`, and outputs `[batch, classes]`.
    """
    shapes = [tensor.shape for tensor in (labels, outputs) if isinstance(tensor, tf.Tensor) and tensor.shape.rank]
    if len(shapes) == 2 and {"CategoricalAccuracy", "TopKCategoricalAccuracy"} & kerases.kinds(metric):
        of_labels, of_outputs = shapes
        if (of_outputs[-1] or 1) > 1 and (of_labels.rank < of_outputs.rank or of_labels[-1] == 1):
            raise ValueError(f"Shapes {of_labels} and {of_outputs} are incompatible in the metric '{metric.name}'")


def _columns(tensor: Any) -> int:
    """Returns 0 for a tensor `[batch]` and 1 for `[batch, 1]`; 2 for any other."""
    rank, shape = tensor.shape.rank, tensor.shape
    return rank - 1 if rank in (1, 2) and shape[0] != 1 and shape[1:] in ([], [1]) else 2


@functools.cache
def _warn_of_pairs(task_name: str, labels: str, outputs: str) -> None:
    what = f"{task_name}.build_losses combines labels {labels} and outputs {outputs}: each label with each output"
    _logger.warning("%s, which is rarely meant. Give both the same shape, with labels[:, None] or outputs[:, 0]", what)


# Modules and factories that fail.

_DATACLASS = "@dataclasses.dataclass(frozen=True, kw_only=True)"
_FIXES = {
    r"cannot assign to field '(\w+)'": "a config is frozen: use .replace({0}=…), which returns a copy",
    r"non-default argument '(\w+)'": f"give '{{0}}' a default, or write {_DATACLASS} above the class",
    r"cannot inherit non-frozen": f"write {_DATACLASS} above the class",
    r"cannot inherit frozen": "write @dataclasses.dataclass above the class: Model Garden's Config is not frozen",
    r"mutable default .* field (\w+)": "give '{0}' a tuple or config.FrozenDict(…); in Model Garden, a default_factory",
    r"^Unknown type: <class": "a config of Model Garden contains numbers, text, lists, dicts and hyperparams.Config",
}
"""What to do about a dataclass that Python, or Model Garden, refuses, by what the message says."""


def failure(what: str, error: BaseException, module: str, origin: Origin) -> Problem:
    """Returns the problem that an exception of the user's code ended something, with the innermost line of the user's.

    Args:
      what: it ended, such as `cannot be imported`.
      error: the exception.
      module: whose package is the user's, also where it is installed.
      origin: the line for an exception that came through no line of the user's.
    """
    frames = [(frame.filename, frame.lineno or 1, 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 1, error.offset or 0))
    if users := [frame for frame in frames if is_users(frame[0], module)]:
        origin = dataclasses.replace(line_of_code(*users[-1][:2]), column=users[-1][2])
    if isinstance(error, SystemExit):
        return Problem(f"{what}: it ends the process", fix="raise an error instead", origin=origin)
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).partition(" (/")[0]  # the file of a module
    matches = ((re.search(pattern, str(error)), fix) for pattern, fix in _FIXES.items())
    fix = next((fix.format(*match.groups()) for match, fix in matches if match), "")
    return Problem(f"{what}: {type(error).__name__}: {text}", near=_near(error), fix=fix, origin=origin)


def _near(error: BaseException) -> str:
    """Returns the name that one which is not there may mean; empty for none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if missing := re.match(r"cannot import name '(\w+)'", str(error)):
        module = sys.modules.get(getattr(error, "name", ""))
        inner = [part.name for part in pkgutil.iter_modules(getattr(module, "__path__", []))]
        return best_match(missing[1], [*dir(module), *inner])
    if isinstance(error, NameError) and error.name and frames:
        return best_match(error.name, [*frames[-1].f_locals, *frames[-1].f_globals, *dir(builtins)])
    if isinstance(error, dataclasses.FrozenInstanceError) and "name" in frames[-1].f_locals:
        name = frames[-1].f_locals["name"]
        names = dir(frames[-1].f_locals["self"])
        return "" if name in names else best_match(name, names)
    return best_match(error.name, dir(error.obj)) if isinstance(error, AttributeError) and error.name else ""
