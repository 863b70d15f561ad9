"""A program that is run at events: to send a message, copy a checkpoint, start the next job.

Owns: what the program is given (arguments, environment), its log, its time limit, its end with all it has started.
Does not own: which event is when, and the thread in which it runs (`events.py`). No shell is involved anywhere.
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
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Literal

from official_trainer import files
from official_trainer.actions import events
from official_trainer.actions.action import Run
from official_trainer.actions.events import Event, Happening
from official_trainer.config import ActionConfig, PositiveFloat
from official_trainer.errors import UserError, shorten

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
        summaries and after evaluations; `end` of the run, its `failure`, or `preempted`: it was asked to stop and will
        be continued.
      argv: program and arguments, a list that no shell reads. `{step}`, `{event}`, `{experiment}`, `{model_dir}`,
        `{reason}` and `{NAME}` of a metric of the evaluation are filled in; `{{step}}` is `{step}` as it is. The
        program finds the same in `OFFICIAL_TRAINER_STEP`, `…_EVENT`, `…_EXPERIMENT`, `…_MODEL_DIR`, `…_REASON`, and
        all metrics as JSON in `…_METRICS`.
      timeout_seconds: after so long it is killed, with all that it has started. The end of the run waits as long.
      wait: whether training waits for it. If not, it runs beside training, one at a time and in their order.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[Event, ...] = ("end", "failure")
    argv: tuple[str, ...] = ()
    timeout_seconds: PositiveFloat = 60.0
    wait: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from events.problems(self.events, self.when)
        if not self.argv or not self.argv[0]:
            yield "argv", "must name a program, for example [notify-send, '{event} at step {step}']"

    def build(self) -> Command:
        return Command(self.argv, self.events, timeout_seconds=self.timeout_seconds, wait=self.wait)


class Command(events.Teller):
    """Runs a program at events, in a session and process group of its own."""

    def __init__(
        self,
        argv: tuple[str, ...],
        events: tuple[Event, ...] = ("end", "failure"),
        *,
        timeout_seconds: float = 60.0,
        wait: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the fields of `CommandConfig`, and what tells the time in Unix seconds, for the log."""
        super().__init__(events, waits=wait, end_seconds=timeout_seconds)
        self._argv, self._timeout_seconds, self._clock = argv, timeout_seconds, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def monitored(self) -> tuple[str, ...]:
        names = (match["name"] for argument in self._argv for match in _PLACEHOLDER.finditer(argument))
        return tuple(dict.fromkeys(name for name in names if name and name not in FACTS))

    def on_start(self, run: Run) -> None:
        program = self._argv[0]
        if not _PLACEHOLDER.search(program) and shutil.which(program) is None:
            where = "is no program that may be run" if os.sep in program else "is not on the PATH"
            split = ", ".join(program.split())
            fix = f"write each argument by itself: [{split}]" if " " in program else "give its path, or install it"
            raise CommandError(f"argv: {program!r} {where}; {fix}")
        super().on_start(run)

    def tell(self, happening: Happening) -> None:
        values = happening.payload()
        argv = [fill(argument, values) for argument in self._argv]
        line, event = shlex.join(argv), f"(event {happening.event} of step {happening.step})"
        said = f"{shorten(line, _SHOWN_CHARACTERS)} {event}"
        with self._log_of(happening.model_dir) as (log, where):
            time_text = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).isoformat(timespec="seconds")
            log.write(f"--- {time_text} {line} {event}\n".encode())
            log.flush()
            start = log.tell()
            code = self._run(argv, _environment(values), log, said)
            log.seek(max(start, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            last = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        if code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise CommandError(f"{said} {how}{': ' + last if last else ''}; its output is in {where}")

    def give_up(self) -> None:
        self._is_over = True
        if self._process is not None:
            _kill(self._process)

    def _run(self, argv: list[str], environment: Mapping[str, str], log: IO[bytes], said: str) -> int:
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C is not its, and it can be killed with its children
            )
        except OSError as error:
            raise CommandError(f"{said} cannot be run: {error.strerror}") from error
        self._process = process
        try:
            if self._is_over:
                _kill(process)
            code = process.wait(self._timeout_seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            limit = f"{self._timeout_seconds:g}"
            raise CommandError(f"{said} had not ended after timeout_seconds={limit} and was killed") from None
        finally:
            self._process = None
        if self._is_over:
            raise CommandError(f"{said} had not ended in time at the end of the run and was killed")
        return code

    @contextlib.contextmanager
    def _log_of(self, model_dir: str) -> Iterator[tuple[IO[bytes], str]]:
        """Opens the log for a program to write to, and says where it is."""
        directory = files.join(model_dir, "commands")
        path = files.join(directory, f"{_UNFIT.sub('_', self.name or 'command')}.log")
        files.make_dirs(directory)
        if not files.is_url(path):
            with open(path, "a+b") as log:
                yield log, path
            return
        with tempfile.TemporaryFile() as log:  # a program can write to local files only
            try:
                yield log, path
            finally:
                log.seek(0)
                with files.open_file(path, "ab") as remote:
                    remote.write(log.read())


def fill(argument: str, values: Mapping[str, Any]) -> str:
    """Returns an argument with its placeholders filled in; one of which nothing is known yet is empty.

    Args:
      argument: as it is written.
      values: as `Happening.payload` returns them.
    """

    def value_of(match: re.Match[str]) -> str:
        if match["quoted"]:
            return match["quoted"]
        name = match["name"]
        found = values[name] if name in FACTS else values["metrics"].get(name.replace("|", "/"))
        return "" if found is None else str(found)

    return _PLACEHOLDER.sub(value_of, argument)


def _environment(values: Mapping[str, Any]) -> dict[str, str]:
    facts = {f"{_PREFIX}{name.upper()}": "" if values[name] is None else str(values[name]) for name in FACTS}
    return {**os.environ, **facts, f"{_PREFIX}METRICS": json.dumps(values["metrics"], allow_nan=False)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a program and all of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
