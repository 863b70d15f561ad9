"""A Cloud TPU slice that trains one job: gcloud's commands for it, and what its machines do at every boot.

Owns: those commands; the jobs that Google's API would refuse or would not run as intended; the start-up script, filled
from `tpu_startup.sh`: it gets the code, installs it once, trains, and records how that ended.
Does not own: the profile (`tpu_profile.py`), replacing a slice that Google has taken away (`tpu_supervise.py`),
restarts on one machine (`launch/rerun.py`).

This has never run on a TPU. gcloud itself has run, against a server that answers as the API does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from subprocess import CompletedProcess

from official_trainer import files
from official_trainer.distributed.cluster import WORKER
from official_trainer.launch import fetch, rerun
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import PLACE, JobSpec
from official_trainer.launch.target import Argv, Host, JobState, Rendered, Target
from official_trainer.launch.targets.rendering import script
from official_trainer.launch.targets.tpu_profile import NEEDS, TpuProfile, missing_fields, read_states, unseen_files
from official_trainer.launch.targets.tpu_supervise import EXIT, LOG, LOST, SliceSupervisor
from official_trainer.processes.verdict import Outcome

FOLDER = "/var/lib/official-trainer"
"""Where a VM keeps the code, its installation and its log."""

_STARTUP = "startup.sh"
_CLEAR = "clear.sh"
_ENDED = (*LOST, "SUSPENDING", "DELETING")
_SHOWN = "--format=json(name,createTime,state)"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NEEDED = {
    "project": "my-project",
    "zone": "us-central2-b",
    "accelerator_type": "v4-8",
    "runtime_version": "tpu-ubuntu2204-base",
}


class TpuTarget(Target[TpuProfile]):
    """Cloud TPU, by gcloud."""

    name = "tpu"
    profile_class = TpuProfile
    needs = NEEDS
    is_supervised = True
    gets_code_as = "archive"

    def problems(self, job: JobSpec) -> Iterator[str]:
        profile = self.profile
        yield from missing_fields(profile, _NEEDED)
        if self.code_as(job.model_dir) and job.code is None:
            yield (
                "source: this command runs in no workspace, so there is no code to copy; run it in a folder with "
                "experiments/, or name an archive"
            )
        projects = ("pyproject.toml", "setup.py")  # of code that machines, which are paid for, could not install
        if job.code is not None and "." in profile.install and not {*projects} & job.code.sums.keys():
            yield (
                f"install: {job.code.workspace} has no {' or '.join(projects)}, which `pip install .` needs; add one, "
                "or set install to the packages that the code needs, official-trainer among them"
            )
        for role in job.roles:  # one process drives a slice, with any number of hosts
            if role.name == WORKER and role.count > 1:
                what = f"workers={role.count}: one process drives a whole slice"
                yield f"{what}; leave workers at 1, and use a larger slice"
            elif role.name != WORKER:
                yield f"{role.name}: a slice runs one process, which trains; leave it out"
        if profile.resources != Resources() or profile.ps_resources != Resources():
            yield "resources: accelerator_type determines the resources; leave resources and ps_resources out"
        if not _NAME.fullmatch(job.name):
            yield f"name: {job.name!r} is not a valid TPU name; use at most 63 of a to z, 0 to 9 and -, a letter first"
        if job.strategy not in ("", "auto", "tpu"):
            yield f"runtime.distribution_strategy={job.strategy} does not use the TPU; set it to tpu or auto"
        if not job.model_dir.startswith("gs://"):
            yield (
                f"--model_dir={job.model_dir}: the disks of a slice are deleted with it"
                f"{', and its hosts cannot read those of each other' if profile.is_pod else ''}; use a gs:// URL"
            )
        yield from unseen_files(job)

    def render(self, job: JobSpec) -> Rendered:
        (delete,) = self.cancel(job.name)
        clear = script("tpu_clear.sh", describe=shlex.join(self.status(job.name)), delete=shlex.join(delete))
        texts = {_STARTUP: startup_script(job, self.profile), _CLEAR: clear}
        flags = (
            f"--accelerator-type={self.profile.accelerator_type}",
            f"--node-id={job.name}",
            f"--runtime-version={self.profile.runtime_version}",
            f"--metadata-from-file=startup-script={_STARTUP}",
            *self.profile.gcloud,
            "--quiet",
        )
        return Rendered(files=texts, submit=(*fetch.uploads(job), self._gcloud("create", job.name, *flags)))

    def status(self, job_id: str) -> Argv:
        return self._gcloud("describe", job_id, _SHOWN)

    def query(self, job_ids: Sequence[str]) -> Argv:
        return self.status(*job_ids) if len(job_ids) == 1 else self._gcloud("list", _SHOWN)

    def states(self, job_ids: Sequence[str], ran: CompletedProcess[str]) -> Iterator[JobState]:
        return read_states(job_ids, ran, lambda described: described["state"]["state"], _ENDED)

    def logs(self, job_id: str, *, follow: bool) -> Argv:
        path = f"{FOLDER}/{LOG}"
        command = f"sudo tail --lines=+1 --follow=name --retry {path}" if follow else f"sudo cat {path}"
        address = ("--internal-ip",) if "--internal-ips" in self.profile.gcloud else ()
        place = (*self._place, "--worker=0", *address)
        return ("gcloud", "compute", "tpus", "tpu-vm", "ssh", job_id, *place, f"--command={command}")

    def cancel(self, job_id: str) -> tuple[Argv, ...]:
        return (self._gcloud("delete", job_id, "--quiet", "--force"),)

    def resume(self, job_id: str, submit: tuple[Argv, ...]) -> tuple[Argv, ...]:
        return (("bash", _CLEAR), *submit)

    def supervise(self, job_id: str, submit: tuple[Argv, ...], model_dir: str, host: Host) -> Outcome:
        return SliceSupervisor(self, job_id, submit, model_dir, host).supervise()

    @property
    def _place(self) -> Argv:
        return (f"--project={self.profile.project}", f"--zone={self.profile.zone}")

    def _gcloud(self, verb: str, what: str, *flags: str) -> Argv:
        return ("gcloud", "compute", "tpus", "queued-resources", verb, what, *self._place, *flags)


def startup_script(job: JobSpec, profile: TpuProfile) -> str:
    """Returns the script of a job with one process."""
    (role,) = job.roles
    environ = {"PYTHONUNBUFFERED": "1", "TF_USE_LEGACY_KERAS": "1"}
    if profile.is_pod:
        environ |= {"TPU_NAME": job.name, "TPU_LOAD_LIBRARY": "0"}
    else:
        version = ".".join(profile.python.split(".")[:2])
        library = f"{FOLDER}/venv/lib/python{version}/site-packages/libtpu/libtpu.so"
        environ |= {"TPU_NAME": "local", "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true"}
        environ |= {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": library}
    environ |= {**role.environ, **profile.environ}
    restarting = rerun.words(profile.max_restarts, finish="../startup.sh")
    source = profile.source if job.archive is None else job.archive[1]
    return script(
        "tpu_startup.sh",
        blocks=[*(["setup"] if profile.setup else []), *(["pod"] if profile.is_pod else [])],
        name=job.name,
        folder=shlex.quote(FOLDER),
        place=shlex.quote(files.join(job.model_dir, PLACE)),
        grace=f"{job.grace_seconds:.0f}",
        commands="\n".join(f"  {shlex.join(words)}" for words in profile.setup),
        source=shlex.quote(source),
        python=shlex.quote(profile.python),
        words=shlex.join(profile.install),
        tensorflow_tpu=shlex.quote(profile.tensorflow_tpu),
        libtpu=shlex.quote(profile.libtpu),
        log=LOG,
        exit=EXIT,
        environ="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items()),
        argv=shlex.join((*restarting, "../venv/bin/python", "-m", *role.argv)),
    )
