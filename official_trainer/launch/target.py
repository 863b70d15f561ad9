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
    """An engine that runs jobs, with the profile of one of them.

    Attributes:
      name: the word after `launch`.
      profile_class: the class of its profiles.
      needs: where to get its programs, for the message that one is missing.
      is_supervised: whether `job supervise` has to restart its jobs, because the engine does not.
      runs_sweeps: whether its jobs can be the workers of a sweep.
      profile: of the job.
      is_sweep: whether the job is that of a sweep, as in its `JobSpec`.
    """

    name: ClassVar[str]
    profile_class: ClassVar[type[Profile]]
    needs: ClassVar[str]
    is_supervised: ClassVar[bool] = False
    runs_sweeps: ClassVar[bool] = False

    def __init__(self, profile: P, *, is_sweep: bool = False) -> None:
        self.profile, self.is_sweep = profile, is_sweep

    @abc.abstractmethod
    def problems(self, job: JobSpec) -> Iterator[str]:
        """Yields what the engine would refuse or would not run as intended, each with its fix."""

    @abc.abstractmethod
    def render(self, job: JobSpec) -> Rendered:
        """Returns the files and commands of the job; pure."""

    def id_of(self, name: str, output: str) -> str:
        """Returns the engine's name for a job, which is mostly the same; empty if there is none in the output.

        Args:
          name: of the job.
          output: of the last command of `Rendered.submit`.
        """
        del output
        return name

    def restarts(self) -> int:
        """Returns the most restarts of the job."""
        return self.profile.max_restarts

    @abc.abstractmethod
    def status(self, job_id: str) -> Argv:
        """Returns the command that prints the state of the job."""

    def is_running(self, code: int, output: str) -> bool:
        """Returns whether a job has not ended, from the exit code and the output of `status`."""
        return code == 0 and bool(output.strip())

    def ask_why(self, job_id: str) -> Argv | None:
        """Returns the command that asks why a job does not go on; None if `status` says it."""
        del job_id
        return None

    def reasons(self, job_id: str, output: str) -> Iterator[str]:
        """Yields why a job does not go on, from the output of `ask_why`."""
        yield from ()

    @abc.abstractmethod
    def logs(self, job_id: str, *, follow: bool) -> Argv:
        """Returns the command that prints the output of the job; with `follow`, also the output to come."""

    def log_files(self) -> tuple[str, ...]:
        """Returns the files in the job's folder that `logs` reads; empty if the engine keeps the output."""
        return ()

    @abc.abstractmethod
    def cancel(self, job_id: str) -> tuple[Argv, ...]:
        """Returns the commands that end the job for good."""

    def resume(self, job_id: str, submit: tuple[Argv, ...]) -> tuple[Argv, ...]:
        """Returns the commands that start a job again, which `submit` started; it continues its newest checkpoint."""
        del job_id
        return submit

    def supervise(self, job_id: str, submit: tuple[Argv, ...], model_dir: str, host: Host) -> Outcome:
        """Restarts the job until it has ended or the user stops; only where `is_supervised`.

        Args:
          job_id: the engine's name for it.
          submit: the commands that submitted it.
          model_dir: its run directory.
          host: runs commands, prints and waits.

        Returns:
          How the job has ended.
        """
        raise NotImplementedError(f"{self.name} restarts jobs itself")
