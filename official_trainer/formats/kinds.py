"""What a format needs, and how near to the model its outputs have to be.

Owns: the table of formats, which libraries are missing, the refusal of a path that is no model.
Does not own: the names of formats (`config/schema.py`), their files and endings (`tasks/export.py`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.tasks import export

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


class UnknownFileError(UserError, ValueError):
    """A path that is named as a model, and is none."""

    exit_code = ExitCode.CONFIG


def missing(formats: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields what is not installed for each format that needs it, and the command that installs it."""
    for name in formats:
        extra, modules = NEEDS.get(name, ("", ()))
        if absent := [module for module in modules if importlib.util.find_spec(module) is None]:
            yield f"{name} needs {', '.join(absent)}, not installed here", f"pip install 'official-trainer[{extra}]'"


def kind_of(path: str) -> str:
    """Returns `saved_model`, `tflite`, `onnx`, `keras` or `weights` for a path.

    Raises:
      UnknownFileError: it is not there, or of another format.
    """
    if not files.exists(path):
        raise UnknownFileError(f"{path}: there is no such file or folder{files.near_hint(path)}")
    format_name = export.kind_of(path)
    if format_name is None:
        allowed = f"a folder with saved_model.pb, or a file that ends in {', '.join(export.ENDINGS)}"
        raise UnknownFileError(f"{path} is no model that can be read; expected {allowed}")
    return format_name


def refuse_missing(path: str) -> str:
    """Returns the format of a file, or refuses one whose library is not installed.

    Raises:
      FormatError: with the command that installs it.
      UnknownFileError: as `kind_of`.
    """
    format_name = kind_of(path)
    for what, fix in missing([format_name]):
        raise FormatError(f"{path}: {what}; {fix}")
    return format_name
