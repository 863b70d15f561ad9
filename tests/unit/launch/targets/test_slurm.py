"""The target Slurm without Slurm: what is rendered, what is refused, and the script with stand-ins for its programs."""

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from official_trainer import cli
from official_trainer.config import FrozenDict
from official_trainer.distributed.environment import cluster_env
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import Code, shared_job, training_job
from official_trainer.launch.targets import slurm
from official_trainer.launch.targets.slurm import Slurm, SlurmProfile
from tests.support import golden
from tests.support.workspace import copy_workspace

HOSTILE = [
    "", " ", "'", '"', "\\", "a'b\"c", "$(touch oops)", "`touch oops`", "${HOME}", "!!", "a;b&c|d", "*", "~", "\n",
    "a\n#SBATCH --x", "é\u2028ü", "-n", "--", "\x01\x7f", "%s", "}", "EOF", "$'\\x41'", "\r\n", "\ud7ff\U0010ffff",
]  # fmt: skip


def job(profile, words=(), *, cwd="/", model_dir="/runs/x"):
    """Returns the job of an experiment under a profile."""
    trained = training_job(profile.counts, [*words, "--mode=train"], grace_seconds=40)
    return trained.__class__(**{**vars(trained), "name": "x-1", "model_dir": model_dir, "cwd": cwd})


def script(profile, *arguments, **changes):
    return Slurm(profile).render(job(profile, *arguments, **changes)).files["job.sbatch"]


def header(text):
    """Returns the options that sbatch reads: those before the first line that is no comment."""
    lines = []
    for line in text.splitlines()[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            lines.append(line.removeprefix("#SBATCH "))
    return lines


_SRUN = """
import os, subprocess, sys
words = sys.argv[1:]
options, command = words[: words.index("--")], words[words.index("--") + 1 :]
count = int(next(word for word in options if word.startswith("--ntasks=")).partition("=")[2])
if command[0] == "printenv":
    print("\\n".join(f"{i}: n{i // 2 + 1}" for i in reversed(range(count))))
    sys.exit()
os.environ["SRUN_OPTIONS"] = repr(options)
running = []
for rank in range(count):
    environ = {**os.environ, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank // 2 + 1}"}
    running.append(subprocess.Popen(command, env=environ))
codes = [process.wait() for process in running]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""

_PYTHON = """
import json, os, signal, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}.{task['index']}"
noted = {
    "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "environ": {name: os.fsencode(value).hex() for name, value in os.environ.items()},
    "cwd": os.fsencode(os.getcwd()).hex(),
}
json.dump(noted, open(os.path.join(os.environ["NOTES"], name), "w"))
code = json.loads(os.environ.get("CODES", "{}")).get(name, 0)
if code == "serves":  # until it is told to end
    signal.pause()
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

_SCONTROL = """
import os, sys
if sys.argv[1] == "requeue":
    open(os.path.join(os.environ["NOTES"], "requeued"), "w").write(" ".join(sys.argv[1:]))
    sys.exit(1)
for name in sys.argv[4].split(","):
    print(f"NodeName={name} Arch=x86_64 NodeAddr=10.0.0.{name[1:]} NodeHostName={name}")
"""


class StandIns:
    """A folder with stand-ins for Slurm's programs and for Python, with which a rendered script really runs.

    `srun` starts all tasks at the same time. `python` notes its words, byte for byte, and ends as it is told to.
    """

    def __init__(self, folder):
        self.bin, self.notes = Path(folder) / "bin", Path(folder) / "notes"
        self.bin.mkdir(parents=True)
        self.notes.mkdir()
        for name, text in {"srun": _SRUN, "noting": _PYTHON, "scontrol": _SCONTROL}.items():
            (self.bin / name).write_text(f"#!{sys.executable} -SE\n{text}")
            (self.bin / name).chmod(0o755)
        (self.bin / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")  # between two looks at processes
        (self.bin / "sleep").chmod(0o755)
        self.python = str(self.bin / "noting")

    def run(self, script, folder, *, codes=None, **environ):
        """Runs a script in a folder, as Slurm would; returns the exit code, and what is printed."""
        for path in self.notes.iterdir():
            path.unlink()
        environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "NOTES": str(self.notes),
            "CODES": json.dumps(codes or {}),
            **environ,
        }
        path = os.path.join(folder, "job.sbatch")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        command = ["/bin/bash", path]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False, timeout=60)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def noted(self, process):
        """Returns what a process was given: its words, variables and directory, as bytes."""
        noted = json.loads((self.notes / process).read_text())
        environ = {name: bytes.fromhex(value) for name, value in noted["environ"].items()}
        return [bytes.fromhex(word) for word in noted["argv"]], environ, bytes.fromhex(noted["cwd"])

    @property
    def requeued(self):
        """What was asked of scontrol; empty if nothing was."""
        path = self.notes / "requeued"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def stand_ins(tmp_path):
    return StandIns(tmp_path / "stand ins")


def test_every_option_is_a_line_for_sbatch():
    """N20: nothing is left to be read out of a profile but what is in it."""
    profile = SlurmProfile(
        workers=3,
        partition="low,high",
        account="us",
        time_limit="1-12:00:00",
        nodes=2,
        tasks_per_node=2,
        resources=Resources(cpus=8, memory_gib=12.5, gpus=2),
        sbatch=("--reservation=night", "--exclusive", "--constraint=[rack1|rack2]&intel"),
    )
    assert header(script(profile)) == [
        "--job-name=x-1", "--dependency=singleton",
        "--partition=low,high", "--account=us",
        "--time=1-12:00:00", "--signal=TERM@41", "--nodes=2", "--ntasks=3", "--ntasks-per-node=2", "--cpus-per-task=8",
        "--gpus-per-task=2", "--mem-per-cpu=1600M", "--open-mode=append",
        "--output=slurm.out", "--requeue", "--reservation=night", "--exclusive", "--constraint=[rack1|rack2]&intel",
    ]  # fmt: skip
    assert header(script(SlurmProfile(signal_seconds=9, max_restarts=0))) == [
        "--job-name=x-1", "--dependency=singleton",
        "--signal=TERM@9", "--ntasks=1", "--cpus-per-task=1", "--open-mode=append",
        "--output=slurm.out", "--no-requeue",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "singleton"),
        (("--dependency=afterok:1:2", "--exclusive", "--dependency=after:3+5"), "afterok:1:2,after:3+5,singleton"),
    ],
)
def test_two_jobs_of_one_name_do_not_run_at_the_same_time(options, expected):
    """N20: whatever else a job waits for; the name is that of the run directory."""
    dependencies = [option for option in header(script(SlurmProfile(sbatch=options))) if option.startswith("--dep")]
    assert dependencies == [f"--dependency={expected}"]


def test_the_workers_of_a_sweep_are_an_array(stand_ins, tmp_path):
    """N21: each is a job of one process, which works on the sweep beside the others."""
    profile = SlurmProfile(workers=3, nodes=1, python=stand_ins.python)
    sweep = shared_job(3, ["sweep", "digits_mlp", "--space=a b.yaml", "--join"], grace_seconds=40)
    sweep = dataclasses.replace(sweep, name="x-1", model_dir="/runs/x", cwd="/")
    target = Slurm(profile)
    assert not list(target.problems(sweep))
    (text,) = target.render(sweep).files.values()
    assert header(text) == [
        "--job-name=x-1", "--signal=TERM@41", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--array=0-2",
        "--open-mode=append", "--output=slurm-%a.out", "--requeue",
    ]  # fmt: skip
    code, printed = stand_ins.run(text, tmp_path, SLURM_ARRAY_TASK_ID="1", codes={"worker.0": 143})
    assert code == 143 and stand_ins.requeued == "requeue 7", printed
    words, environ, _ = stand_ins.noted("worker.0")
    assert words == [b"-m", b"official_trainer", b"sweep", b"digits_mlp", b"--space=a b.yaml", b"--join"]
    assert cluster_env({name: os.fsdecode(value) for name, value in environ.items()}) is None  # it trains alone
    assert target.commands(sweep, "12", "/f").logs[2:] == ("/f/slurm-0.out", "/f/slurm-1.out", "/f/slurm-2.out")
    two = Slurm(SlurmProfile(workers=3, nodes=2))
    assert list(two.problems(sweep)) == ["nodes: each worker of a sweep is a job of one process, not of 2; set it to 1"]


def test_each_process_finds_its_place(stand_ins, tmp_path):
    """N20: role, index, addresses and words of every one, by the TF_CONFIG that the script writes."""
    options = ("--container-image=nvcr.io#nvidia/tf:24.01", "--comment=$(touch oops)'\"")
    environ = FrozenDict({"A": "b"})
    profile = SlurmProfile(workers=2, ps=1, evaluator=True, python=stand_ins.python, environ=environ, srun=options)
    code, printed = stand_ins.run(script(profile, ["--experiment=x"]), tmp_path, TF_CONFIG="x")
    assert code == 0, printed
    names = ["chief.0", "worker.0", "worker.1", "ps.0", "evaluator.0"]
    assert sorted(path.name for path in stand_ins.notes.iterdir()) == sorted(names)
    for name in names:
        words, environ, cwd = stand_ins.noted(name)
        role, index = name.split(".")
        mode = b"--mode=continuous_eval" if role == "evaluator" else b"--mode=train"
        assert words == [b"-m", b"official_trainer", b"train", b"--experiment=x", mode]
        assert environ["A"] == b"b" and cwd == b"/"
        assert environ["OFFICIAL_TRAINER_SIGNALLED_TOGETHER"] == b"1"
        cluster = cluster_env({name: os.fsdecode(value) for name, value in environ.items()})
        assert (cluster.role, cluster.index) == (role, int(index))
        assert cluster.addresses == {
            "chief": ("10.0.0.1:12448",), "worker": ("10.0.0.1:12449", "10.0.0.2:12448"), "ps": ("10.0.0.2:12449",),
        }  # fmt: skip
        assert set(options) <= set(ast.literal_eval(environ["SRUN_OPTIONS"].decode()))
    assert not (tmp_path / "oops").exists()


def test_servers_end_after_their_chief_and_an_evaluator_after_a_failure(stand_ins, tmp_path, monkeypatch):
    """N20: by SIGTERM: those that only serve half a minute later, an evaluator at once if training has failed."""
    monkeypatch.setattr(slurm, "_SERVER_SECONDS", 3)
    profile = SlurmProfile(workers=1, ps=1, evaluator=True, max_restarts=0, python=stand_ins.python)
    serving = dict.fromkeys(("worker.0", "ps.0"), "serves")
    assert stand_ins.run(script(profile), tmp_path, codes=serving)[0] == 0
    code, printed = stand_ins.run(script(profile), tmp_path, codes={**serving, "evaluator.0": "serves", "chief.0": 4})
    assert code == 4, printed


WORDS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.lists(st.sampled_from(HOSTILE), max_size=4).map("".join),
)
NAMES = WORDS.map(lambda text: text.replace("/", "")[:40] or "x").filter(lambda name: name not in (".", ".."))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(WORDS, max_size=4),
    value=WORDS,
    setup=st.lists(WORDS, max_size=3),
    place=NAMES,
)
def test_no_word_is_read_by_a_shell(tmp_path_factory, words, value, setup, place):
    """N20: the script runs, and every word arrives as it was given, byte for byte; none becomes a command."""
    top = tmp_path_factory.mktemp("fuzz")
    stand_ins = StandIns(top / "stand ins")
    cwd = top / place
    cwd.mkdir()
    (cwd / "set up").write_text("export SOURCED=$PWD\n")
    setup = ["/usr/bin/env", "-i", stand_ins.python.replace("noting", "keep"), *setup]
    keep = '#!/bin/sh\nprintf \'%s\\0\' "$@" >"${0%/*}/../kept"\n'
    (stand_ins.bin / "keep").write_text(keep)
    (stand_ins.bin / "keep").chmod(0o755)
    profile = SlurmProfile(
        python=stand_ins.python,
        environ=FrozenDict({"VALUE": value}),
        setup=(("source", "./set up"), tuple(setup)),
    )
    text = script(profile, words, cwd=str(cwd))
    assert len(header(text)) == text.count("\n#SBATCH --", 0, text.index("\nrestart="))
    code, printed = stand_ins.run(text, cwd, HOME="/home")
    assert code == 0, printed
    argv, environ, where = stand_ins.noted("worker.0")
    expected = ["-m", "official_trainer", "train", *words, "--mode=train"]
    assert argv == [word.encode() for word in expected]
    assert environ["VALUE"] == value.encode()
    assert where == os.fsencode(str(cwd)) == environ["SOURCED"]
    kept = (stand_ins.bin.parent / "kept").read_bytes()
    assert kept == (b"\0".join(word.encode() for word in setup[3:]) + b"\0")
    assert not [path for path in top.rglob("*") if path.name.startswith("oops")]
    shutil.rmtree(top)


@pytest.mark.parametrize(
    ("codes", "restarts", "ends", "says"),
    [
        ({}, 0, 0, ""),
        ({"worker.0": 143, "worker.1": 143}, 0, 143, "back to the queue, restart 1 of 2"),
        ({"worker.0": 75}, 1, 75, "back to the queue, restart 2 of 2"),
        ({"worker.0": 143}, 2, 143, "not started again, max_restarts=2 is used up"),
        ({"worker.0": 75, "worker.1": 4}, 0, 4, ""),
        ({"worker.0": 1, "worker.1": 143}, 0, 1, ""),
        ({"worker.0": -9, "worker.1": 75}, 0, 75, "back to the queue"),
        ({"worker.0": -15}, 0, 143, "back to the queue"),  # before it could handle the signal
        ({"worker.0": -6}, 0, 75, "back to the queue"),
    ],
)
def test_how_workers_end_is_how_the_job_ends(stand_ins, tmp_path, codes, restarts, ends, says):
    """N20: the contract of exit codes, as `launch local` has it: what is not to be started again counts first."""
    profile = SlurmProfile(workers=2, max_restarts=2, python=stand_ins.python)
    code, printed = stand_ins.run(script(profile), tmp_path, codes=codes, SLURM_RESTART_COUNT=str(restarts))
    assert code == ends, printed
    assert says in printed
    assert stand_ins.requeued == ("requeue 7" if "back to the queue" in says else "")
    assert not list(tmp_path.glob("state.*"))


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ({"chief.0": 0, "worker.0": 75, "ps.0": -9}, 0),
        ({"chief.0": 75, "ps.0": -9}, 75),
        ({"chief.0": 75, "worker.0": 2}, 2),
        ({"chief.0": 1, "evaluator.0": 2}, 1),
        ({"evaluator.0": 3}, 3),
        ({"evaluator.0": 143}, 143),
    ],
)
def test_how_a_chief_ends_is_how_the_job_ends(stand_ins, tmp_path, codes, ends):
    """N20: workers and servers count if it has failed, an evaluator if it has not."""
    profile = SlurmProfile(ps=1, evaluator=True, max_restarts=2, python=stand_ins.python)
    code, printed = stand_ins.run(script(profile), tmp_path, codes=codes)
    assert code == ends, printed
    assert bool(stand_ins.requeued) == (ends in (75, 143))


def test_nodes_that_start_no_process(stand_ins, tmp_path):
    """As a lost node: the job goes back to the queue."""
    (stand_ins.bin / "srun").write_text("#!/bin/sh\nexit 1\n")
    code, _ = stand_ins.run(script(SlurmProfile(python=stand_ins.python)), tmp_path)
    assert code == 75 and stand_ins.requeued


def test_a_preparation_that_fails(stand_ins, tmp_path):
    """Nothing is trained with half of what it needs."""
    code, printed = stand_ins.run(script(SlurmProfile(), cwd="/no/such folder"), tmp_path)
    assert code == 2 and "/no/such folder" in printed
    profile = SlurmProfile(python=stand_ins.python, setup=(("source", "./none.sh"),))
    code, _ = stand_ins.run(script(profile, cwd=str(tmp_path)), tmp_path)
    assert code == 2 and not list(stand_ins.notes.iterdir())


def test_what_slurm_would_not_run_as_it_is_meant(tmp_path, monkeypatch, capfd, request):
    """N20: all of it before anything is submitted."""
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)

    def say(fields):
        profile = {name: value for name, value in fields.items() if name != "words"}
        Path("p.yaml").write_text(json.dumps({"node_local": [], "workers": 2, **profile}))
        words = ["launch", "slurm", "--profile=p.yaml", "--submit", "digits_mlp", "--model_dir=/tmp/run"]
        words += ["task.train_data.global_batch_size=80", "task.validation_data.global_batch_size=80"]
        assert cli.main([*words, *fields.get("words", ())]) == 2
        return capfd.readouterr().err.replace(str(tmp_path), "…")

    golden.check({"jobs of Slurm": say}, request, golden.COMMANDS)
    assert not Path("launches").exists()


def test_a_workspace_that_the_nodes_do_not_see():
    """N33: not the folder of the copy is named, but the one that the user knows."""
    copy = "/tmp/w/launches/digits/code-0123456789ab"
    code = Code(commit="0123456789ab", workspace="/tmp/w", folder=copy)
    changed = dataclasses.replace(job(SlurmProfile(), cwd=copy, model_dir="ram://run"), code=code)
    in_memory, unshared = Slurm(SlurmProfile()).problems(changed)
    assert in_memory == "--model_dir=ram://run is in the memory of one process; use a directory that all nodes see"
    assert unshared.startswith("the workspace is /tmp/w, and every node has its own /tmp; use a directory that all")


def test_a_folder_whose_name_no_file_can_hold(tmp_path, monkeypatch, capfd):
    """N6: the script of the job changes into it."""
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()
    copy_workspace(folder, "experiments")
    monkeypatch.chdir(folder)
    assert cli.main(["launch", "slurm", "--", "digits_mlp", "--model_dir=/runs/x"]) == 2
    assert re.search(r"\\udcff\S*' is not valid UTF-8; rename it", capfd.readouterr().err)


def test_the_commands_of_slurm(monkeypatch):
    """N20: lists of words; the script has nothing of the user's shell, whose variables reach a job through Slurm."""
    monkeypatch.setenv("MY_TOKEN", "hidden-4711")
    profile = SlurmProfile(workers=2, evaluator=True)
    target = Slurm(profile)
    assert target.render(job(profile)).submit == ("sbatch", "--parsable", "job.sbatch")
    assert "4711" not in script(profile)
    assert [target.id_of("x-1", printed) for printed in ("12\n", "12;cluster\n", "welcome\n12\n")] == ["12"] * 3
    assert [target.id_of("x-1", printed) for printed in ("", "Submitted batch job 12\n", "12\nbye\n")] == [""] * 3
    commands = target.commands(job(profile), "12", "/folder")
    assert commands.status[:3] == ("squeue", "--states=all", "--jobs=12")
    assert commands.logs == ("tail", "--lines=+1", "/folder/slurm.out")
    assert commands.cancel == ("scancel", "12")
