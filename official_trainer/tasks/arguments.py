"""Whether the methods that a user has written take the arguments that the engine calls them with.

Owns: those arguments, of a Task and of any other contract; the refusal of a method that cannot be called so, when its
object is made. Does not own: what methods return (`returned.py`), errors inside of them (`runs/mistakes/`).

Python itself binds the arguments, so a method may name those that are passed by their position as it likes, but for the
name of another one, and have others with defaults, `*args` or `**kwargs`. A decorator counts as what it takes itself.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import types
from collections.abc import Collection, Mapping
from typing import Any

from official_trainer.errors import UserError
from official_trainer.tasks.explained import at_method
from official_trainer.tasks.task import Task

_logger = logging.getLogger(__name__)

Calls = Mapping[str, tuple[str, ...]]
"""By the name of a method the ways in which it is called, one of which it has to take: `inputs, model=, metrics=`."""

_MOST_SAID = 3
_CALL = re.compile(r"(?:tf__)?(\w+)\(\) (?:takes |missing \d|got an unexpected)")

OF_ANY_TASK: Calls = {
    "build_model": ("",),
    "build_inputs": ("params, input_context=", "params"),
    "build_metrics": ("training=",),
    "initialize": ("model",),
    "train_step": ("inputs, model=, optimizer=, metrics=",),
    "validation_step": ("inputs, model=, metrics=",),
    "aggregate_logs": ("state, step_logs",),
    "reduce_aggregated_logs": ("aggregated_logs, global_step=",),
}
"""The methods that a Task of Model Garden has, too, as the engine calls them."""

_OF_OURS: Calls = {
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
"""Methods that only others call, which a Task may replace, and then call them as it likes."""

OF_EVALUATIONS = ("validation_step", "aggregate_logs", "reduce_aggregated_logs")
"""Methods that a run without evaluations never calls."""


class ArgumentsError(UserError, TypeError):
    """A method takes other arguments than it is called with."""


def check_task(task: Any, *, uncalled: Collection[str] = ()) -> None:
    """Refuses a Task with methods that cannot be called as the engine calls them.

    Args:
      task: ours or Model Garden's.
      uncalled: methods that are not called on it.

    Raises:
      ArgumentsError: names each method, and how it is called.
    """
    calls = {**OF_ANY_TASK}
    if isinstance(task, Task):
        calls |= _OF_OURS
        for name, (call, steps) in _BY_STEPS.items():
            if any(getattr(type(task), step) is getattr(Task, step) for step in steps if step not in uncalled):
                calls[name] = (call,)
    check(task, {name: ways for name, ways in calls.items() if name not in uncalled}, Task)


def check(thing: Any, calls: Calls, contract: type | None = None, *, on_error: str = "fail") -> None:
    """Refuses an object with methods that cannot be called as they are.

    Args:
      thing: of a user's class.
      calls: how its methods are called.
      contract: the class whose methods have the arguments that it should take; None for those of the calls.
      on_error: of an action or a tracker; anything but `fail` logs a warning instead.

    Raises:
      ArgumentsError: names each method, and how it is called.
    """
    refused = []
    for name, ways in calls.items():
        declared = inspect.getattr_static(thing, name, None)
        if declared is None or isinstance(declared, property | functools.cached_property):
            continue  # what a property returns is not known before
        wrong = [why_not(getattr(thing, name), way) for way in ways]
        if all(wrong):
            what = f"the engine calls {_shown(name, ways[0])}, which fails: {wrong[0]}"
            fix = f"write {_declared(name, ways[0], contract)}"
            refused.append(at_method(type(thing), name, what, fix, returns=False))
    if refused and on_error == "fail":
        raise ArgumentsError("\n".join(refused[:_MOST_SAID]))
    for each in refused:
        _logger.warning("%s", each)


def meaning_of(task: Any, text: str) -> str:
    """Returns how the engine calls the method that an error's text is about; empty if the method takes that.

    Args:
      task: whose method it may be; a decorator is asked for what the function behind it takes.
      text: as of Python, such as `build_losses() takes 2 positional arguments but 3 were given`.
    """
    found = _CALL.search(text)
    name = found[1] if found else ""
    ways = {**OF_ANY_TASK, **_OF_OURS, **{each: (call,) for each, (call, _) in _BY_STEPS.items()}}.get(name, ())
    if not ways or not all(why_not(getattr(task, name, None), way, follow_wrapped=True) for way in ways):
        return ""
    return f"The engine calls {_shown(name, ways[0])}: write {_declared(name, ways[0], Task)}."


def why_not(method: Any, way: str, *, follow_wrapped: bool = False) -> str:
    """Returns why a function cannot be called in a way; empty if it can, or nothing is known of what it takes."""
    words = [word for word in way.split(", ") if word]
    by_position = [word for word in words if not word.endswith("=")]
    by_name = {word.rstrip("="): None for word in words if word.endswith("=")}
    try:
        taken = inspect.signature(method, follow_wrapped=follow_wrapped)
    except TypeError:
        return ""
    except ValueError:  # of a function of C, or a method of Python that does not even take its object
        is_known = isinstance(method, types.MethodType) and isinstance(method.__func__, types.FunctionType)
        return "it takes no argument, not even its object" if is_known else ""
    try:
        bound = taken.bind(*by_position, **by_name)
    except TypeError as error:
        return str(error)
    other = [(name, word) for name, word in bound.arguments.items() if name in by_position and word in by_position]
    return next((f"its '{name}' would be the {word}" for name, word in other if name != word), "")


def _shown(name: str, way: str) -> str:
    return f"{name}({way.replace('=', '=…')})"


def _declared(name: str, way: str, contract: type | None) -> str:
    """Returns the first line of a method of a contract, without types."""
    if contract is None:
        return f"def {name}({', '.join(filter(None, ['self', way]))})"
    method = inspect.getattr_static(contract, name)
    signature = inspect.signature(getattr(method, "__func__", method), follow_wrapped=False)
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{'@classmethod ' if isinstance(method, classmethod) else ''}def {name}{bare}"
