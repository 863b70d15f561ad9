"""The profile of a job on Kubernetes, and what the API server accepts in it.

Owns: `KubernetesProfile` with its sections; the syntax of names, as the API server checks it.
Does not own: what a job needs of a profile, and commands and objects (`kubernetes.py`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from official_trainer.config import Config, FrozenDict
from official_trainer.distributed.cluster import LAYOUT
from official_trainer.launch.profile import VARIABLE, Profile
from official_trainer.nearest import did_you_mean

LONGEST_LABEL = 63
LABEL = re.compile(rf"(?=.{{1,{LONGEST_LABEL}}}$)[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, for the names of objects with an address."""

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"  # of a DNS-1123 name
_NAMESPACE = re.compile(rf"(?=.{{1,{LONGEST_LABEL}}}$){_PART}")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")
_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_OUR_VARIABLES = frozenset(
    (LAYOUT, "JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "JOB_COMPLETION_INDEX", "TF_CONFIG")
)
_DEVICE = re.compile(rf"{_PART}(\.{_PART})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_GKE_TPU = re.compile(r"tpu-v[0-9]+[a-z]?(-lite)?-(podslice|slice|device)|tpu[0-9]+x")
_GKE_TPUS = ("tpu-v4-podslice", "tpu-v5-lite-podslice", "tpu-v5-lite-device", "tpu-v5p-slice", "tpu-v6e-slice", "tpu7x")
_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")

_CHIPS_OF_A_HOST = {"tpu-v4-podslice": 4, "tpu-v5p-slice": 4, "tpu7x": 4}
_MOST_CHIPS = 8  # of a host of any other accelerator: v5e, v6e


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
        yield from subdomain_problem("secret", self.secret)
        if not _SECRET_KEY.fullmatch(self.key):
            yield "key", "is not a valid key of a Secret; use letters, digits, `-`, `_` and `.`"


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
        yield from subdomain_problem("claim", self.claim)
        if not self.path.startswith("/") or ":" in self.path or ".." in self.path.split("/"):
            yield "path", "is not a valid mount path; expected an absolute path without `:` and `..`, such as /runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TPUSlice(Config):
    """The TPU of one host of GKE.

    Attributes:
      accelerator: GKE's name for it, such as tpu-v5-lite-podslice.
      topology: number of chips along each side, such as 2x4.
      spot: whether Google may take it away, for a lower price.
    """

    accelerator: str = ""
    topology: str = ""
    spot: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.accelerator:
            yield "accelerator", "is not set; use GKE's name, such as tpu-v5-lite-podslice or tpu-v6e-slice"
        elif not _GKE_TPU.fullmatch(self.accelerator):
            what = f"{self.accelerator!r} is not a TPU by GKE's name; use one such as tpu-v5-lite-podslice or"
            yield "accelerator", f"{what} tpu-v6e-slice{did_you_mean(self.accelerator, _GKE_TPUS)}"
        if not _TOPOLOGY.fullmatch(self.topology):
            yield "topology", "is not a valid topology; expected the chips along each side, such as 2x4 or 2x2x1"
        elif self.chips > (most := _CHIPS_OF_A_HOST.get(self.accelerator, _MOST_CHIPS)):
            yield (
                "topology",
                f"is {self.chips} chips, and a host of {self.accelerator} has {most}: TensorFlow is "
                "not known to run on several TPU hosts of GKE; choose a smaller topology, or `launch tpu`",
            )

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(map(int, self.topology.split("x")))

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels of GKE's nodes that have it."""
        names = {"gke-tpu-accelerator": self.accelerator, "gke-tpu-topology": self.topology}
        names |= {"gke-spot": "true"} if self.spot else {}
        return {f"cloud.google.com/{name}": value for name, value in names.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubernetesProfile(Profile):
    """The profile of a job on Kubernetes.

    Attributes:
      max_restarts: the most restarts after a signal or an unknown exit code; after 75, 143 and evictions none counts.
      context: of kubectl's configuration; empty for the current one, which is kept with a submitted job.
      namespace: of the job; empty for that of the context, which is kept too.
      image: of the container, with this package.
      source: the code: `snapshot` for what is in the workspace when the job is submitted, `image` for what is in the
        image's working directory; null for a snapshot where the run directory is at gs://, else the image.
      gpu_resource: the cluster's resource name for a GPU.
      tpu: a TPU of GKE for the only worker; null for none.
      volumes: that pods mount, each with claim, path and read_only.
      secrets: variables with values that stay in the cluster, by name, each with secret and key.
      pod: what is merged into the template of each pod, in Kubernetes' own words: `{metadata: …, spec: …}`.
      job: what is merged into the JobSet.
    """

    context: str = ""
    namespace: str = ""
    image: str = ""
    source: Literal["snapshot", "image"] | None = None
    gpu_resource: str = "nvidia.com/gpu"
    tpu: TPUSlice | None = None
    volumes: tuple[VolumeClaim, ...] = ()
    secrets: dict[str, SecretKey] = FrozenDict()
    pod: dict[str, Any] = FrozenDict()
    job: dict[str, Any] = FrozenDict()

    REMOVED: ClassVar[Mapping[str, str]] = {
        "kind": "every job is a JobSet, so leave it out; the operator of a TFJob was replaced by Kubeflow Trainer",
        "image_pull_secrets": "write pod: {spec: {imagePullSecrets: [{name: NAME}]}}",
        "service_account": "write pod: {spec: {serviceAccountName: NAME}}",
        "queue": "write job: {metadata: {labels: {kueue.x-k8s.io/queue-name: NAME}}}",
        "priority_class": "write pod: {spec: {priorityClassName: NAME}}",
        "labels": "write job: {metadata: {labels: {…}}}, and the same under pod",
        "node_selector": "write pod: {spec: {nodeSelector: {…}}}",
        "tolerations": "write pod: {spec: {tolerations: […]}}",
        "ttl_seconds": "write job: {spec: {ttlSecondsAfterFinished: N}}",
    }
    secrets_go = "put it into a Secret, and under secrets"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if not self.image or re.search(r"\s", self.image):
            what = f"{self.image!r} is not a valid image" if self.image else "is not set"
            yield "image", f"{what}; build one with launch/Dockerfile, push it, and name it, such as REGISTRY/trainer:1"
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            yield "namespace", "is not a valid namespace; use at most 63 lower-case letters, digits and dashes"
        if not _DEVICE.fullmatch(self.gpu_resource):
            what = f"{self.gpu_resource!r} is not the name of a device; use a domain and a name"
            yield "gpu_resource", f"{what}, such as nvidia.com/gpu or amd.com/gpu"
        yield from self._variable_problems()
        paths = [volume.path.rstrip("/") for volume in self.volumes]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield "volumes", f"two volumes have the path {path}; give each its own path"
        for field in ("pod", "job"):
            for key in set(getattr(self, field)) - {"metadata", "spec"}:
                yield field, f"{key} is no part of it; allowed: metadata, spec; write {field}: {{spec: {{{key}: …}}}}"
        if self.tpu is not None and sum(self.counts.values()) > 1:
            yield "tpu", "one process drives all chips of the host; leave out workers, chief, ps and evaluator"
        if self.tpu is not None and self.resources.gpus:
            yield "tpu", f"resources.gpus={self.resources.gpus} together with a TPU; keep one of the two"

    def _variable_problems(self) -> Iterator[tuple[str, str]]:
        for name in self.secrets:
            if not VARIABLE.fullmatch(name):
                yield "secrets", f"{name!r} is not a valid variable name; use letters, digits and underscores"
            if name in self.environ:
                yield "secrets", f"{name} is in environ too; keep one of the two"
        ours = _OUR_VARIABLES | ({"TPU_NAME"} if self.tpu is not None else set())
        for field in ("environ", "secrets"):
            for name in sorted(ours & set(getattr(self, field))):
                yield field, f"{name} is set for each pod automatically; leave it out"


def subdomain_problem(field: str, text: str) -> Iterator[tuple[str, str]]:
    """Yields the problem of an invalid object name: DNS-1123."""
    if not _SUBDOMAIN.fullmatch(text):
        what = f"{text!r} is not a valid object name" if text else "is not set"
        yield field, f"{what}; use lower-case letters, digits, `-` and `.`"
