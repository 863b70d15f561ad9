"""Files that sources read: found by pattern, told apart from changed ones.

Owns: what a field of paths may hold, and the messages about it. Does not own: what is in a file.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence

from official_trainer.files import is_url, open_file, size_bytes
from official_trainer.inputs.files import find_files

_logger = logging.getLogger(__name__)
_END_BYTES = 1 << 16


@functools.lru_cache
def say_once(text: str, *, is_warning: bool = False) -> None:
    """Logs what is known of files once in a process, which builds its data several times."""
    _logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)


def problems(field: str, paths: str | Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with a field of paths or patterns before any file is looked for."""
    given = [paths] if isinstance(paths, str) else list(paths)
    if not any(given):
        yield field, "is not set; set it to a path, for example below data/"
    for path in filter(is_url, given):
        fix = "mount the bucket, for example with Cloud Storage FUSE, or copy the files"
        yield field, f"{path} is a URL, and examples are read by their number from local files only; {fix}"


def find(patterns: str | Sequence[str], field: str = "files") -> list[str]:
    """Returns the files that match, sorted, each once.

    Raises:
      DataError: a pattern matches none, or a file cannot be opened.
    """
    return [file.path for file in find_files(patterns, field=field)]


def fingerprint(paths: Sequence[str]) -> str:
    """Returns a text that changes with the names, the sizes, the first or the last bytes of files."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        size = size_bytes(path)
        with open_file(path, "rb") as file:
            first = file.read(_END_BYTES)
            file.seek(max(0, size - _END_BYTES))
            digest.update(repr((os.path.basename(path), size, first, file.read(_END_BYTES))).encode())
    return digest.hexdigest()
