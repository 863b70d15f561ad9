"""Files of weights that Keras 3 and KerasHub write, told by their content, and their values.

Owns: `.weights.h5`, `.keras` (a file or a folder) and preset directories of KerasHub: which layer of a model a value in
them belongs to, and giving it to that layer. Does not own: which values have to be there (`tasks/initial_weights.py`).

Keras writes the values of a layer under the attributes that lead to it from the model, with its class and number where
it is in a list: `layers/dense_1/vars/0`. What it writes there is the layer's `save_own_variables`: mostly its
variables, but with LoRA the kernel to which both small matrices are added.
"""

from __future__ import annotations

import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.matching import VariableSpec
from official_trainer.shown import first_few
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.keras import keras3

_WEIGHTS, _CONFIG, _OF_TASK = "model.weights.h5", "config.json", ("task.json", "task.weights.h5")
_HDF5, _ZIP = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
_LORA = "lora_"  # how the names of the small matrices begin, of which the first is `…_a`
_NO_WEIGHTS = ("optimizer", "_metrics", "metrics", "_loss_tracker", "seed_generator", "_random_generator")
"""Parts of the places of what a run begins anew."""


def is_one(path: str) -> bool:
    """Whether there is a file, or a directory, of one of these kinds, by its content."""
    if files.is_dir(path):
        return bool({_WEIGHTS, "model.weights.json"} & {*files.list_dir(path)})
    return files.is_file(path) and _start_of(path).startswith((_HDF5, _ZIP))


def _start_of(path: str) -> bytes:
    with files.open_file(path, "rb") as file:
        return bytes(file.read(len(_HDF5)))


class WeightFile:
    """The values of such files for one model: the `SavedValues` of `tasks/initial_weights.py`."""

    def __init__(self, path: str, model: Any) -> None:
        """Reads the files; nothing is assigned.

        Raises:
          CheckpointError: they are damaged, or of another kind, or of a layer that the model does not hold.
        """
        self.specs: dict[str, VariableSpec] = {}
        self.keys: dict[int, str] = {}
        self.left_to_layers = set[int]()
        self._values: dict[str, np.ndarray] = {}
        self._layers: list[tuple[Any, dict[str, np.ndarray]]] = []  # those whose values all fit
        try:
            for name, content, root in _parts(path, model):
                with h5py.File(content, "r") as file:
                    self._read(file, name, root)
        except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            if isinstance(error, CheckpointError | files.StorageError):
                raise
            raise CheckpointError(f"{path} is damaged: {files.reason_of(error)}") from error
        if not self.specs:
            raise CheckpointError(
                f"{path} is HDF5, but holds no weights as Keras 3 saves them. Load it with the Keras that wrote it, "
                "and save it from a model of Keras 3 with model.save_weights('NAME.weights.h5')"
            )

    def _read(self, file: Any, name: str, root: Any) -> None:
        values_by_layer: dict[str, dict[str, np.ndarray]] = {}
        for key, value in _datasets(file):
            path, is_of_layer, number = f"/{key}".rpartition("/vars/")
            if is_of_layer and not {*_NO_WEIGHTS} & {*path.split("/")}:
                self._values[name + key] = value
                self.specs[name + key] = VariableSpec(name + key, "", value.shape, value.dtype.name)
                values_by_layer.setdefault(path[1:], {})[number] = value
        for path, values in values_by_layer.items():
            if (layer := _layer_at(root, path)) is not None:
                self._pair(layer, f"{name}{path}/vars/" if path else f"{name}vars/", values)

    def _pair(self, layer: Any, prefix: str, values: dict[str, np.ndarray]) -> None:
        """Finds the variables that a layer writes under the keys of its values, which begin with `prefix`."""
        written: dict[str, Any] = {}
        layer.save_own_variables(written)
        variables = {id(variable.value): variable for variable in keras3.own_variables(layer)}
        for number, value in written.items():
            live = id(kerases.value(value))
            if number in values and live in variables:
                self.keys.setdefault(live, prefix + number)
        shapes = {number: tuple(value.shape) for number, value in written.items()}
        if shapes == {number: value.shape for number, value in values.items()}:
            self._layers.append((layer, values))
            lora = {live for live, variable in variables.items() if variable.name.startswith(_LORA)}
            computed = [prefix + number for number in written if prefix + number not in self.keys.values()]
            kernels = [live for live in variables if live not in self.keys and live not in lora]
            if lora and len(computed) == len(kernels) == 1:
                self.keys[kernels[0]] = computed[0]
            self.left_to_layers |= variables.keys() - self.keys.keys()

    def read(self, key: str) -> np.ndarray:
        """Returns a value."""
        return self._values[key]

    def assign(self, pairs: Mapping[int, Any]) -> None:
        """Gives each layer whose values all fit its values, and the others those of `pairs`, variables by id."""
        loaded = set[int]()
        for layer, values in self._layers:
            # Keras sets both matrices to 0, and where both are 0 neither has a gradient: the second has to be enough.
            variables = keras3.own_variables(layer)
            first = [variable.value for variable in variables if re.fullmatch(f"{_LORA}.*_a", variable.name)]
            before = [tf.identity(variable) for variable in first]
            layer.load_own_variables(values)
            for variable, value in zip(first, before, strict=True):
                variable.assign(value)
            loaded |= {id(variable.value) for variable in variables}
        for number, variable in pairs.items():
            if number not in loaded:
                variable.assign(self._values[self.keys[number]].astype(variable.dtype.as_numpy_dtype))


def _parts(path: str, model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields each file's name before its keys, its content, and the layer that it is of."""
    if not files.is_dir(path):
        with files.open_file(path, "rb") as file:
            yield "", _unpacked(path, file) if _start_of(path).startswith(_ZIP) else file, model
        return
    names = files.list_dir(path)
    if _WEIGHTS not in names:
        raise CheckpointError(f"{path} holds weights in several files, which are not read: save them as one {_WEIGHTS}")
    root = _layer_of(path, _CONFIG, model) if _CONFIG in names else model
    with files.open_file(files.join(path, _WEIGHTS), "rb") as file:
        yield "", file, root
    described, weights = _OF_TASK
    if {*_OF_TASK} <= {*names} and (task := _layer_of(path, described, model, is_needed=False)) is not None:
        with files.open_file(files.join(path, weights), "rb") as file:
            yield f"{weights}/", file, task


def _unpacked(path: str, file: Any) -> io.BytesIO:
    """Returns the weights in a `.keras` file, whose checksum is compared."""
    with zipfile.ZipFile(file) as archive:
        if _WEIGHTS in archive.namelist():
            return io.BytesIO(archive.read(_WEIGHTS))
        held = first_few(archive.namelist())
        raise CheckpointError(f"{path} is a zip file without {_WEIGHTS}, so not of Keras 3: it holds {held}")


def _layer_of(path: str, name: str, model: Any, *, is_needed: bool = True) -> Any:
    """Returns the one layer of a model, or the model, that is of the class that a config names."""
    config = files.read_json(files.join(path, name))
    wanted, module = str(config.get("class_name")), str(config.get("module") or "")
    all_layers = keras3.KERAS.layers(model)
    layers = [layer for layer in all_layers if wanted in (cls.__name__ for cls in type(layer).__mro__)]
    if len(layers) == 1 or (layers and layers[0] is model):
        return layers[0]
    if not is_needed:
        return None
    is_of_hub = "keras_hub" in module or str(config.get("registered_name")).startswith("keras_hub>")
    if not layers and is_of_hub and importlib.util.find_spec("keras_hub") is None:
        raise CheckpointError(
            f"{path} is a preset of {wanted}, and keras_hub is not installed. Install it with: pip install keras-hub; "
            f"and build the model with keras_hub.models.{wanted}"
        )
    held = first_few(sorted({type(layer).__name__ for layer in all_layers}))
    many = f"{len(layers)} layers" if layers else "no layer"
    raise CheckpointError(f"{path} is of a {wanted}, and the model has {many} of that class: it is made of {held}")


def _datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for name, value in group.items():
        if isinstance(value, h5py.Group):
            yield from _datasets(value, f"{prefix}{name}/")
        else:
            is_half = value.attrs.get("dtype") == "bfloat16"  # which HDF5 does not know
            yield f"{prefix}{name}", np.array(value, tf.bfloat16.as_numpy_dtype if is_half else None)


def _layer_at(root: Any, path: str) -> Any:
    """Returns the layer at a path below a model, as Keras names paths; None if there is none."""
    node = root
    for name in path.split("/") if path else ():
        is_container = isinstance(node, list | tuple | dict)
        node = _elements(node).get(name) if is_container else getattr(node, name, None)
    return node if isinstance(node, keras.Layer) else None


def _elements(container: Any) -> dict[str, Any]:
    """Returns the elements of a container under their classes' names, numbered."""
    elements: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for element in container.values() if isinstance(container, dict) else container:
        is_container = isinstance(element, list | tuple | dict)
        if is_container or hasattr(element, "save_own_variables"):
            name = "container" if is_container else kerases.snake_case(type(element).__name__)
            number = counts.get(name, 0)
            counts[name] = number + 1
            elements[f"{name}_{number}" if number else name] = element
    return elements
