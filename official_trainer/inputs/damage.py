"""`explain_data_error`: which file is behind an error of TensorFlow's.

Owns: the way from a data section to its files when something has gone wrong. Does not own: the messages (`files.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from official_trainer.inputs import files, tfds
from official_trainer.inputs.context import DataError
from official_trainer.inputs.files import RecordFile


def explain_data_error(error: Exception, params_or_files: Any) -> DataError | None:
    """Returns an error that names file and offset (or the user's function) behind TensorFlow's, or None.

    TensorFlow says that a record is damaged but not in which file, so the files are read again, one by one.

    Args:
      error: what came out of the loop.
      params_or_files: a data section, a path or pattern, or a sequence of them.
    """
    try:
        return files.explain(error, _files(params_or_files))
    except DataError as explained:  # the files themselves are gone
        return explained


def _files(params_or_files: Any) -> Sequence[RecordFile]:
    if isinstance(params_or_files, str | list | tuple):
        return files.find_files(params_or_files)
    if getattr(params_or_files, "tfds_name", ""):
        return tfds.prepared_files(params_or_files)
    input_path = getattr(params_or_files, "input_path", "")
    return files.find_files(input_path) if input_path else []
