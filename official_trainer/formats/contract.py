"""`contract.json` beside an exported model: what its inputs and outputs are, and what the task says they mean.

Owns: its form, writing and reading it, refusing data that are not what a file takes.
Does not own: the task's words (`Task.build_contract`), the signatures that a SavedModel has in itself (`readers.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.formats.kinds import FormatError, UnknownFileError
from official_trainer.lazy import tf
from official_trainer.tasks import export

Contract = Mapping[str, Any]
"""JSON: `inputs` and `outputs`, lists of `name`, `dtype` and `shape` (null: any size); `about`, the task's words."""


def of_specs(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a contract that the `TensorSpec`s of a function say, by name."""
    return {"inputs": _described(inputs), "outputs": _described(outputs)}


def _described(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, spec in specs.items():
        shape = None if spec.shape.rank is None else spec.shape.as_list()
        rows.append({"name": name, "dtype": spec.dtype.name, "shape": shape})
    return rows


def write(folder: str, contract: Contract) -> None:
    """Writes a contract into the folder of an export."""
    files.write_text_atomically(files.join(folder, export.CONTRACT), json.dumps(contract, indent=1) + "\n")


def read(path: str) -> dict[str, Any]:
    """Returns the contract that is beside a file.

    Raises:
      UnknownFileError: there is none.
    """
    beside = files.join(os.path.dirname(path) or ".", export.CONTRACT)
    if not files.exists(beside):
        how = (
            "copy it from the export together with the file, or export again with `official-trainer export --format=…`"
        )
        raise UnknownFileError(f"{path} has no {export.CONTRACT} beside it, so its inputs are unknown; {how}")
    contract: dict[str, Any] = files.read_json(beside)
    return contract


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
        dtype = tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)
        if not tf.TensorSpec(shape, row["dtype"]).is_compatible_with(tf.TensorSpec(value.shape, dtype)):
            raise FormatError(
                f"{path}: the input {name!r} is {row['dtype']} {shape} by its contract, and the data give {dtype.name} "
                f"{list(value.shape)}; use the config that it was exported with, or export the run again"
            )
