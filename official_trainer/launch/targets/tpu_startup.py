"""What a Cloud TPU VM does at every boot: gets the code, installs it once, trains, and says how that ended.

Owns: the start-up script as text, and the files that it leaves. Does not own: creating the slice (`tpu.py`), creating
it again (`tpu_supervise.py`), the loop that starts training again (`launch/rerun.py`).
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from string import Template

from official_trainer import files
from official_trainer.launch import rerun

FOLDER = "/var/lib/official-trainer"
"""Where a VM keeps all of it."""

LOG = "train.log"
"""What training has printed, in that folder; a copy is in the run directory once training has ended."""

EXIT = "exit.json"
"""How training has ended, in that folder and in the run directory; not there if it was told to stop."""

_PLACE = ".launch"  # the dot keeps a run directory one in which nothing has run yet

_SCRIPT = Template("""\
#!/bin/bash
# Trains ${name} on a Cloud TPU VM. Every boot runs this, on every host of the slice.
set -u
folder=${folder}
place=${place}
export HOME="$${HOME:-/root}"

if [ $$# -eq 0 ]; then  # as a service, so that it is told to stop while there still is a network
  mkdir -p "$$folder" && cp "$$0" "$$folder/startup.sh" || exit 1
  exec systemd-run --unit=official-trainer --collect --property=After=network-online.target \\
    --property=KillMode=mixed --property=TimeoutStopSec=${grace} bash "$$folder/startup.sh" train
fi
cd "$$folder" || exit 1

${setup_block}if [ "$$1" = install ]; then
  set -e
  rm -rf source && mkdir source
${fetch}
${install}
  touch installed
  exit
fi

exec >>${log} 2>&1
finish() {
  printf '{"exit_code": %d, "ended": "%s"}\\n' "$$1" "$$(date -u +%Y-%m-%dT%H:%M:%SZ)" >${exit}
  gcloud storage cp ${log} "$$place/${log}"
  gcloud storage cp ${exit} "$$place/${exit}"
  exit "$$1"
}
[ "$$1" != finish ] || finish "$$2"
[ ! -e ${exit} ] || exit 0  # it has ended before this boot
attempt() {
  for _ in 1 2 3; do
    [ ! -e "$$2" ] || return 0
    bash startup.sh "$$1" && return 0
    echo "$$1 failed" >&2
    sleep 30
  done
  return 1
}
${setup}${only_worker_0}attempt install installed || finish 1

${environ}
cd source || finish 1
exec ../venv/bin/python ${argv}
""")

_SETUP_BLOCK = Template("""\
if [ "$$1" = setup ]; then
  set -e
${commands}
  touch set-up
  exit
fi
""")
_SETUP = "attempt setup set-up || finish 1\n"

_ONLY_WORKER_0 = """\
# One process drives the whole slice. The other hosts serve it, which their tpu-runtime does.
worker=$(curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \\
  "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/agent-worker-number")
[ -n "$worker" ] || { echo 'the metadata server does not say which host of the slice this is' >&2; finish 1; }
[ "$worker" = 0 ] || exit 0
"""

_INSTALL = """\
  python3 -m pip install --quiet --upgrade --target uv uv
  uv/bin/uv venv --quiet --clear --python ${python} venv
  echo 'tensorflow; python_version < "0"' >overrides.txt  # tensorflow-tpu is installed in its place
  cd source
  ../uv/bin/uv pip install --quiet --python ../venv/bin/python --override ../overrides.txt \\
    ${words} tensorflow-tpu==${tensorflow_tpu} libtpu==${libtpu}
  cd ..
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Startup:
    """What a start-up script does.

    Attributes:
      name: of the job.
      argv: a module and its arguments, as after `python -m`.
      model_dir: the run directory.
      environ: variables for training.
      source: `gs://….tar.gz`, or `git+https://…@REVISION`.
      setup: commands for every host, before anything else.
      install: words after `pip install`, in the folder of the source.
      python: version of Python.
      tensorflow_tpu: version of the package that is installed in place of tensorflow.
      libtpu: version of that package.
      is_pod: whether the slice has several hosts.
      max_restarts: how often training is started again on this VM.
      grace_seconds: from SIGTERM to SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    model_dir: str
    environ: Mapping[str, str]
    source: str
    setup: tuple[tuple[str, ...], ...]
    install: tuple[str, ...]
    python: str
    tensorflow_tpu: str
    libtpu: str
    is_pod: bool
    max_restarts: int
    grace_seconds: float


def script(startup: Startup) -> str:
    """Returns the start-up script."""
    quoted = {field: shlex.quote(getattr(startup, field)) for field in ("python", "tensorflow_tpu", "libtpu")}
    install = Template(_INSTALL).substitute(words=shlex.join(startup.install), **quoted)
    return _SCRIPT.substitute(
        name=startup.name,
        folder=shlex.quote(FOLDER),
        place=shlex.quote(files.join(startup.model_dir, _PLACE)),
        grace=f"{startup.grace_seconds:.0f}",
        setup_block=_SETUP_BLOCK.substitute(commands="\n".join(f"  {shlex.join(words)}" for words in startup.setup))
        if startup.setup
        else "",
        setup=_SETUP if startup.setup else "",
        fetch=_fetch(startup.source),
        install=install.rstrip("\n"),
        log=LOG,
        exit=EXIT,
        only_worker_0=_ONLY_WORKER_0 if startup.is_pod else "",
        environ="\n".join(f"export {name}={shlex.quote(value)}" for name, value in _environ(startup).items()),
        argv=shlex.join(
            (*rerun.words(startup.max_restarts, finish="../startup.sh"), "../venv/bin/python", "-m", *startup.argv)
        ),
    )


def clear_script(describe: Sequence[str], delete: Sequence[str]) -> str:
    """Returns a script that makes room for a slice of the same name.

    Args:
      describe: the command that fails where there is none.
      delete: the command that deletes it.
    """
    return f"""\
#!/bin/bash
# Deletes what is left of the slice, if anything is: it would not come back by itself.
{shlex.join(describe)} >/dev/null 2>&1 || exit 0
exec {shlex.join(delete)}
"""


def exit_path(model_dir: str) -> str:
    """Returns where the script says how training has ended."""
    return files.join(model_dir, _PLACE, EXIT)


def log_path(model_dir: str) -> str:
    """Returns where the script copies the log once training has ended."""
    return files.join(model_dir, _PLACE, LOG)


def split_git(source: str) -> tuple[str, str] | None:
    """Returns address and revision of `git+https://…@REVISION`; None if a source is no such thing."""
    address, _, revision = source.removeprefix("git+").rpartition("@")
    is_git = source.startswith("git+https://") and "/" not in revision and "://" in address and bool(revision)
    return (address, revision) if is_git else None


def _fetch(source: str) -> str:
    git = split_git(source)
    if git is None:
        return f"  gcloud storage cp {shlex.quote(source)} source.tar.gz\n  tar -xzf source.tar.gz -C source"
    address, revision = map(shlex.quote, git)
    return f"  git clone --quiet {address} source\n  git -C source checkout --quiet {revision}"


def _environ(startup: Startup) -> dict[str, str]:
    """Returns the variables of training: TensorFlow's own way to a TPU, then what the user sets."""
    version = ".".join(startup.python.split(".")[:2])
    library = f"{FOLDER}/venv/lib/python{version}/site-packages/libtpu/libtpu.so"
    if startup.is_pod:
        ours = {"TPU_NAME": startup.name, "TPU_LOAD_LIBRARY": "0"}
    else:
        ours = {
            "TPU_NAME": "local",
            "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
            "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": library,
        }
    return {"PYTHONUNBUFFERED": "1", "TF_USE_LEGACY_KERAS": "1", **ours, **startup.environ}
