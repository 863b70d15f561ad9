"""The contract between a job and what runs it: rendered first, shown, and submitted with the engine's own commands.

Owns: `Target` and the values that pass through it. A target is one file beside this one; it is pure: it returns files
and argument lists and starts nothing. Does not own: writing and running them (`submission.py`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from official_trainer.launch.profile import Profile
from official_trainer.launch.spec import JobSpec
from official_trainer.launch.verdict import Outcome

P = TypeVar("P", bound=Profile)

Argv = tuple[str, ...]
"""One command as its words; no shell ever reads it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """A job in the words of its engine.

    Attributes:
      files: text by file name; they are written to a folder of the job's own.
      submit: commands that start it, in order, each run in that folder.
    """

    files: Mapping[str, str]
    submit: tuple[Argv, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submitted(Generic[P]):
    """A job that was submitted.

    Attributes:
      name: what the job is called.
      id: what the engine calls it; the name again where it keeps that.
      profile: how it was submitted.
    """

    name: str
    id: str
    profile: P


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """A command of an engine that has ended.

    Attributes:
      code: its exit code.
      out: what it has printed.
      err: what it has complained about.
    """

    code: int
    out: str
    err: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """What a supervisor can do on the machine where it runs.

    Attributes:
      run: runs a command in the folder of the job.
      say: prints a message for the user.
      wait: waits for that many seconds; returns whether the user wants to stop.
    """

    run: Callable[[Argv], Ran]
    say: Callable[[str], object]
    wait: Callable[[float], bool]


class Target(abc.ABC, Generic[P]):
    """Where jobs run.

    Attributes:
      name: the word after `launch`.
      profile: the section that says how; a subclass of `Profile`.
      needs: where to get its programs, for the message that one is missing.
      is_supervised: whether the engine does not restart a job by itself, so that `job supervise` does.
    """

    name: ClassVar[str]
    profile: type[P]
    needs: ClassVar[str]
    is_supervised: ClassVar[bool] = False

    def variants(self, profile: P) -> tuple[tuple[str, ...], ...]:
        """Returns the overrides (`PATH=VALUE`) of each run, where a profile asks for several.

        Run N has the folder N of the run directory. Each is checked as if it were alone.
        """
        del profile
        return ()

    @abc.abstractmethod
    def problems(self, job: JobSpec, profile: P) -> Iterator[str]:
        """Yields what the engine would refuse, or would run otherwise than meant, each with its fix."""

    @abc.abstractmethod
    def render(self, job: JobSpec, profile: P) -> Rendered:
        """Returns the job in the engine's words; pure."""

    def id_of(self, job: Submitted[P], output: str) -> str:
        """Returns what the engine calls the job, from what the last command of `Rendered.submit` has printed.

        Empty if that says nothing of a job.
        """
        del output
        return job.name

    def restarts(self, profile: P) -> int | None:
        """Returns how often the job is started again at most; None where nobody counts."""
        return profile.max_restarts

    @abc.abstractmethod
    def status(self, job: Submitted[P]) -> Argv:
        """Returns the command that says how the job is."""

    def is_running(self, code: int, output: str) -> bool:
        """Tells whether a job has not ended, from the exit code of `status` and what that has printed."""
        return code == 0 and bool(output.strip())

    @abc.abstractmethod
    def logs(self, job: Submitted[P], *, follow: bool) -> Argv:
        """Returns the command that prints what the job has printed, and with `follow` goes on."""

    def log_files(self, job: Submitted[P]) -> tuple[str, ...]:
        """Returns the files in the job's folder that `logs` reads; none where the engine keeps what is printed."""
        del job
        return ()

    @abc.abstractmethod
    def cancel(self, job: Submitted[P]) -> tuple[Argv, ...]:
        """Returns the commands that end the job for good."""

    def resume(self, job: Submitted[P], rendered: Rendered) -> tuple[Argv, ...]:
        """Returns the commands that start it again; training goes on from its newest checkpoint."""
        del job
        return rendered.submit

    def supervise(self, job: Submitted[P], rendered: Rendered, model_dir: str, host: Host) -> Outcome:
        """Restarts the job until it has ended or the user stops; only where `is_supervised`.

        Returns:
          How the job has ended.
        """
        raise NotImplementedError(f"{self.name} restarts jobs itself")
