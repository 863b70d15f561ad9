"""The record of a run: `run.json`, its identity and results, and `status.json`, its current phase.

Owns: both files, and whether a `model_dir` may be used by an experiment; beside them `git.diff`, the changes of the
code that no commit has.
Does not own: metrics by step (`tracking/`), checkpoints, or when a run enters a phase. Imports no TensorFlow.

Both files are replaced atomically, so a reader never sees an incomplete one; writing does not wait for the disk. A
restart continues `run.json`: the run keeps its id.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import importlib.metadata
import json
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.files import CODE_FILE, RUN_FILE, STATUS_FILE
from official_trainer.shown import first_few, shorten, without_secrets
from official_trainer.tracking.git_state import Code
from official_trainer.tracking.jsonl import encode, is_encoded
from official_trainer.tracking.monitored import Value

_PACKAGES = ("tensorflow", "keras", "tf_keras", "official_trainer")
_STATUS_OF_EXIT: Mapping[int, str] = {ExitCode.DONE: "done", ExitCode.PREEMPTED: "stopped"}
_START_SECONDS, _END_SECONDS = 0.02, 1.0
"""How long the start and the end of a run wait for git, which was asked before the run was built."""

_TYPES: Mapping[str, Any] = {
    **{"run_id": str, "experiment": str, "mode": str, "status": str, "restarts": int, "steps": dict},
    **{"last_checkpoint_step": int | None, "time": dict | None, "optimizers": dict | None},
    "best": {"metric": str, "value": float, "step": int},
}
"""What the fields hold that a restart, or another process, reads; `float` is a number as `encode` returns it,
or several by their names."""


def unix_seconds(text: Any) -> float | None:
    """Returns a recorded moment in Unix time; None for what is none."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


class ModelDirError(UserError, ValueError):
    """A directory that cannot be a run's `model_dir`."""

    exit_code = ExitCode.CONFIG


def prepare_model_dir(model_dir: str, experiment: str, *, is_shared: bool = False) -> list[str] | None:
    """Checks that `model_dir` is a directory in which `experiment` may run; creates it if it does not exist.

    Returns:
      What it holds; None if it was created.

    Args:
      model_dir: the run directory.
      experiment: registered name.
      is_shared: whether the calling program writes there too, so that other files there are allowed.

    Raises:
      ModelDirError: it cannot be used, and why. Nothing was written.
      StorageError: it is full, or fails.
    """
    check_name(model_dir)
    try:
        _check_owner(model_dir, experiment, is_shared)
        content = files.list_dir(model_dir) if files.exists(model_dir) else None
        _create(model_dir)
        return content
    except (ModelDirError, files.PathKindError):
        raise
    except Exception as error:
        if not (isinstance(error, OSError) or files.is_url(model_dir)):
            raise
        reason = files.reason_of(error)
        if (fault := files.as_storage_error(error, model_dir)) is not None and reason != os.strerror(errno.EROFS):
            raise fault from error
        what = f"--model_dir={model_dir} cannot be written: {files.as_denied(error) or reason}. Name another directory."
        raise ModelDirError(what) from error


def _create(model_dir: str) -> None:
    """Creates a run directory unless it is there, and checks that files can be created in it."""
    attempts_left = 9
    while True:
        try:
            files.make_dirs(model_dir)
            files.check_writable(model_dir)
            return
        except (FileExistsError, FileNotFoundError):  # another worker, which checks too, removed it
            attempts_left -= 1
            if not attempts_left:
                raise


def check_name(path: str, flag: str = "--model_dir") -> None:
    """Refuses a directory whose name TensorFlow cannot handle.

    Raises:
      ModelDirError: it holds a character of a pattern.
    """
    if problem := files.pattern_problem(path):
        raise ModelDirError(f"{flag}={path} {problem}.")


def read_run(model_dir: str) -> dict[str, Any] | None:
    """Returns the content of `run.json`, or None if there is no such file.

    Raises:
      ModelDirError: the file was not written by this package.
    """
    path = files.join(model_dir, RUN_FILE)
    try:
        run = files.parse_json(files.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ModelDirError(
            f"{path} cannot be read ({error}). Put a good copy back, or name another --model_dir."
        ) from error
    if not isinstance(run, dict) or "run_id" not in run:
        raise ModelDirError(f"{path} was not written by this program. Name another --model_dir.")
    if wrong := changed(run):
        what = ", ".join(f"{name} is {shorten(repr(run[name]))}" for name in wrong)
        raise ModelDirError(f"{path} was changed: {what}. Put a good copy back, or name another --model_dir.")
    return run


PRUNED = "pruned by its sweep"
"""What `stopped_early` says of a run that its sweep has ended."""


def mark_pruned(model_dir: str) -> None:
    """Records of a run, whose process has ended, that its sweep has ended it early; it is not to be continued."""
    path = files.join(model_dir, RUN_FILE)
    with contextlib.suppress(OSError, files.UnreadableFileError):  # `runs` names a damaged record
        _write(path, {**files.read_json(path), "status": "done", "stopped_early": PRUNED})


def changed(run: Mapping[str, Any]) -> list[str]:
    """Returns the fields of `run.json` that hold what this program does not write there."""
    return [name for name, types in _TYPES.items() if name in run and not _is_of(run[name], types)]


def _is_of(value: Any, types: Any) -> bool:
    """Whether a value has one of the types, or all fields of an object have theirs."""
    if isinstance(types, dict):
        fields = value if isinstance(value, dict) else {}
        return value is None or all(name in fields and _is_of(fields[name], types[name]) for name in types)
    if types is not float:
        return isinstance(value, types)
    return all(map(is_encoded, value.values() if isinstance(value, dict) else [value]))


class RunRecord:
    """Keeps `run.json` and `status.json` of one run. Every call has replaced its file when it returns.

    Args:
      model_dir: local path or URL, prepared before (`prepare_model_dir`).
      launch: how this process was started: the fields `experiment` (registered name), `mode` (`train_and_eval` and the
        like), `argv` and `config_digest` of `run.json`.
      clock: tells the time in Unix seconds.
      check: called before each write; raises if the directory at `model_dir` is not that of this process any more.
      code: the commit and the changes of the workspace; None records none.
    """

    def __init__(
        self,
        model_dir: str,
        launch: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.time,
        check: Callable[[], None] = lambda: None,
        code: Code | None = None,
    ) -> None:
        self.model_dir = str(model_dir)
        self._code = code
        self._launch = launch
        self._clock = clock
        self._check = check
        self._before: dict[str, Any] = {}
        self._run: dict[str, Any] = {}
        self._status: dict[str, Any] = {}

    @property
    def best(self) -> dict[str, Any] | None:
        """Metric, value and step of the best evaluation so far."""
        return self._run["best"]

    @property
    def stopped_early(self) -> str | None:
        """Why the run ended before its last step, if it has."""
        return self._run["stopped_early"]

    def start(self) -> None:
        """Begins a run, or a restart of the run in the directory, whose id, first start and best result are kept."""
        before = self._before = read_run(self.model_dir) or {}
        last_saved = self._read_status().get("last_saved")
        launch, now = self._launch, self._now()
        is_restart = bool(before) and "train" in launch["mode"]
        self._run = {
            "experiment": launch["experiment"],
            "mode": launch["mode"],
            "status": "running",
            "run_id": before.get("run_id") or uuid.uuid4().hex,
            "argv": list(map(without_secrets, launch["argv"])),
            "started": before.get("started", now),
            "restarted": now if is_restart else before.get("restarted"),
            "finished": None,
            "restarts": before.get("restarts", 0) + is_restart,
            "steps": dict(before.get("steps", {"start": 0, "current": 0, "end": None})),
            "last_checkpoint_step": before.get("last_checkpoint_step"),
            "best": before.get("best"),
            **dict.fromkeys(("error", "stopped_early")),
            "final_metrics": before.get("final_metrics"),
            "time": before.get("time"),
            "versions": versions(),
            "devices": [],
            **{name: before.get(name) for name in ("init_checkpoint", "input", "optimizers")},
            "gin": None,
            "git_revision": None,
            "config_digest": launch["config_digest"],
        }
        self._status = {
            "phase": "start",
            "step": None,
            "last_checkpoint_step": None,
            "last_saved": last_saved if isinstance(last_saved, str) else None,
            **dict.fromkeys(("exit_code", "error")),
            "updated": now,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._write_run()
        self._write_status()

    @property
    def last_checkpoint_step(self) -> int | None:
        """Step of the newest checkpoint that any process of this run has committed."""
        return self._run["last_checkpoint_step"]

    def note(self, **facts: Any) -> None:
        """Records what becomes known while the process runs, such as `devices`: each fact is a field of `run.json`."""
        self._run |= facts
        self._write_run()

    def set_span(self, start_step: int, end_step: int | None) -> None:
        """Records the first and the last step of this process; without an `end_step` the earlier one stays.

        A `start_step` above 0 is that of the checkpoint that was restored. A process that died between a commit and the
        next record has left an older one here.
        """
        self._run["steps"] |= {"start": start_step, "current": start_step}
        if start_step:
            self._status["last_checkpoint_step"] = self._run["last_checkpoint_step"] = start_step
            self._status["step"] = start_step
            self._write_status()
        if end_step is not None:
            self._run["steps"]["end"] = end_step
        self._take_code(_START_SECONDS)
        self._write_run()

    @property
    def is_first(self) -> bool:
        """Whether this process is the first one of its run."""
        return not self._before

    @property
    def time_before(self) -> dict[str, Any] | None:
        """The time account of earlier processes of the run."""
        return self._before.get("time")

    def take_step(self, step: int | None) -> None:
        """Takes the step that was done last, which the next write records; None keeps the one before."""
        if step is not None:
            self._status["step"] = self._run["steps"]["current"] = step

    def phase(self, name: str, step: int | None = None) -> None:
        """Records the current phase; without `step` the last one stays."""
        self._status["phase"] = name
        self.take_step(step)
        self._write_status()

    def checkpoint(self, step: int, *, is_new: bool = True) -> None:
        """Records that the checkpoint of `step` is committed, or that the run went back to it, if it is not new."""
        if is_new:
            self._status["last_saved"] = self._now()
        self._status["last_checkpoint_step"] = self._run["last_checkpoint_step"] = step
        self.take_step(step)
        self._write_status()
        self._take_code()
        self._write_run()

    def set_best(self, metric: str, value: Value, step: int) -> None:
        """Records the best evaluation so far; called after its checkpoint is committed."""
        self.note(best={"metric": metric, **_encoded({"value": value}), "step": step})

    def finish(self, exit_code: int, metrics: Mapping[str, Any] | None = None, *, error: str | None = None) -> None:
        """Ends the record of this process.

        Args:
          exit_code: of the process; 0 is `done`, 143 is `stopped`, anything else is `failed`.
          metrics: final metrics, which may be nested; None keeps those of an earlier process.
          error: the message of the error that ended it; a stop that is asked for is none.
        """
        error = None if exit_code == ExitCode.PREEMPTED else error
        self._run["error"] = error
        self._run["status"] = _STATUS_OF_EXIT.get(exit_code, "failed")
        self._run["finished"] = self._now()
        self._take_code(_END_SECONDS)
        if metrics is not None:
            self._run["final_metrics"] = _encoded(metrics)
        self._status |= {"phase": self._run["status"], "exit_code": int(exit_code), "error": error}
        self._write_run()
        self._write_status()

    def refuse(self, exit_code: int, *, error: str | None = None) -> None:
        """Ends the record of a process that did not start to run; the record of an earlier run is restored."""
        if not self._before:
            self.finish(exit_code, error=error)
            return
        self._run = self._before
        error = None if exit_code == ExitCode.PREEMPTED else error
        self._status |= {"phase": "refused", "exit_code": int(exit_code), "error": error}
        self._write_run()
        self._write_status()

    def _now(self) -> str:
        return datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).isoformat(timespec="seconds")

    def _take_code(self, wait_seconds: float = 0.0) -> None:
        """Records the commit and the changes of the code, once git has answered.

        Not before a process runs: the record and the changes of an earlier one are restored if it is refused.
        """
        if self._code is None or not self._code.wait(wait_seconds):
            return
        code, self._code = self._code, None
        self._run["git_revision"] = code.revision
        path = files.join(self.model_dir, CODE_FILE)
        self._check()
        with contextlib.suppress(OSError):  # no reason for a run to fail
            if code.changes:
                files.write_text_atomically(path, code.changes, durable=False)
            elif self._before:
                files.remove(path)

    def _write_run(self) -> None:
        self._check()
        _write(files.join(self.model_dir, RUN_FILE), self._run)

    def _read_status(self) -> dict[str, Any]:
        """Returns the status that the process before has left; empty if there is none that can be read."""
        with contextlib.suppress(OSError, files.UnreadableFileError):
            return files.read_json(files.join(self.model_dir, STATUS_FILE))
        return {}

    def _write_status(self) -> None:
        self._check()
        self._status["updated"] = self._now()
        _write(files.join(self.model_dir, STATUS_FILE), self._status)


def _check_owner(model_dir: str, experiment: str, is_shared: bool) -> None:
    if files.is_file(model_dir):
        raise ModelDirError(f"--model_dir={model_dir} is a file; name a directory.")
    run = read_run(model_dir)
    if run is None:
        # Harmless is what the file system leaves, or a process that was killed while it wrote its first record.
        names = (name for name in files.list_dir(model_dir) if not name.startswith((".", f"{RUN_FILE}.tmp-")))
        others = [name for name in names if name != "lost+found"]
        if others and not is_shared:
            raise ModelDirError(
                f"--model_dir={model_dir} holds {first_few(others)}, but no run of this program (no {RUN_FILE}). "
                "Name a new or an empty directory, so that nothing of yours is overwritten."
            )
    elif run.get("experiment") != experiment:
        raise ModelDirError(
            f"--model_dir={model_dir} holds a run of the experiment {run.get('experiment')!r}, not {experiment!r}. "
            f"Continue it with --experiment={run.get('experiment')}, or name another --model_dir."
        )


def _encoded(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _encoded(value) if isinstance(value, Mapping) else encode(float(value)) for name, value in metrics.items()
    }


def _write(path: str, values: Mapping[str, Any]) -> None:
    files.write_text_atomically(path, json.dumps(values, indent=2, allow_nan=False) + "\n", durable=False)


def versions() -> dict[str, str]:
    """Returns name → version of Python, TensorFlow, both Kerases and this package."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


@functools.cache  # every checkpoint needs it, and reading takes tens of milliseconds while the disk is busy
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree, or a build such as tensorflow-cpu
        return "unknown"
