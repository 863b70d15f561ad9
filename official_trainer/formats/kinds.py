"""What a format needs, and how near to the model its outputs have to be.

Owns: the table of formats, which libraries are missing.
Does not own: the names of formats (`config/schema.py`), their files (`tasks/export.py`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator

from official_trainer.errors import UserError

NEEDS = {
    "tflite": ("litert", ("ai_edge_litert",)),
    "tflite_float16": ("litert", ("ai_edge_litert",)),
    "tflite_dynamic": ("litert", ("ai_edge_litert",)),
    "tflite_int8": ("litert", ("ai_edge_litert",)),
    "onnx": ("onnx", ("tf2onnx", "onnx", "onnxruntime")),
}
"""The extra of this package, and the modules, by format; the others need nothing more."""
SIGNATURE = "serving_default"
QUANTISED = ("tflite_float16", "tflite_dynamic", "tflite_int8")
EXACT = 1e-5
"""How far an output may be from the model's, in parts of the output's range, where a format computes in float32."""


class FormatError(UserError, RuntimeError):
    """A format cannot be written or read, or is not the model."""


def missing(formats: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields what is not installed for each format that needs it, and the command that installs it."""
    for name in formats:
        extra, modules = NEEDS.get(name, ("", ()))
        if absent := [module for module in modules if importlib.util.find_spec(module) is None]:
            yield f"{name} needs {', '.join(absent)}, not installed here", f"pip install 'official-trainer[{extra}]'"
