"""A program that is run at events: to send a message, copy a checkpoint, start the next job.

Owns: the program's arguments, environment, log and time limit, and killing it with all processes that it has started.
Does not own: when an event occurs, and the thread in which the program runs (`events.py`). No shell is used anywhere.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Literal

from official_trainer import files
from official_trainer.actions import events
from official_trainer.actions.action import Run
from official_trainer.actions.events import Event, EventName
from official_trainer.config import ActionConfig, NonNegativeFloat, PositiveFloat
from official_trainer.errors import UserError
from official_trainer.shown import shorten

FACTS = ("step", "event", "experiment", "model_dir", "reason")
"""Placeholders that are no metrics."""

_PLACEHOLDER = re.compile(r"\{(?P<quoted>\{[A-Za-z_][\w./|-]*\})\}|\{(?P<name>[A-Za-z_][\w./|-]*)\}")
_UNFIT = re.compile(r"[^\w.-]")
_PREFIX = "OFFICIAL_TRAINER_"
_LAST_BYTES = 2000
_SHOWN_CHARACTERS = 120


class CommandError(UserError, RuntimeError):
    """A program could not be run, failed, or took too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfig(ActionConfig):
    """Runs a program at events. What it prints goes to `model_dir/commands/NAME.log`.

    Attributes:
      events: when it is run. `start` of a process; `step` and `eval`: when the action is due, which unset means at
        summaries and after evaluations; `best`: that evaluation is the best so far; `end` of the run, its `failure`,
        `preempted`: it was asked to stop and will be continued, or `stall`: it hangs, and ends.
      argv: program and arguments, a list that no shell reads. `{step}`, `{event}`, `{experiment}`, `{model_dir}`,
        `{reason}` and `{NAME}` of a metric of the evaluation are filled in; `{{step}}` is `{step}` as it is. The
        program finds the same in `OFFICIAL_TRAINER_STEP`, `…_EVENT`, `…_EXPERIMENT`, `…_MODEL_DIR`, `…_REASON`, and
        all metrics as JSON in `…_METRICS`.
      timeout_seconds: after so long it is killed, with all that it has started. The end of the run waits as long.
      min_interval_seconds: events `step`, `eval` and `best` that come sooner after the last of them are left out.
      wait: whether training waits for it. If not, it runs beside training, one at a time and in their order.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[EventName, ...] = ("end", "failure")
    argv: tuple[str, ...] = ()
    timeout_seconds: PositiveFloat = 60.0
    min_interval_seconds: NonNegativeFloat = 0.0
    wait: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from events.field_problems(self.events, self.when)
        if not self.argv or not self.argv[0]:
            yield "argv", "must name a program, for example [notify-send, '{event} at step {step}']"

    def build(self) -> Command:
        return Command(self)


class Command(events.Notifier):
    """Runs a program at events, one at a time, each in a session and process group of its own."""

    def __init__(self, config: CommandConfig) -> None:
        super().__init__(config, waits=config.wait)
        self._process: subprocess.Popen[bytes] | None = None  # the one that is running

    def end_seconds(self) -> float:
        return self._config.timeout_seconds

    def monitored(self) -> tuple[str, ...]:
        names = (match["name"] for argument in self._config.argv for match in _PLACEHOLDER.finditer(argument))
        return tuple(dict.fromkeys(name for name in names if name and name not in FACTS))

    def on_start(self, run: Run) -> None:
        program = self._config.argv[0]
        if not _PLACEHOLDER.search(program) and shutil.which(program) is None:
            where = "is not an executable file" if os.sep in program else "is not on the PATH"
            split = ", ".join(program.split())
            fix = f"write each argument by itself: [{split}]" if " " in program else "give its path, or install it"
            raise CommandError(f"argv: {program!r} {where}; {fix}")
        super().on_start(run)

    def send(self, event: Event) -> None:
        argv = [fill(argument, event) for argument in self._config.argv]
        line, place = shlex.join(argv), f"(event {event['event']} of step {event['step']})"
        described = f"{shorten(line, _SHOWN_CHARACTERS)} {place}"
        path = files.join(event["model_dir"], "commands", f"{_UNFIT.sub('_', self.name or 'command')}.log")
        with _open_log(path) as log:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            log.write(f"--- {now} {line} {place}\n".encode())
            log.flush()
            start = log.tell()
            try:
                facts = {f"{_PREFIX}{name.upper()}": "" if event[name] is None else str(event[name]) for name in FACTS}
                facts[f"{_PREFIX}METRICS"] = json.dumps(event["metrics"], allow_nan=False)
                code = self._run(argv, {**os.environ, **facts}, log)
            except CommandError as error:
                raise CommandError(f"{described} {error}") from error.__cause__
            log.seek(max(start, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            last = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        if code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise CommandError(f"{described} {how}{': ' + last if last else ''}; its output is in {path}")

    def abort(self) -> None:
        """Kills the program that is running, and each that is started later."""
        super().abort()
        if self._process is not None:
            _kill(self._process)

    def _run(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> int:
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
        self._process = process
        try:
            if self._is_aborted:
                _kill(process)
            code = process.wait(self._config.timeout_seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            limit = f"timeout_seconds={self._config.timeout_seconds:g}"
            raise CommandError(f"had not ended after {limit} and was killed") from None
        finally:
            self._process = None
        if self._is_aborted:
            raise CommandError("had not ended in time at the end of the run and was killed")
        return code


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


def fill(argument: str, values: Event) -> str:
    """Returns an argument of the config with its placeholders filled in; a placeholder without a value is empty."""

    def value_of(match: re.Match[str]) -> str:
        if match["quoted"]:
            return match["quoted"]
        name = match["name"]
        found = values[name] if name in values and name != "metrics" else values["metrics"].get(name.replace("|", "/"))
        return "" if found is None else str(found)

    return _PLACEHOLDER.sub(value_of, argument)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a program and all of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
