"""What a module registers when it is imported, found out by another process and kept between commands.

Owns: starting that process, what is kept, and when it is out of date: when a file that the import read has another
content, when a folder that it listed has other files, or when other packages are installed.
Does not own: the import (`listed.py`), which modules there are (`sources.py`).

The other process keeps what a module does at its import away from the command that lists: what it prints, what it
registers a second time, and its end if it crashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.config import Problem
from official_trainer.garden.cache import CacheFile
from official_trainer.lazy import select
from official_trainer.tasks.sources import Experiment, Source
from official_trainer.user_code import INSTALLED

_OURS = str(Path(__file__).parents[2])
_START = (
    "import sys; sys.dont_write_bytecode = True; "  # bytecode would hide an edit within the same second
    "sys.path[:] = sys.argv[1:]; from official_trainer.tasks import listed; "
    "sys.path[:] = sys.argv[2:]; listed.main()"
)
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a module registers.

    Attributes:
      experiments: those it registers, itself or by what it imports.
      problem: why they are not known; None if they are.
    """

    experiments: tuple[Experiment, ...] = ()
    problem: Problem | None = None


def kept(source: Source) -> Listing | None:
    """Returns what an earlier command has found out; None if nothing is kept, or if it is out of date."""
    content = _cache(source).read()
    try:
        if not content or content["state"] != state(content["state"]["files"], content["state"]["folders"]):
            return None
        return Listing(tuple(Experiment(**row | {"path": Path(row["path"])}) for row in content["experiments"]))
    except (KeyError, TypeError, AttributeError):
        return None


def listing(source: Source, workspace: Path | None) -> Listing:
    """Returns what a module registers, from the cache or by importing it in another process.

    Args:
      source: the module.
      workspace: the folder that contains `experiments/`, if there is one.
    """
    if (found := kept(source)) is not None:
        return found
    select()
    words = [sys.executable, "-c", _START, _OURS, *sys.path]
    place = str(workspace) if workspace is not None else None
    asked = json.dumps({"module": source.module, "named_by": source.named_by.brief, "workspace": place})
    done = subprocess.run(words, input=asked, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
        rows = [row | {"path": Path(row["path"]), "module": source.module} for row in answer["experiments"]]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        what = f"{source.module} cannot be imported: its process ends with exit code {done.returncode}: {last}"
        return Listing(problem=Problem(what, origin=source.named_by))
    if answer["problem"]:
        return Listing(problem=Problem(answer["problem"]))
    found = Listing(tuple(Experiment(**row) for row in rows))
    if answer["state"] is not None:
        as_text = [row | {"path": str(row["path"])} for row in rows]
        _cache(source).write({"state": answer["state"], "experiments": as_text})
    return found


def _cache(source: Source) -> CacheFile:
    """Returns the file for a module of this Python and these folders of modules."""
    own = os.path.dirname(sys.executable)  # on the path of a command, and not of `python -m`
    paths = list(dict.fromkeys(path for path in map(os.path.abspath, sys.path) if path != own))
    key = json.dumps([_FORMAT, source.module, sys.version, sys.prefix, paths])
    return CacheFile("modules", f"{source.module}-{hashlib.sha256(key.encode()).hexdigest()[:16]}")


def state(read: Iterable[str], listed: Iterable[str]) -> dict[str, Any]:
    """Returns what an import depended on, as it is now.

    Args:
      read: files that it read.
      listed: folders that it listed.
    """
    return {
        "files": {path: _content(path) for path in read},
        "folders": {path: _digest("\n".join(names_in(path)).encode()) for path in listed},
        "packages": _installed(),
    }


def names_in(folder: str) -> list[str]:
    """Returns the names in a folder; where Python searches modules, only those that could be one."""
    try:
        names = sorted(name for name in os.listdir(folder) if name != "__pycache__")
    except OSError:
        return []
    if folder not in map(os.path.abspath, sys.path):
        return names
    return [name for name in names if name.endswith(".py") or name.isidentifier()]


def _installed() -> Mapping[str, str]:
    """Returns the installed releases, with the time at which each was installed."""
    folders = [path for path in sys.path if os.path.basename(path) in INSTALLED and os.path.isdir(path)]
    found = (entry for folder in folders for entry in os.scandir(folder))
    suffixes = (".dist-info", ".egg-info", ".pth")
    dated = sorted((entry.path, entry.stat().st_mtime_ns) for entry in found if entry.name.endswith(suffixes))
    return {"digest": _digest(json.dumps(dated).encode())}


def _content(path: str) -> str:
    try:
        return _digest(files.read_bytes(path))
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
