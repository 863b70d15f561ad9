"""The files in a run directory for its config: `params.yaml`, and the gin bindings that were bound and used.

Owns: `params.yaml` and its history, `config.MODE.gin` and `operative_config.MODE.gin` (Model Garden's name), their
checksums. Does not own: binding (`garden/gin_bindings.py`), comparing a config with an earlier one
(`config_changes.py`), at which point of a run a file is written (`runs/train.py`, `runs/evaluate.py`).
"""

from __future__ import annotations

import hashlib
import itertools

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.config import Resolved
from official_trainer.garden.gin_bindings import Bindings, load_gin, operative

PARAMS_FILE = "params.yaml"


def write_params(model_dir: str, resolved: Resolved, *, is_shared: bool = False) -> None:
    """Writes `params.yaml`; what an earlier start with another config wrote there is kept as `params.<n>.yaml`.

    Args:
      model_dir: the run directory.
      resolved: the config in force.
      is_shared: whether the calling program writes there too; a file of its own stays as it is.
    """
    path = files.join(model_dir, PARAMS_FILE)
    content = configuration.dump(resolved, origins=True, shared=True).encode()
    before = files.read_bytes(path) if files.exists(path) else content
    if before != content:
        if is_shared and not before.startswith(b"# experiment: "):
            return
        kept = (files.join(model_dir, f"params.{number}.yaml") for number in itertools.count(1))
        files.write_bytes_atomically(next(place for place in kept if not files.exists(place)), before)
    files.write_bytes_atomically(path, content)


def gin_names(mode: str) -> tuple[str, str]:
    """Returns the names of both files of gin: what is bound, what was used."""
    return f"config.{mode}.gin", f"operative_config.{mode}.gin"


def bound_path(model_dir: str, mode: str) -> str:
    """Returns where the bindings of a run in `mode` are; the file can be given to `--gin_file`."""
    return files.join(model_dir, gin_names(mode)[0])


class OperativeConfig:
    """Writes both files of one process; without bindings it writes none.

    The files of an earlier start stay until this one has begun to train, because it may still be refused.
    """

    def __init__(self, model_dir: str, mode: str, bindings: Bindings | None) -> None:
        self._has_bindings = bindings is not None
        self._bound_path = bound_path(model_dir, mode)
        self._path = files.join(model_dir, gin_names(mode)[1])
        self._has_replaced = False
        self._written: dict[str, str] = {}

    def begin(self) -> None:
        """Writes what is bound, in a run directory without these files."""
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
        """Writes what gin has used so far, if that has changed, and returns the SHA-256 checksums of both files.

        Returns:
          `{"config_sha256": …, "operative_config_sha256": …}`; None without bindings.
        """
        if not self._has_replaced:
            return None
        self._write(self._path, load_gin().config._config_str(operative()))  # of a copy: other threads may be calling
        paths = {"config_sha256": self._bound_path, "operative_config_sha256": self._path}
        return {name: self._written[path] for name, path in paths.items()}

    def _write(self, path: str, text: str) -> None:
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if self._written.get(path) != checksum:
            files.write_text_atomically(path, text)
            self._written[path] = checksum
