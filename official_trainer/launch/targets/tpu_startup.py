"""What a Cloud TPU VM does at every boot: gets the code, installs it once, trains, and records how that ended.

Owns: the start-up script, filled from `tpu_startup.sh`, and the files that it leaves.
Does not own: creating the slice (`tpu.py`, `tpu_supervise.py`), restarts on one machine (`launch/rerun.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from official_trainer import files
from official_trainer.launch import rerun
from official_trainer.launch.spec import JobSpec
from official_trainer.launch.targets.rendering import script
from official_trainer.launch.targets.tpu_profile import TpuProfile, split_git

FOLDER = "/var/lib/official-trainer"
"""Where a VM keeps the code, its installation and its log."""

LOG = "train.log"
"""The output of training, in that folder; copied to the run directory once training has ended."""

EXIT = "exit.json"
"""How training ended, in that folder and in the run directory; not written after a signal to stop."""

_PLACE = ".launch"  # with the dot, the run directory still counts as one in which nothing has run


def startup_script(job: JobSpec, profile: TpuProfile) -> str:
    """Returns the script of a job with one process."""
    (role,) = job.roles
    environ = {**_tpu_environ(job, profile), **role.environ, **profile.environ}
    restarting = rerun.words(profile.max_restarts, finish="../startup.sh")
    return script(
        "tpu_startup.sh",
        blocks=[*(["setup"] if profile.setup else []), *(["pod"] if profile.is_pod else [])],
        name=job.name,
        folder=shlex.quote(FOLDER),
        place=shlex.quote(files.join(job.model_dir, _PLACE)),
        grace=f"{job.grace_seconds:.0f}",
        commands="\n".join(f"  {shlex.join(words)}" for words in profile.setup),
        fetch=_fetch(profile.source),
        python=shlex.quote(profile.python),
        words=shlex.join(profile.install),
        tensorflow_tpu=shlex.quote(profile.tensorflow_tpu),
        libtpu=shlex.quote(profile.libtpu),
        log=LOG,
        exit=EXIT,
        environ="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items()),
        argv=shlex.join((*restarting, "../venv/bin/python", "-m", *role.argv)),
    )


def clear_script(describe: Sequence[str], delete: Sequence[str]) -> str:
    """Returns a script that deletes a slice if it exists, so that its name is free.

    Args:
      describe: the command that fails if there is no slice.
      delete: the command that deletes it.
    """
    return script("tpu_clear.sh", describe=shlex.join(describe), delete=shlex.join(delete))


def exit_path(model_dir: str) -> str:
    """Returns the file in which the script records how training has ended."""
    return files.join(model_dir, _PLACE, EXIT)


def log_path(model_dir: str) -> str:
    """Returns the file to which the script copies the log once training has ended."""
    return files.join(model_dir, _PLACE, LOG)


def _fetch(source: str) -> str:
    git = split_git(source)
    if git is None:
        return f"  gcloud storage cp {shlex.quote(source)} source.tar.gz\n  tar -xzf source.tar.gz -C source"
    address, revision = map(shlex.quote, git)
    return f"  git clone --quiet {address} source\n  git -C source checkout --quiet {revision}"


def _tpu_environ(job: JobSpec, profile: TpuProfile) -> dict[str, str]:
    """Returns the variables with which TensorFlow finds the TPU."""
    always = {"PYTHONUNBUFFERED": "1", "TF_USE_LEGACY_KERAS": "1"}
    if profile.is_pod:
        return {**always, "TPU_NAME": job.name, "TPU_LOAD_LIBRARY": "0"}
    version = ".".join(profile.python.split(".")[:2])
    return {
        **always,
        "TPU_NAME": "local",
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": f"{FOLDER}/venv/lib/python{version}/site-packages/libtpu/libtpu.so",
    }
