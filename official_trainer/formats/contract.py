"""`contract.json` beside an exported model: what its inputs and outputs are, and what the task says they mean.

Owns: its form, writing it.
Does not own: the task's words (`Task.build_contract`), the signatures that a SavedModel has in itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from official_trainer import files
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
