"""The code of a workspace, as a run records it: its files with their checksums, and the copy that a job runs.

Owns: which files are code, what a copy of them holds about itself, what differs between the code of two folders.
Does not own: making and packing copies (`launch/snapshot.py`), where an engine finds them (`launch/targets/`), what a
restart with another one means (`runs/resume/config_changes.py`).

The code is what git tracks, and what it neither tracks nor ignores, also in repositories inside; where there is no
repository, all files but hidden ones, those of environments and those above 10 MB. What runs have written is no code.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import os
import pathlib
import stat
import subprocess
from collections.abc import Iterator, Mapping

from official_trainer import files
from official_trainer.errors import ExitCode, UserError

FILE = ".official-trainer.json"
"""The file at the top of a snapshot that describes it."""

LAUNCHES = "launches"
"""The folder of a workspace with all that belongs to submitted jobs, snapshots too."""

_DIGITS = 12
_LARGE_BYTES = 10 << 20
_GIT = (("--cached",), ("--others", "--exclude-standard"))


class SnapshotError(UserError, ValueError):
    """A workspace of which there can be no snapshot."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A copy of the code of a workspace.

    Attributes:
      path: its folder.
      workspace: the folder that was copied.
      made_at: its folder where it was made, which may be on another machine.
      sums: the checksum of each file of code, by its path in either folder.
    """

    path: str
    workspace: str
    made_at: str
    sums: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The checksum of all code, in 12 hexadecimal digits."""
        return digest_of(self.sums)

    @property
    def archive(self) -> str:
        """The path of its archive, where it was made, if it has one."""
        return f"{self.made_at}.tar.gz"

    @property
    def links_out(self) -> list[str]:
        """The links that lead out of the workspace, which an archive does not hold."""
        return [path for path, each in self.sums.items() if each.startswith("link /")]

    @property
    def record(self) -> dict[str, str]:
        """What a run, and the manifests of its checkpoints, hold about it."""
        return {"digest": self.digest, "path": self.made_at}

    def changed(self, sums: Mapping[str, str]) -> list[str]:
        """Returns the files that are not the same where the code has other checksums, as `sums_of` returns them."""
        return sorted(path for path in self.sums.keys() | sums.keys() if self.sums.get(path) != sums.get(path))

    def as_it_is(self) -> Snapshot:
        """Returns it with the checksums that its files have now, because a copy can be edited, too."""
        of_links = {path: self.sums[path] for path in self.links_out}  # which an archive did not hold
        return dataclasses.replace(self, sums=of_links | sums_of(self.path))

    def place_of(self, folder: str) -> str:
        """Returns the copy of a folder of the workspace; one elsewhere, or without code, as it is."""
        inner = os.path.relpath(os.path.realpath(folder), self.workspace)
        is_code = inner == os.curdir or any(path.startswith(f"{inner}/") for path in self.sums)
        return os.path.normpath(os.path.join(self.path, inner)) if is_code else folder

    def difference(self, other: str) -> Iterator[str]:
        """Yields the lines of `diff -u` from this snapshot to another folder."""
        for path in self.changed(sums_of(other)):
            before, after = (_lines(os.path.join(folder, path)) for folder in (self.path, other))
            if any("\0" in line for line in (*before, *after)):
                yield f"Binary files a/{path} and b/{path} differ\n"
            else:
                yield from difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")


def at(folder: str | os.PathLike[str]) -> Snapshot | None:
    """Returns the snapshot that a folder is; None if it is none.

    Raises:
      SnapshotError: the file that describes it cannot be read.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return None
    try:
        values = files.read_json(path)
        names = {name: str(values[name]) for name in ("workspace", "made_at")}
        return Snapshot(path=os.fspath(folder), **names, sums=dict(values["sums"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path} cannot be read ({error}); submit the job again") from error


def sums_of(folder: str) -> dict[str, str]:
    """Returns the checksum of each file of code in a workspace, or a snapshot, by its path.

    Raises:
      SnapshotError: git fails, and so does not say what it ignores.
    """
    return {path: sum_of(folder, path) for path in files_of(folder)}


def digest_of(sums: Mapping[str, str]) -> str:
    """Returns the checksum of all code, in 12 hexadecimal digits."""
    text = "".join(f"{path}\0{each}\0" for path, each in sorted(sums.items()))
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:_DIGITS]


def files_of(folder: str) -> list[str]:
    """Returns the paths of the files and links that are code."""
    if (snapshot := at(folder)) is not None:
        return [path for path in snapshot.sums if os.path.lexists(os.path.join(folder, path))]
    is_output = functools.cache(lambda place: _holds_run(folder, place))
    listed = {path: os.path.join(folder, path) for path in _listed_by_git(folder) or _walked(folder)}
    there = [path for path, place in listed.items() if os.path.islink(place) or os.path.isfile(place)]
    return sorted(path for path in there if not is_output(os.path.dirname(path)))  # git lists what was removed, too


def _holds_run(folder: str, place: str) -> bool:
    """Whether a folder of the workspace is part of the directory of a run or sweep, or holds submitted jobs."""
    if not place:
        return False
    has_record = any(os.path.exists(os.path.join(folder, place, name)) for name in (files.RUN_FILE, files.SWEEP_FILE))
    return place == LAUNCHES or has_record or _holds_run(folder, os.path.dirname(place))


def _listed_by_git(folder: str) -> set[str]:
    """Returns what git lists as code, with that of repositories inside; nothing without one, or where all is ignored.

    Raises:
      SnapshotError: git fails, and so does not say what it ignores.
    """
    found: set[str] = set()
    for which in _GIT:
        command = ["git", "--no-optional-locks", "-C", folder, "ls-files", "-z", *which]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError as error:
            done = subprocess.CompletedProcess(command, 1, b"", f"git: {files.reason_of(error)}".encode())
        if done.returncode:
            _refuse_repository(folder, done.stderr.decode(errors="replace"))
            return set()
        found.update(os.fsdecode(path) for path in done.stdout.split(b"\0") if path)
    for path in sorted(found):
        place = os.path.join(folder, path).rstrip("/")
        if os.path.exists(os.path.join(place, ".git")) and not os.path.islink(place):
            found.update(os.path.join(path, each) for each in _listed_by_git(place))
    return found


def _refuse_repository(folder: str, said: str) -> None:
    """Raises an error if a folder is in a repository of git, after git has failed there."""
    if any(os.path.exists(os.path.join(place, ".git")) for place in (folder, *map(str, pathlib.Path(folder).parents))):
        reason = said.strip().partition("\n")[0]
        raise SnapshotError(
            f"{folder}: git fails there ({reason}), so it is not known which files it ignores, such as those with "
            "secrets; mend it until `git status` works, or set another source in the profile"
        )


def _walked(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            path = os.path.join(place, name)
            is_large = os.path.isfile(path) and os.path.getsize(path) > _LARGE_BYTES
            if not name.startswith(".") and not name.endswith(".pyc") and not is_large:
                yield os.path.relpath(path, folder)


def sum_of(folder: str, path: str) -> str:
    """Returns the checksum of a file, with whether it can be executed; of a link, where it leads."""
    place = os.path.join(folder, path)
    if os.path.islink(place):
        return f"link {link_of(folder, path)}"
    return files.sha256(place) + (" x" if os.stat(place).st_mode & stat.S_IXUSR else "")


def link_of(folder: str, path: str) -> str:
    """Returns where a link leads: relative within the folder, else absolute, so that a copy leads there too."""
    link = os.readlink(os.path.join(folder, path))
    inner = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return os.path.normpath(os.path.join(folder, inner)) if inner.split(os.sep)[0] == os.pardir else link


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line if line.endswith("\n") else f"{line}\n" for line in file]
    except OSError:  # it is in one of both folders only
        return []
