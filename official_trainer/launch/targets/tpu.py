"""A Cloud TPU slice that trains one job: gcloud's commands for it.

Owns: those commands, and the jobs that Google's API would refuse or would not run as intended.
Does not own: the profile (`tpu_profile.py`), what the machines do (`tpu_startup.py`), replacing a slice that Google has
taken away (`tpu_supervise.py`).

This has never run on a TPU. gcloud itself has run, against a server that answers as the API does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from official_trainer.distributed.cluster import WORKER
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import JobSpec, idle_tpu
from official_trainer.launch.target import Argv, Host, Rendered, Submitted, Target
from official_trainer.launch.targets import tpu_startup
from official_trainer.launch.targets.tpu_profile import NEEDS, TpuProfile, missing_fields, unseen_files
from official_trainer.launch.targets.tpu_supervise import LOST, SliceSupervisor, state_of
from official_trainer.launch.verdict import Outcome

_STARTUP = "startup.sh"
_CLEAR = "clear.sh"
_ENDING = ("SUSPENDING", "DELETING", "STOPPING")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NEEDED = {
    "project": "my-project",
    "zone": "us-central2-b",
    "accelerator_type": "v4-8",
    "runtime_version": "tpu-ubuntu2204-base",
    "source": "gs://my-bucket/code.tar.gz",
}


class TpuTarget(Target[TpuProfile]):
    """Cloud TPU, by gcloud."""

    name = "tpu"
    profile = TpuProfile
    needs = NEEDS
    is_supervised = True

    def problems(self, job: JobSpec, profile: TpuProfile) -> Iterator[str]:
        yield from missing_fields(profile, _NEEDED)
        if profile.is_pod is None and profile.accelerator_type:
            yield f"pod: {profile.accelerator_type} may have one host or several; set pod to true or false"
        yield from _role_problems(job)
        if profile.resources != Resources() or profile.ps_resources != Resources():
            yield "resources: accelerator_type determines the resources; leave resources and ps_resources out"
        if not _NAME.fullmatch(job.name):
            yield f"name: {job.name!r} is not a valid TPU name; use at most 63 of a to z, 0 to 9 and -, a letter first"
        yield from idle_tpu(job)
        if not job.model_dir.startswith("gs://"):
            yield (
                f"--model_dir={job.model_dir}: the disks of a slice are deleted with it"
                f"{', and its hosts cannot read those of each other' if profile.is_pod else ''}; use a gs:// URL"
            )
        yield from unseen_files(job)

    def render(self, job: JobSpec, profile: TpuProfile) -> Rendered:
        slice_ = Submitted(name=job.name, id=job.name, profile=profile)
        (delete,) = self.cancel(slice_)
        clear = tpu_startup.clear_script(self.status(slice_), delete)
        return Rendered(
            files={_STARTUP: tpu_startup.startup_script(job, profile), _CLEAR: clear}, submit=(_create(slice_),)
        )

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

    def resume(self, job: Submitted[TpuProfile]) -> tuple[Argv, ...]:
        return (("bash", _CLEAR), *job.submit)

    def supervise(self, job: Submitted[TpuProfile], host: Host) -> Outcome:
        return SliceSupervisor(self, job, host).supervise()


def _role_problems(job: JobSpec) -> Iterator[str]:
    """Yields roles that a slice cannot have: one process drives it, with any number of hosts."""
    for role in job.roles:
        if role.name == WORKER and role.count > 1:
            yield f"workers={role.count}: one process drives a whole slice; leave workers at 1, and use a larger slice"
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
    flags += [f"--metadata-from-file=startup-script={_STARTUP}"]
    return _gcloud(job, "create", *flags, "--quiet")
