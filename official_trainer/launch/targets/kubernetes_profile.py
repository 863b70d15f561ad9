"""The profile of a job on Kubernetes.

Owns: `KubernetesProfile` with its sections, and what in it could not become an object.
Does not own: the syntax of names, which the API server checks; what a job needs of a profile, commands and objects
(`kubernetes.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from official_trainer.config import Config, FrozenDict
from official_trainer.launch.profile import Profile

INDEX = "OFFICIAL_TRAINER_INDEX"
"""Our own variable: the number of a pod among those of its role, for `TF_CONFIG`."""

_OUR_VARIABLES = frozenset((INDEX, "JOB_COMPLETION_INDEX", "TF_CONFIG"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretKey(Config):
    """A value that stays in the cluster: one key of a Secret.

    Attributes:
      secret: name of the Secret.
      key: the key in it.
    """

    secret: str = ""
    key: str = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        for name in ("secret", "key"):
            if not getattr(self, name):
                yield name, "is not set; name a Secret of the cluster and a key in it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumeClaim(Config):
    """A PersistentVolumeClaim that all pods mount.

    Attributes:
      claim: its name; several pods on several nodes need access mode ReadWriteMany.
      path: where pods mount it.
      read_only: whether pods cannot write to it.
    """

    claim: str = ""
    path: str = ""
    read_only: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.claim:
            yield "claim", "is not set; name a PersistentVolumeClaim of the namespace"
        if not self.path.startswith("/") or ":" in self.path or ".." in self.path.split("/"):
            yield "path", "is not a valid mount path; expected an absolute path without `:` and `..`, such as /runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubernetesProfile(Profile):
    """The profile of a job on Kubernetes.

    Attributes:
      max_restarts: the most restarts after a signal or an unknown exit code; after 75, 143 and evictions none counts.
      context: of kubectl's configuration; empty for the current one, which is looked up at each command.
      namespace: of the job; empty for that of the context.
      image: of the container, with this package.
      gpu_resource: the cluster's resource name for a GPU.
      volumes: that pods mount, each with claim, path and read_only.
      secrets: variables with values that stay in the cluster, by name, each with secret and key.
      pod: what is merged into the template of each pod, in Kubernetes' own words: `{metadata: …, spec: …}`.
      job: what is merged into the JobSet.
    """

    context: str = ""
    namespace: str = ""
    image: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    volumes: tuple[VolumeClaim, ...] = ()
    secrets: dict[str, SecretKey] = FrozenDict()
    pod: dict[str, Any] = FrozenDict()
    job: dict[str, Any] = FrozenDict()

    secrets_go = "put it into a Secret, and under secrets"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if not self.image or re.search(r"\s", self.image):
            what = f"{self.image!r} is not a valid image" if self.image else "is not set"
            yield "image", f"{what}; build one with launch/Dockerfile, push it, and name it, such as REGISTRY/trainer:1"
        for name in self.secrets:
            if name in self.environ:
                yield "secrets", f"{name} is in environ too; keep one of the two"
        for field in ("environ", "secrets"):
            for name in sorted(_OUR_VARIABLES & set(getattr(self, field))):
                yield field, f"{name} is set for each pod automatically; leave it out"
        for field in ("pod", "job"):
            for key in set(getattr(self, field)) - {"metadata", "spec"}:
                yield field, f"{key} is no part of it; allowed: metadata, spec; write {field}: {{spec: {{{key}: …}}}}"
