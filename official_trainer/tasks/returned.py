"""What the methods of a Task return that build its parts, refused there: not at the first step, in the words of Keras.

Owns: what a model, an optimizer and metrics have to be, the names of methods that a Task misspells, objects of other
libraries. Does not own: what steps return (`engine/`), datasets (`inputs/context.py`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from official_trainer.errors import UserError
from official_trainer.lazy import keras, tf
from official_trainer.nearest import nearest
from official_trainer.tasks import arguments, optimization
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.explained import at_method
from official_trainer.tasks.task import Task
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)

_NEEDED = ("build_model", "build_inputs", "train_step", "validation_step")


class TaskError(UserError, TypeError):
    """A Task, or what one of its methods returned, cannot be trained."""


def other_library(value: Any) -> str:
    """Returns what to say of an object of PyTorch, or of its class; empty for any other.

    Example:
      >>> from official_trainer.lazy import keras
      >>> from official_trainer.tasks.returned import other_library
      >>> other_library(keras.layers.Dense(1))
      ''
    """
    cls = value if isinstance(value, type) else type(value)
    if "torch" not in {kind.__module__.partition(".")[0] for kind in cls.__mro__}:
        return ""
    return f"{cls.__name__} is of PyTorch, and this package trains with Keras. Write it with `import keras`"


def check_one_keras(task: Any, model: Any, method: str, *others: Any) -> None:
    """Refuses an optimizer or a metric that is of another Keras than the model.

    Raises:
      TaskError: names both.
    """
    for each in others:
        if (kerases.is_3(model) and kerases.is_2(each)) or (kerases.is_2(model) and kerases.is_3(each)):
            names = [f"{type(thing).__name__} is of {kerases.of(thing).NAME}" for thing in (model, each)]
            what = f"the model {names[0]}, and {names[1]}: one run trains with one Keras"
            place = "import keras" if kerases.is_3(model) else "from official_trainer.lazy import keras"
            raise TaskError(at_method(type(task), method, what, f"take both from `{place}`"))


def check_class(task_cls: Any) -> None:
    """Refuses a class that is no Task, and warns of methods whose names are nearly those of a Task.

    Raises:
      TaskError: methods are missing.
    """
    if not isinstance(task_cls, type):  # a function that finds the class of Model Garden
        return
    missing = [name for name in _NEEDED if not hasattr(task_cls, name)]
    if missing:
        fix = f"write class {task_cls.__name__}(Task), with Task from official_trainer"
        raise TaskError(at_method(task_cls, "", f"{task_cls.__name__} has no {', '.join(missing)}", fix))
    if not issubclass(task_cls, Task):
        return
    package = __name__.partition(".")[0]
    is_own = {cls: cls.__module__.partition(".")[0] != package for cls in task_cls.__mro__}
    own = [cls for cls in task_cls.__mro__ if issubclass(cls, Task) and is_own[cls]]
    called = {name for cls in task_cls.__mro__ if not is_own[cls] for name in vars(cls)}  # also those of MultiTask
    defined = {name for cls in own for name in vars(cls)}
    unused = [name for name in vars(Task) if not name.startswith("_") and name not in defined]
    functions = (getattr(value, "__func__", value) for cls in own for value in vars(cls).values())
    codes = (getattr(inspect.unwrap(function), "__code__", None) for function in functions if callable(function))
    used = {name for code in codes if code is not None for name in code.co_names}
    for name in sorted(defined - called):
        near = nearest(name, unused) if callable(getattr(task_cls, name)) and not name.startswith("_") else ()
        if near and name not in used:
            what = f"nothing calls {task_cls.__name__}.{name}"
            _logger.warning("%s", at_method(task_cls, name, what, f"did you mean {near[0]}?"))


def task_of(task_cls: Any, section: Any, logging_dir: str, *, evaluates: bool = True) -> Any:
    """Returns the task of a class and its section of the config.

    Args:
      task_cls: the class.
      section: of the config.
      logging_dir: the run directory.
      evaluates: whether the run evaluates; else methods for that may take any arguments.

    Raises:
      TaskError: the class is no Task, or takes other arguments.
      ArgumentsError: one of its methods does.
    """
    check_class(task_cls)
    try:
        if isinstance(task_cls, type):
            inspect.signature(task_cls).bind(section, logging_dir=logging_dir)
    except TypeError as error:
        what = f"a Task is made with (params, logging_dir=None, name=None), and {task_cls.__name__}: {error}"
        fix = "write def __init__(self, params, **options), and super().__init__(params, **options) in it"
        raise TaskError(at_method(task_cls, "__init__", what, fix)) from error
    task = task_cls(section, logging_dir=logging_dir)
    arguments.check_task(task, uncalled=() if evaluates else arguments.OF_EVALUATIONS)
    return task


def model_of(task: Any) -> Any:
    """Returns the model of `build_model`.

    Raises:
      TaskError: it is none, or computes with variables that it does not hold.
    """
    model = task.build_model()
    is_model = isinstance(model, tf.Module) or hasattr(type(model), "trainable_variables")  # of several tasks
    if isinstance(model, type) or not is_model or other_library(model):
        raise _error(task, "build_model", "a model", model, "return a keras.Model")
    for variable in _beside_layers(model) if kerases.is_3(model) else _variables_of_others(model):
        what = f"the model computes with {variable.name!r}, which is no variable of its layers"
        what = f"{what}, so it would be neither trained nor saved"
        fix = "create it in a layer, with add_weight"
        if kerases.is_2(variable):
            fix = f"{type(variable).__name__} is of tf_keras, and the model of Keras 3: take all from one of them"
        elif kerases.is_3(variable):
            fix = "its layer is of Keras 3, and the model of tf_keras: take all from one of them"
        raise TaskError(at_method(type(task), "build_model", what, fix))
    return model


def _beside_layers(model: Any) -> Iterator[Any]:
    """Yields variables of TensorFlow and layers of tf_keras that layers of Keras 3 hold, and Keras 3 does not see."""
    seen = {id(variable) for variable in kerases.of(model).variables(model)}
    for layer in kerases.of(model).layers(model):
        for held in vars(layer).values():
            for value in held if isinstance(held, list | tuple) else [held]:
                is_variable = isinstance(value, tf.Variable) and value.trainable and id(value) not in seen
                if is_variable or (kerases.is_2(value) and "Layer" in kerases.kinds(value)):
                    yield value


def _variables_of_others(model: Any) -> Iterator[Any]:
    """Yields trainable variables that operations between the layers of a functional model use, and no layer has."""
    if not getattr(model, "_is_graph_network", False):  # there is no public name
        return
    held = {id(variable) for variable in model.variables}
    for layer in model.layers:
        for node in layer.inbound_nodes:
            for value in tf.nest.flatten((node.call_args, node.call_kwargs)):
                is_variable = isinstance(value, tf.Variable) and value.trainable and id(value) not in held
                if is_variable or kerases.is_3(value):
                    yield value


def optimizer_of(task: Any, config: Any, model: Any) -> Any:
    """Returns the optimizer of `create_optimizer`, for a whole config and a model.

    Raises:
      TaskError: it is no optimizer, or one of another Keras.
    """
    with during(method="create_optimizer"), optimization.of_model(model):
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    if isinstance(optimizer, type) or not hasattr(optimizer, "apply_gradients") or other_library(optimizer):
        fix = "return an object, such as keras.optimizers.Adam(1e-3)"
        if isinstance(optimizer, str):
            fix = f"{fix}; or leave the method out and set trainer.optimizer_config.optimizer.type={optimizer}"
        raise _error(task, "create_optimizer", "an optimizer", optimizer, fix)
    check_one_keras(task, model, "create_optimizer", optimizer)
    return optimizer


def metrics_of(task: Any, model: Any, *, training: bool) -> list[Any]:
    """Returns the metrics of `build_metrics`.

    Args:
      task: the task.
      model: of it.
      training: whether they are those of training.

    Raises:
      TaskError: they are no list of metrics.
    """
    with during(method="build_metrics"):
        metrics = task.build_metrics(training=training)
    if isinstance(metrics, str | Mapping) or not isinstance(metrics, Iterable):
        fix = "return a list, such as [keras.metrics.MeanSquaredError()], or [] for none"
        if isinstance(metrics, Mapping):
            fix = "return a list: each metric has its name itself, as in keras.metrics.MeanSquaredError(name='error')"
        raise _error(task, "build_metrics", "a list of metrics", metrics, fix)
    metrics = list(metrics)
    for metric in metrics:
        is_metric = hasattr(metric, "name") and hasattr(metric, "result") and hasattr(metric, _reset_of(metric))
        if isinstance(metric, type) or not is_metric or other_library(metric):
            raise _error(task, "build_metrics", "a list of metrics", metric, _fix_of(metric), item="a list with ")
    check_one_keras(task, model, "build_metrics", *metrics)
    return metrics


def _reset_of(metric: Any) -> str:
    return "reset_state" if kerases.is_3(metric) else "reset_states"


def _fix_of(metric: Any) -> str:
    if isinstance(metric, str):
        classes = [name for name in dir(keras.metrics) if name[0].isupper() and name != "Accuracy"]  # of equal values
        near = nearest(metric.replace("_", ""), classes) or ["SparseCategoricalAccuracy"]
        return f"return objects, such as keras.metrics.{near[0]}(name={metric!r})"
    if callable(metric) and hasattr(metric, "__name__"):
        return f"return objects: keras.metrics.MeanMetricWrapper({metric.__name__}, name={metric.__name__!r})"
    return "return objects of keras.metrics"


def _error(task: Any, method: str, wanted: str, got: Any, fix: str, item: str = "") -> TaskError:
    if foreign := other_library(got):
        return TaskError(at_method(type(task), method, foreign))
    shown = f"{item}{got!r}"
    if isinstance(got, type):
        shown, fix = f"{item}the class {got.__name__}", f"write {got.__name__}(…), which makes an object of it"
    elif got is None:
        shown = f"{item}None" if item else "nothing (None)"
        fix = f"{fix}; is a `return` missing?"
    elif not isinstance(got, str | int | float):
        shown = f"{item}a {type(got).__name__}"
    return TaskError(at_method(type(task), method, f"{method} must return {wanted}, and returned {shown}", fix))
