"""`launch TARGET` and `job`: what is shown, written, run and refused, with a scheduler of a few lines of shell."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from official_trainer import cli
from official_trainer.errors import ExitCode
from official_trainer.launch import launches, schedulers, targets
from official_trainer.launch.target import Rendered, Target
from official_trainer.launch.verbs import job as verb
from tests import ROOT
from tests.support.launch import engine as scripted
from tests.support.launch.jobs import is_alive, until
from tests.support.workspace import copy_workspace


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
    """What the scheduler was asked, as lists of words, each with the folder."""
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


def test_a_run_directory_has_one_job_by_all_links_to_it(workspace, capfd):
    """N20: two jobs would train in it at the same time."""
    (workspace / "runs").mkdir()
    (workspace / "by link").symlink_to("runs")
    names = set()
    for model_dir in ("runs/a", "by link/a", str(workspace / "by link" / "a"), "runs/b/../a/"):
        assert launch("digits_mlp", f"--model_dir={model_dir}") == 0
        names.add(capfd.readouterr().out.split()[3])
    assert len(names) == 1


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
    """N20: the scheduler gets its words as they are, in the folder of the job; what was done is on record."""
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
    names = [launches.job_name("", "bert/Pretraining_v2", f"/runs/{i}") for i in range(50)]
    assert len(set(names)) == 50 and all(name.startswith("bert-pretraining-v2-") for name in names)
    assert launches.job_name("", "x", "/r") == launches.job_name("", "x", "/r")
    assert launches.job_name("", "9" * 80, "/r").startswith("job-99999")
    assert len(launches.job_name("", "9" * 80, "/r")) <= 39
    assert launches.job_name("mine", "x", "/r").startswith("mine-")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrkers: 2", "p.yaml:1: wrkers: unknown field; did you mean 'workers'?"),
        ("workers: two", "p.yaml:1: workers: must be an integer"),
        ('name: "a\\nb"', "p.yaml:1: name: is not a valid job name; use up to 30 lower-case letters"),
        ("environ: {'A B': x}", "'A B' is not a valid variable name"),
        ("environ: {TF_CONFIG: x}", "TF_CONFIG identifies a process"),
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
        (["scripted", "--experiment=digits_mlp", "trainer.train_steps"], "write trainer.train_steps=VALUE"),
        (["scripted", "--", "digits_mlp", "--", "--mode=train", "--quiet"], "a second `--` are not read; leave one"),
        (["scripted", "digits_mlp", "--supervise"], "--supervise would have no effect with `launch scripted`"),
        (["scripted", "digits_mlp", "--data_workers=1"], "--data_workers would have no effect"),
        (["scripted", "digits_mlp", "--submit", "--dry_run"], "--submit with --dry_run: keep one of the two"),
        (["scripted", "digits_mlp", "--profile=none.yaml"], "none.yaml"),
        (["scripted", "digits_mlp", "--workers=4", "--ps=9"], "this job cannot be run as it is\ntoo many servers"),
        (["scripted", "--", "sweep", "digits_mlp"], "launch scripted cannot run a sweep; "),
        (["local", "--", "sweep", "digits_mlp"], "launch local does not run a sweep; `official-trainer sweep` itself"),
        (["scripted", "--", "train", "digits_mlp", "--trials=4"], "write `-- sweep` before the experiment, or leave"),
        (["scripted", "--", "sweep", "digits_mlp", "--mode=train"], "no effect with `-- sweep`; leave it out"),
        (["local", "digits_mlp", "--submit"], "`launch local` starts the processes at once; leave it out"),
    ],
)
def test_what_is_refused_before_anything_is_done(workspace, capfd, words, said):
    """N20: all that `launch local` refuses, what the scheduler would, and flags without effect."""
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


def test_a_file_in_the_place_of_the_folder_of_jobs(workspace, capfd):
    """N20: is named, before anything is started."""
    (workspace / "launches").write_text("mine")
    said = refused(capfd, ExitCode.CONFIG, "launch", "scripted", "--submit", "digits_mlp")
    assert f"{workspace / 'launches'} is a file, not a directory. Move it away" in said


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


def test_no_job_was_submitted(workspace, capfd):
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    assert not out
    assert err == (
        f"note: no job was submitted from {workspace}; "
        "`official-trainer launch TARGET --submit -- --experiment=NAME` submits one\n"
    )


def test_a_submission_that_is_interrupted(workspace, capfd, monkeypatch):
    """N20: the scheduler may have got the job, of which there is no record then."""

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(schedulers, "run", interrupted)
    assert launch("--submit", "--", "digits_mlp", "--model_dir=run") == 130
    said = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        "note: scripted may have digits-mlp-[0-9a-f]{8} all the same; look there, and cancel it", said[0]
    )
    assert not (workspace / "launches").exists()


def test_logs_of_processes_that_have_not_started(workspace, capfd, monkeypatch):
    """N20: are left out, as of the tasks of an array that wait."""
    monkeypatch.setattr(scripted.Scripted, "prints_to", ("slurm-0.out", "slurm-1.out"))
    monkeypatch.setattr(scripted.Scripted, "logs", lambda self, job_id, *, follow: ("tail", *self.prints_to))
    name = submit(capfd)
    (workspace / "launches" / name / "slurm-1.out").write_text("said\n")
    assert cli.main(["job", "logs", name]) == 0
    assert capfd.readouterr() == ("said\n", "")


def test_a_job_that_has_printed_nothing_yet(workspace, capfd, monkeypatch):
    """Where logs are files that are not there before it runs; `--follow` waits for them."""
    monkeypatch.setattr(scripted.Scripted, "prints_to", ("slurm.out", "ps.out"))
    name = submit(capfd)
    assert cli.main(["job", "logs", name]) == 0
    out, err = capfd.readouterr()
    assert (
        not out
        and err == f"note: {name} has printed nothing yet; `official-trainer job status {name}` shows its state\n"
    )
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


def test_commands_at_the_same_time_start_a_job_once(workspace, capfd, monkeypatch):
    """N20: the others are refused; else the scheduler would have jobs of which there is no record."""
    words = ["launch", "scripted", "--submit", "digits_mlp", "--model_dir=run"]
    name, start, codes = submit(capfd), schedulers.start, []
    assert cli.main(["job", "cancel", name]) == 0

    def meanwhile(*args):
        with monkeypatch.context() as original:
            original.setattr(schedulers, "start", start)
            codes.extend([cli.main(words), cli.main(["job", "resume", name])])
        return start(*args)

    monkeypatch.setattr(schedulers, "start", meanwhile)
    for again in (words, ["job", "resume", name]):
        capfd.readouterr()
        assert cli.main(again) == 0
        assert capfd.readouterr().err.count(f"error: another command is starting {name} now. Wait until it has") == 2
        assert cli.main(["job", "cancel", name]) == 0
    assert codes == [ExitCode.RETRY] * 4
    assert [words[1] for words in calls(workspace)].count("start") == 3
    assert sorted(os.listdir(workspace / "launches" / name)) == ["job.txt", "launch.json"]


def test_what_was_started_before_a_failure_can_be_taken_back(workspace, capfd, monkeypatch):
    (workspace / "p.yaml").write_text("steps: 2\n")
    monkeypatch.setenv("ENGINE_FAILS", "start2")
    said = refused(capfd, ExitCode.FAILED, "launch", "scripted", "--submit", "--profile=p.yaml", "digits_mlp")
    (name,) = os.listdir(workspace / "launches")
    assert f"`official-trainer job cancel {name}` cancels what was started" in said
    jobs = workspace.parent / "bin" / "jobs"
    (jobs / "id-1").rename(jobs / name)  # an engine of several commands knows a job by its name
    assert cli.main(["job", "cancel", name]) == 0
    assert calls(workspace)[-1][1:] == ["stop", name]


def test_a_job_that_runs_is_not_submitted_again(workspace, capfd):
    """N20: two would train in one directory; once it has ended, it goes on."""
    name = submit(capfd)
    words = ["launch", "scripted", "--submit", "digits_mlp", "--model_dir=run"]
    said = refused(capfd, ExitCode.CONFIG, *words)
    assert f"{name} was submitted to scripted as id-1" in said and "has not ended (running), and another" in said
    assert f"`official-trainer job cancel {name}` ends it" in said
    said = refused(capfd, ExitCode.CONFIG, "job", "resume", name)
    assert "has not ended (running), so there is nothing to resume" in said
    assert cli.main(["job", "cancel", name]) == 0
    assert submit(capfd) == name
    assert cli.main(["job", "cancel", name]) == 0
    assert cli.main(["job", "resume", name]) == 0
    assert json.loads((workspace / "launches" / name / "launch.json").read_text())["id"] == "id-3"


UNKNOWN = {
    "fails": ({"ENGINE_FAILS": "status"}, "engine: no such queue"),
    "prints something else": (
        {"ENGINE_ANSWERS": "Welcome to the lab!"},
        "engine printed 'Welcome to the lab!', which says nothing of the job",
    ),
    "never answers": ({"ENGINE_ANSWERS": "never"}, "engine did not answer within 1 s"),
    "is missing": ({"PATH": "/nowhere"}, "engine is not on the PATH, and `scripted` needs it: install it from nowhere"),
}


@pytest.fixture(params=UNKNOWN)
def unknown(request, workspace, capfd, monkeypatch):
    """The name of a job whose scheduler cannot be asked, and what is said of that; its program is not left."""
    environ, why = UNKNOWN[request.param]
    name = submit(capfd)
    monkeypatch.setattr(schedulers, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(verb, "_LIST_SECONDS", 1.0)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    yield name, why
    path = workspace.parent / "bin" / "pids"
    pids = path.read_text().split() if path.exists() else []
    assert bool(pids) == (request.param == "never answers")
    until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_job_is_not_started_again_unless_it_has_ended(workspace, capfd, unknown):
    """N20: a scheduler that cannot say so has not said so; the message has its reason, and what to do."""
    name, why = unknown
    asked = len(calls(workspace))
    for words in (["launch", "scripted", "--submit", "digits_mlp", "--model_dir=run"], ["job", "resume", name]):
        said = refused(capfd, ExitCode.FAILED, *words)
        assert f"error: {name} was submitted to scripted as id-1 at " in said
        assert f", and it is not known whether it has ended, so nothing was started: {why}\n" in said
        assert "check: engine status id-1\nOnce that works, run this command again." in said
        assert f"If the job still runs, `official-trainer job cancel {name}` ends it; " in said
        assert f"if scripted no longer exists, remove launches/{name}\n" in said
    assert {words[1] for words in calls(workspace)[asked:]} <= {"status"}


def test_a_list_says_what_is_unknown(workspace, capfd, unknown):
    """N20: and why, below it; it does not fail."""
    name, why = unknown
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[1].split()[:4] == [name, "scripted", "id-1", "unknown"]
    assert err == f"note: the state of {name} is unknown: {why}\n"


@pytest.mark.parametrize("word", ["RUNNING", "PENDING", "COMPLETED", "FAILED", "CANCELLED", None])
def test_only_a_job_that_has_not_ended_is_cancelled(workspace, capfd, word):
    """N20: the scheduler is asked first; where nothing is left to do, that is no error."""
    name, job = submit(capfd), workspace.parent / "bin" / "jobs" / "id-1"
    job.write_text(word) if word else job.unlink()
    has_ended = word not in ("RUNNING", "PENDING")
    assert cli.main(["job", "cancel", name]) == 0
    assert [words[1] for words in calls(workspace)[1:]] == ["status", *([] if has_ended else ["stop"])]
    gone = f"scripted no longer has {name}, so it has ended"
    said = f"{name} has ended already ({word.lower()})" if word else gone
    before = f"; it was {word.lower()} before" if word else ""
    again = f"{name} was cancelled{before}\n`official-trainer job resume {name}` continues from its checkpoint\n"
    assert capfd.readouterr().out == (f"{said}; nothing was cancelled\n" if has_ended else again)


@pytest.mark.parametrize("word", ["RUNNING", "SUSPENDED"])
def test_what_is_left_of_a_supervised_job_is_deleted(workspace, capfd, monkeypatch, word):
    """N20: a slice costs money when its training has ended, too; that a job was cancelled is not said."""
    name = submit(capfd)
    monkeypatch.setattr(scripted.Scripted, "is_supervised", True)
    (workspace.parent / "bin" / "jobs" / "id-1").write_text(word)
    assert cli.main(["job", "cancel", name]) == 0
    assert calls(workspace)[-1][1:] == ["stop", "id-1"]
    assert capfd.readouterr().out.startswith(f"{name} was deleted; it was {word.lower()} before\n")


def test_a_job_whose_state_is_unknown_is_cancelled(workspace, capfd, unknown):
    """N20: it may cost money; that it ran is not said."""
    name, why = unknown
    is_missing = why.startswith("engine is not on the PATH")
    assert cli.main(["job", "cancel", name]) == (ExitCode.FAILED if is_missing else 0)
    out, err = capfd.readouterr()
    assert "was cancelled" not in out and why in err
    if not is_missing:
        assert calls(workspace)[-1][1:] == ["stop", "id-1"]
        what = "engine stop id-1 has succeeded, but scripted did not say whether it still ran"
        assert err == f"note: {name}: {what}: {why}\n"


def test_a_job_that_the_engine_no_longer_has(workspace, capfd):
    """N20: has ended."""
    name = submit(capfd)
    (workspace.parent / "bin" / "jobs" / "id-1").rename(workspace.parent / "bin" / "jobs" / "kept")
    assert cli.main(["job", "list"]) == 0
    assert capfd.readouterr().out.splitlines()[1].split()[3] == "ended"
    assert submit(capfd) == name


def test_a_list_asks_once(workspace, capfd):
    """N20: for all jobs of a scheduler; a target that is gone, and its jobs, are in it too."""
    name = submit(capfd)
    for place in ("second", "third", "fourth"):
        assert launch("--submit", "digits_mlp", f"--model_dir={place}") == 0
    jobs = workspace.parent / "bin" / "jobs"
    for number, state in enumerate(("PENDING", "COMPLETED", "FAILED"), start=2):
        (jobs / f"id-{number}").write_text(state)
    gone = json.loads((workspace / "launches" / name / "launch.json").read_text())
    (workspace / "launches" / "older").mkdir()
    older = {**gone, "name": "older", "target": "scriptd", "submitted_at": "2020"}
    (workspace / "launches" / "older" / "launch.json").write_text(json.dumps(older))
    asked = len(calls(workspace))
    capfd.readouterr()
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    states = {row[2]: row[3] for row in map(str.split, out.splitlines()[1:]) if row[0] != "older"}
    assert states == {"id-1": "running", "id-2": "pending", "id-3": "completed", "id-4": "failed"}
    assert len(calls(workspace)) == asked + 1
    assert out.splitlines()[-1].split()[:4] == ["older", "scriptd", "id-1", "unknown"]
    assert "the state of older is unknown: older: no such target: scriptd; did you mean scripted?" in err
    assert "was it removed? Once the job has ended, remove launches/older" in err


class Watching:
    """Stands for the signals of a terminal: at each wait, the job is in its next state; then the user leaves."""

    def __init__(self, path, *states):
        self.path, self.states, self.waits = path, list(states), []

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def wait(self, seconds):
        self.waits.append(seconds)
        if not self.states:
            return True
        if (state := self.states.pop(0)) is None:
            self.path.unlink()
        else:
            self.path.write_text(state)
        return False


def watch(workspace, capfd, monkeypatch, *states):
    """Returns exit code, what was printed without times, and stderr."""
    name = submit(capfd)
    record = json.loads((workspace / "launches" / name / "launch.json").read_text())
    path = workspace.parent / "bin" / "jobs" / record["id"]
    path.write_text("PENDING")
    watching = Watching(path, *states)
    monkeypatch.setattr(verb, "Signals", lambda: watching)
    code = cli.main(["job", "watch", name])
    out, err = capfd.readouterr()
    assert set(watching.waits) == {30.0}
    return code, [line.partition(" ")[2] for line in out.splitlines()], err


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("COMPLETED", ExitCode.DONE),
        ("SUCCEEDED", ExitCode.DONE),
        ("FAILED", ExitCode.FAILED),
        ("CANCELLED", ExitCode.PREEMPTED),
        ("TIMEOUT", ExitCode.FAILED),
    ],
)
def test_a_job_is_watched_to_its_end(workspace, capfd, monkeypatch, end, code):
    """N20: each state once; the exit code says how it ended."""
    found = watch(workspace, capfd, monkeypatch, "PENDING", "RUNNING", "RUNNING", end)
    assert found == (code, ["pending", "running", end.lower()], "")


def test_a_watch_without_an_end(workspace, capfd, monkeypatch):
    """N20: Ctrl-C leaves it; how a job ended that goes, or whose scheduler fails for ten minutes, is not known."""
    code, said, err = watch(workspace, capfd, monkeypatch, "RUNNING", None)
    assert (code, said) == (ExitCode.RETRY, ["pending", "running", "ended"])
    assert "scripted no longer has the job, so it is not known how it ended; " in err
    assert f"the run's own status is in {workspace / 'run'}\n" in err
    failing = ["x y z"] * 19  # what it prints is no state; now and then that is only said
    code, said, _ = watch(workspace, capfd, monkeypatch, *failing, "RUNNING", "COMPLETED")
    assert (code, [text.partition(":")[0] for text in said]) == (0, ["pending", "unknown", "running", "completed"])
    code, _, err = watch(workspace, capfd, monkeypatch, *failing, "x y z", "RUNNING")
    assert code == ExitCode.RETRY
    assert "scripted has not answered 20 times in a row, so it is not known how it ended" in err
    jobs = workspace.parent / "bin" / "jobs"
    for path in jobs.iterdir():
        path.write_text("FAILED")
    assert watch(workspace, capfd, monkeypatch)[:2] == (130, ["pending"])


def test_a_slice_is_not_watched(workspace, capfd, monkeypatch):
    """N20: its state does not say whether training has ended."""
    monkeypatch.setattr(scripted.Scripted, "is_supervised", True)
    name = submit(capfd)
    said = refused(capfd, ExitCode.CONFIG, "job", "watch", name)
    assert f"{name}: scripted does not know whether training has ended; " in said
    assert f"`official-trainer job supervise {name}` knows, and ends with its exit code" in said


def test_a_terminal_is_not_shown_what_every_script_has(workspace, capfd, monkeypatch):
    """N20: a file or a pipe gets all of it."""
    text = "#SBATCH --x\n# <the same in every job>\na\nb\n# </the same in every job>\nsrun train\n"
    rendered = Rendered(files={"job.sbatch": text}, submit=(("engine", "start"),))
    monkeypatch.setattr(scripted.Scripted, "render", lambda self, job: rendered)
    assert launch("digits_mlp") == 0
    assert capfd.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert launch("digits_mlp") == 0
    left_out = "# … 2 lines that are the same in every job; `> job.sbatch` saves all\n"
    assert capfd.readouterr().out == f"#SBATCH --x\n{left_out}srun train\n"


def test_predictions_are_a_job_of_their_own(workspace, capfd):
    """N20: beside the training of their run, and beside those in another folder."""
    names = {submit(capfd)}
    for words in ((), ("--output=run/best", "--checkpoint=best")):
        assert launch("--submit", "--workers=2", "--", "predict", "digits_mlp", "--model_dir=run", *words) == 0
        names.add(name := capfd.readouterr().out.partition(" ")[0])
    assert len(names) == 3 and {each.rpartition("-")[0] for each in names} == {"digits-mlp", "digits-mlp-predict"}
    text = (workspace / "launches" / name / "job.txt").read_text()
    assert "'--mode=predict'" in text and f"'--output={workspace / 'run' / 'best'}'" in text


def test_jobs_are_seen_to_with_the_schedulers_own_commands(workspace, capfd, monkeypatch):
    """N20: status, logs, list; from anywhere in the workspace, with the scheduler's exit code."""
    name = submit(capfd)
    monkeypatch.chdir(workspace / "experiments")
    assert cli.main(["job", "status", name]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"{name}: scripted id-1, submitted ") and "id-1 RUNNING" in out
    assert cli.main(["job", "logs", name]) == 0
    assert capfd.readouterr().out == "a line\n"
    assert cli.main(["job", "list"]) == 0
    rows = [line.split()[:4] for line in capfd.readouterr().out.splitlines()[1:]]
    assert rows == [[name, "scripted", "id-1", "running"]]
    monkeypatch.setenv("ENGINE_FAILS", "status")
    assert cli.main(["job", "status", name]) == 3
    assert f"note: scripted has no status to show; the run's own is in {workspace / 'run'}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "job needs an action; actions: status, watch, logs, cancel, resume, supervise, list"),
        (["stop", "x"], "'stop' is no action of job"),
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
    """N20: other jobs can be seen to all the same."""
    name = submit(capfd)
    assert launch("--submit", "digits_mlp", "--model_dir=other") == 0
    (other,) = {path.name for path in (workspace / "launches").iterdir()} - {name}
    path = workspace / "launches" / name / "launch.json"
    path.write_text("{")
    capfd.readouterr()
    why = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    for words in (["list"], ["status", other], ["cancel", other]):
        assert cli.main(["job", *words]) == 0
        out, err = capfd.readouterr()
        assert other in out and name not in out
        so = "restore it, or remove the folder of a job that has ended"
        assert err.startswith(f"warning: {path} cannot be read ({why}); {so}\n")
    assert f"no such job: {name}" in refused(capfd, ExitCode.CONFIG, "job", "status", name)
    assert "launch.json cannot be read" in refused(
        capfd, ExitCode.CONFIG, "launch", "scripted", "--submit", "digits_mlp", "--model_dir=run"
    )


def test_an_engine_that_fails_to_cancel(workspace, capfd, monkeypatch):
    name = submit(capfd)
    monkeypatch.setenv("ENGINE_FAILS", "stop")
    assert "engine stop id-1 failed; its error is above" in refused(capfd, ExitCode.FAILED, "job", "cancel", name)


def test_ctrl_c_leaves_the_logs(workspace, capfd):
    """N20: with 130, without a word, and without the scheduler's program."""
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
    """N20: the scheduler's program may get the signal, and end, before we do."""
    name = submit(capfd)
    monkeypatch.setattr(
        schedulers, "run", lambda target, argv, folder: subprocess.CompletedProcess(argv, -signal.SIGINT)
    )
    assert cli.main(["job", "logs", name]) == 130


def _lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
