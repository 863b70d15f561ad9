"""The process that imports a module to find out which experiments it registers.

Owns: this process: it reads a request in JSON from its standard input and writes the answer to its standard output;
what the import read.
Does not own: keeping the answer (`listings.py`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from official_trainer import user_code
from official_trainer.config import ConfigError, Origin
from official_trainer.garden import index as garden
from official_trainer.tasks import listings, registry, sources

_OF_THE_MACHINE = ("/proc/", "/sys/", "/dev/", "/etc/")


class Watch:
    """Notes what this process reads from here on.

    Attributes:
      read: files that were opened for reading; the source in place of a compiled file.
      listed: folders whose names were read.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.listed: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        place = arguments[0] if arguments and isinstance(arguments[0], str | os.PathLike) else None
        if event == "open" and place is not None and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            self.read.add(os.path.abspath(os.fspath(place)))
        elif event in ("os.listdir", "os.scandir"):
            self.listed.add(os.path.abspath(place or "."))

    def of_users(self, module: str) -> tuple[list[str], list[str]]:
        """Returns the files and the folders that are the user's."""
        read = {self._source(path) for path in list(self.read)}
        files = [path for path in read if user_code.is_users(path, module) and os.path.isfile(path)]
        folders = [path for path in list(self.listed) if user_code.is_users(path + os.sep, module)]
        files, folders = ([path for path in each if not path.startswith(_OF_THE_MACHINE)] for each in (files, folders))
        return sorted(files), sorted(folders)

    def _source(self, path: str) -> str:
        try:
            return importlib.util.source_from_cache(path)
        except ValueError:  # it is no compiled file
            return path


def answer(module: str, named_by: str, workspace: Path | None) -> dict[str, Any]:
    """Imports a module; returns what it registers, what that depended on, or the problem."""
    began = time.time_ns()
    watch = Watch()
    try:
        registry.enter_for(workspace)
        sources.load(sources.Source(module, Origin("file", named_by)))
    except ConfigError as error:
        return {"experiments": [], "problem": "; ".join(problem.message for problem in error.problems), "state": None}
    rows = [dataclasses.asdict(row) | {"path": str(row.path)} for row in _registered(module, workspace)]
    read, listed = watch.of_users(module)
    is_still = all(os.stat(path).st_mtime_ns <= began for path in read)  # else one was changed while it was read
    return {"experiments": rows, "problem": "", "state": listings.state(read, listed) if is_still else None}


def _registered(module: str, workspace: Path | None) -> Iterator[sources.Experiment]:
    for name, factory in sorted({**garden.imported(), **registry.registered(workspace)}.items()):
        place, function = sources.place_of(factory), garden.function_of(factory)
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        yield sources.Experiment(name, module, Path(place.name), place.line, summary)


def main() -> None:
    """Answers the request."""
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the module prints is not the answer
    workspace = Path(request["workspace"]) if request["workspace"] else None
    json.dump(answer(request["module"], request["named_by"], workspace), out)
    out.flush()
    os._exit(0)  # threads that the module has started do not matter
