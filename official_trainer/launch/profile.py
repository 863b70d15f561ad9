"""The profile of a job: the settings that all targets share, as a typed section that YAML fills.

Owns: `Profile` and `Resources`, and the syntax of names and variables. A target adds its own fields in a subclass, in
its file in `targets/`.
Does not own: reading the YAML (`config.resolve`, as for experiments), rendering it for a scheduler (`target.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from official_trainer.config import Config, FrozenDict, NonNegative, Positive, PositiveFloat
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, WORKER
from official_trainer.shown import secret_in

NO_SECRET = "and the files of a job must not contain one"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")  # with a job's suffix, a valid name for every scheduler
_SECRET = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|PWD|PAT|AUTH|CREDENTIALS?)(?:_\d+)?|.*_KEY|"
    r".*(?:ACCESS|API|PRIVATE|SECRET)_?KEY(?:_.*)?",
    re.IGNORECASE,
)
_SETTING = re.compile(r"|\d{1,6}|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_PATH = re.compile(r"(?!(?=.*[0-9])(?=.*[A-Z])[A-Za-z0-9+/]{32,}=*$)(?:~|\.\.?)?/[\w.@+/-]+", re.ASCII)  # no Base64
_FLAG = re.compile(r"--[a-z][a-z0-9-]*(=[^\0-\x1f]*)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources(Config):
    """The resources of one process.

    Attributes:
      cpus: number of cores; None leaves it to the scheduler.
      memory_gib: memory in GiB; None leaves it to the scheduler.
      gpus: number of GPUs.
    """

    cpus: Positive | None = None
    memory_gib: PositiveFloat | None = None
    gpus: NonNegative = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile(Config):
    """The settings that every target understands.

    Attributes:
      name: of the job, before the suffix for its run directory; empty takes the experiment's name.
      workers: number of processes that train together.
      chief: whether another process leads the workers.
      ps: number of parameter servers; with any, a chief is added.
      evaluator: whether another process evaluates the checkpoints.
      max_restarts: the most restarts after exit code 75 or 143.
      environ: variables for all processes; no secrets.
      resources: of each process except parameter servers.
      ps_resources: of each parameter server.
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

    HAS_REFERENCES: ClassVar[bool] = False  # `${HOME}` in a variable is for a shell
    secrets_go: ClassVar[str] = "set it in the shell that starts the job; its processes get it from there"

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.name and not _NAME.fullmatch(self.name):
            what = "is not a valid job name; use up to 30 lower-case letters, digits and dashes, starting with a letter"
            yield "name", what
        for name, value in self.environ.items():
            if not _VARIABLE.fullmatch(name):
                yield "environ", f"{name!r} is not a valid variable name; use letters, digits and underscores"
            elif name == "TF_CONFIG":
                yield "environ", "TF_CONFIG identifies a process, so each process gets its own; leave it out"
            elif what := _secret(name, value):
                yield "environ", f"{what}, {NO_SECRET}; {self.secrets_go}"
        for field, value in self.as_dict().items():
            if field != "environ" and (secret := secret_in(str(value))):
                yield field, f"holds what looks like {secret}, {NO_SECRET}; {self.secrets_go}"

    @property
    def counts(self) -> dict[str, int]:
        """The number of processes of each role."""
        chief = int(self.chief or self.ps > 0)
        return {CHIEF: chief, WORKER: self.workers, PS: self.ps, EVALUATOR: int(self.evaluator)}

    def resources_of(self, role: str) -> Resources:
        """Returns the resources of a process of this role."""
        return self.ps_resources if role == PS else self.resources


def _secret(name: str, value: str) -> str:
    """Returns why a variable looks like a secret; empty if it does not. The path of a file with one is none."""
    if _SECRET.fullmatch(name) and not (_SETTING.fullmatch(value) or _PATH.fullmatch(value)):
        return f"{name} looks like a secret"
    secret = secret_in(f"{name}={value}")
    return secret and f"the value of {name} looks like {secret}"


def command_problems(field: str, commands: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yields the problems of commands that are run as lists of words, without a shell."""
    for number, words in enumerate(commands):
        if not words or not words[0]:
            yield field, "a command is empty; each is a list of words, such as [module, load, cuda]"
        elif len(words) == 1 and re.search(r"\s", words[0]):
            separate = f"write separate words: [{', '.join(words[0].split())}]"
            yield field, f"{field}[{number}] is one word with blanks, {words[0]!r}; {separate}"


def flag_problems(field: str, flags: Sequence[str], ours: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the problems of further flags for a command of a scheduler, each one word of a list.

    Args:
      field: with these flags.
      flags: as `--name` or `--name=value`.
      ours: names of flags that the command has already, each with what to do instead.
    """
    for flag in flags:
        name = flag[2:].partition("=")[0]
        if not _FLAG.fullmatch(flag):
            yield field, f"{flag!r} is not a valid flag; write --name or --name=value, each as one word"
        elif fix := ours.get(name) or ours.get(name.removeprefix("no-")):
            yield field, f"--{name} is set from other fields of the profile; {fix}"
