"""What a TPU VM runs at every boot, run here: its shell for real, with other programs in place of Google's."""

import os
import shutil
import signal
import subprocess

import pytest

from official_trainer.launch.spec import JobSpec
from official_trainer.launch.targets import tpu
from official_trainer.launch.targets.tpu_profile import TpuProfile
from official_trainer.processes.job import Role
from tests.support import repository
from tests.support.waiting import until

TIMEOUT_SECONDS = 120
WORDS = ["$(id)", "`id`", "'", '"', "a\nb", "-n", "*", "~", "\\", "!", ""]

SYSTEMD = """#!/bin/bash
# systemd-run --unit=official-trainer --property=… COMMAND: without restarts, which are systemd's
printf '%s\\n' "$@" >"$RECORD/systemd"
while [ "${1#--}" != "$1" ]; do
  case "$1" in --property=ExecStopPost=*) post=${1#*=*=} ;; esac
  shift
done
trap 'kill "$main"' TERM
"$@" &
main=$!
while kill -0 "$main" 2>/dev/null; do wait "$main"; done
wait "$main"
code=$?
EXIT_STATUS=$code $post
exit "$code"
"""
GCLOUD = """#!/bin/bash
# gcloud storage cp FROM TO
place() { case "$1" in gs://*) echo "$RECORD/${1#gs://}" ;; *) echo "$1" ;; esac; }
[ "$1 $2" = "storage cp" ] || exit 9
mkdir -p "$(dirname "$(place "$4")")"
cp "$(place "$3")" "$(place "$4")"
"""
PYTHON3 = """#!/bin/bash
# python3 -m pip install … --target uv uv
echo "python3 $*" >>"$RECORD/installs"
mkdir -p uv/bin && cp "$RECORD/bin/uv" uv/bin/uv
"""
UV = """#!/bin/bash
echo "uv $*" >>"$RECORD/installs"
[ ! -e "$RECORD/no-network" ] || { rm "$RECORD/no-network"; exit 1; }
[ "$1" != venv ] || { mkdir -p venv/bin && cp "$RECORD/bin/trainer" venv/bin/python; }
[ "$1" = venv ] || pwd >>"$RECORD/installs"
"""
TRAINER = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/argv"
env -0 >"$RECORD/environ"
pwd >"$RECORD/cwd"
echo "code $CODE" | tee -a "$RECORD/trained"
[ "$CODE" != wait ] || { trap 'echo saved; exit 143' TERM; touch "$RECORD/up"; while :; do sleep 0.02; done; }
exit "$CODE"
"""


class Machine:
    """A TPU VM, as far as its start-up script sees it."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.home = folder, folder / "var"
        monkeypatch.setattr(tpu, "FOLDER", str(self.home))
        programs = {"systemd-run": SYSTEMD, "gcloud": GCLOUD, "python3": PYTHON3, "uv": UV, "trainer": TRAINER}
        programs["sleep"] = "#!/bin/bash\nexec /bin/sleep 0.01\n"
        (folder / "bin").mkdir()
        for name, text in programs.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "bucket").mkdir()
        code = repository.make(folder / "code")
        self.commit = repository.git(code, "rev-parse", "HEAD")
        repository.git(code, "archive", f"--output={folder}/bucket/code.tar.gz", "HEAD")
        inherited = {name: value for name, value in os.environ.items() if name != "TPU_LOAD_LIBRARY"}  # our own doing
        self.environ = {**inherited, "RECORD": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def start(self, *, code="0", argv=("official_trainer", "train", "digits_mlp"), environ=None, **profile):
        role = Role(name="worker", count=1, argv=argv)
        job = JobSpec(roles=(role,), name="digits-1", model_dir="gs://run", grace_seconds=35.0)
        values = {"source": "gs://bucket/code.tar.gz", "environ": {"CODE": code, **(environ or {})}, **profile}
        script = self.folder / "script"
        script.write_text(tpu.startup_script(job, TpuProfile(**values)))
        return subprocess.Popen(["bash", str(script)], env=self.environ, cwd="/")

    def boot(self, **changes):
        return self.start(**changes).wait(TIMEOUT_SECONDS)

    def read(self, name):
        path = self.folder / name
        return path.read_bytes().decode() if path.exists() else None


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_a_machine_installs_and_trains(machine):
    """N20, N33: as a service that the network outlives and that systemd restarts; every word arrives; its commit."""
    code = machine.boot(install=("-r", "a lock"), setup=(("touch", "here"),), argv=("official_trainer", *WORDS))
    assert code == 0 and machine.read("run/.launch/train.log").endswith("code 0\n")
    options = machine.read("systemd").splitlines()
    assert {
        "--property=After=network-online.target",
        "--property=TimeoutStopSec=35",
        "--property=Restart=on-failure",
        "--property=RestartPreventExitStatus=1 2 3 4 5",
        "--property=StartLimitBurst=11",
    } <= set(options)
    assert machine.read("argv").split("\0")[:-1] == ["-m", "official_trainer", *WORDS]
    assert machine.read("cwd") == f"{machine.home}/source\n"
    assert (machine.home / "source" / "x").exists() and (machine.home / "here").exists()
    assert machine.read("installs").splitlines()[1:] == [
        "uv venv --quiet --clear --python 3.11 venv",
        "uv pip install --quiet --python ../venv/bin/python --override ../overrides.txt "
        "-r a lock tensorflow-tpu==2.20.0 libtpu==0.0.14",
        f"{machine.home}/source",
    ]
    environ = dict(item.split("=", 1) for item in machine.read("environ").split("\0")[:-1])
    assert (environ["TPU_NAME"], environ["TF_USE_LEGACY_KERAS"]) == ("local", "1")
    assert environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"].startswith(f"{machine.home}/venv/lib/python3.11/")
    assert environ["OFFICIAL_TRAINER_COMMIT"] == machine.commit and "TPU_LOAD_LIBRARY" not in environ


@pytest.mark.parametrize(("code", "again"), [("0", 1), ("2", 1), ("75", 2), ("143", 2)])
def test_what_the_next_boot_does(machine, code, again):
    """N20: what has ended for good is not started again, and says so again; nothing is installed twice."""
    assert [machine.boot(code=code) for _ in range(2)] == [int(code)] * 2
    assert machine.read("trained").count("code") == again
    assert machine.read("installs").count("uv pip") == 1


def test_a_machine_that_is_shut_down_goes_on_at_its_next_boot(machine):
    """N20, N5: the log is in the bucket, also what is printed after the signal; another slice adds to it."""
    process = machine.start(code="wait")
    until(lambda: (machine.folder / "up").exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_SECONDS) == 143
    assert machine.read("run/.launch/train.log").endswith("code wait\nsaved\n")
    shutil.rmtree(machine.home)  # another slice begins with empty disks
    assert machine.boot() == 0
    assert machine.read("run/.launch/train.log").endswith("code wait\nsaved\ncode 0\n")


def test_an_installation_that_fails(machine):
    """N20: is tried three times; then the job has failed, and its log says why."""
    (machine.folder / "no-network").touch()
    assert machine.boot() == 0
    shutil.rmtree(machine.home)
    (machine.folder / "bucket" / "code.tar.gz").unlink()
    assert machine.boot() == 1
    assert machine.read("run/.launch/train.log").count("install failed") == 1 + 3  # the first slice, the second
    shutil.rmtree(machine.home)
    assert machine.boot(setup=(("false",), ("touch", "too-far"))) == 1 and not (machine.home / "too-far").exists()


@pytest.mark.parametrize(("number", "code"), [("0", 0), ("13", 0), ("", 1)])
def test_one_host_of_a_slice_drives_it(machine, number, code):
    """N20: worker 0, which knows the slice by its name; all are set up; one without a number fails."""
    curl = machine.folder / "bin" / "curl"  # asks the metadata server
    curl.write_text(f'#!/bin/sh\ncase "$*" in *Google*/attributes/agent-worker-number) echo {number} ;; esac\n')
    curl.chmod(0o755)
    assert machine.boot(accelerator_type="v4-32", setup=(("touch", "here"),)) == code
    assert (machine.home / "here").exists()
    assert (machine.read("argv") is not None) == (number == "0")
    if number == "0":
        assert {"TPU_NAME=digits-1", "TPU_LOAD_LIBRARY=0"} <= set(machine.read("environ").split("\0"))
