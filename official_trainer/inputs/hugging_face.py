"""Rows of a `datasets.Dataset`, by its columns in Arrow where these say all.

Owns: which of these datasets have such columns. Does not own: columns of Arrow (`arrow_columns.py`), datasets on a disk
(`sources/hf.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from official_trainer.inputs.arrow_columns import as_numpy, tensor_type


def has_columns(source: Any) -> bool:
    """Whether an object is a `datasets.Dataset` that a transform and features such as images leave as it is stored."""
    datasets: Any = sys.modules.get("datasets")  # a dataset in hand was made with it
    kind: Any = getattr(datasets, "Dataset", None)
    if kind is None or not isinstance(source, kind) or source.format["type"] not in (None, "arrow", "numpy"):
        return False
    try:
        for name in source.format["columns"]:
            tensor_type(source.features.arrow_schema.field(name).type)
    except ValueError:
        return False
    # What is decoded has another form than what is stored: an image instead of its file.
    return not datasets.features.features.require_decoding(dict(source.features), ignore_decode_attribute=True)


def take(table: Any, indices: Sequence[int]) -> dict[str, Any]:
    """Returns rows of a dataset in the format `arrow`, as arrays `[n, …]`."""
    found = table[list(indices)]
    return {name: as_numpy(found.column(name).combine_chunks(), name) for name in found.column_names}
