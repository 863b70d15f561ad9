"""A Cloud TPU slice that trains one job: gcloud's commands for it, and what its machines do at every boot.

Owns: those commands; the jobs that Google's API would refuse or would not run as intended; the start-up script, filled
from `tpu_startup.sh`: it gets the code, installs it once, and trains as a service of systemd, which restarts it.
Does not own: the profile (`tpu_profile.py`).

This has never run on a TPU. gcloud itself takes the words of the commands, without an account.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from official_trainer import files
from official_trainer.distributed.cluster import WORKER
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import JobSpec, files_of_this_machine
from official_trainer.launch.target import Argv, Commands, Rendered, Target
from official_trainer.launch.targets.rendering import script
from official_trainer.launch.targets.tpu_profile import TpuProfile
from official_trainer.tracking.git_state import COMMIT

FOLDER = "/var/lib/official-trainer"
"""Where a VM keeps the code, its installation and its log."""

_STARTUP = "startup.sh"
_LOG = "train.log"
_NEEDED = {
    "project": "my-project",
    "zone": "us-central2-b",
    "accelerator_type": "v4-8",
    "runtime_version": "tpu-ubuntu2204-base",
    "source": "gs://my-bucket/code.tar.gz",
}


class CloudTpu(Target[TpuProfile]):
    """Cloud TPU, by gcloud."""

    name = "tpu"
    profile_class = TpuProfile
    needs = "install the Google Cloud CLI, https://cloud.google.com/sdk/docs/install"

    def problems(self, job: JobSpec) -> Iterator[str]:
        profile = self.profile
        for field, example in _NEEDED.items():
            if not getattr(profile, field):
                yield f"{field}: is required, such as {example}"
        for role in job.roles:  # one process drives a slice, with any number of hosts
            if role.name == WORKER and role.count > 1:
                what = f"workers={role.count}: one process drives a whole slice"
                yield f"{what}; leave workers at 1, and use a larger slice"
            elif role.name != WORKER:
                yield f"{role.name}: a slice runs one process, which trains; leave it out"
        if profile.resources != Resources() or profile.ps_resources != Resources():
            yield "resources: accelerator_type determines the resources; leave resources and ps_resources out"
        if job.strategy not in ("", "auto", "tpu"):
            yield f"runtime.distribution_strategy={job.strategy} does not use the TPU; set it to tpu or auto"
        if not job.model_dir.startswith("gs://"):
            what = f"--model_dir={job.model_dir}: the disks of a slice are deleted with it, and its hosts share none"
            yield f"{what}; use a gs:// URL"
        for word in files_of_this_machine(job):
            yield f"{word} is a file of this machine; use a path relative to the top of the source, or a gs:// URL"

    def render(self, job: JobSpec) -> Rendered:
        flags = (
            f"--accelerator-type={self.profile.accelerator_type}",
            f"--node-id={job.name}",
            f"--runtime-version={self.profile.runtime_version}",
            f"--metadata-from-file=startup-script={_STARTUP}",
            *self.profile.gcloud,
            "--quiet",
        )
        return Rendered(
            files={_STARTUP: startup_script(job, self.profile)}, submit=self._gcloud("create", job.name, *flags)
        )

    def commands(self, job: JobSpec, job_id: str, folder: str) -> Commands:
        address = ("--internal-ip",) if "--internal-ips" in self.profile.gcloud else ()
        reading = f"--command=sudo cat {FOLDER}/{_LOG}"
        ssh = ("gcloud", "compute", "tpus", "tpu-vm", "ssh", job_id)
        return Commands(
            status=self._gcloud("describe", job_id),
            logs=(*ssh, *self._region, "--worker=0", *address, reading),
            cancel=self._gcloud("delete", job_id, "--quiet", "--force"),
        )

    @property
    def _region(self) -> Argv:
        return (f"--project={self.profile.project}", f"--zone={self.profile.zone}")

    def _gcloud(self, verb: str, what: str, *flags: str) -> Argv:
        return ("gcloud", "compute", "tpus", "queued-resources", verb, what, *self._region, *flags)


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
    final = [str(int(code)) for code in ExitCode if code and code not in START_AGAIN]
    return script(
        "tpu_startup.sh",
        name=job.name,
        folder=shlex.quote(FOLDER),
        grace=f"{job.grace_seconds:.0f}",
        final=" ".join(final),
        starts=profile.max_restarts + 1,
        commands="\n".join(f"  {shlex.join(words)}" for words in profile.setup),
        is_pod=int(profile.is_pod),
        source=shlex.quote(profile.source),
        python=shlex.quote(profile.python),
        words=shlex.join(profile.install),
        tensorflow_tpu=shlex.quote(profile.tensorflow_tpu),
        libtpu=shlex.quote(profile.libtpu),
        log=_LOG,
        kept=shlex.quote(files.join(job.model_dir, ".launch", _LOG)),  # with a dot: no run is there yet
        commit=COMMIT,
        environ="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items()),
        argv=shlex.join(("../venv/bin/python", "-m", *role.argv)),
    )
