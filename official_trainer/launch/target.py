"""The contract between a job and a scheduler that runs it: checked, rendered, submitted.

Owns: `Target`, the files and the command that a job becomes, and the three commands that follow a submission.
Does not own: writing the files and running the commands (`submit.py`), each scheduler's own words (`targets/`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from official_trainer.launch.profile import Profile
from official_trainer.launch.spec import JobSpec

P = TypeVar("P", bound=Profile)

Argv = tuple[str, ...]
"""A command as a list of words; no shell reads it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """A job as the files and the command of its scheduler.

    Attributes:
      files: text by file name; they are written to the folder of the job.
      submit: the command that starts it, run in that folder.
    """

    files: Mapping[str, str]
    submit: Argv


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commands:
    """The scheduler's own commands for a job that was submitted, run in the folder of the job.

    Attributes:
      status: prints its state.
      logs: prints its output.
      cancel: ends it, or removes what is left of it.
    """

    status: Argv
    logs: Argv
    cancel: Argv


class Target(abc.ABC, Generic[P]):
    """A scheduler that runs jobs, with the profile of one of them. It starts nothing itself.

    Attributes:
      name: the word after `launch`.
      profile_class: the class of its profiles.
      needs: where to get its programs, for the message that one is missing.
      runs_sweeps: whether its jobs can be the workers of a sweep.
      copies_code: whether `--submit` copies the commit of the workspace to a folder that the job sees.
      profile: of the job.
    """

    name: ClassVar[str]
    profile_class: ClassVar[type[Profile]]
    needs: ClassVar[str]
    runs_sweeps: ClassVar[bool] = False
    copies_code: ClassVar[bool] = False

    def __init__(self, profile: P) -> None:
        self.profile = profile

    @abc.abstractmethod
    def problems(self, job: JobSpec) -> Iterator[str]:
        """Yields what the scheduler would refuse or would not run as intended, each with its fix."""

    @abc.abstractmethod
    def render(self, job: JobSpec) -> Rendered:
        """Returns the files and the command of the job; pure."""

    def id_of(self, name: str, output: str) -> str:
        """Returns the scheduler's name for a job, which is mostly the same; empty if there is none in the output.

        Args:
          name: of the job.
          output: of `Rendered.submit`.
        """
        del output
        return name

    @abc.abstractmethod
    def commands(self, job: JobSpec, job_id: str, folder: str) -> Commands:
        """Returns the commands that follow a submission.

        Args:
          job: which was submitted.
          job_id: the scheduler's name for it.
          folder: with its files, in which the commands are run.
        """
