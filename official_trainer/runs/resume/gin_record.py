"""The files of a run for its gin bindings: the bound arguments, and those that gin has really used.

Owns: `config.MODE.gin` and `operative_config.MODE.gin` (Model Garden's name) in the run directory, their checksums.
Does not own: binding (`garden/gin_bindings.py`), when a run is at which point (`runs/train.py`, `runs/evaluate.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from official_trainer import files
from official_trainer.garden.gin_bindings import Bindings, operative
from official_trainer.garden.gin_syntax import load_gin


def names(mode: str) -> tuple[str, str]:
    """Returns the names of both files: what is bound, what was used."""
    return f"config.{mode}.gin", f"operative_config.{mode}.gin"


def bound_path(model_dir: str, mode: str) -> str:
    """Returns where the bindings of a run in `mode` are; the file can be given to `--gin_file`."""
    return files.join(model_dir, names(mode)[0])


class OperativeConfig:
    """Keeps both files of one process; without bindings there are none.

    The files of an earlier start stay until this one has begun to train, because it may still be refused.
    """

    def __init__(self, model_dir: str, mode: str, bindings: Bindings | None) -> None:
        self._has_bindings = bindings is not None
        self._bound_path = bound_path(model_dir, mode)
        self._path = files.join(model_dir, names(mode)[1])
        self._is_ours = False
        self._written: dict[str, str] = {}

    def begin(self) -> None:
        """Writes what is bound, in a run directory without these files."""
        if self._has_bindings and not files.exists(self._bound_path):
            self.replace()

    def replace(self) -> None:
        """Writes what is bound over what an earlier start had bound."""
        self._is_ours = self._has_bindings
        if self._has_bindings:
            self._write(self._bound_path, load_gin().config_str())
            return
        for path in (self._bound_path, self._path):
            files.remove(path)

    def save(self) -> dict[str, str] | None:
        """Writes what gin has used so far, if that has changed, and returns the SHA-256 checksums of both files.

        Returns:
          `{"config_sha256": …, "operative_config_sha256": …}`; None without bindings.
        """
        if not self._is_ours:
            return None
        self._write(self._path, load_gin().config._config_str(operative()))  # of a copy: other threads may be calling
        paths = {"config_sha256": self._bound_path, "operative_config_sha256": self._path}
        return {name: self._written[path] for name, path in paths.items()}

    @contextlib.contextmanager
    def kept(self) -> Iterator[Any]:
        """Writes what is bound, and at the end of the block, whichever way it ends, what gin has used."""
        self.replace()
        try:
            yield
        finally:
            self.save()

    def _write(self, path: str, text: str) -> None:
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if self._written.get(path) != checksum:
            files.write_text_atomically(path, text)
            self._written[path] = checksum
