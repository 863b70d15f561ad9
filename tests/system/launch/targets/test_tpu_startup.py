"""What a TPU VM runs at every boot, run here: its shell for real, with other programs in place of Google's."""

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from official_trainer.launch import rerun
from official_trainer.launch.spec import JobSpec
from official_trainer.launch.targets import tpu
from official_trainer.launch.targets.tpu_profile import TpuProfile
from official_trainer.processes.job import Role
from tests import ROOT
from tests.support.launch.jobs import until
from tests.support.launch.rendered_google import VERTEX, rendered

TIMEOUT_SECONDS = 120

# A command that ends with one exit code after the other, and says how often it was started, and how.
SCRIPTED = """#!/bin/bash
printf "%s\\0" "$@" >>"$0.argv"
echo "life $$" >>"$0.lives"
lives=$(wc -l <"$0.lives")
codes=($CODES)
code=${codes[lives - 1]}
[ "$code" != wait ] || { trap 'echo told >>"$0.told"; exit 143' TERM; touch "$0.up"; while :; do sleep 0.02; done; }
[ "$code" -lt 128 ] || [ "$code" -eq 143 ] || kill -$((code - 128)) $$
exit "$code"
"""


def program(path, text):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class NobodyTells(rerun.Command):
    """No signal, and no pause, which is only written down."""

    def __init__(self):
        super().__init__()
        self.pauses = []

    def wait(self, seconds):
        self.pauses.append(seconds)


def lives(folder):
    return len((folder / "scripted.lives").read_text().splitlines())


@pytest.mark.parametrize(
    ("codes", "limit", "code", "count"),
    [
        ("0", 5, 0, 1),
        ("1", 5, 1, 1),
        ("2", 5, 2, 1),
        ("5", 5, 5, 1),
        ("143 0", 5, 0, 2),
        ("75 143 137 134 3", 5, 3, 5),
        ("143 143 143 0", 2, 143, 3),
        ("137 137", 1, 137, 2),
        ("75", 0, 75, 1),
    ],
)
def test_what_is_started_again(tmp_path, monkeypatch, capfd, codes, limit, code, count):
    """N20, N6: 75, 143 and what a signal has killed, so often and no more; everything else is the end."""
    monkeypatch.setenv("CODES", codes)
    assert rerun.run([str(program(tmp_path / "scripted", SCRIPTED)), "a b"], limit, NobodyTells()) == code
    assert lives(tmp_path) == count
    assert capfd.readouterr().err.count("; restart ") == count - 1


def test_pauses_become_longer(tmp_path, monkeypatch):
    monkeypatch.setenv("CODES", "75 " * 9 + "0")
    told = NobodyTells()
    assert rerun.run([str(program(tmp_path / "scripted", SCRIPTED))], 20, told) == 0
    assert told.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def again(folder, codes):
    """Starts the loop around a command with these exit codes, as a process."""
    command = [sys.executable, *rerun.words(9), str(program(folder / "scripted", SCRIPTED))]
    environ = {**os.environ, "CODES": codes, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_and_is_the_end(tmp_path, number):
    """N20: what is told to stop saves, and its exit code is the loop's."""
    process = again(tmp_path, "75 wait 0")
    until((tmp_path / "scripted.up").exists, process)
    process.send_signal(number)
    process.send_signal(number)
    assert process.wait(TIMEOUT_SECONDS) == 143
    assert lives(tmp_path) == 2 and (tmp_path / "scripted.told").read_text() == "told\n"


def test_a_signal_in_a_pause(tmp_path):
    process = again(tmp_path, "75 " * 9)
    until(lambda: (tmp_path / "scripted.lives").exists() and lives(tmp_path) == 2, process)
    process.terminate()  # while the command ends, or in the pause of two seconds after it
    assert process.wait(TIMEOUT_SECONDS) in (75, 143)
    assert lives(tmp_path) == 2


def test_a_signal_before_there_is_a_process(tmp_path, monkeypatch):
    """It is passed on once there is one."""
    monkeypatch.setenv("CODES", "wait")
    told = rerun.Command()
    told.stop(signal.SIGTERM, None)
    assert rerun.run([str(program(tmp_path / "scripted", SCRIPTED))], 5, told) == 143


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_container_on_vertex_ai(tmp_path, max_restarts):
    """N20: its command and arguments, as they are in the job: every word arrives, and 75 is tried again in place."""
    words = ["--set=a=$(id) `id` $HOME", "a\nb", "it's", '"', "*", ""]
    text = f"{VERTEX}max_restarts: {max_restarts}\n"
    (pool,) = yaml.safe_load(rendered("vertex", text, *words).files["job.yaml"])["workerPoolSpecs"]
    container = pool["containerSpec"]
    program(tmp_path / "bin" / "python", python_that_runs(SCRIPTED))
    environ = {**os.environ, "CODES": "75 0", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*container["command"], *container["args"]], env=environ, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == (0 if max_restarts else 75)
    argv = ["-m", "official_trainer", "train", "--experiment=digits_mlp", "--model_dir=gs://my-bucket/digits", *words]
    said = (tmp_path / "bin" / "python.argv").read_text().split("\0")[:-1]
    assert said == [*argv, "--mode=train"] * (2 if max_restarts else 1)


def python_that_runs(text):
    """Returns a program that runs the loop as Python does, and anything else as a script."""
    first, rest = text.split("\n", 1)
    loop = f'[ "$2" != official_trainer.launch.rerun ] || PYTHONPATH={ROOT} exec {sys.executable} "$@"'
    return f"{first}\n{loop}\n{rest}"


# The script of a machine.

SYSTEMD = """#!/bin/bash
echo "$@" >>"$RECORD/systemd"
while [ "${1#--}" != "$1" ]; do
  case "$1" in --property=ExecStopPost=*) post=${1#*=*=} ;; esac
  shift
done
trap 'kill "$main"' TERM
"$@" &
main=$!
wait "$main"
code=$?
while kill -0 "$main" 2>/dev/null; do wait "$main"; code=$?; done
$post
exit "$code"
"""
GCLOUD = """#!/bin/bash
# gcloud storage cp FROM TO
place() { case "$1" in gs://*) echo "$RECORD/${1#gs://}" ;; *) echo "$1" ;; esac; }
[ "$1 $2" = "storage cp" ] || exit 9
mkdir -p "$(dirname "$(place "$4")")"
cp "$(place "$3")" "$(place "$4").$$" && mv "$(place "$4").$$" "$(place "$4")"  # nothing reads half an object
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
DUMP = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/argv"
env -0 >"$RECORD/environ"
pwd >"$RECORD/cwd"
exit 0
"""


class Machine:
    """A TPU VM, as far as its start-up script sees it."""

    def __init__(self, folder, monkeypatch, trainer):
        self.folder, self.home = folder, folder / "var"
        monkeypatch.setattr(tpu, "FOLDER", str(self.home))
        programs = {"systemd-run": SYSTEMD, "gcloud": GCLOUD, "python3": PYTHON3, "uv": UV}
        programs["trainer"] = python_that_runs(trainer)
        programs["sleep"] = "#!/bin/bash\nexec /bin/sleep 0.01\n"
        for name, text in programs.items():
            program(folder / "bin" / name, text)
        (folder / "code" / "experiments").mkdir(parents=True)
        (folder / "bucket").mkdir()
        with tarfile.open(folder / "bucket" / "code.tar.gz", "w:gz") as archive:
            archive.add(folder / "code" / "experiments", "experiments")
        inherited = {name: value for name, value in os.environ.items() if name != "TPU_LOAD_LIBRARY"}  # our own doing
        self.environ = {**inherited, "RECORD": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def start(self, **changes):
        argv = changes.pop("argv", ("official_trainer", "train", "digits_mlp"))
        roles = (Role(name="worker", count=1, argv=argv),)
        job = JobSpec(roles=roles, name="digits-1", model_dir="gs://run", grace_seconds=35.0)
        values = {"source": "gs://bucket/code.tar.gz", "max_restarts": 3, **changes}
        script = program(self.folder / "script", tpu.startup_script(job, TpuProfile(**values)))
        return subprocess.Popen([str(script)], env=self.environ, cwd="/")

    def boot(self, **changes):
        return self.start(**changes).wait(TIMEOUT_SECONDS)

    def read(self, name):
        path = self.folder / name
        return path.read_bytes().decode() if path.exists() else None

    @property
    def ended(self):
        text = self.read("run/.launch/exit.json")
        return None if text is None else json.loads(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch, SCRIPTED)


@pytest.fixture
def dump(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch, DUMP)


def test_a_machine_installs_and_trains_and_says_how_it_ended(dump):
    """N20: as a service that the network outlives; in the folder of the source; exit code and log where all can see."""
    assert dump.boot(install=("-r", "a lock"), setup=(("touch", "here"),)) == 0
    assert dump.ended["exit_code"] == 0 and dump.ended["ended"].endswith("Z")
    assert dump.read("run/.launch/train.log") is not None
    options = dump.read("systemd")
    assert "--property=After=network-online.target" in options and "--property=TimeoutStopSec=35" in options
    assert dump.read("argv").split("\0")[:-1] == ["-m", "official_trainer", "train", "digits_mlp"]
    assert dump.read("cwd") == f"{dump.home}/source\n"
    assert (dump.home / "source" / "experiments").is_dir() and (dump.home / "here").exists()
    assert dump.read("installs").splitlines()[1:] == [
        "uv venv --quiet --clear --python 3.11 venv",
        "uv pip install --quiet --python ../venv/bin/python --override ../overrides.txt "
        "-r a lock tensorflow-tpu==2.20.0 libtpu==0.0.14",
        f"{dump.home}/source",
    ]
    environ = dict(item.split("=", 1) for item in dump.read("environ").split("\0")[:-1])
    assert (environ["TPU_NAME"], environ["TF_USE_LEGACY_KERAS"]) == ("local", "1")
    assert environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"].startswith(f"{dump.home}/venv/lib/python3.11/")
    assert "TPU_LOAD_LIBRARY" not in environ


TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(TEXTS | st.sampled_from(["$(id)", "`id`", "'", '"', "a\nb", "\r", "-n", "*", "~", "\\", "!"])),
    value=TEXTS,
)
def test_words_and_values_arrive_as_they_are(dump, words, value):
    """N20: whatever they are, the shell makes nothing of them."""
    shutil.rmtree(dump.home, ignore_errors=True)
    program(dump.folder / "bin" / "trainer", DUMP)  # which is not even started by the loop, as that has no shell
    assert dump.boot(argv=("official_trainer", *words), environ={"VALUE": value}) == 0
    argv = dump.read("argv").split("\0")[:-1]
    assert argv[argv.index("--") + 1 :] == ["../venv/bin/python", "-m", "official_trainer", *words]
    assert f"\0VALUE={value}\0" in f"\0{(dump.folder / 'environ').read_bytes().decode()}"


@pytest.mark.parametrize(
    ("codes", "limit", "code", "count"), [("143 0", 3, 0, 2), ("2 0", 3, 2, 1), ("75 75", 1, 75, 2)]
)
def test_exit_codes_on_a_machine(machine, codes, limit, code, count):
    """N20, N6: tried again or not, and what remains is on record."""
    machine.environ["CODES"] = codes
    assert machine.boot(max_restarts=limit) == code
    assert machine.ended["exit_code"] == code
    assert len((machine.home / "venv" / "bin" / "python.lives").read_text().splitlines()) == count


def test_a_machine_that_is_shut_down_goes_on_at_its_next_boot(machine):
    """N20, N5: no end is on record then; nothing is installed twice; what has ended is not done again."""
    machine.environ["CODES"] = "wait 0"
    process = machine.start()
    until((machine.home / "venv" / "bin" / "python.up").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_SECONDS) == 143
    assert machine.ended is None
    installs = machine.read("installs")
    assert machine.boot() == 0
    assert machine.ended["exit_code"] == 0 and machine.read("installs") == installs
    record = machine.ended
    assert machine.boot() == 0
    assert machine.ended == record
    assert len((machine.home / "venv" / "bin" / "python.lives").read_text().splitlines()) == 2


TALKS = """#!/bin/bash
echo "slice $SLICE trains"
[ "$SLICE" = 1 ] || exit 0
trap 'echo "slice $SLICE has saved"; exit 143' TERM
touch "$RECORD/up"
while :; do sleep 0.02; done
"""


def test_the_log_is_in_the_bucket_while_training_runs(tmp_path, monkeypatch):
    """N20, N33: also what is printed after the signal to stop; the slice that takes the place of another adds to it."""
    machine = Machine(tmp_path, monkeypatch, TALKS)
    process = machine.start(environ={"SLICE": "1"})
    until(lambda: "slice 1 trains" in (machine.read("run/.launch/train.log") or ""), process)
    until((tmp_path / "up").exists, process)
    process.terminate()
    assert process.wait(TIMEOUT_SECONDS) == 143
    assert machine.ended is None and "slice 1 has saved" in machine.read("run/.launch/train.log")
    shutil.rmtree(machine.home)  # another slice begins with empty disks
    assert machine.boot(environ={"SLICE": "2"}) == 0
    lines = machine.read("run/.launch/train.log").splitlines()
    said = [line for line in lines if line.startswith("slice ")]
    assert said == ["slice 1 trains", "slice 1 has saved", "slice 2 trains"]


def test_an_installation_that_fails(machine):
    """N20: is tried three times; then the job has failed, and its log says why."""
    machine.environ["CODES"] = "0"
    (machine.folder / "no-network").touch()
    assert machine.boot() == 0
    shutil.rmtree(machine.home)
    (machine.folder / "bucket" / "code.tar.gz").unlink()
    assert machine.boot() == 1
    assert machine.ended["exit_code"] == 1
    assert machine.read("run/.launch/train.log").count("install failed") == 1 + 3  # the first slice, the second


def test_setup_that_fails_is_the_end(machine):
    assert machine.boot(setup=(("false",), ("touch", "too-far"))) == 1
    assert machine.ended["exit_code"] == 1 and not (machine.home / "too-far").exists()


@pytest.fixture
def metadata():
    """A metadata server for the host of this number."""
    told = {"number": "0"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            is_fine = self.path.endswith("/agent-worker-number") and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if is_fine and told["number"] else 404)
            self.end_headers()
            self.wfile.write(told["number"].encode())

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield told, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize(("number", "code"), [("0", 0), ("1", 0), ("13", 0), ("", 1)])
def test_one_host_of_a_slice_drives_it(dump, metadata, number, code):
    """N20: worker 0, which knows the slice by its name; all are set up; one without a number fails."""
    told, address = metadata
    told["number"] = number
    dump.environ["GCE_METADATA_HOST"] = address
    assert dump.boot(accelerator_type="v4-32", setup=(("touch", "here"),)) == code
    assert (dump.home / "here").exists()
    assert (dump.read("argv") is not None) == (number == "0")
    if number == "0":
        environ = dump.read("environ").split("\0")
        assert {"TPU_NAME=digits-1", "TPU_LOAD_LIBRARY=0"} <= set(environ)
        assert dump.ended["exit_code"] == 0
    else:
        assert (dump.ended is None) == (code == 0)


@pytest.mark.full
def test_an_experiment_trains_under_the_script(tmp_path, monkeypatch):
    """N20, N5: a real run, without a TPU: stopped by a shutdown, continued at the next boot, and its end on record."""
    trainer = f'#!/bin/bash\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n'
    machine = Machine(tmp_path, monkeypatch, trainer)
    with tarfile.open(tmp_path / "bucket" / "code.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "experiments", "experiments")
    run = tmp_path / "model"
    words = ("digits_mlp", f"--model_dir={run}", "--mode=train", "--set=runtime.distribution_strategy=off")
    words += ("--set=trainer.train_steps=2000000", "--set=trainer.checkpoint_interval=100")
    argv = ("official_trainer", "train", *words)
    no_tpu = {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "", "NEXT_PLUGGABLE_DEVICE_USE_C_API": ""}
    environ = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", **no_tpu}
    process = machine.start(argv=argv, environ=environ)
    until(lambda: list(run.glob("ckpt-*.manifest.json")), process)
    process.terminate()
    assert process.wait(TIMEOUT_SECONDS) == 143
    status = json.loads((run / "status.json").read_text())
    assert status["exit_code"] == 143 and machine.ended is None
    last = f"--set=trainer.train_steps={status['last_checkpoint_step'] + 50}"
    assert machine.boot(argv=(*argv, last, "--allow_config_change"), environ=environ) == 0
    assert machine.ended["exit_code"] == 0
    assert json.loads((run / "run.json").read_text())["restarts"] == 1
    broken = ("official_trainer", "train", "digits_mlp", f"--model_dir={run}", "--set=trainer.train_stepz=1")
    shutil.rmtree(machine.home)
    assert machine.boot(argv=broken, environ=environ) == 2
    assert machine.ended["exit_code"] == 2
    assert machine.read("run/.launch/train.log").count("did you mean 'train_steps'?") == 1
