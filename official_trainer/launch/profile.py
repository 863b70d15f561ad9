"""How a job is run somewhere: what all targets ask for, as a typed section that YAML fills.

Owns: `Profile` and `Resources`, and what a name and a variable may be. A target adds fields of its own in a subclass,
in its file beside this one.
Does not own: reading it (`config.resolve`, as experiments are read), what a scheduler makes of it (`target.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from official_trainer.cluster import CHIEF, EVALUATOR, PS, WORKER
from official_trainer.config import Config, FrozenDict, NonNegative, Positive, PositiveFloat

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")  # with what is added, it is a name for every engine
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)", re.IGNORECASE)


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

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.name and not _NAME.fullmatch(self.name):
            yield "name", "is no name for a job; use up to 30 lower-case letters, digits and dashes, a letter first"
        for name, value in self.environ.items():
            if not _VARIABLE.fullmatch(name):
                yield "environ", f"{name!r} is no name of a variable; use letters, digits and underscores"
            elif name == "TF_CONFIG":
                yield "environ", "TF_CONFIG says which process is which, so each gets its own; leave it out"
            elif _SECRET.fullmatch(name):
                yield "environ", f"{name} looks like a secret, and files of a launch are no place for one; leave it out"
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
