"""`launch TARGET` and `job`: what is shown, written, run and refused, with a scheduler of a few lines of shell."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.errors import ExitCode
from official_trainer.launch import launches, targets
from official_trainer.launch.target import Rendered, Target
from tests import ROOT
from tests.support import golden, repository
from tests.support.launch import engine as scripted
from tests.support.workspace import copy_workspace

BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli\n"
    "from official_trainer.launch import targets; from tests.support.launch import engine\n"
    "targets.names = lambda: ('scripted',); targets.get = lambda name: engine.Scripted\n"
)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace, a scheduler's program on the PATH, and a target that uses it."""
    folder = tmp_path / "work space"
    folder.mkdir()
    copy_workspace(folder, "experiments")
    scripted.be_the_only_target(monkeypatch, tmp_path / "bin")
    monkeypatch.chdir(folder)
    return folder


def launch(*words):
    return cli.main(["launch", "scripted", *words])


def submit(capfd, *words):
    """Submits a job and returns its name."""
    assert launch("--submit", *words, "--", "digits_mlp", "--model_dir=run") == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "was submitted" in line]
    return line.partition(" ")[0]


def refused(capfd, code, *words):
    assert cli.main(list(words)) == code
    return capfd.readouterr().err


def calls(workspace):
    """What the scheduler was asked, each with the folder."""
    path = workspace.parent / "bin" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_every_target_is_what_it_says():
    """N20: by its name."""
    assert targets.names() == ("kubernetes", "slurm", "tpu")
    for name in targets.names():
        target = targets.get(name)
        assert issubclass(target, Target) and target.name == name
        assert target.needs and target.profile_class()


def test_a_job_is_shown_and_nothing_is_done(workspace, capfd):
    """N20: the file alone on stdout; what matters on stderr, with commands that can be pasted."""
    (workspace / "p.yaml").write_text("resources: {cpus: 8, memory_gib: 1.5, gpus: 1}\nmax_restarts: 3\n")
    words = ["--profile=p.yaml", "--workers=2", "--ps=1", "--", "digits_mlp", "trainer.train_steps=7"]
    assert launch(*words, "--model_dir=run") == 0
    out, err = capfd.readouterr()
    (workspace / "p.yaml").unlink()
    assert out.startswith("2 workers of digits-mlp-")
    name = out.split()[3]
    assert err == (
        f"shown: {name} for scripted; nothing was submitted\n"
        "  processes      1 chief, 2 workers, 1 ps\n"
        f"  run directory  {workspace / 'run'}\n"
        "  max_restarts   3\n"
        f"  --submit       writes job.txt to launches/{name}, and runs there:\n"
        "                 engine start 'a b' job.txt\n"
    )
    assert [path.name for path in workspace.iterdir()] == ["experiments"]
    assert not calls(workspace)


def test_a_run_directory_has_one_job_by_all_links_to_it(workspace, capfd):
    """N20: its name is the same, which is how a scheduler sees that it has the job already."""
    (workspace / "runs").mkdir()
    (workspace / "by link").symlink_to("runs")
    names = set()
    for model_dir in ("runs/a", "by link/a", str(workspace / "by link" / "a"), "runs/b/../a/"):
        assert launch("digits_mlp", f"--model_dir={model_dir}") == 0
        names.add(capfd.readouterr().out.split()[3])
    assert len(names) == 1
    assert launches.job_name("", "x", "/r") != launches.job_name("", "x", "/s")
    assert launches.job_name("", "bert/Pretraining_v2", "/r").startswith("bert-pretraining-v2-")
    assert launches.job_name("", "9" * 80, "/r").startswith("job-99999")
    for experiment in ("9" * 80, "a" * 30 + "-b", "Ä/x_y", ""):  # a valid name for every scheduler, with a suffix
        assert re.fullmatch(r"[a-z][a-z0-9-]{,37}[a-z0-9]", launches.job_name("", experiment, "/r"))


def test_several_files_are_shown_with_their_names(workspace, capfd, monkeypatch):
    two = Rendered(files={"a.sh": "a\n", "b.sh": "b\n"}, submit=("engine", "start"))
    monkeypatch.setattr(scripted.Scripted, "render", lambda self, job: two)
    assert launch("digits_mlp") == 0
    out, err = capfd.readouterr()
    assert [line.rpartition("/")[2] for line in out.splitlines()] == ["a.sh", "a", "", "b.sh", "b", ""]
    assert "writes a.sh and b.sh to launches/" in err


def test_a_job_is_submitted_with_a_record(workspace, capfd):
    """N20: the scheduler gets its words as they are, in the folder of the job; only its owner reads what is there."""
    assert launch("--submit", "--workers=2", "--", "digits_mlp", "--model_dir=run") == 0
    out, _ = capfd.readouterr()
    (folder,) = (workspace / "launches").iterdir()
    name = folder.name
    assert calls(workspace) == [f"{folder} start a b job.txt"]
    record = json.loads((folder / "launch.json").read_text())
    assert (record["target"], record["id"], record["commit"]) == ("scripted", "id-1", None)
    assert record["model_dir"] == str(workspace / "run") and record["argv"][1:3] == ["launch", "scripted"]
    assert record["commands"] == {word: ["engine", word, "id-1"] for word in ("status", "logs", "cancel")}
    assert f"'--model_dir={workspace / 'run'}'" in (folder / "job.txt").read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert out == (
        f"{name} was submitted to scripted as id-1; its files are in launches/{name}\n"
        "  status  engine status id-1\n  logs    engine logs id-1\n  cancel  engine cancel id-1\n"
        f"`official-trainer job status {name}` runs the first of them, `job logs` and `job cancel` the others\n"
    )


def test_a_job_that_was_submitted_before(workspace, capfd):
    """N20: the scheduler and the lock of the run directory decide; that there is a record is said."""
    name = submit(capfd)
    assert launch("--submit", "--", "digits_mlp", "--model_dir=run") == 0
    how = f"`official-trainer job cancel {name}` ends it or clears it away"
    assert capfd.readouterr().err == f"note: {name} was submitted before; {how}\n"


def test_a_wrong_profile_is_refused(workspace, capfd, request):
    """N20: with its place."""

    def say(text):
        (workspace / "p.yaml").write_text(text + "\n")
        return refused(capfd, ExitCode.CONFIG, "launch", "scripted", "--profile=p.yaml", "digits_mlp")

    golden.check({"profiles of a job": say}, request, golden.COMMANDS)


def test_what_is_refused_before_anything_is_done(workspace, capfd, request):
    """N20: all that `launch local` refuses, what the scheduler would, and flags without effect."""
    golden.check_refused("launch for a scheduler", request, capfd, "launch")
    assert [path.name for path in workspace.iterdir()] == ["experiments"]
    assert not calls(workspace)


@pytest.mark.parametrize("submits", [[], ["--submit"]])
def test_a_secret_in_the_command(workspace, capfd, submits):
    """N20: the script and launch.json would have it; nothing is shown or written."""
    token = "ghp_" + "a1" * 18
    words = ["launch", "scripted", *submits, "--", "digits_mlp", "--model_dir=run"]
    assert cli.main([*words, f"--set=task.init_checkpoint={token}"]) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert "*** holds what looks like a token or a key, which the files of the job would show; leave it out, and" in err
    assert token not in out + err and not (workspace / "launches").exists()


def test_a_profile_for_this_machine(workspace, capfd):
    """Counts, variables and restarts; what a machine alone cannot give is refused."""
    (workspace / "p.yaml").write_text("workers: 2\nenviron: {A: b c}\n")
    words = ["launch", "local", "--profile=p.yaml", "--dry_run", "digits_mlp"]
    assert cli.main(words) == 0
    out = capfd.readouterr().out
    assert out.count("A='b c'") == 2 and "# worker 1" in out
    (workspace / "p.yaml").write_text("resources: {gpus: 1}\n")
    assert "p.yaml: resources: no effect with `launch local`" in refused(capfd, ExitCode.CONFIG, *words)
    (workspace / "p.yaml").write_text("max_restarts: 3\n")
    assert "--max_restarts=3 has no effect without --supervise" in refused(capfd, ExitCode.CONFIG, *words)


def test_a_file_in_the_place_of_the_folder_of_jobs(workspace, capfd):
    """N20: is named, before anything is started."""
    (workspace / "launches").write_text("mine")
    message = refused(capfd, ExitCode.CONFIG, "launch", "scripted", "--submit", "digits_mlp")
    assert f"{workspace / 'launches'} is a file, not a directory. Move it away" in message


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ENGINE_FAILS", "start", "engine start 'a b' job.txt ended with exit code 3; its error is above"),
        ("ENGINE_SAYS", "welcome", "printed 'welcome' and no job id; check in scripted itself whether a job was"),
        ("ENGINE_SAYS", "", "printed nothing and no job id"),
        ("PATH", "/usr/bin:/bin", "engine is not on the PATH, and `scripted` needs it: install it from nowhere"),
    ],
)
def test_an_engine_that_fails(workspace, capfd, monkeypatch, variable, value, message):
    """N20: its own words, and no record of a job that there is not."""
    monkeypatch.setenv(variable, value)
    assert message in refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "digits_mlp")
    assert not list(workspace.glob("launches/*/launch.json"))


def test_predictions_are_a_job_of_their_own(workspace, capfd):
    """N20: beside the training of their run, and beside those in another folder."""
    names = {submit(capfd)}
    for words in ((), ("--output=run/best", "--checkpoint=best")):
        assert launch("--submit", "--workers=2", "--", "predict", "digits_mlp", "--model_dir=run", *words) == 0
        names.add(name := capfd.readouterr().out.partition(" ")[0])
    assert len(names) == 3
    assert {job.rpartition("-")[0] for job in names} == {"digits-mlp", "digits-mlp-predict"}
    text = (workspace / "launches" / name / "job.txt").read_text()
    assert "'--mode=predict'" in text and f"'--output={workspace / 'run' / 'best'}'" in text


# `job`


def test_jobs_are_seen_to_with_the_schedulers_own_commands(workspace, capfd, monkeypatch):
    """N20: from anywhere in the workspace, in the folder of the job, with the scheduler's exit code."""
    name = submit(capfd)
    monkeypatch.chdir(workspace / "experiments")
    for action in ("status", "logs", "cancel"):
        assert cli.main(["job", action, "digits"]) == 0  # the beginning of its name is enough
        assert calls(workspace)[-1] == f"{workspace / 'launches' / name} {action} id-1"
    assert capfd.readouterr().out == "a line\n"
    monkeypatch.setenv("ENGINE_FAILS", "status")
    assert cli.main(["job", "status", name]) == 3
    assert capfd.readouterr().err == "engine: no such queue\n"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    message = refused(capfd, ExitCode.FAILED, "job", "status", name)
    assert "engine is not on the PATH; run this where the job was submitted" in message


WRONG_ACTIONS = (
    ([], "job needs an action; actions: status, logs, cancel"),
    (["stop", "x"], "'stop' is no action of job"),
    (["statsu", "x"], "did you mean status?"),
    (["status"], "which job? jobs: digits-mlp-"),
    (["status", "digits-mpl-269f6187"], "no such job: digits-mpl-269f6187"),
)


def test_actions_and_jobs_that_there_are_not(workspace, capfd):
    for words, message in WRONG_ACTIONS:
        submit(capfd)
        assert message in refused(capfd, ExitCode.CONFIG, "job", *words)


def test_a_name_that_is_cut_too_short(workspace, capfd):
    assert "which job? none was submitted from " in refused(capfd, ExitCode.CONFIG, "job", "status")
    name = submit(capfd)
    assert launch("--submit", "digits_mlp", "--model_dir=other") == 0
    message = refused(capfd, ExitCode.CONFIG, "job", "cancel", "digits")
    assert "digits is the beginning of several names: digits-mlp-" in message
    (workspace / "launches" / name / "launch.json").write_text("{")
    message = refused(capfd, ExitCode.CONFIG, "job", "status", name)
    assert "launch.json cannot be read (Expecting property name" in message
    assert "own commands, and delete the folder" in message


def test_ctrl_c_leaves_the_logs(workspace, capfd, monkeypatch):
    """N20: with 130, without a word, and without the scheduler's program."""
    name = submit(capfd)
    command = [sys.executable, "-c", f"{BOOT}sys.exit(cli.main())", str(ROOT), "job", "logs", name]
    monkeypatch.setenv("ENGINE_FOLLOWS", "1")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "a line\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


# The code of a job.


def test_a_job_runs_a_copy_of_the_commit(workspace, capfd, monkeypatch):
    """N33: where its target has one; the record, the job and git name the commit."""
    monkeypatch.setattr(scripted.Scripted, "copies_code", True)
    assert launch("digits_mlp", "--model_dir=run") == 0
    assert "note: git does not know " in capfd.readouterr().err
    repository.make(workspace)
    (workspace / "experiments").joinpath("digits.py").open("a").write("# edited\n")
    assert launch("digits_mlp", "--model_dir=run") == 0
    out, err = capfd.readouterr()
    assert "  code           commit " in err and not (workspace / "launches").exists()
    name = submit(capfd)
    folder = workspace / "launches" / name
    commit = json.loads((folder / "launch.json").read_text())["commit"]
    copy = Path((folder / "job.txt").read_text().splitlines()[-1])
    assert copy == folder / f"code-{commit[:12]}" == Path(out.splitlines()[-1])
    assert (copy / "experiments/digits.py").read_text().endswith("# edited\n")
    assert repository.git(workspace, "rev-parse", f"refs/official-trainer/{name}") == commit
