"""A file of any format as a function from arrays to arrays.

Owns: how each library runs a model; the values in a file of weights.
Does not own: what outputs are compared with (`writing.py`), the process in which a file is read (`clean_process.py`).
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.engine.inference import on_host
from official_trainer.formats.kinds import SIGNATURE, FormatError
from official_trainer.lazy import tf
from official_trainer.tasks import export

Arrays = Mapping[str, Any]
"""NumPy arrays `[batch, …]` by the names of inputs or outputs."""
Function = Callable[[Arrays], Arrays]


def opened(path: str) -> Function:
    """Returns the function of a file of any format but `weights`; of a SavedModel its `serving_default`.

    Raises:
      FormatError: it cannot be read.
    """
    if path.endswith(".tflite"):
        return _of_tflite(path)
    if path.endswith(".onnx"):
        return _of_onnx(path)
    return of_keras(_load_keras(path)) if path.endswith(".keras") else _of_saved_model(path)


def _of_tflite(path: str) -> Function:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    run = interpreter.get_signature_runner(SIGNATURE)
    return lambda inputs: run(**inputs)


def _of_onnx(path: str) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    output_names = [output.name for output in session.get_outputs()]
    input_names = {node_input.name for node_input in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        # A converter drops inputs that are not read.
        read = {name: value for name, value in inputs.items() if name in input_names}
        return dict(zip(output_names, session.run(output_names, read), strict=True))

    return run


def _of_saved_model(path: str) -> Function:
    loaded = tf.saved_model.load(path)
    function = loaded.signatures[SIGNATURE]

    def run(inputs: Arrays) -> Arrays:
        return host(function(**{name: tf.constant(value) for name, value in inputs.items()}))

    run.loaded = loaded  # type: ignore[attr-defined]  # holds the variables
    return run


def of_keras(model: Any, structure: Any = None) -> Function:
    """Returns the call of a model, on the CPU.

    Args:
      model: of either Keras.
      structure: a tree like its features, for a model that was not built with `keras.Input`; None for one tensor.
    """
    structure = getattr(model, "input", structure)  # None, which a Sequential of Keras 3 may have: one tensor

    def run(inputs: Arrays) -> Arrays:
        with tf.device("CPU:0"):
            packed = tf.nest.pack_sequence_as(structure, [tf.constant(value) for value in inputs.values()])
            return host(export.by_name(model(packed, training=False), model))

    return run


def host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tensors as NumPy arrays."""
    return {name: on_host(value) for name, value in values.items()}


def _load_keras(path: str) -> Any:
    """Returns the model of a `.keras` file, of the Keras that wrote it.

    Raises:
      FormatError: Keras cannot read it, or a function is written into it, which would run.
    """
    with zipfile.ZipFile(path) as archive:
        version = json.loads(archive.read("metadata.json"))["keras_version"]
    if version.startswith("2."):
        from official_trainer.lazy import keras
    else:
        import keras
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # of Keras, or of a layer's from_config
        why = " ".join(str(error).split())
        raise FormatError(f"Keras cannot read {files.base_name(path)} in safe mode: {why}") from error


def outputs(path: str, batches: Sequence[Arrays]) -> list[Arrays]:
    """Returns the outputs of a file for batches of its inputs."""
    function = opened(path)
    return [function(batch) for batch in batches]


def values_in(path: str) -> list[str]:
    """Returns a text for each array in a `.weights.h5` file, as `value_text` does."""
    import h5py

    arrays: list[Any] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: arrays.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return [*map(value_text, arrays)]


def value_text(value: Any) -> str:
    """Returns a text that is the same for arrays of the same shape and bits."""
    return f"{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
