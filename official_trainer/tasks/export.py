"""SavedModels: a task's serving functions and the model's weights, written whole or not at all.

Owns: what `predict` and an export compute; default signatures; the folder protocol (write a temporary folder, then
rename); versions, and which are kept.
Does not own: when to export (`engine/loop.py`, `checkpoints/best.py`), which weights are in the model at that moment.

A version is a folder whose name is its step, as TensorFlow Serving reads them: a server that watches the folder above
sees whole versions only, because nothing is written or deleted under a name that is a number.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Problem
from official_trainer.errors import UserError
from official_trainer.garden import serving
from official_trainer.lazy import tf
from official_trainer.lock import own_folder, remove_abandoned
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import random_streams
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tracking.record import versions
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)

_RECORD, CONTRACT = "export.json", "contract.json"
FORMAT_FILES = {
    "tflite": "model.tflite",
    "tflite_float16": "model_float16.tflite",
    "tflite_dynamic": "model_dynamic.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "keras": "model.keras",
    "weights": "model.weights.h5",
}
"""The file of each other format, beside the SavedModel (`official_trainer/formats/` writes them)."""
Beside = Callable[[str], Mapping[str, Any]]
"""Writes more files into a folder with a SavedModel, and returns what `export.json` says of them."""
_SAVED_MODEL = {
    *("assets", "assets.extra", "fingerprint.pb", "keras_metadata.pb", "saved_model.pb", "variables"),
    *(_RECORD, CONTRACT, *FORMAT_FILES.values()),
}
"""What a SavedModel may hold."""
_WRITING, _REMOVING = ".writing", ".removing"
_UNDER_OTHER_NAMES = r"\.(writing|removing)(-.*)?"
_NUMBER = "(0|[1-9][0-9]*)"


class NoSignaturesError(UserError, ValueError):
    """The inputs of a SavedModel of this task are unknown."""

    names_line = True


def predict_step_of(task: Any) -> Callable[..., Any]:
    """Returns a task's `predict_step`, or else its `inference_step` as one, or else the call of its model."""
    if hasattr(task, "predict_step"):  # Model Garden's tasks have none
        step: Callable[..., Any] = task.predict_step
        return step

    @do_not_convert
    def infer(inputs: Any, model: Any, labels: Any = None) -> Any:
        try:
            return convert(task.inference_step)(inputs, model)
        except NotImplementedError:  # of Model Garden's learning from clips without labels
            return model(inputs, training=False)

    return infer


def default_signatures(task: Any, model: Any) -> dict[str, Any]:
    """Returns `serving_default`: the model's inputs by name, any batch size, to the outputs of `predict_step`.

    Inputs are those of `keras.Input`, or what a subclass of a model of tf_keras was called with.
    """
    if isinstance(getattr(model, "inputs", None), list):  # subclasses of Model Garden's have a dict of their own
        names = kerases.of(model).signature_names(model)[0]
        # A Sequential of Keras 3 that was never called has only `inputs`.
        structure = getattr(model, "input", model.inputs[0])
    elif (structure := _called_with(model)) is not None:
        names = tf.nest.flatten(_names(structure))
    else:
        raise NoSignaturesError(
            f"{type(task).__name__}: the model was not built with keras.Input, so the engine does not know its "
            "inputs; define build_signatures(model)"
        )
    return {"serving_default": function_of(task, model, names, structure)}


def function_of(task: Any, model: Any, names: Sequence[str], structure: Any) -> Any:
    """Returns a function from inputs by name to the outputs of `predict_step` by name.

    It takes any batch size, but that of `structure` if layers keep a state from one batch to the next.

    Args:
      task: of which `predict_step` is called.
      model: passed to it.
      names: of the inputs, in the order of the leaves of `structure`.
      structure: a tree of tensors, or of their specs, as `predict_step` takes it.
    """
    pairs = zip(names, tf.nest.flatten(structure), strict=True)
    is_fixed = bool(kerases.recurrent_states(model))  # of as many rows as it keeps states
    specs = {
        name: tf.TensorSpec([tensor.shape[0] if is_fixed else None, *tensor.shape[1:]], tensor.dtype, name=name)
        for name, tensor in pairs
    }
    step = predict_step_of(task)

    @tf.function(input_signature=[specs])
    @do_not_convert
    def serve(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        values = [features[name] for name in names]
        outputs = convert(step)(tf.nest.pack_sequence_as(structure, values), model)
        return by_name(outputs, model)

    return serve


def _called_with(model: Any) -> Any:
    """Returns the tree of specs of the first argument that a model was called with; None if that is not known."""
    spec = model.save_spec() if hasattr(model, "save_spec") else None  # Keras 3 keeps none
    is_dense = all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec))
    return spec[0][0] if spec and is_dense else None


def _names(tree: Any, path: str = "") -> Any:
    """Returns the tree with a name for each leaf: its keys, joined."""
    if isinstance(tree, Mapping | list | tuple):
        pairs = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        names = {key: _names(value, f"{path}_{key}" if path else str(key)) for key, value in pairs}
        return names if isinstance(tree, Mapping) else list(names.values())
    return path or "inputs"


def save(
    directory: str,
    task: Any,
    model: Any,
    *,
    step: int,
    metrics: Mapping[str, float] | None = None,
    beside: Beside | None = None,
) -> list[str]:
    """Writes a SavedModel to `directory`, replacing an older one there only when the new one is complete.

    A task of Model Garden has the signatures of its own export module. `export.json` in the directory holds the step,
    the results and the versions of packages. The model's random generators are set to a state of the step, so that an
    export of the same weights is the same whichever process writes it. Files of other formats, which `beside` writes,
    come with it or not at all. Returns the names of the signatures.
    """
    random_streams.settle(model, step)
    parent, name = _split(directory)
    remove_abandoned(parent, f"{re.escape(name)}{_UNDER_OTHER_NAMES}")
    with own_folder(parent, f"{name}{_WRITING}-") as folder:
        temporary = files.join(folder, "new")
        signatures = _write(temporary, task, model, step)
        record = {"step": step, "metrics": dict(metrics or {}), "signatures": signatures}
        record |= {"versions": versions()}
        if beside is not None:
            record |= beside(temporary)
        files.write_text_atomically(files.join(temporary, _RECORD), json.dumps(record, indent=1) + "\n")
        _replace(directory, folder, temporary)
    _logger.info("exported step %d to %s", step, directory)
    return signatures


def _write(directory: str, task: Any, model: Any, step: int) -> list[str]:
    """Writes a SavedModel, all but its record; returns the names of its signatures."""
    phase = f"exporting the model of step {step}"
    signatures, resources = signatures_of(task, model, phase)
    with during(phase, task=task, method="build_signatures"):
        write_functions(directory, model, signatures, resources)
    return sorted(signatures)


def signatures_of(task: Any, model: Any, phase: str = "exporting the model") -> tuple[Mapping[str, Any], Sequence[Any]]:
    """Returns the functions of a SavedModel by name, and what they use beside the model.

    They are a task's own, those of Model Garden's export module, or ours.
    """
    garden_module = None if hasattr(task, "build_signatures") else serving.export_module(task, model)
    if garden_module is not None:
        return serving.signatures(garden_module), serving.resources(garden_module)
    # Model Garden's tasks have none.
    make = getattr(task, "build_signatures", None) or functools.partial(default_signatures, task)
    with during(phase, task=task, method="build_signatures"):
        return make(model), _tables(task)


def write_functions(directory: str, model: Any, signatures: Mapping[str, Any], resources: Sequence[Any] = ()) -> None:
    """Writes a SavedModel with these functions of a model, by their names, their variables and other resources."""
    module, of_keras = tf.Module(), kerases.of(model)
    module.model = of_keras.trackable(model)  # for its values; signatures are all that is called
    with of_keras.saving(), from_initial_states(model):
        traced = {
            name: function if hasattr(function, "variables") else function.get_concrete_function()
            for name, function in signatures.items()
        }
        if beside_model := [*of_keras.tables(model), *resources, *_others(module, traced.values())]:
            module.resources = beside_model
        # Traced ones need not be traced again, and cannot be saved where workers have copies of variables.
        has_copies = any(hasattr(value, "values") for value in of_keras.values(model).values())
        tf.saved_model.save(module, directory, signatures=signatures if has_copies else traced)


def _others(module: Any, functions: Iterable[Any]) -> list[tf.Variable]:
    """Returns the variables that traced functions use and a module does not hold."""

    def copies(variable: tf.Variable) -> Sequence[tf.Variable]:  # a function uses that of its device
        strategy = getattr(variable, "distribute_strategy", None)
        return (variable,) if strategy is None else strategy.experimental_local_results(variable)

    inside = [item for item in tf.train.TrackableView(module).descendants() if isinstance(item, tf.Variable)]
    in_module = {id(copy.handle) for variable in inside for copy in copies(variable)}
    used = {id(variable.handle): variable for function in functions for variable in function.variables}
    return [variable for handle, variable in used.items() if handle not in in_module]


@contextlib.contextmanager
def from_initial_states(model: Any) -> Iterator[None]:
    """In a `with` block, layers that keep a state begin with zeros; after it, they have the state of before."""
    states = [copy for state in kerases.recurrent_states(model) for copy in getattr(state, "values", (state,))]
    before = [(state, tf.identity(state)) for state in states]  # of each replica
    kerases.reset_recurrent(model)
    try:
        yield
    finally:
        for state, value in before:
            state.assign(value)


def _tables(task: Any) -> list[Any]:
    """Returns the tables that a task holds, and those of its layers."""
    table = tf.saved_model.experimental.TrackableResource
    roots = [value for value in vars(task).values() if isinstance(value, table) or "Layer" in kerases.kinds(value)]
    inside = [item for root in roots for item in tf.train.TrackableView(root).descendants()]
    return [item for item in inside if isinstance(item, table)]


def save_version(
    folder: str, task: Any, model: Any, *, step: int, metrics: Mapping[str, float], max_to_keep: int
) -> str:
    """Writes the version `step` of a folder, and deletes the oldest.

    Args:
      folder: where the versions are.
      task: as for `save`.
      model: as for `save`.
      step: the step of the weights.
      metrics: results of the step.
      max_to_keep: how many versions up to this one are kept, newest first.

    Returns:
      The directory of the version.
    """
    directory = files.join(folder, str(step))
    save(directory, task, model, step=step, metrics=metrics)
    keep_newest(folder, max_to_keep, until=step)
    return directory


def check_replaceable(directory: str, flag: str) -> None:
    """Refuses a place that holds anything but a SavedModel, because `save` replaces all of it.

    Args:
      directory: where a SavedModel is to be.
      flag: that names it, for the message.

    Raises:
      ConfigError: there is a file, or a folder with other things in it.
    """
    if not files.exists(directory):
        return
    others = sorted({*files.list_dir(directory)} - _SAVED_MODEL) if files.is_dir(directory) else [directory]
    if others:
        what = f"holds {first_few(others)}, which the export would replace"
        fix = f"name a new folder, such as {directory.rstrip('/')}/1"
        raise ConfigError([Problem(what, flag, got=directory, fix=fix)])


def _exported_step(directory: str) -> int | None:
    """Returns the step of the SavedModel in `directory`, or None if its record is not there, or is unreadable."""
    path = files.join(directory, _RECORD)
    if files.exists(path):
        with contextlib.suppress(files.UnreadableFileError, files.PathKindError):
            return files.read_json(path).get("step")
    return None


def keep_newest(directory: str, max_to_keep: int, *, until: int | None = None) -> None:
    """Deletes all but the newest exports among the folders of `directory` that are named by step, and incomplete ones.

    Args:
      directory: where the folders are.
      max_to_keep: how many are kept.
      until: the step of the run; later exports neither count nor are deleted, because the run may reach them again.
    """
    steps = [step for step in _versions(directory) if until is None or step <= until]
    for step in steps[:-max_to_keep]:
        _remove(files.join(directory, str(step)))
    remove_abandoned(directory, f"{_NUMBER}{_UNDER_OTHER_NAMES}")


def delete_after(directory: str, step: int) -> None:
    """Deletes the exports after `step` among the folders of `directory` that are named by step."""
    for later in [version for version in _versions(directory) if version > step]:
        _remove(files.join(directory, str(later)))


def numbered(directory: str) -> list[str]:
    """Returns the folders in a folder that are named by a number, as servers read versions, lowest first."""
    numbers = sorted(int(name) for name in files.list_dir(directory) if re.fullmatch(_NUMBER, name))
    return [files.join(directory, str(number)) for number in numbers]


def _versions(directory: str) -> list[int]:
    """Returns the steps of the exports in a folder, lowest first; numbers that someone else uses are none."""
    steps = [(_exported_step(path), files.base_name(path)) for path in numbered(directory)]
    return [step for step, name in steps if step is not None and str(step) == name]


def _remove(directory: str) -> None:
    parent, name = _split(directory)
    with own_folder(parent, f"{name}{_REMOVING}-") as folder:
        _take_away(directory, folder)


def _replace(directory: str, folder: str, successor: str) -> None:
    """Puts a complete SavedModel in the place of another one, so that no reader finds a part of one.

    Where the file system cannot exchange two folders, none is there for a moment, and after a kill in that moment.

    Args:
      directory: the SavedModel; none there is fine.
      folder: of this process alone, which it deletes.
      successor: the SavedModel that takes its place.
    """
    if files.is_url(directory) or not files.exchange(successor, directory):
        _take_away(directory, folder)
        files.rename(successor, directory)


def _take_away(directory: str, folder: str) -> None:
    """Moves a SavedModel into a folder that this process deletes: its files are deleted under another name."""
    if files.is_url(directory):
        files.remove(directory)  # there a rename copies every file
    else:
        with contextlib.suppress(FileNotFoundError):
            files.rename(directory, files.join(folder, "old"))


def _split(directory: str) -> tuple[str, str]:
    parent, name = os.path.split(directory.rstrip("/"))
    return parent or ".", name


def by_name(outputs: Any, model: Any) -> dict[str, tf.Tensor]:
    """Returns outputs as a flat dict: by their keys if they are a dict, nested ones as `a/b`, else by layer.

    Outputs that are `None` are left out.
    """
    if isinstance(outputs, Mapping):
        return dict(_leaves(outputs, ""))
    values = tf.nest.flatten(outputs)
    names = kerases.of(model).signature_names(model)[1]
    if len(names) != len(values) or len(set(names)) != len(names):
        names = [f"output_{i}" for i in range(len(values))]
    return {name: tf.convert_to_tensor(value) for name, value in zip(names, values, strict=True) if value is not None}


def _leaves(outputs: Any, path: str) -> Iterator[tuple[str, tf.Tensor]]:
    if isinstance(outputs, Mapping | list | tuple):
        for name, value in outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs):
            yield from _leaves(value, f"{path}/{name}" if path else str(name))
    elif outputs is not None:
        yield path, tf.convert_to_tensor(outputs)
