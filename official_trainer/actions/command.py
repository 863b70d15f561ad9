"""A program that is run at events: to send a message, copy a checkpoint, start the next job.

Owns: which hook is which event, the program's environment, log and time limit, and killing it with all
processes that it has started. No shell is used anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Literal

from official_trainer import files
from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig, PositiveFloat
from official_trainer.errors import UserError, describe_error
from official_trainer.shown import shorten
from official_trainer.stopping import PreemptedError, StopRequest
from official_trainer.tracking.jsonl import encode
from official_trainer.tracking.record import read_run

EventName = Literal["start", "step", "eval", "best", "end", "failure", "preempted", "stall"]
"""A process begins; the action is due at a step, or after an evaluation, or after one that is the best so far; the run
is done, failed, or was stopped and will be continued; the process hangs, and is about to end."""

STOP_SECONDS = 5.0
"""How long a program may still run when the run is asked to stop, at most; the scheduler waits for the run."""

_POLL_SECONDS = 0.1
_UNFIT = re.compile(r"[^\w.-]")
_PREFIX = "OFFICIAL_TRAINER_"
_LAST_BYTES = 2000
_SHOWN_CHARACTERS = 120


class CommandError(UserError, RuntimeError):
    """A program could not be run, failed, or took too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfig(ActionConfig):
    """Runs a program at events, and waits for it. What it prints goes to `model_dir/commands/NAME.log`.

    Attributes:
      events: when it is run. `start` of a process; `step` and `eval`: when the action is due, which unset means at
        summaries and after evaluations; `best`: that evaluation is the best so far; `end` of the run, its `failure`,
        `preempted`: it was asked to stop and will be continued, or `stall`: it hangs, and ends.
      argv: program and arguments, a list that no shell reads. The program finds in its environment what has happened:
        `OFFICIAL_TRAINER_EVENT`, `…_STEP`, `…_EXPERIMENT`, `…_MODEL_DIR`, `…_REASON`, and all metrics as JSON in
        `…_METRICS`.
      timeout_seconds: after so long it is killed, with all that it has started; a run that is asked to stop gives it 5
        seconds more at most.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[EventName, ...] = ("end", "failure")
    argv: tuple[str, ...] = ()
    timeout_seconds: PositiveFloat = 60.0

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.events:
            yield "events", "must name at least one event"
        if len(set(self.events)) < len(self.events):
            yield "events", "names an event twice"
        if self.when is not None and not {"step", "eval", "best"} & set(self.events):
            yield "when", "has no effect unless events has step, eval or best"
        if not self.argv or not self.argv[0]:
            yield "argv", "must name a program, for example [touch, /tmp/ended]"

    def build(self) -> Command:
        return Command(self)


class Command(Action):
    """Runs a program at events, in a session and process group of its own.

    After a restart it may be run again for an evaluation. It has no state.
    """

    def __init__(self, config: CommandConfig) -> None:
        self._config = config
        self._experiment = ""
        self._eval_logs: Mapping[str, float] = {}  # of the newest evaluation of this process

    def on_start(self, run: Run) -> None:
        self._experiment = (read_run(run.model_dir) or {}).get("experiment", "")
        program = self._config.argv[0]
        if shutil.which(program) is None:
            where = "is not an executable file" if os.sep in program else "is not on the PATH"
            split = ", ".join(program.split())
            fix = f"write each argument by itself: [{split}]" if " " in program else "give its path, or install it"
            raise CommandError(f"argv: {program!r} {where}; {fix}")
        if not run.is_dry_run:
            self._tell("start", run, {})

    def on_step(self, run: Run) -> None:
        self._tell("step", run, run.train_logs)

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        self._eval_logs = dict(logs)
        self._tell("eval", run, logs)
        best = (read_run(run.model_dir) or {}).get("best") if "best" in self._config.events else None
        if isinstance(best, Mapping) and best.get("step") == run.step:
            self._tell("best", run, logs)

    def on_stall(self, run: Run, reason: str) -> None:
        self._tell("stall", run, self._eval_logs or run.train_logs, reason)

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        logs = self._eval_logs or run.train_logs
        if failure is None:
            self._tell("end", run, logs, run.state.stop_reason)
            return
        event: EventName = "preempted" if isinstance(failure, PreemptedError | KeyboardInterrupt) else "failure"
        self._tell(event, run, logs, describe_error(failure).removesuffix(": "))

    def _tell(self, event: EventName, run: Run, logs: Mapping[str, float], reason: str | None = None) -> None:
        """Runs the program for an event, if it is one of the config's.

        Raises:
          CommandError: it cannot be run, was killed, or ended with an exit code that is not 0.
        """
        if event not in self._config.events:
            return
        facts = {"step": str(run.step), "event": event, "experiment": self._experiment, "model_dir": run.model_dir}
        facts["reason"] = reason or ""
        metrics = {name: encode(float(value)) for name, value in logs.items()}
        environment = {f"{_PREFIX}{name.upper()}": value for name, value in facts.items()}
        environment[f"{_PREFIX}METRICS"] = json.dumps(metrics, allow_nan=False)
        argv = self._config.argv
        line, moment = shlex.join(argv), f"(event {event} of step {run.step})"
        described = f"{shorten(line, _SHOWN_CHARACTERS)} {moment}"
        path = files.join(run.model_dir, "commands", f"{_UNFIT.sub('_', self.name or 'command')}.log")
        with _open_log(path) as log:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            log.write(f"--- {now} {line} {moment}\n".encode())
            log.flush()
            start = log.tell()
            try:
                code = self._run(argv, {**os.environ, **environment}, log, run.trainer.process_group.stop)
            except CommandError as error:
                raise CommandError(f"{described} {error}") from error.__cause__
            log.seek(max(start, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            last = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        if code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise CommandError(f"{described} {how}{': ' + last if last else ''}; its output is in {path}")

    def _run(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes], stop: StopRequest) -> int:
        """Runs a program to its end, and writes its output to `log`; returns its exit code.

        Raises:
          CommandError: it cannot be run, or was killed.
        """
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C does not reach it, and it can be killed with its children
            )
        except OSError as error:
            raise CommandError(f"cannot be run: {error.strerror}") from error
        try:
            return self._wait(process, stop)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _wait(self, process: subprocess.Popen[bytes], stop: StopRequest) -> int:
        """Returns the exit code of a program that ends within its time.

        Raises:
          CommandError: it has not.
        """
        timeout_seconds = self._config.timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        while stop.reason is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(_POLL_SECONDS, timeout_seconds))
        try:
            return process.wait(min(STOP_SECONDS, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            why = f"after timeout_seconds={timeout_seconds:g}"
            if stop.reason is not None:
                why = f"when the run was asked to stop ({stop.reason})"
            raise CommandError(f"had not ended {why} and was killed") from None


@contextlib.contextmanager
def _open_log(path: str) -> Iterator[IO[bytes]]:
    """Opens the log for a program to write to; a program can write to local files only."""
    files.make_dirs(os.path.dirname(path))
    if not files.is_url(path):
        with files.open_file(path, "ab") as log:
            yield log
        return
    with tempfile.TemporaryFile() as log:
        try:
            yield log
        finally:
            log.seek(0)
            with files.open_file(path, "ab") as remote:
                remote.write(log.read())
