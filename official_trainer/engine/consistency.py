"""What the processes of a run compare before they train: config, versions, and the checkpoint that each one sees.

Owns: which facts are compared, and the table of those that differ. Does not own: how they are sent
(`distributed/peers.py`).
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.distributed.peers import Peers
from official_trainer.errors import ExitCode, UserError
from official_trainer.tracking.record import read_run, versions

Facts = Mapping[str, str]

_SELF = "process"
_MISSING = "not there"


class DisagreementError(UserError, ValueError):
    """The processes of a run were started differently, or see different files."""

    exit_code = ExitCode.CONFIG


def of_run(experiment: str, mode: str, model_dir: str, config: Mapping[str, Any]) -> Facts:
    """Returns the facts that must agree before anything is built, among them every field of the config by its path."""
    return {
        "experiment": experiment,
        "mode": mode,
        "model_dir": model_dir,
        **{path: str(value) for path, value in config.items() if path != "runtime.task_index"},
        **{f"version of {name}": version for name, version in versions().items()},
    }


def of_checkpoint(prefix: str, step: int) -> Facts:
    """Returns the facts that must agree before a checkpoint is restored: it is the same one, of the same run."""
    directory = os.path.dirname(prefix)
    mark = files.join(directory, manifest.name(step))
    return {
        "run": (read_run(directory) or {}).get("run_id", _MISSING),
        "checkpoint": prefix,
        "manifest": hashlib.sha256(files.read_bytes(mark)).hexdigest()[:16] if files.exists(mark) else _MISSING,
    }


def check(peers: Peers, facts_of: Callable[[], Facts]) -> None:
    """Compares facts over all processes; a single process compares nothing.

    Raises:
      DisagreementError: some differ; the message is a table of those, raised in every process.
    """
    if peers.count == 1:
        return
    of_all = peers.exchange({_SELF: f"{socket.gethostname()}, pid {os.getpid()}", **facts_of()})
    names = [name for name in dict.fromkeys(name for facts in of_all for name in facts) if name != _SELF]
    differing = [name for name in names if len({facts.get(name, _MISSING) for facts in of_all}) > 1]
    if differing:
        raise DisagreementError(
            "the processes of this run do not agree; nothing was trained.\n"
            f"{_table(of_all, differing)}\n"
            "Start all of them with the same command, code, packages and files; model_dir has to be a place that all "
            "of them see."
        )


def _table(of_all: Sequence[Facts], differing: Sequence[str]) -> str:
    """Returns a column for each process, with the facts that differ."""
    header = ["", *(f"worker {number} ({facts[_SELF]})" for number, facts in enumerate(of_all))]
    rows = [header, *([name, *(facts.get(name, _MISSING) for facts in of_all)] for name in differing)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"  {line.rstrip()}" for line in lines)
