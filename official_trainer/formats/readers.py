"""A file of any format as functions from arrays to arrays, and what they take.

Owns: how each library runs a model; the outputs, times and memory of a file for given inputs.
Does not own: what they are compared with (`writing.py`), the process in which they are measured (`clean_process.py`).
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.engine.inference import on_host
from official_trainer.formats import contract as contracts
from official_trainer.formats.kinds import SIGNATURE, FormatError, refuse_missing
from official_trainer.lazy import tf
from official_trainer.tasks import export
from official_trainer.tracking.run_metrics import peak_bytes

Arrays = Mapping[str, Any]
"""NumPy arrays `[batch, …]` by the names of inputs or outputs."""
Function = Callable[[Arrays], Arrays]

_CALLS, _SECONDS = 20, 1.0
"""The most calls of a latency, and for how long."""


def signatures(path: str) -> dict[str, tuple[contracts.Contract, Function]]:
    """Returns the functions of a file with what they take, by name: all of a SavedModel, of another file the only one.

    Raises:
      FormatError: it has no function, or cannot be read.
    """
    kind = refuse_missing(path)
    if kind == "weights":
        raise FormatError(f"{path} holds numbers and no model; name a file of another format")
    if kind == "saved_model":
        return _of_saved_model(path)
    openers = {"tflite": _of_tflite, "onnx": _of_onnx, "keras": lambda path: of_keras(load_keras(path))}
    return {SIGNATURE: (contracts.read(path), openers[kind](path))}


def _of_tflite(path: str) -> Function:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    run = interpreter.get_signature_runner(SIGNATURE)
    return lambda inputs: run(**inputs)


def _of_onnx(path: str) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names, taken = [each.name for each in session.get_outputs()], {each.name for each in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        used = {name: value for name, value in inputs.items() if name in taken}  # a converter drops what is not read
        return dict(zip(names, session.run(names, used), strict=True))

    return run


def _of_saved_model(path: str) -> dict[str, tuple[contracts.Contract, Function]]:
    loaded = tf.saved_model.load(path)

    def calling(function: Any) -> Function:
        def run(inputs: Arrays) -> Arrays:
            return host(function(**{name: tf.constant(value) for name, value in inputs.items()}))

        run.loaded = loaded  # type: ignore[attr-defined]  # holds the variables
        return run

    found: dict[str, tuple[contracts.Contract, Function]] = {}
    for name, function in loaded.signatures.items():
        specs = function.structured_input_signature[1], function.structured_outputs
        found[name] = contracts.of_specs(*specs), calling(function)
    return found


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


def load_keras(path: str) -> Any:
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


def values_in(path: str) -> list[str]:
    """Returns a text for each array in a `.weights.h5` file, as `value_text` does."""
    import h5py

    found: list[Any] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return [*map(value_text, found)]


def value_text(value: Any) -> str:
    """Returns a text that is the same for arrays of the same shape and bits."""
    return f"{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def measured(path: str, batches: Sequence[Arrays]) -> tuple[list[Arrays], dict[str, Any]]:
    """Returns the outputs of a file for batches, and what they cost in this process."""
    contract, function = signatures(path)[SIGNATURE]
    outputs, latency = [function(batch) for batch in batches], {}
    takes_one = all(not row["shape"] or row["shape"][0] in (None, 1) for row in contract["inputs"])
    for size in sorted({*([1] if takes_one else []), len(next(iter(batches[0].values())))}):
        latency[str(size)] = _latency_ms(function, {name: value[:size] for name, value in batches[0].items()})
    cost = {"latency_ms": latency, "peak_memory_bytes": peak_bytes()}
    return outputs, {**cost, "small_tensors": _small_tensors(path)} if path.endswith(".tflite") else cost


def _small_tensors(path: str) -> int:
    """Returns how many tensors of a LiteRT file have fewer bits than float32; 0 where nothing was quantised."""
    from ai_edge_litert.interpreter import Interpreter

    tensors = Interpreter(model_path=path).get_tensor_details()
    return sum(tensor["dtype"].__name__ in ("int8", "float16") for tensor in tensors)


def _latency_ms(function: Function, batch: Arrays) -> float:
    times: list[float] = []
    function(batch)
    while len(times) < _CALLS and sum(times) < _SECONDS:
        began = time.perf_counter()
        function(batch)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1000, 3)
