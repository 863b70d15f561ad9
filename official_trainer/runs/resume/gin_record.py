"""The files of gin bindings in a run directory: `config.MODE.gin` and `operative_config.MODE.gin`.

Owns: what is bound (the first file), what gin has passed to functions (the second, with Model Garden's name), their
checksums. Does not own: binding (`garden/gin_bindings.py`), when a run writes them (`runs/train.py`,
`runs/evaluate.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

from official_trainer import files
from official_trainer.garden.gin_bindings import Bindings, load_gin, operative


def names(mode: str) -> tuple[str, str]:
    """Returns the names of both files: of what is bound, and of what was used."""
    return f"config.{mode}.gin", f"operative_config.{mode}.gin"


def bound_path(model_dir: str, mode: str) -> str:
    """Returns the path of the bindings of a run in `mode`; the file can be passed to `--gin_file`."""
    return files.join(model_dir, names(mode)[0])


class OperativeConfig:
    """Writes both files of one process; without bindings it writes none.

    The files of an earlier start stay until `replace`, because this start may still be refused.
    """

    def __init__(self, model_dir: str, mode: str, bindings: Bindings | None) -> None:
        self._has_bindings = bindings is not None
        self._bound_path, self._path = (files.join(model_dir, name) for name in names(mode))
        self._has_replaced = False
        self._written: dict[str, str] = {}

    def begin(self) -> None:
        """Writes what is bound, in a run directory without such a file."""
        if self._has_bindings and not files.exists(self._bound_path):
            self.replace()

    def replace(self) -> None:
        """Replaces the files of an earlier start by what is bound now."""
        if self._has_bindings:
            self._has_replaced = True
            self._write(self._bound_path, load_gin().config_str())
        else:
            for path in (self._bound_path, self._path):
                files.remove(path)

    def save(self) -> dict[str, str] | None:
        """Writes what gin has passed so far, if it has changed, and returns the SHA-256 checksums of both files.

        Returns:
          `{"config_sha256": …, "operative_config_sha256": …}`; None without bindings.
        """
        if not self._has_replaced:
            return None
        self._write(self._path, load_gin().config._config_str(operative()))  # of a copy: other threads may be calling
        return {
            "config_sha256": self._written[self._bound_path],
            "operative_config_sha256": self._written[self._path],
        }

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Writes what is bound, and at the end of the block, also after an error, what gin has passed."""
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
