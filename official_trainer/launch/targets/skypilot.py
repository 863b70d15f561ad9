"""A job as YAML for SkyPilot, which finds machines for it; the user starts it with SkyPilot's own command.

Owns: `SkyPilotProfile`, and the YAML. Does not own: running jobs; nothing here starts a process.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from typing import Any

from official_trainer import files
from official_trainer.config import FrozenDict, Positive
from official_trainer.distributed.cluster import WORKER
from official_trainer.errors import START_AGAIN
from official_trainer.launch.profile import VARIABLE, Profile
from official_trainer.launch.spec import JobSpec, files_of_this_machine, is_in
from official_trainer.launch.target import Argv, Rendered, Target
from official_trainer.launch.targets.rendering import dump_yaml, filled

FILE = "skypilot.yaml"
_PORT = 2222
_SET_TF_CONFIG = f"""\
export TF_CONFIG="$(python3 - <<'END'
import json, os
hosts = os.environ["SKYPILOT_NODE_IPS"].split()
task = {{"type": "worker", "index": int(os.environ["SKYPILOT_NODE_RANK"])}}
print(json.dumps({{"cluster": {{"worker": [f"{{host}}:{_PORT}" for host in hosts]}}, "task": task}}))
END
)"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkyPilotProfile(Profile):
    """The profile of a job for SkyPilot.

    Attributes:
      infra: the cloud, such as gcp/us-central1 or k8s; empty leaves it to SkyPilot.
      accelerator: the type of the GPUs, such as A100; `resources.gpus` is their number.
      spot: whether the cloud may take machines away, for a lower price.
      disk_gib: disk of each machine; null leaves it to SkyPilot.
      image: a container image with this package; empty runs on the machine itself.
      setup: shell commands that install this package, without an image.
      workdir: the folder that is copied to the machines as their workspace, relative to the current directory.
      file_mounts: paths on the machines, and the local path or URL that is copied to each.
      secrets: names of variables whose values `sky jobs launch` takes from its own environment.
    """

    infra: str = ""
    accelerator: str = ""
    spot: bool = False
    disk_gib: Positive | None = None
    image: str = ""
    setup: str = ""
    workdir: str = "."
    file_mounts: dict[str, str] = FrozenDict()
    secrets: tuple[str, ...] = ()

    secrets_go = "name it under secrets"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if bool(self.accelerator) != bool(self.resources.gpus):
            what = f"resources.gpus is {self.resources.gpus}, and accelerator {self.accelerator or 'is not set'}"
            yield "accelerator", f"{what}; SkyPilot needs a type, such as A100, and a number: set both, or neither"
        if not self.image and not self.setup.strip():
            what = "is not set, nor is image, so nothing would be installed"
            yield "setup", f"{what}; set one, such as setup: python3 -m pip install --constraint requirements.lock ."
        if sum(self.counts.values()) > self.workers:
            what = "are the only processes that SkyPilot starts, one on each machine; leave out chief, ps and evaluator"
            yield "workers", what
        if self.max_restarts not in (0, Profile().max_restarts):
            what = "is not supported by SkyPilot, which restarts a job after exit code 75 or 143 without a limit"
            yield "max_restarts", f"{what}; use 0 for no restarts, or leave it out"
        for name in self.secrets:
            if not VARIABLE.fullmatch(name) or name in self.environ:
                yield "secrets", f"{name!r} is not a valid variable name, or is in environ too; name each once"


class SkyPilot(Target[SkyPilotProfile]):
    """One task for as many machines as there are workers."""

    name = "skypilot"
    profile_class = SkyPilotProfile
    needs = (
        "this command only writes the YAML; save it with `launch skypilot … > job.yaml`, and start it with "
        "`sky jobs launch job.yaml`"
    )

    def problems(self, job: JobSpec) -> Iterator[str]:
        if not files.is_url(job.model_dir):
            what = f"--model_dir={job.model_dir} would be lost with its machine after the job"
            yield f"{what}; use a URL, such as gs://BUCKET/RUN"
        for word, path in files_of_this_machine(job).items():
            if not any(is_in(path, place) for place in self.profile.file_mounts):
                yield f"{word} is a file of this machine; use its path relative to workdir, or add it to file_mounts"

    def render(self, job: JobSpec) -> Rendered:
        secrets = [f"--secret={name}" for name in self.profile.secrets]
        commands = (
            ("sky", "jobs", "launch", *secrets, "FILE"),
            self.status(job.name),
            self.logs(job.name, follow=True),
            *self.cancel(job.name),
        )
        head = "".join(f"# {' '.join(command)}\n" for command in commands)
        return Rendered(files={FILE: head + dump_yaml(_task(job, self.profile))}, submit=())

    def restarts(self) -> int | None:
        return None if self.profile.max_restarts else 0

    def status(self, job_id: str) -> Argv:
        return ("sky", "jobs", "queue")

    def logs(self, job_id: str, *, follow: bool) -> Argv:
        return ("sky", "jobs", "logs", f"--name={job_id}", *(() if follow else ("--no-follow",)))

    def cancel(self, job_id: str) -> tuple[Argv, ...]:
        return (("sky", "jobs", "cancel", f"--name={job_id}"),)


def _task(job: JobSpec, profile: SkyPilotProfile) -> dict[str, Any]:
    (role,) = job.roles
    assert role.name == WORKER
    setup = profile.setup.strip()
    return filled(
        {
            "name": job.name,
            "resources": _resources(profile),
            "num_nodes": role.count,
            "workdir": os.path.normpath(os.path.join(job.cwd, os.path.expanduser(profile.workdir))),
            "file_mounts": dict(profile.file_mounts),
            "envs": {"PYTHONUNBUFFERED": "1", **role.environ, **profile.environ},
            "secrets": dict.fromkeys(profile.secrets),
            "setup": f"{setup}\n" if setup else None,
            "run": (_SET_TF_CONFIG if role.count > 1 else "") + f"exec python3 -m {shlex.join(role.argv)}\n",
        }
    )


def _resources(profile: SkyPilotProfile) -> dict[str, Any]:
    wanted = profile.resources
    return filled(
        {
            "infra": profile.infra,
            "accelerators": f"{profile.accelerator}:{wanted.gpus}" if wanted.gpus else None,
            "cpus": f"{wanted.cpus}+" if wanted.cpus else None,
            "memory": f"{wanted.memory_gib:g}+" if wanted.memory_gib else None,
            "use_spot": profile.spot or None,
            "disk_size": profile.disk_gib,
            "image_id": f"docker:{profile.image}" if profile.image else None,
            "job_recovery": {"recover_on_exit_codes": list(map(int, START_AGAIN))} if profile.max_restarts else None,
        }
    )
