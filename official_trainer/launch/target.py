"""The contract between a job and a scheduler that runs it: rendered, shown, and submitted with its commands.

Owns: `Target` and its values. A target is one file in `targets/`; it is pure: it returns files and argument lists,
reads the answers of its scheduler, and starts nothing.
Does not own: writing the files and running the commands (`schedulers.py`).
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Literal, Self, TypeVar

from official_trainer.launch.profile import SNAPSHOT, Profile
from official_trainer.launch.spec import JobSpec
from official_trainer.processes.verdict import Outcome
from official_trainer.shown import shorten

P = TypeVar("P", bound=Profile)

Argv = tuple[str, ...]
"""A command as a list of words; no shell reads it."""


SAME = re.compile(r"^# <the same in every job>\n(.*?)^# </the same in every job>\n", flags=re.MULTILINE | re.DOTALL)
"""What a terminal leaves out of a script that is only shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """A job as the files and commands of its scheduler.

    Attributes:
      files: text by file name; they are written to the job's own folder.
      submit: commands that start it, in order, each run in that folder.
    """

    files: Mapping[str, str]
    submit: tuple[Argv, ...]


class Phase(enum.Enum):
    """Whether a job has ended: `RUNNING` includes a job that waits to start, `UNKNOWN` is neither yes nor no."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class JobState:
    """The state of a job, from an answer of its scheduler.

    Attributes:
      phase: whether the job has ended.
      text: the scheduler's word for its state, in lower case, such as `pending`; of an unknown state, the reason.
    """

    phase: Phase
    text: str


GONE = JobState(Phase.ENDED, "ended")
"""The state of a job that its scheduler does not have any more: how it ended is not known."""


def unknown(ran: subprocess.CompletedProcess[str]) -> JobState:
    """Returns the state of a job after an answer that does not say it: the scheduler failed, or printed other text."""
    if ran.returncode:
        return JobState(Phase.UNKNOWN, last_error(ran))
    printed = shorten(ran.stdout.strip())
    return JobState(Phase.UNKNOWN, f"{ran.args[0]} printed {printed!r}, which says nothing of the job")


def last_error(ran: subprocess.CompletedProcess[str]) -> str:
    """Returns the line of stderr that says why a command has failed: the last one, or gcloud's before its details."""
    lines = [line for line in reversed(ran.stderr.splitlines()) if line.strip()]
    return next((line for line in lines if line.startswith("ERROR:")), (lines or [f"exit code {ran.returncode}"])[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """What a supervisor can do on the machine where it runs.

    Attributes:
      run: runs a command in the folder of the job, and keeps its output.
      ask: the same for a command that changes nothing, which is killed, and has failed, if it does not end in time.
      say: prints a message for the user.
      wait: waits for that many seconds; returns whether the user wants to stop.
    """

    run: Callable[[Argv], subprocess.CompletedProcess[str]]
    ask: Callable[[Argv], subprocess.CompletedProcess[str]]
    say: Callable[[str], object]
    wait: Callable[[float], bool]


class Target(abc.ABC, Generic[P]):
    """A scheduler that runs jobs, with the profile of one of them.

    Attributes:
      name: the word after `launch`.
      profile_class: the class of its profiles.
      needs: where to get its programs, for the message that one is missing.
      is_supervised: whether `job supervise` has to restart its jobs, because the scheduler does not.
      runs_sweeps: whether its jobs can be the workers of a sweep.
      gets_code_as: as what its jobs get a snapshot of the workspace, if their profile has it as its `source`.
      profile: of the job.
      is_sweep: whether the job is that of a sweep, as in its `JobSpec`.
    """

    name: ClassVar[str]
    profile_class: ClassVar[type[Profile]]
    needs: ClassVar[str]
    is_supervised: ClassVar[bool] = False
    runs_sweeps: ClassVar[bool] = False
    gets_code_as: ClassVar[Literal["folder", "archive"] | None] = None

    def __init__(self, profile: P, *, is_sweep: bool = False) -> None:
        self.profile, self.is_sweep = profile, is_sweep

    @abc.abstractmethod
    def problems(self, job: JobSpec) -> Iterator[str]:
        """Yields what the scheduler would refuse or would not run as intended, each with its fix."""

    def warnings(self, job: JobSpec) -> Iterator[str]:
        """Yields what the job may lack where it runs, which cannot be known here, each with what to do."""
        del job
        yield from ()

    @abc.abstractmethod
    def render(self, job: JobSpec) -> Rendered:
        """Returns the files and commands of the job; pure."""

    def id_of(self, name: str, output: str) -> str:
        """Returns the scheduler's name for a job, which is mostly the same; empty if there is none in the output.

        Args:
          name: of the job.
          output: of the last command of `Rendered.submit`.
        """
        del output
        return name

    def code_as(self, model_dir: str) -> Literal["folder", "archive"] | None:
        """As what a job in this run directory gets a snapshot of the workspace, from its own folder; None for none."""
        del model_dir
        return self.gets_code_as if getattr(self.profile, "source", None) == SNAPSHOT else None

    def pinned(self, ask: Callable[[Argv], subprocess.CompletedProcess[str]]) -> Self:
        """Returns the target for a job that is submitted now: a place that its profile leaves open will not change."""
        del ask
        return self

    @abc.abstractmethod
    def status(self, job_id: str) -> Argv:
        """Returns the command that prints the state of the job for people."""

    @abc.abstractmethod
    def query(self, job_ids: Sequence[str]) -> Argv:
        """Returns the command that asks for the states of jobs with this profile's place; `states` reads its answer.

        Without jobs it is the same for all profiles with one place, such as a cluster and its namespace.
        """

    @abc.abstractmethod
    def states(self, job_ids: Sequence[str], ran: subprocess.CompletedProcess[str]) -> Iterator[JobState]:
        """Yields the state of each job, from the answer to `query`.

        A job has ended only if the answer says so, or says that there is no such job; for one job that is an error
        of its own, and for several it may be that they are not in a list.
        """

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
        """Returns the files in the job's folder that `logs` reads; empty if the scheduler keeps the output."""
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
          job_id: the scheduler's name for it.
          submit: the commands that submitted it.
          model_dir: its run directory.
          host: runs commands, prints and waits.

        Returns:
          How the job has ended.
        """
        raise NotImplementedError(f"{self.name} restarts jobs itself")
