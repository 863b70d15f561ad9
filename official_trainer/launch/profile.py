"""How a job is run somewhere: what all targets ask for, as a typed section that YAML fills.

Owns: `Profile` and `Resources`, and what a name and a variable may be. A target adds fields of its own in a subclass,
in its file beside this one.
Does not own: reading it (`config.resolve`, as experiments are read), what a scheduler makes of it (`target.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from official_trainer.config import Config, FrozenDict, NonNegative, Positive, PositiveFloat
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, WORKER

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")  # with what is added, it is a name for every engine
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(?:.*_)?(?:TOKEN|SECRET|PASSW(?:OR)?D|PWD|PAT|CREDENTIALS|API_?KEY)|.*_KEY", re.IGNORECASE)
_URL_WITH_PASSWORD = re.compile(r"\w+://[^/\s:@]*:[^/\s@]+@")
_WITHOUT_SHELL = "write each command as a list of its own, and whole paths"
_FOR_A_SHELL = re.compile(r"[|&;<>]+|[0-9]?>.*")  # words that mean something to a shell only


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources(Config):
    """What one process gets.

    Attributes:
      cpus: cores; None leaves it to the scheduler.
      memory_gib: memory in GiB; None leaves it to the scheduler.
      gpus: GPUs.
    """

    cpus: Positive | None = None
    memory_gib: PositiveFloat | None = None
    gpus: NonNegative = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile(Config):
    """What every target understands.

    Attributes:
      name: of the job, before the part that tells run directories apart; empty takes the experiment's.
      workers: processes that train together.
      chief: whether one more process leads the workers.
      ps: parameter servers; a chief is added then.
      evaluator: whether one more process evaluates beside them.
      max_restarts: how often what ends with exit code 75 or 143 is started again.
      environ: variables for all processes; nothing that is secret.
      resources: of a process that computes.
      ps_resources: of a parameter server.
    """

    name: str = ""
    workers: Positive = 1
    chief: bool = False
    ps: NonNegative = 0
    evaluator: bool = False
    max_restarts: NonNegative = 10
    environ: dict[str, str] = FrozenDict()
    resources: Resources = Resources()
    ps_resources: Resources = Resources()

    secrets_go: ClassVar[str] = "leave it out"

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.name and not _NAME.fullmatch(self.name):
            yield "name", "is no name for a job; use up to 30 lower-case letters, digits and dashes, a letter first"
        for name, value in self.environ.items():
            if not _VARIABLE.fullmatch(name):
                yield "environ", f"{name!r} is no name of a variable; use letters, digits and underscores"
            elif name == "TF_CONFIG":
                yield "environ", "TF_CONFIG says which process is which, so each gets its own; leave it out"
            elif _SECRET.fullmatch(name) or _URL_WITH_PASSWORD.match(value):
                what = f"{name} looks like a secret, and files of a launch are no place for one"
                yield "environ", f"{what}; {self.secrets_go}"
            elif "\0" in value:
                yield "environ", f"the value of {name} has a NUL in it, which no process can be given; leave it out"

    @property
    def counts(self) -> dict[str, int]:
        """How many processes of each role."""
        return {
            CHIEF: int(self.chief or self.ps > 0),
            WORKER: self.workers,
            PS: self.ps,
            EVALUATOR: int(self.evaluator),
        }

    def resources_of(self, role: str) -> Resources:
        """Returns what a process of a role gets."""
        return self.ps_resources if role == PS else self.resources


def command_problems(field: str, commands: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with commands that are run as lists of words, which no shell reads."""
    for number, words in enumerate(commands):
        place = f"{field}[{number}]"
        if not words or not words[0]:
            yield field, "a command is empty; each is a list of words, such as [module, load, cuda]"
        elif len(words) == 1 and re.search(r"\s", words[0]):
            apart = ", ".join(words[0].split())
            yield field, f"{place} is one word with blanks in it, {words[0]!r}; write its words apart: [{apart}]"
        elif found := [word for word in words if _FOR_A_SHELL.fullmatch(word) or word.startswith("~")]:
            yield field, f"{place} has {found[0]!r}, which means something to a shell only; {_WITHOUT_SHELL}"
