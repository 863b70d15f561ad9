"""The contract between a job and an engine that runs it: rendered, shown, and submitted with the engine's commands.

Owns: `Target` and its values. A target is one file in `targets/`; it is pure: it returns files and argument lists, and
starts nothing.
Does not own: writing the files and running the commands (`submission.py`).
"""

from __future__ import annotations

import abc
import dataclasses
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from official_trainer.launch.profile import Profile
from official_trainer.launch.spec import JobSpec
from official_trainer.launch.verdict import Outcome

P = TypeVar("P", bound=Profile)

Argv = tuple[str, ...]
"""A command as a list of words; no shell reads it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """A job as the files and commands of its engine.

    Attributes:
      files: text by file name; they are written to the job's own folder.
      submit: commands that start it, in order, each run in that folder.
    """

    files: Mapping[str, str]
    submit: tuple[Argv, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submitted(Generic[P]):
    """A job that was submitted.

    Attributes:
      name: of the job.
      id: the engine's name for it, which may be the same.
      profile: with which it was submitted.
      model_dir: its run directory.
      submit: the engine's commands that submitted it.
    """

    name: str
    id: str
    profile: P
    model_dir: str = ""
    submit: tuple[Argv, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """What a supervisor can do on the machine where it runs.

    Attributes:
      run: runs a command in the folder of the job, and keeps its output.
      say: prints a message for the user.
      wait: waits for that many seconds; returns whether the user wants to stop.
    """

    run: Callable[[Argv], subprocess.CompletedProcess[str]]
    say: Callable[[str], object]
    wait: Callable[[float], bool]


class Target(abc.ABC, Generic[P]):
    """An engine that runs jobs.

    Attributes:
      name: the word after `launch`.
      profile: the class of its profiles.
      needs: where to get its programs, for the message that one is missing.
      is_supervised: whether `job supervise` has to restart its jobs, because the engine does not.
    """

    name: ClassVar[str]
    profile: type[P]
    needs: ClassVar[str]
    is_supervised: ClassVar[bool] = False

    def variants(self, profile: P) -> tuple[tuple[str, ...], ...]:
        """Returns the overrides (`PATH=VALUE`) of each run of a sweep; empty for a single run.

        Run N trains in the folder N of the run directory. Each is checked as a job of its own.
        """
        del profile
        return ()

    @abc.abstractmethod
    def problems(self, job: JobSpec, profile: P) -> Iterator[str]:
        """Yields what the engine would refuse or would not run as intended, each with its fix."""

    @abc.abstractmethod
    def render(self, job: JobSpec, profile: P) -> Rendered:
        """Returns the files and commands of the job; pure."""

    def id_of(self, job: Submitted[P], output: str) -> str:
        """Returns the engine's name for the job, from the output of the last command of `Rendered.submit`.

        Empty if there is none in the output.
        """
        del output
        return job.name

    def restarts(self, profile: P) -> int | None:
        """Returns the most restarts of the job; None if the engine does not count them."""
        return profile.max_restarts

    @abc.abstractmethod
    def status(self, job: Submitted[P]) -> Argv:
        """Returns the command that prints the state of the job."""

    def is_running(self, code: int, output: str) -> bool:
        """Returns whether a job has not ended, from the exit code and the output of `status`."""
        return code == 0 and bool(output.strip())

    @abc.abstractmethod
    def logs(self, job: Submitted[P], *, follow: bool) -> Argv:
        """Returns the command that prints the output of the job; with `follow`, also the output to come."""

    def log_files(self, job: Submitted[P]) -> tuple[str, ...]:
        """Returns the files in the job's folder that `logs` reads; empty if the engine keeps the output."""
        del job
        return ()

    @abc.abstractmethod
    def cancel(self, job: Submitted[P]) -> tuple[Argv, ...]:
        """Returns the commands that end the job for good."""

    def resume(self, job: Submitted[P]) -> tuple[Argv, ...]:
        """Returns the commands that start the job again; training continues from its newest checkpoint."""
        return job.submit

    def supervise(self, job: Submitted[P], host: Host) -> Outcome:
        """Restarts the job until it has ended or the user stops; only where `is_supervised`.

        Returns:
          How the job has ended.
        """
        raise NotImplementedError(f"{self.name} restarts jobs itself")
