"""The profile of a Cloud TPU slice, and what Google's API accepts in it.

Owns: `TpuProfile`; what Vertex AI shares: checks (fields without a default, files of this machine), and reading
the states of jobs from gcloud's JSON.
Does not own: what a job needs of a profile, and commands (`tpu.py`, `vertex.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from subprocess import CompletedProcess
from typing import Any, ClassVar

from official_trainer.launch.profile import SNAPSHOT, Profile, command_problems, flag_problems
from official_trainer.launch.spec import JobSpec, files_of_this_machine
from official_trainer.launch.target import GONE, JobState, Phase, unknown
from official_trainer.shown import without_secrets

_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_OF_CREATE = {
    **{name: f"set {name.replace('-', '_')}" for name in ("project", "zone", "accelerator-type", "runtime-version")},
    **dict.fromkeys(("async", "format", "metadata-from-file", "node-id", "quiet"), "leave it out"),
}
_NOW_FLAGS = ("network", "subnetwork", "service_account")
_TYPE = re.compile(r"v([0-9]+)[a-z]*-([0-9]+)")
_LAST_GENERATION = 6
"""Of TPUs that Google's API creates, and for which there has been a release of TensorFlow."""
SECRETS_GO = "keep it in Google's Secret Manager, from which the service account reads it"
_ONE_HOST_CORES = 8  # of every generation's types, whether they count cores or chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuProfile(Profile):
    """A Cloud TPU slice.

    Attributes:
      project: Google Cloud project.
      zone: such as us-central2-b.
      accelerator_type: such as v4-8 or v5litepod-16.
      runtime_version: the machines' software; `gcloud compute tpus tpu-vm versions list` lists the names.
      keep: whether a supervised slice is kept, and paid for, after its job has ended.
      source: the code: `snapshot` for what is in the workspace when the job is submitted, or `gs://….tar.gz` with
        `experiments/` at its top.
      setup: commands, each a list of words, that each host runs once as root, before all else.
      install: arguments of `pip install`, in the folder of the source; `-r` and a lock file install its versions.
      python: version of Python.
      tensorflow_tpu: version of the package that is installed in place of tensorflow.
      libtpu: version of the library below it; it has to be the one of that release.
      gcloud: other flags of the command that requests the slice, such as `--spot` or `--service-account=NAME`.
    """

    project: str = ""
    zone: str = ""
    accelerator_type: str = ""
    runtime_version: str = ""
    keep: bool = False
    source: str = SNAPSHOT
    setup: tuple[tuple[str, ...], ...] = ()
    install: tuple[str, ...] = (".",)
    python: str = "3.11"
    tensorflow_tpu: str = "2.20.0"
    libtpu: str = "0.0.14"
    gcloud: tuple[str, ...] = ()

    REMOVED: ClassVar[Mapping[str, str]] = {
        "pod": "it follows from accelerator_type, so leave it out",
        "queued": "every slice is requested as a queued resource, so leave it out",
        "labels": "write gcloud: [--labels=NAME=VALUE]",
        **{name: f"write gcloud: [--{name.replace('_', '-')}]" for name in ("internal_ips", "reserved", "spot")},
        "valid_until": "write gcloud: [--valid-until-duration=6h]",
        **{name: f"write gcloud: [--{name.replace('_', '-')}=NAME]" for name in _NOW_FLAGS},
    }
    MANAGED_WITH: ClassVar[Mapping[str, Any]] = {"queued": True}
    secrets_go = SECRETS_GO

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.zone and not _ZONE.fullmatch(self.zone):
            yield "zone", f"{self.zone!r} is not a valid zone; a zone ends with a letter, such as us-central2-b"
        if self.project and not _PROJECT.fullmatch(self.project):
            yield "project", f"{self.project!r} is not a valid project id; `gcloud projects list` lists yours"
        found = _TYPE.fullmatch(self.accelerator_type)
        if self.accelerator_type and not found:
            what = f"{self.accelerator_type!r} is not a type of TPU; use a generation and a size, such as v4-8 or"
            how = "`gcloud compute tpus accelerator-types list --zone=ZONE` lists those of a zone"
            yield "accelerator_type", f"{what} v5litepod-16; {how}"
        elif self.accelerator_type.startswith("v5e-"):
            size = self.accelerator_type.partition("-")[2]
            yield "accelerator_type", f"{self.accelerator_type!r} is called v5litepod-{size} by Google; use that"
        elif found and int(found[1]) > _LAST_GENERATION:
            what = f"{self.accelerator_type!r} is a TPU for which there is no TensorFlow"
            yield "accelerator_type", f"{what}, and that this API does not create; use v6e or an earlier generation"
        if self.source != SNAPSHOT and not re.fullmatch(r"gs://.*\.(tar\.gz|tgz)", self.source):
            what = (
                f"{without_secrets(self.source)!r} is no code that a machine can get; use {SNAPSHOT}, in a checkout of"
            )
            yield "source", f"{what} the commit that is to run, or gs://….tar.gz, of the folder that holds experiments/"
        yield from command_problems("setup", self.setup)
        if not self.install:
            yield "install", "is empty, so nothing would be installed; leave it out to install the source"
        yield from flag_problems("gcloud", self.gcloud, _OF_CREATE)

    @property
    def is_pod(self) -> bool:
        """Whether the slice has several hosts."""
        size = _TYPE.fullmatch(self.accelerator_type)
        return size is not None and int(size[2]) > _ONE_HOST_CORES


NEEDS = "install the Google Cloud CLI, https://cloud.google.com/sdk/docs/install"


def missing_fields(profile: Profile, examples: Mapping[str, str]) -> Iterator[str]:
    """Yields the required fields that are empty, each with an example."""
    for field, example in examples.items():
        if not getattr(profile, field):
            yield f"{field}: is required, such as {example}"


def unseen_files(job: JobSpec) -> Iterator[str]:
    """Yields files that a job reads and that only this machine has."""
    for word in files_of_this_machine(job):
        yield f"{word} is a file of this machine; use a path relative to the top of the source, or a gs:// URL"


def read_states(
    job_ids: Sequence[str],
    ran: CompletedProcess[str],
    state_of: Callable[[Any], str],
    ended: Collection[str],
) -> Iterator[JobState]:
    """Yields the state of each job, from gcloud's description of one or its list of several.

    Args:
      job_ids: of the jobs; the last part of each is the last part of its `name` in a list.
      ran: gcloud, which has ended.
      state_of: returns the API's state of a job, from its description.
      ended: the states of jobs that have ended.
    """
    is_one = len(job_ids) == 1
    if ran.returncode:
        yield from [GONE if is_one and "NOT_FOUND" in ran.stderr else unknown(ran)] * len(job_ids)
        return
    try:
        found = json.loads(ran.stdout)
        listed = {} if is_one else {each["name"].rpartition("/")[2]: each for each in found}
        described = [found] if is_one else [listed.get(job_id.rpartition("/")[2]) for job_id in job_ids]
        words = [str(state_of(each)) if each or is_one else None for each in described]
    except (ValueError, LookupError, TypeError, AttributeError):  # no JSON, or of another shape
        yield from [unknown(ran)] * len(job_ids)
        return
    for word in words:
        phase = Phase.ENDED if word in ended else Phase.RUNNING
        yield GONE if word is None else JobState(phase, word.lower())
