"""The contract of a file: what its inputs and outputs are and mean, where the format keeps such things.

Owns: its form, writing it into a file, reading it back, printing it, comparing it with a task and its data.
Does not own: reading outputs (`readers.py`).

SavedModel: `assets.extra/contract.json`. LiteRT: a metadata buffer, beside its signature. ONNX: `metadata_props`.
`.keras`: a file in the archive. `.weights.h5`: an attribute. Each is JSON under the name `official_trainer_contract`,
and of the library of its format alone.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.formats.kinds import FormatError, kind_of, refuse_missing
from official_trainer.shown import first_few

NAME = "official_trainer_contract"
Contract = Mapping[str, Any]
"""JSON: `inputs` and `outputs`, lists of `name`, `dtype`, `shape` (null: any size), the `range` of numbers in
validation data, and what the task says, `values` and `labels`; `about`, with `preprocessing`."""

_SAID = {"labels": dict, "values": dict, "preprocessing": str}
_OUTSIDE = "outside: inputs are the features of build_inputs"
_logger = logging.getLogger(__name__)


def of(task: Any, model: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], experiment: str) -> dict[str, Any]:
    """Returns the contract of functions with these `TensorSpec`s by name, and with what `build_contract` says of them.

    Raises:
      FormatError: `build_contract` names what is not there, or labels that are not as many as the outputs.
    """
    said = said_by(task, model)
    made: dict[str, Any] = of_specs(inputs, outputs)
    for key, kinds in (("values", ("inputs", "outputs")), ("labels", ("outputs",))):
        rows = [row for kind in kinds for row in made[kind]]
        names = [row["name"] for row in rows]
        if unknown := set(said.get(key, ())) - set(names):
            raise FormatError(f"build_contract has {key} of {min(unknown)!r}; there are {', '.join(names)}")
        for row in (row for row in rows if row["name"] in said.get(key, ())):
            row[key] = said[key][row["name"]]
            last = (row["shape"] or [None])[-1]
            if key == "labels" and row["dtype"].startswith("float") and last not in (None, len(row[key])):
                raise FormatError(
                    f"build_contract has {len(row[key])} labels of {row['name']!r}, which is {last} numbers"
                )
    return {**made, "about": {"experiment": experiment, "preprocessing": said.get("preprocessing", _OUTSIDE)}}


def of_specs(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a contract that a signature alone says."""
    return {"inputs": _described(inputs), "outputs": _described(outputs)}


def of_array(value: Any) -> dict[str, Any]:
    """Returns the type and the shape of a batch."""
    dtype = "string" if value.dtype.kind in "OSU" else value.dtype.name
    return {"dtype": dtype, "shape": [None, *value.shape[1:]]}


def said_by(task: Any, model: Any) -> dict[str, Any]:
    """Returns what a task's `build_contract` does, as JSON reads it; nothing for a task of Model Garden.

    Raises:
      FormatError: it is of another form.
    """
    said = task.build_contract(model) if hasattr(task, "build_contract") else {}
    for key, value in said.items():
        if key not in _SAID or not isinstance(value, _SAID[key]):
            allowed = ", ".join(f"{name} ({kind.__name__})" for name, kind in _SAID.items())
            raise FormatError(f"build_contract returns {key!r}: {type(value).__name__}; it may return {allowed}")
    found: dict[str, Any] = json.loads(json.dumps(said))
    return found


def check_task(path: str, contract: Contract, said: Mapping[str, Any]) -> None:
    """Refuses a file whose labels, values or preprocessing are not those that the task says now.

    Raises:
      FormatError: with both.
    """
    rows = [*contract["inputs"], *contract["outputs"]]
    held = {key: {row["name"]: row[key] for row in rows if key in row} for key in ("labels", "values")}
    for key, value in (*held.items(), ("preprocessing", contract["about"].get("preprocessing"))):
        now = said.get(key, {} if key in held else _OUTSIDE)
        if key in held:  # a `.keras` file has other outputs than predict_step
            now = {name: each for name, each in now.items() if name in {row["name"] for row in rows}}
        if now != value:
            raise FormatError(
                f"{path} was exported with {key} {value}, and build_contract says {now}; export the run again, or use "
                "the code that exported it"
            )


def _described(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, spec in specs.items():
        shape = None if spec.shape.rank is None else spec.shape.as_list()
        rows.append({"name": name, "dtype": spec.dtype.name, "shape": shape})
    return rows


def embed(path: str, contract: Contract) -> None:
    """Writes a contract into a file, or a SavedModel, of this machine."""
    text, kind = json.dumps(contract), kind_of(path)
    if kind == "saved_model":
        files.make_dirs(files.join(path, "assets.extra"))
        files.write_text_atomically(files.join(path, "assets.extra", "contract.json"), text + "\n")
    elif kind == "tflite":
        _embed_in_tflite(path, text)
    elif kind == "onnx":
        import onnx

        model = onnx.load(path)
        onnx.helper.set_model_props(model, {NAME: text})
        onnx.save(model, path)
    elif kind == "keras":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{NAME}.json", text)
    else:
        import h5py

        with h5py.File(path, "a") as file:
            file.attrs[NAME] = text


def read(path: str) -> dict[str, Any]:
    """Returns the contract in a file, or in a SavedModel.

    Raises:
      FormatError: it has none, or the library of the format is not installed.
    """
    kind = refuse_missing(path)
    text: str | bytes | None = None
    if kind == "saved_model":
        place = files.join(path, "assets.extra", "contract.json")
        text = files.read_text(place) if files.exists(place) else None
    elif kind == "tflite":
        text = _read_of_tflite(path)
    elif kind == "onnx":
        import onnx

        model = onnx.load(path, load_external_data=False)
        text = next((each.value for each in model.metadata_props if each.key == NAME), None)
    elif kind == "keras":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(f"{NAME}.json") if f"{NAME}.json" in archive.namelist() else None
    else:
        import h5py

        with h5py.File(path, "r") as file:
            text = file.attrs.get(NAME)
    if text is None:
        how = "write it with `official-trainer export --format=…`, which adds one"
        raise FormatError(f"{path} has no contract, so its inputs and outputs are unknown; {how}")
    found: dict[str, Any] = json.loads(text)
    return found


def _embed_in_tflite(path: str, text: str) -> None:
    import flatbuffers
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(files.read_bytes(path), 0)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(text.encode(), np.uint8)
    model.buffers.append(buffer)
    entry.name, entry.buffer = NAME, len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    files.write_bytes_atomically(path, bytes(builder.Output()))


def _read_of_tflite(path: str) -> bytes | None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(files.read_bytes(path), 0)
    for number in range(model.MetadataLength()):
        entry = model.Metadata(number)
        if entry.Name() == NAME.encode():
            found: bytes = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
            return found
    return None


def check_inputs(path: str, contract: Contract, given: Mapping[str, Any]) -> None:
    """Refuses inputs that are not those of a contract.

    Args:
      path: of the file, for the message.
      contract: of the file.
      given: NumPy arrays `[batch, …]` by name.

    Raises:
      FormatError: a name, a type or a shape differs.
    """
    for row in contract["inputs"]:
        name, shape = row["name"], row["shape"]
        if name not in given:
            have = f"the data have {', '.join(sorted(given))}; name another file, or export the run again"
            raise FormatError(f"{path} takes an input {name!r}, and {have}")
        value = given[name]
        fits = shape is None or (
            len(shape) == value.ndim and all(s in (None, g) for s, g in zip(shape, value.shape, strict=True))
        )
        dtype = of_array(value)["dtype"]
        if not fits or dtype != row["dtype"]:
            raise FormatError(
                f"{path}: the input {name!r} is {_form(row['dtype'], shape)} by its contract, and the data give "
                f"{_form(dtype, value.shape)}; use the config that it was exported with, or export the run again"
            )


def warn_of_scale(path: str, contract: Contract, given: Mapping[str, Any]) -> None:
    """Warns of inputs, as `check_inputs` takes them, that are far from those of the validation data at the export."""
    for row in contract["inputs"]:
        (low, high), value = row.get("range", (None, None)), given[row["name"]]
        if low is not None and not (2 * low - high <= value.min() and value.max() <= 2 * high - low):
            said = f"{value.min():g} to {value.max():g}, and {low:g} to {high:g} when it was exported"
            _logger.warning("%s: the input %r is now %s; is it scaled in the same way?", path, row["name"], said)


def text_of(contract: Contract) -> str:
    """Returns a contract in lines for a terminal."""
    lines = [f"{name}: {value}" for name, value in contract["about"].items()]
    for kind in ("inputs", "outputs"):
        lines.append(f"{kind}:")
        for row in contract[kind]:
            notes = [row["values"]] if "values" in row else []
            notes += ["in validation data: {:g} to {:g}".format(*row["range"])] if "range" in row else []
            notes += [f"labels: {first_few(row['labels'])}"] if "labels" in row else []
            said = f"  # {'; '.join(notes)}" if notes else ""
            lines.append(f"  {row['name']}: {_form(row['dtype'], row['shape'])}{said}")
    return "\n".join(lines)


def _form(dtype: str, shape: Any) -> str:
    if shape is None:
        return f"{dtype} of any shape"
    return f"{dtype} [{', '.join('any' if size is None else str(size) for size in shape)}]"
