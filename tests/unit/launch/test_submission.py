"""`launch TARGET` and `job`: what is shown, written, run and refused, with an engine of a few lines of shell."""

import json
import os
import signal
import subprocess
import sys

import pytest

from official_trainer import cli
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch import submission, targets
from official_trainer.launch.target import Rendered, Target
from tests import ROOT
from tests.support.launch import engine as scripted
from tests.support.launch.jobs import until
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace, an engine's program on the PATH, and a target that uses it."""
    folder = tmp_path / "work space"
    folder.mkdir()
    copy_workspace(folder, "experiments")
    scripted.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(targets, "names", lambda: ("scripted",))
    monkeypatch.setattr(targets, "get", lambda name: scripted.Scripted)
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
    """What the engine was asked, as lists of words, each with the folder."""
    path = workspace.parent / "bin" / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_target_is_what_it_says():
    """N20: one file each; found without importing it."""
    for name in targets.names():
        target = targets.get(name)
        assert issubclass(target, Target) and target.name == name
        assert target.needs and target.profile_class()


def test_a_job_is_shown_and_nothing_is_done(workspace, capfd):
    """N20: the file alone on stdout; what matters on stderr, with commands that can be pasted; without TensorFlow."""
    (workspace / "p.yaml").write_text("resources: {cpus: 8, memory_gib: 1.5, gpus: 1}\nmax_restarts: 3\n")
    words = ["--profile=p.yaml", "--workers=2", "--ps=1", "--", "digits_mlp", "trainer.train_steps=7"]
    assert launch(*words, "--model_dir=run") == 0
    out, err = capfd.readouterr()
    (workspace / "p.yaml").unlink()
    assert out.startswith("2 workers of digits-mlp-") and out.count("\n") == 2
    name = out.split()[3]
    assert err == (
        f"shown: {name} for scripted; nothing was submitted\n"
        "  processes      1 chief, 2 workers with 8 CPUs, 1.5 GiB, 1 GPU each; 1 parameter server\n"
        f"  run directory  {workspace / 'run'}\n"
        "  max_restarts   3\n"
        f"  --submit       writes job.txt to launches/{name}, and runs there:\n"
        "    engine start 'a b' job.txt\n"
    )
    assert [path.name for path in workspace.iterdir()] == ["experiments"]
    assert not calls(workspace)


def test_several_files_are_shown_with_their_names(workspace, capfd, monkeypatch):
    two = Rendered(files={"a.sh": "a\n", "b.sh": "b\n"}, submit=(("engine", "start"),))
    monkeypatch.setattr(scripted.Scripted, "render", lambda self, job: two)
    assert launch("digits_mlp") == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == ["a.sh", "a", "", "b.sh", "b", ""]
    assert lines[0].startswith("# launches/digits-mlp-")
    assert "writes a.sh and b.sh to launches/" in err


def test_showing_imports_no_tensorflow(workspace):
    boot = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli\n"
        "from official_trainer.launch import targets; from tests.support.launch import engine\n"
        "targets.names = lambda: ('scripted',); targets.get = lambda name: engine.Scripted\n"
        "assert cli.main() == 0\n"
        "assert not {'tensorflow', 'numpy'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", boot, str(ROOT), "launch", "scripted", "--workers=2", "digits_mlp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_job_is_submitted_with_a_record(workspace, capfd):
    """N20: the engine gets its words as they are, in the folder of the job; what was done is on record."""
    name = submit(capfd, "--workers=2")
    folder = workspace / "launches" / name
    assert calls(workspace) == [[str(folder), "start", "a b", "job.txt"]]
    record = json.loads((folder / "launch.json").read_text())
    assert (record["target"], record["name"], record["id"]) == ("scripted", name, "id-1")
    assert record["model_dir"] == str(workspace / "run")
    assert record["profile"]["workers"] == 2
    assert record["argv"][1:3] == ["launch", "scripted"]
    assert record["submit"] == [["engine", "start", "a b", "job.txt"]]
    assert "--model_dir=" + str(workspace / "run") in (folder / "job.txt").read_text()


def test_names_tell_run_directories_apart():
    """Always the same for one, and valid wherever a name of a host is."""
    names = [submission.job_name("", "bert/Pretraining_v2", f"/runs/{i}") for i in range(50)]
    assert len(set(names)) == 50 and all(name.startswith("bert-pretraining-v2-") for name in names)
    assert submission.job_name("", "x", "/r") == submission.job_name("", "x", "/r")
    assert submission.job_name("", "9" * 80, "/r").startswith("job-99999")
    assert len(submission.job_name("", "9" * 80, "/r")) <= 39
    assert submission.job_name("mine", "x", "/r").startswith("mine-")


def test_a_profile_says_how_and_flags_go_over_it(workspace, capfd):
    """N20: read as experiments are, with bases."""
    (workspace / "base.yaml").write_text("workers: 3\nevaluator: true\nenviron: {A: b}\n")
    (workspace / "p.yaml").write_text("base: base.yaml\nname: mine\nmax_restarts: 2\n")
    name = submit(capfd, "--profile=p.yaml", "--workers=2", "--noevaluator")
    assert name.startswith("mine-")
    profile = json.loads((workspace / "launches" / name / "launch.json").read_text())["profile"]
    assert (profile["workers"], profile["evaluator"], profile["max_restarts"]) == (2, False, 2)
    assert profile["environ"] == {"A": "b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrkers: 2", "p.yaml:1: wrkers: unknown field; did you mean 'workers'?"),
        ("workers: two", "p.yaml:1: workers: must be an integer"),
        ("name: 'a\\nb'", "p.yaml:1: name: is not a valid job name; use up to 30 lower-case letters"),
        ('name: "a\\nb"', "is not a valid job name"),
        ("name: '$(touch x)'", "is not a valid job name"),
        ("environ: {'A B': x}", "'A B' is not a valid variable name"),
        ("environ: {TF_CONFIG: x}", "TF_CONFIG identifies a process"),
        ("environ: {WANDB_API_KEY: x}", "WANDB_API_KEY looks like a secret"),
        ('environ: {A: "b\\0"}', "the value of A contains a NUL character"),
    ],
)
def test_a_wrong_profile_is_refused(workspace, capfd, text, said):
    """N20: with its place."""
    (workspace / "p.yaml").write_text(text + "\n")
    assert said in refused(capfd, ExitCode.CONFIG, "launch", "scripted", "--profile=p.yaml", "digits_mlp")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scriptd", "digits_mlp"], "expected one of local, scripted, not scriptd; did you mean scripted?"),
        (["scripted", "digits_mpl"], "did you mean 'digits_mlp'?"),
        (["scripted", "digits_mlp", "trainer.train_stepz=1"], "did you mean 'train_steps'?"),
        (
            ["scripted", "--experiment=digits_mlp", "trainer.train_steps"],
            "trainer.train_steps is not an experiment, and overrides are PATH=VALUE; write trainer.train_steps=VALUE",
        ),
        (
            ["scripted", "--", "digits_mlp", "--", "--mode=train", "--quiet"],
            "--mode=train: flags after a second `--` are not read; leave one `--` out",
        ),
        (["scripted", "digits_mlp", "--supervise"], "--supervise would have no effect with `launch scripted`"),
        (["scripted", "digits_mlp", "--data_workers=1"], "--data_workers would have no effect"),
        (["scripted", "digits_mlp", "--submit", "--dry_run"], "--submit with --dry_run: keep one of the two"),
        (["scripted", "digits_mlp", "--profile=none.yaml"], "none.yaml"),
        (["scripted", "digits_mlp", "--workers=4", "--ps=9"], "this job cannot be run as it is\ntoo many servers"),
        (["scripted", "--", "sweep", "digits_mlp"], "launch scripted cannot run a sweep; "),
        (["local", "--", "sweep", "digits_mlp"], "launch local does not run a sweep; `official-trainer sweep` itself"),
        (
            ["scripted", "--", "train", "digits_mlp", "--trials=4"],
            "--trials=4 would have no effect with `-- train`; write `-- sweep` before the experiment, or leave it out",
        ),
        (
            ["scripted", "--", "sweep", "digits_mlp", "--mode=train"],
            "--mode=train would have no effect with `-- sweep`; leave it out",
        ),
        (["local", "digits_mlp", "--submit"], "`launch local` starts the processes at once; leave it out"),
    ],
)
def test_what_is_refused_before_anything_is_done(workspace, capfd, words, said):
    """N20: all that `launch local` refuses, what the engine would, and flags without effect."""
    assert said in refused(capfd, ExitCode.CONFIG, "launch", *words)
    assert [path.name for path in workspace.iterdir()] == ["experiments"]
    assert not calls(workspace)


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


def test_an_engine_that_is_not_there(workspace, capfd, monkeypatch):
    """N20: says which program, and where it is to be had; nothing is written."""
    monkeypatch.setenv("PATH", "/nowhere")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "digits_mlp")
    assert "engine is not on the PATH, and `scripted` needs it: install it from nowhere" in said
    assert not (workspace / "launches").exists()


def test_an_engine_that_fails(workspace, capfd, monkeypatch):
    """N20: its own words, an exit code, and no record of a job that there is not."""
    monkeypatch.setenv("ENGINE_FAILS", "start")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "digits_mlp")
    assert "engine: no such queue\n" in said and "engine start 'a b' job.txt ended with exit code 3" in said
    assert not (workspace / "launches").exists()


def test_an_engine_that_fails_leaves_the_job_on_record(workspace, capfd, monkeypatch):
    """What `job resume` submits is what the record says, and not what was refused."""
    name = submit(capfd, "--workers=2")
    assert cli.main(["job", "cancel", name]) == 0
    folder = workspace / "launches" / name
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setenv("ENGINE_FAILS", "start")
    refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "--workers=4", "digits_mlp", "--model_dir=run")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    monkeypatch.setattr(scripted.Scripted, "file", "other.txt")
    refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "--workers=4", "digits_mlp", "--model_dir=run")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_job_takes_the_folder_of_one_that_has_ended(workspace, capfd, monkeypatch):
    """Of another target, say: its files go, what it has printed stays."""
    name = submit(capfd)
    assert cli.main(["job", "cancel", name]) == 0
    folder = workspace / "launches" / name
    (folder / "slurm.out").write_text("step 1\n")
    monkeypatch.setattr(scripted.Scripted, "file", "other.txt")
    assert submit(capfd) == name
    assert sorted(path.name for path in folder.iterdir()) == ["launch.json", "other.txt", "slurm.out"]


def test_an_engine_that_says_no_id(workspace, capfd, monkeypatch):
    """A job under words that are no id could be neither seen nor cancelled."""
    monkeypatch.setenv("ENGINE_SAYS", "welcome")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "digits_mlp")
    assert "engine start 'a b' job.txt printed 'welcome' and no job id; check in scripted itself whether" in said
    assert not (workspace / "launches").exists()
    (workspace / "p.yaml").write_text("steps: 2\n")
    monkeypatch.delenv("ENGINE_SAYS")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "--profile=p.yaml", "digits_mlp")
    assert "engine start2 printed nothing and no job id" in said and "cancels what was started" in said


def test_an_id_is_said_once(workspace, capfd):
    """In a sentence; what else an engine prints is passed on."""
    assert launch("--submit", "digits_mlp", "--model_dir=run") == 0
    assert "was submitted to scripted as id-1; " in capfd.readouterr().out.splitlines()[0]


def test_a_long_command_is_cut_in_messages():
    assert submission.shown(("kubectl", "a b")) == "kubectl 'a b'"
    assert submission.shown(("kubectl", "x" * 500)) == "kubectl " + "x" * 100 + "…" + "x" * 10


def test_no_job_was_submitted(workspace, capfd):
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    assert not out
    assert err == (
        f"note: no job was submitted from {workspace}; "
        "`official-trainer launch TARGET --submit -- --experiment=NAME` submits one\n"
    )


def test_a_job_that_has_printed_nothing_yet(workspace, capfd, monkeypatch):
    """Where logs are files that are not there before it runs; `--follow` waits for them."""
    monkeypatch.setattr(scripted.Scripted, "prints_to", ("slurm.out", "ps.out"))
    name = submit(capfd)
    assert cli.main(["job", "logs", name]) == 0
    out, err = capfd.readouterr()
    assert not out
    assert err == f"note: {name} has printed nothing yet; `official-trainer job status {name}` shows its state\n"
    (workspace / "launches" / name / "ps.out").touch()
    assert cli.main(["job", "logs", name]) == 0
    assert capfd.readouterr().out == "a line\n"


@pytest.mark.parametrize("text", [None, "image: [", "- a"])
def test_a_profile_that_cannot_be_read_is_one_problem(workspace, capfd, monkeypatch, text):
    """And not also one for each field that it may set."""
    monkeypatch.undo()
    monkeypatch.chdir(workspace)
    if text is not None:
        (workspace / "p.yaml").write_text(text)
    said = refused(capfd, ExitCode.CONFIG, "launch", "kubernetes", "--profile=p.yaml", "digits_mlp")
    assert "p.yaml" in said and "problems" not in said and "image: is not set" not in said


def test_what_was_started_before_a_failure_can_be_taken_back(workspace, capfd, monkeypatch):
    (workspace / "p.yaml").write_text("steps: 2\n")
    monkeypatch.setenv("ENGINE_FAILS", "start2")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "--profile=p.yaml", "digits_mlp")
    (name,) = os.listdir(workspace / "launches")
    assert f"`official-trainer job cancel {name}` cancels what was started" in said
    assert cli.main(["job", "cancel", name]) == 0
    assert calls(workspace)[-1][1:] == ["stop", name]


def test_a_job_that_runs_is_not_submitted_again(workspace, capfd):
    """N20: two would train in one directory; once it has ended, it goes on."""
    name = submit(capfd)
    words = ["launch", "scripted", "--submit", "digits_mlp", "--model_dir=run"]
    said = refused(capfd, ExitCode.CONFIG, *words)
    assert f"{name} was submitted to scripted as id-1" in said and f"job cancel {name}" in said
    assert "has not ended" in refused(capfd, ExitCode.CONFIG, "job", "resume", name)
    assert cli.main(["job", "cancel", name]) == 0
    assert submit(capfd) == name
    assert cli.main(["job", "cancel", name]) == 0
    assert cli.main(["job", "resume", name]) == 0
    assert json.loads((workspace / "launches" / name / "launch.json").read_text())["id"] == "id-3"


def test_jobs_are_seen_to_with_the_engines_own_commands(workspace, capfd, monkeypatch):
    """N20: status, logs, list; from anywhere in the workspace, with the engine's exit code."""
    name = submit(capfd)
    monkeypatch.chdir(workspace / "experiments")
    assert cli.main(["job", "status", name]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"{name}: scripted id-1, submitted ") and "id-1 RUNNING" in out
    assert cli.main(["job", "logs", name]) == 0
    assert capfd.readouterr().out == "a line\n"
    assert cli.main(["job", "list"]) == 0
    assert [line.split()[:3] for line in capfd.readouterr().out.splitlines()[1:]] == [[name, "scripted", "id-1"]]
    monkeypatch.setenv("ENGINE_FAILS", "status")
    assert cli.main(["job", "status", name]) == 3
    assert f"note: scripted knows no status; the run's own is in {workspace / 'run'}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "job what? expected one of status, logs, cancel, resume, supervise, list, not nothing"),
        (["stop", "x"], "not stop"),
        (["statsu", "x"], "did you mean status?"),
        (["status"], "which job? digits-mlp-"),
        (["status", "digits-mpl-269f6187"], "no such job: digits-mpl-269f6187"),
        (["list", "x"], "job list takes no name"),
        (["status", "x", "--follow"], "--follow would have no effect with `job status`"),
    ],
)
def test_actions_that_there_are_not(workspace, capfd, words, said):
    submit(capfd)
    assert said in refused(capfd, ExitCode.CONFIG, "job", *words)


def test_a_name_may_be_cut_short(workspace, capfd):
    """As long as there is one job only that it may be."""
    submit(capfd)
    assert cli.main(["job", "status", "digits"]) == 0
    assert launch("--submit", "digits_mlp", "--model_dir=other") == 0
    assert "digits is the beginning of several names: digits-mlp-" in refused(
        capfd, ExitCode.CONFIG, "job", "cancel", "digits"
    )


def test_a_record_that_cannot_be_read(workspace, capfd):
    name = submit(capfd)
    (workspace / "launches" / name / "launch.json").write_text("{")
    assert "launch.json cannot be read" in refused(capfd, ExitCode.CONFIG, "job", "status", name)


def test_a_record_of_a_target_that_is_gone(workspace, capfd, monkeypatch):
    name = submit(capfd)
    monkeypatch.setattr(targets, "names", lambda: ("scriptd",))
    said = refused(capfd, ExitCode.CONFIG, "job", "status", name)
    assert "no such target: scripted; did you mean scriptd?" in said


def test_an_engine_that_fails_to_cancel(workspace, capfd, monkeypatch):
    name = submit(capfd)
    monkeypatch.setenv("ENGINE_FAILS", "stop")
    assert "engine stop id-1 failed; its error is above" in refused(capfd, ExitCode.FAILED, "job", "cancel", name)


def test_ctrl_c_leaves_the_logs(workspace, capfd):
    """N20: with 130, without a word, and without the engine's program."""
    name = submit(capfd)
    boot = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli\n"
        "from official_trainer.launch import targets; from tests.support.launch import engine\n"
        "targets.names = lambda: ('scripted',); targets.get = lambda name: engine.Scripted\n"
        "sys.exit(cli.main())"
    )
    command = [sys.executable, "-c", boot, str(ROOT), "job", "logs", name, "--follow"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "a line\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    until(lambda: not _lives(process.pid))


def test_logs_that_ctrl_c_ends_first(workspace, capfd, monkeypatch):
    """N20: the engine's program may get the signal, and end, before we do."""
    name = submit(capfd)
    monkeypatch.setattr(
        submission, "run", lambda target, argv, folder: subprocess.CompletedProcess(argv, -signal.SIGINT)
    )
    assert cli.main(["job", "logs", name]) == 130


def _lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_started_again():
    """N20: the contract of all targets, in one place."""
    assert set(START_AGAIN) == {ExitCode.RETRY, ExitCode.PREEMPTED}
