"""What commands keep for later ones, because finding it out again takes seconds.

Owns: the folder, `official-trainer` in `$XDG_CACHE_HOME` or else in `~/.cache`, and its files of JSON.
Does not own: what is kept, and when it is out of date; who keeps something knows that.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from official_trainer import files

_MOST_BYTES = 32 << 20


class CacheFile:
    """A file of the cache.

    Attributes:
      path: the file; None if nothing is to be kept.
    """

    def __init__(self, *names: str) -> None:
        """Names the file: folders, and the name without its suffix; no names for one that is never kept."""
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        *folders, name = (name.replace("/", "%2F") for name in names or ("",))
        self.path = Path(home, "official-trainer", *folders, f"{name}.json") if names else None

    def read(self) -> dict[str, Any]:
        """Returns the content of the file; empty if there is none, or if it is damaged."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if self.path is not None:
                content = json.loads(files.read_regular_text(str(self.path), _MOST_BYTES))
                return content if isinstance(content, dict) else {}
        return {}

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes `content`, if the cache can be written."""
        if self.path is None:
            return
        with contextlib.suppress(OSError, files.StorageError):  # without a cache, commands only take longer
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text_atomically(str(self.path), json.dumps(content), durable=False)
