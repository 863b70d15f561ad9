"""What a format needs, and how near to the model its outputs have to be.

Owns: the table of formats, which libraries are missing, the kind of a file that a user names.
Does not own: the names of formats (`config/schema.py`), and of their files (`tasks/export.py`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator

from official_trainer import files
from official_trainer.errors import ExitCode, UserError

NEEDS = {
    "tflite": ("litert", ("ai_edge_litert",)),
    "tflite_float16": ("litert", ("ai_edge_litert",)),
    "tflite_dynamic": ("litert", ("ai_edge_litert",)),
    "tflite_int8": ("litert", ("ai_edge_litert",)),
    "onnx": ("onnx", ("tf2onnx", "onnx", "onnxruntime")),
    "serve": ("serve", ("starlette", "uvicorn")),
}
"""The extra of this package, and the modules, by format, and for the verb `serve`; the others need nothing more."""
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
        if absent := [each for each in modules if importlib.util.find_spec(each) is None]:
            yield f"{name} needs {', '.join(absent)}, not installed here", f"pip install 'official-trainer[{extra}]'"


def kind_of(path: str) -> str:
    """Returns `saved_model`, `tflite`, `onnx`, `keras` or `weights` for a path.

    Raises:
      UnknownFileError: it is not there, or of another kind.
    """
    endings = {".tflite": "tflite", ".onnx": "onnx", ".keras": "keras", ".weights.h5": "weights"}
    if not files.exists(path):
        raise UnknownFileError(f"{path}: there is no such file or folder{files.near_hint(path)}")
    if files.is_dir(path) and files.exists(files.join(path, "saved_model.pb")):
        return "saved_model"
    for ending, kind in endings.items():
        if path.endswith(ending) and os.path.isfile(path):
            return kind
    allowed = f"a folder with saved_model.pb, or a file that ends in {', '.join(endings)}"
    raise UnknownFileError(f"{path} is no model that can be read; expected {allowed}")


def newest_export(run_dir: str) -> str:
    """Returns the newest SavedModel that a run exported.

    Raises:
      UnknownFileError: it has none.
    """
    folder = files.join(run_dir, "export")
    for name in sorted((each for each in files.list_dir(folder) if each.isdecimal()), key=int, reverse=True):
        if files.exists(files.join(folder, name, "saved_model.pb")):
            return files.join(folder, name)
    raise UnknownFileError(f"{run_dir} has no export; write one: official-trainer export --model_dir={run_dir}")


def refuse_missing(path: str) -> str:
    """Returns the kind of a file, or refuses one whose library is not installed.

    Raises:
      FormatError: with the command that installs it.
      UnknownFileError: as `kind_of`.
    """
    kind = kind_of(path)
    for what, fix in missing([kind]):
        raise FormatError(f"{path}: {what}; {fix}")
    return kind
