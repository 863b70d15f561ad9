"""A snapshot: the code of a workspace as it was when a job was submitted, which the job runs whenever it starts.

Owns: making a copy of the code, its archive, unpacking that.
Does not own: which files are code, what a copy holds about itself, what has changed since (`tracking/code_files.py`);
where a scheduler finds the copy (`launch/targets/`).

A snapshot is a folder whose name holds the checksum of all its code, so code that has not changed is not copied again.
Data that git ignores, and all else that is no code, is linked there: a relative path means what it means in the
workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from official_trainer import files
from official_trainer.tracking.code_files import (
    FILE,
    LAUNCHES,
    Snapshot,
    SnapshotError,
    at,
    digest_of,
    files_of,
    link_of,
    sum_of,
    sums_of,
)

_MOST_BYTES = 256 << 20
_NOT_LINKED = {".git", "__pycache__", LAUNCHES}
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on


def planned(workspace: str, folder: str) -> Snapshot:
    """Returns the snapshot that `take` would make or find, without making it.

    Raises:
      SnapshotError: the code cannot be read, or is larger than 256 MiB; the message names the largest files.
    """
    workspace = os.path.abspath(workspace)
    try:
        paths = files_of(workspace)
        _check_size(workspace, paths)
        return _made(workspace, folder, {path: sum_of(workspace, path) for path in paths})
    except OSError as error:
        what = f"{error.filename or workspace} cannot be read ({files.reason_of(error)}), so the job would lack it"
        raise SnapshotError(f"{what}; change its permissions, or add it to .gitignore if it is no code") from error


def _made(workspace: str, folder: str, sums: Mapping[str, str]) -> Snapshot:
    path = os.path.join(os.path.abspath(folder), f"code-{digest_of(sums)}")
    return Snapshot(path=path, workspace=workspace, made_at=path, sums=sums)


def take(workspace: str, folder: str) -> Snapshot:
    """Copies the code of a workspace to a folder of its own in `folder`, unless the same code is there already.

    Raises:
      SnapshotError: the code is larger than 256 MiB; the message names the largest files.
      OSError: a file cannot be read, or the copy cannot be written.
    """
    workspace = os.path.abspath(workspace)
    paths = files_of(workspace)
    _check_size(workspace, paths)
    files.make_dirs(folder)
    place = tempfile.mkdtemp(prefix="code.tmp-", dir=folder)
    try:
        os.chmod(place, 0o755)  # processes of the job may run as another user
        for path in paths:
            source, copy = os.path.join(workspace, path), os.path.join(place, path)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.islink(source):
                os.symlink(link_of(workspace, path), copy)
            else:
                shutil.copy2(source, copy)
        sums = {path: sum_of(place, path) for path in paths}  # of the copy: the workspace may be edited now
        made = _made(workspace, folder, sums)
        with contextlib.suppress(OSError, SnapshotError):  # it may have been edited, or removed in part
            if at(made.path) is not None and sums_of(made.path) == made.sums:
                return made
        known, parents = set(paths), {""}
        for path in paths:
            while path := os.path.dirname(path):
                parents.add(path)
        for parent in parents:  # what is no code is linked, a folder without code as a whole
            for name in os.listdir(os.path.join(workspace, parent)):
                path = os.path.join(parent, name)
                is_link = path not in known and path not in parents and name not in _NOT_LINKED
                if is_link and not name.endswith(".pyc"):
                    os.symlink(os.path.join(workspace, path), os.path.join(place, path))
        text = json.dumps({"workspace": workspace, "made_at": made.path, "sums": sums}, indent=1)
        files.write_text_atomically(os.path.join(place, FILE), text + "\n")
        shutil.rmtree(made.path, ignore_errors=True)  # it is not whole
        os.rename(place, made.path)
        return made
    finally:
        shutil.rmtree(place, ignore_errors=True)


def pack(code: Snapshot) -> None:
    """Writes the archive of a snapshot: its files of code, and what describes it; no link that leads elsewhere."""
    with files.written_atomically(code.archive) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for path in (FILE, *sorted(code.sums.keys() - set(code.links_out))):
            archive.add(os.path.join(code.path, path), path, recursive=False)


def unpack(archive: str, folder: str) -> Snapshot:
    """Unpacks an archive to a new folder.

    Raises:
      SnapshotError: it is damaged, or does not hold the code that its name says.
    """
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, **_SAFELY)
        code = at(folder)
    except (tarfile.TarError, EOFError, zlib.error, SnapshotError) as error:
        raise SnapshotError(f"{archive} cannot be unpacked ({error}); submit the job again") from error
    is_named = code is not None and os.path.basename(code.archive) == os.path.basename(archive)
    if code is None or not is_named or code.changed(sums_of(folder)) != sorted(code.links_out):
        raise SnapshotError(f"{archive} does not hold the code that its name says; submit the job again")
    return code


def _check_size(folder: str, paths: Iterable[str]) -> None:
    sizes = {path: os.lstat(os.path.join(folder, path)).st_size for path in paths}
    if sum(sizes.values()) > _MOST_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path} of {sizes[path] >> 20} MiB" for path in largest)
        raise SnapshotError(
            f"{folder}: its code has {sum(sizes.values()) >> 20} MiB, and a snapshot has at most "
            f"{_MOST_BYTES >> 20}; the largest files are {named}: add what is no code to .gitignore, or set another "
            "source in the profile"
        )
