"""A Cloud TPU slice that trains one job: its profile, and gcloud's commands for it.

Owns: those, and what Google's API would refuse or would run otherwise than meant. Does not own: what the machines do
(`tpu_startup.py`), making a slice anew that was taken away (`tpu_supervise.py`).

No TPU has run this. gcloud itself has, against a server that answers as the API does.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping

from official_trainer.config import FrozenDict
from official_trainer.distributed.cluster import WORKER
from official_trainer.launch.profile import Profile, Resources, command_problems
from official_trainer.launch.spec import JobSpec, files_of_this_machine, idle_tpu
from official_trainer.launch.target import Argv, Rendered, Submitted, Supervisor, Target
from official_trainer.launch.targets import tpu_startup

STARTUP = "startup.sh"
CLEAR = "clear.sh"

LOST = ("FAILED", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPED")
"""States from which a slice does not come back by itself."""

_ENDING = ("SUSPENDING", "DELETING", "STOPPING")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_DURATION = re.compile(r"[0-9]+[smhd]")
_ONE_HOST_CORES = 8  # of every generation's types, whether they count cores or chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuProfile(Profile):
    """A Cloud TPU slice.

    Attributes:
      project: Google Cloud project.
      zone: where, such as us-central2-b.
      accelerator_type: such as v4-8 or v5litepod-16.
      runtime_version: software of the machines, as Google calls it; `gcloud compute tpus tpu-vm versions list` has it.
      pod: whether the slice has several hosts; null reads it off the type.
      queued: whether the slice is asked for by a queued resource, which waits for it.
      spot: whether it may be taken away, for a lower price.
      keep: whether a slice that is supervised stays there, and is paid for, when its job has ended.
      reserved: whether it comes out of a reservation.
      valid_until: how long a queued resource waits, such as 6h; empty for as long as it takes.
      network: of the machines; empty for the project's default.
      subnetwork: of the machines; empty for the network's default.
      internal_ips: whether the machines have no addresses on the internet; they need Cloud NAT then, to install.
      service_account: as whom the machines read and write; empty for the project's default.
      labels: of the slice.
      source: the code: `gs://….tar.gz`, or `git+https://…@COMMIT`, in which `experiments/` is at the top.
      setup: commands, each a list of words, that each host runs once as root, before all else.
      install: words after `pip install`, in the folder of the source; `-r` and a lock file give what it says.
      python: version of Python.
      tensorflow_tpu: version of the package that is installed in place of tensorflow.
      libtpu: version of the library under it; that of its time, later ones do not fit.
    """

    project: str = ""
    zone: str = ""
    accelerator_type: str = ""
    runtime_version: str = ""
    pod: bool | None = None
    queued: bool = True
    spot: bool = False
    keep: bool = False
    reserved: bool = False
    valid_until: str = ""
    network: str = ""
    subnetwork: str = ""
    internal_ips: bool = False
    service_account: str = ""
    labels: dict[str, str] = FrozenDict()
    source: str = ""
    setup: tuple[tuple[str, ...], ...] = ()
    install: tuple[str, ...] = (".",)
    python: str = "3.11"
    tensorflow_tpu: str = "2.20.0"
    libtpu: str = "0.0.14"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.zone and not _ZONE.fullmatch(self.zone):
            yield "zone", f"{self.zone!r} is no zone; a zone has a letter at its end, such as us-central2-b"
        if self.project and not _PROJECT.fullmatch(self.project):
            yield "project", f"{self.project!r} is no id of a project; `gcloud projects list` has them"
        if self.spot and self.reserved:
            yield "spot", "cannot be set together with reserved; keep one of the two"
        if self.valid_until and not self.queued:
            yield "valid_until", "has no effect with queued=false, which waits for nothing; leave one of them out"
        if self.valid_until and not _DURATION.fullmatch(self.valid_until):
            yield "valid_until", f"{self.valid_until!r} is no duration; use a number and s, m, h or d, such as 6h"
        if self.source and not self.source.startswith("gs://") and tpu_startup.split_git(self.source) is None:
            yield (
                "source",
                f"{self.source!r} is nothing that a machine can get; use gs://….tar.gz or git+https://…@COMMIT",
            )
        if self.source.startswith("gs://") and not self.source.endswith((".tar.gz", ".tgz")):
            yield "source", f"{self.source} is no .tar.gz; pack the folder that holds experiments/ with tar -czf"
        yield from command_problems("setup", self.setup)
        if not self.install:
            yield "install", "is empty, so nothing would be there to train with; leave it out to install the source"
        yield from label_problems(self.labels)

    @property
    def is_pod(self) -> bool | None:
        """Whether the slice has several hosts; None where neither the field nor the type says it."""
        size = re.fullmatch(r"v[0-9]+[a-z]*-([0-9]+)", self.accelerator_type)
        return self.pod if self.pod is not None else size and int(size[1]) > _ONE_HOST_CORES


NEEDS = "install the Google Cloud CLI, https://cloud.google.com/sdk/docs/install"


def missing_fields(profile: Profile, examples: Mapping[str, str]) -> Iterator[str]:
    """Yields the fields of a profile that Google has no default for and that are empty, each with an example."""
    for field, example in examples.items():
        if not getattr(profile, field):
            yield f"{field}: is needed, such as {example}"


def label_problems(labels: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields what Google's API says against labels."""
    for key, value in labels.items():
        if not _LABEL.fullmatch(key):
            yield "labels", f"{key!r} is no key; use lower-case letters, digits, - and _, a letter first"
        if not _LABEL_VALUE.fullmatch(value):
            yield "labels", f"{key}={value!r} is no value; use at most 63 lower-case letters, digits, - and _"


def unseen_files(job: JobSpec) -> Iterator[str]:
    """Yields files that a job is to read and that only this machine has."""
    for word in files_of_this_machine(job):
        yield f"{word} is a file of this machine; name one of the source, as seen from its top, or a gs:// URL"


class TpuTarget(Target[TpuProfile]):
    """Cloud TPU, by gcloud."""

    name = "tpu"
    profile = TpuProfile
    needs = NEEDS

    def problems(self, job: JobSpec, profile: TpuProfile) -> Iterator[str]:
        yield from missing_fields(profile, _NEEDED)
        if profile.is_pod is None and profile.accelerator_type:
            yield f"pod: {profile.accelerator_type} does not say whether it has several hosts; set pod to true or false"
        yield from _role_problems(job)
        if profile.resources != Resources() or profile.ps_resources != Resources():
            yield "resources: accelerator_type says what a slice has; leave resources and ps_resources out"
        if not _NAME.fullmatch(job.name):
            yield f"name: {job.name!r} is no name of a TPU; use at most 63 of a to z, 0 to 9 and -, a letter first"
        yield from idle_tpu(job)
        if not job.model_dir.startswith("gs://"):
            yield (
                f"--model_dir={job.model_dir}: a slice has no disk that outlives it"
                f"{', and its hosts cannot read those of each other' if profile.is_pod else ''}; name a gs:// URL"
            )
        yield from unseen_files(job)

    def render(self, job: JobSpec, profile: TpuProfile) -> Rendered:
        (role,) = job.roles
        startup = tpu_startup.Startup(
            name=job.name,
            argv=role.argv,
            model_dir=job.model_dir,
            environ={**role.environ, **profile.environ},
            source=profile.source,
            setup=profile.setup,
            install=profile.install,
            python=profile.python,
            tensorflow_tpu=profile.tensorflow_tpu,
            libtpu=profile.libtpu,
            is_pod=bool(profile.is_pod),
            max_restarts=profile.max_restarts,
            grace_seconds=job.grace_seconds,
        )
        slice_ = Submitted(name=job.name, id=job.name, profile=profile)
        (delete,) = self.cancel(slice_)
        clear = tpu_startup.clear_script(self.status(slice_), delete)
        files = {STARTUP: tpu_startup.script(startup), CLEAR: clear}
        return Rendered(files=files, submit=(_create(slice_),))

    def status(self, job: Submitted[TpuProfile]) -> Argv:
        return _gcloud(job, "describe", "--format=json(name,createTime,state)")

    def is_running(self, code: int, output: str) -> bool:
        return code == 0 and state_of(output).name not in (*LOST, *_ENDING)

    def logs(self, job: Submitted[TpuProfile], *, follow: bool) -> Argv:
        path = f"{tpu_startup.FOLDER}/{tpu_startup.LOG}"
        command = f"sudo tail --lines=+1 --follow=name --retry {path}" if follow else f"sudo cat {path}"
        address = ("--internal-ip",) if job.profile.internal_ips else ()
        place = (*_place(job.profile), "--worker=0", *address)
        return ("gcloud", "compute", "tpus", "tpu-vm", "ssh", job.id, *place, f"--command={command}")

    def cancel(self, job: Submitted[TpuProfile]) -> tuple[Argv, ...]:
        is_queued = job.profile.queued
        return (_gcloud(job, "delete", "--quiet", *(("--force",) if is_queued else ())),)

    def resume(self, job: Submitted[TpuProfile], rendered: Rendered) -> tuple[Argv, ...]:
        return (("bash", CLEAR), *rendered.submit)

    def supervisor(self, job: Submitted[TpuProfile], rendered: Rendered, model_dir: str) -> Supervisor:
        from official_trainer.launch.targets.tpu_supervise import SliceSupervisor

        return SliceSupervisor(self, job, rendered, model_dir)


_NEEDED = {
    "project": "my-project",
    "zone": "us-central2-b",
    "accelerator_type": "v4-8",
    "runtime_version": "tpu-ubuntu2204-base",
    "source": "gs://my-bucket/code.tar.gz",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """How a slice is.

    Attributes:
      name: of the state, in the API's words.
      created: when it was asked for, in UTC.
      error: why it has failed, with the number of the error before it; empty if it has not.
      by_user: whether somebody has taken it away, and not Google.
    """

    name: str
    created: str = ""
    error: str = ""
    by_user: bool = False


def state_of(output: str) -> State:
    """Returns how a slice is, from what `status` has printed."""
    slice_ = json.loads(output)
    state, created = slice_.get("state") or "STATE_UNSPECIFIED", slice_.get("createTime", "")
    if isinstance(state, str):  # of a TPU VM; a queued resource says more
        return State(name=state, created=created, by_user=state == "STOPPED")
    error = state.get("failedData", {}).get("error", {})
    said = ": ".join(str(error[key]) for key in ("code", "message") if error.get(key))
    return State(
        name=state.get("state", "STATE_UNSPECIFIED"),
        created=created,
        error=said,
        by_user=state.get("stateInitiator") == "USER",
    )


def _role_problems(job: JobSpec) -> Iterator[str]:
    """Yields what does not fit a slice, which one process drives, however many hosts it has."""
    for role in job.roles:
        if role.name == WORKER and role.count > 1:
            yield f"workers={role.count}: one process drives a whole slice; leave workers at 1, and take a larger slice"
        elif role.name != WORKER:
            yield f"{role.name}: a slice runs one process, which trains; leave it out"


def _gcloud(job: Submitted[TpuProfile], verb: str, *flags: str) -> Argv:
    kind = "queued-resources" if job.profile.queued else "tpu-vm"
    return ("gcloud", "compute", "tpus", kind, verb, job.id, *_place(job.profile), *flags)


def _place(tpu: TpuProfile) -> Argv:
    return (f"--project={tpu.project}", f"--zone={tpu.zone}")


def _create(job: Submitted[TpuProfile]) -> Argv:
    tpu = job.profile
    flags = [f"--accelerator-type={tpu.accelerator_type}"]
    if tpu.queued:
        flags += [f"--node-id={job.name}", f"--runtime-version={tpu.runtime_version}"]
    else:
        flags += [f"--version={tpu.runtime_version}"]
    flags += [f"--{word}" for word in ("spot", "reserved") if getattr(tpu, word)]
    flags += ["--internal-ips"] if tpu.internal_ips else []
    values = {
        "valid-until-duration": tpu.valid_until,
        "network": tpu.network,
        "subnetwork": tpu.subnetwork,
        "service-account": tpu.service_account,
        "labels": ",".join(f"{key}={value}" for key, value in tpu.labels.items()),
    }
    flags += [f"--{flag}={value}" for flag, value in values.items() if value]
    flags += [f"--metadata-from-file=startup-script={STARTUP}"]
    return _gcloud(job, "create", *flags, "--quiet")
