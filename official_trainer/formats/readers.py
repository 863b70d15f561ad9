"""A file of any format as a function from arrays to arrays; run as a program, it measures one in a clean process.

Owns: how each library runs a model; the outputs, times and memory of a file for given inputs.
Does not own: what they are compared with (`writing.py`).

`python -m official_trainer.formats.readers REQUEST` reads a JSON file with `path`, `inputs` (an .npz),
`outputs` (an .npz that is written) and `imports`, and prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.formats import contract as contracts
from official_trainer.formats.kinds import FormatError, kind_of, refuse_missing

Arrays = Mapping[str, Any]
"""NumPy arrays `[batch, …]` by the names of inputs or outputs."""
Function = Callable[[Arrays], Arrays]
SIGNATURE = "serving_default"

_CALLS, _SECONDS = 20, 1.0
"""The most calls of a latency, and for how long."""


class Reader:
    """A model in a file.

    Attributes:
      contract: what the file says of its inputs and outputs.
    """

    def __init__(self, path: str, imports: Sequence[str] = ()) -> None:
        """Loads a file of a kind other than `weights`.

        Args:
          path: of the file, or the folder of a SavedModel.
          imports: modules that register what a `.keras` file is built from.

        Raises:
          FormatError: it has no contract, or cannot be read.
        """
        kind = refuse_missing(path)
        self._path, self.contract = path, contracts.read(path)
        for name in imports:
            importlib.import_module(name)
        self._function = _OPENERS[kind](path, self.contract)

    def __call__(self, inputs: Arrays) -> Arrays:
        """Returns the outputs for a batch, by name.

        Raises:
          FormatError: the inputs are not those of the contract.
        """
        contracts.check_inputs(self._path, self.contract, inputs)
        wanted = [row["name"] for row in self.contract["inputs"]]
        return self._function({name: inputs[name] for name in wanted})


def _open_tflite(path: str, contract: contracts.Contract) -> Function:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    run = interpreter.get_signature_runner(SIGNATURE)
    return lambda inputs: run(**inputs)


def _open_onnx(path: str, contract: contracts.Contract) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names, taken = [each.name for each in session.get_outputs()], {each.name for each in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        used = {name: value for name, value in inputs.items() if name in taken}  # a converter drops what is not read
        return dict(zip(names, session.run(names, used), strict=True))

    return run


def _open_saved_model(path: str, contract: contracts.Contract) -> Function:
    found = signatures(path)
    taken = {row["name"] for row in found[SIGNATURE][0]["inputs"]} if SIGNATURE in found else set()
    if taken != (names := {row["name"] for row in contract["inputs"]}):
        what = f"its {SIGNATURE} takes {', '.join(sorted(taken)) or 'nothing'}, and the data hold"
        raise FormatError(f"{path}: {what} {', '.join(sorted(names))}; name a file of another format")
    return found[SIGNATURE][1]


def signatures(path: str) -> dict[str, tuple[contracts.Contract, Function]]:
    """Returns the functions of a file with their contracts, by name: all of a SavedModel, of another file the only one.

    Raises:
      FormatError: it has no function, or cannot be read.
    """
    kind = refuse_missing(path)
    if kind == "weights":
        raise FormatError(f"{path} holds numbers and no model; name a file of another format")
    if kind != "saved_model":
        reader = Reader(path)
        return {SIGNATURE: (reader.contract, reader)}
    from official_trainer.lazy import tf

    loaded = tf.saved_model.load(path)

    def calling(function: Any) -> Function:
        def run(inputs: Arrays) -> Arrays:
            outputs = function(**{name: tf.constant(value) for name, value in inputs.items()})
            return {name: value.numpy() for name, value in outputs.items()}

        run.loaded = loaded  # type: ignore[attr-defined]  # holds the variables
        return run

    found: dict[str, tuple[contracts.Contract, Function]] = {}
    for name, function in loaded.signatures.items():
        specs = function.structured_input_signature[1], function.structured_outputs
        found[name] = contracts.of_specs(*specs), calling(function)
    return found


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
        raise FormatError(f"Keras cannot read {files.base_name(path)} in safe mode: {str(error).strip()}") from error


def _open_keras(path: str, contract: contracts.Contract) -> Function:
    from official_trainer.lazy import tf
    from official_trainer.tasks import export

    model = load_keras(path)

    def run(inputs: Arrays) -> Arrays:
        values = [tf.constant(value) for value in inputs.values()]
        structure = getattr(model, "input", model.inputs[0])
        outputs = export.by_name(model(tf.nest.pack_sequence_as(structure, values), training=False), model)
        return {name: value.numpy() for name, value in outputs.items()}

    return run


_OPENERS: Mapping[str, Callable[[str, contracts.Contract], Function]] = {
    "saved_model": _open_saved_model,
    "tflite": _open_tflite,
    "onnx": _open_onnx,
    "keras": _open_keras,
}


def values_of_weights(path: str) -> Iterator[str]:
    """Yields a text for each array in a `.weights.h5` file, the same for the same values."""
    import h5py

    found: list[Any] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    yield from map(value_text, found)


def value_text(value: Any) -> str:
    """Returns a text that is the same for arrays of the same shape and bits."""
    import hashlib

    return f"{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def batches_in(path: str) -> list[dict[str, Any]]:
    """Returns the batches in an .npz, as `write_batches` writes them."""
    import numpy as np

    found: list[dict[str, Any]] = []
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            number, _, name = key.partition(":")
            while len(found) <= int(number):
                found.append({})
            value = arrays[key]
            found[int(number)][name] = value.astype(object) if value.dtype.kind == "S" else value
    return found


def write_batches(path: str, batches: Sequence[Arrays]) -> None:
    """Writes batches into an .npz."""
    import numpy as np

    flat = {f"{number}:{name}": value for number, batch in enumerate(batches) for name, value in batch.items()}
    np.savez(path, **{key: value.astype("S") if value.dtype == object else value for key, value in flat.items()})


def _latency_ms(reader: Function, batch: Arrays) -> float:
    times: list[float] = []
    reader(batch)
    while len(times) < _CALLS and sum(times) < _SECONDS:
        began = time.perf_counter()
        reader(batch)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1000, 3)


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # `getrusage` counts the process that started this one, too
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(request_path: str) -> None:
    """Does what a request says, in this process."""
    request = json.loads(Path(request_path).read_text())
    if kind_of(request["path"]) == "weights":
        print(json.dumps({"values": list(values_of_weights(request["path"]))}))
        return
    is_saved_model, batches = kind_of(request["path"]) == "saved_model", batches_in(request["inputs"])
    # The signature of a SavedModel may take other inputs than its contract says, which is that of the model.
    reader = (
        signatures(request["path"])[SIGNATURE][1] if is_saved_model else Reader(request["path"], request["imports"])
    )
    write_batches(request["outputs"], [reader(batch) for batch in batches])
    latency = {}
    for size in sorted({1, len(next(iter(batches[0].values())))}):
        batch = {name: value[:size] for name, value in batches[0].items()}
        latency[str(size)] = _latency_ms(reader, batch)
    print(json.dumps({"latency_ms": latency, "peak_memory_bytes": _peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1])
