"""`official-trainer launch local`: what is refused before anything starts, what would start, and a real run."""

import json
import re
import shlex

import pytest

from official_trainer import cli
from official_trainer.cli import flags
from official_trainer.distributed.environment import cluster_env
from official_trainer.errors import ExitCode
from official_trainer.launch.verbs import launch as verb
from official_trainer.processes.verdict import End, Outcome
from tests.support import golden, packages
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *words):
    assert cli.main(["launch", *words]) == ExitCode.CONFIG
    out, err = capsys.readouterr()
    assert not out
    return err


def test_what_no_process_would_do_is_refused_once(workspace, capsys, request):
    """By the launcher, before it starts any."""
    golden.check_refused("launch", request, capsys, "launch")


def test_a_directory_of_another_run_is_refused(workspace, capsys):
    (workspace / "run").mkdir()
    (workspace / "run" / "run.json").write_text('{"experiment": "other", "run_id": "1"}')
    assert "other" in refused(capsys, "local", "--workers=2", "digits_cnn", "--model_dir=run")


def planned(capsys, *words):
    """Returns environment and words of each process, by its name."""
    assert cli.main(["launch", "local", "--dry_run", *words]) == 0
    processes = {}
    for name, command in re.findall(r"# (.*?)\n(.*?)\n\n", capsys.readouterr().out, flags=re.DOTALL):
        variable, *argv = shlex.split(command.replace("\\\n", ""))
        processes[name] = ({"TF_CONFIG": variable.removeprefix("TF_CONFIG=")}, argv)
    return processes


def test_dry_run_prints_what_can_be_pasted(workspace, capsys):
    """Every process with its place in the cluster and its command; nothing starts, nothing is written."""
    words = ["--workers=2", "--ps=1", "--evaluator", "--"]
    words += ["--experiment=digits_cnn", "--model_dir=my run", "--mode", "train", "trainer.train_steps=7", "--quiet"]
    plan = planned(capsys, *words)
    assert list(plan) == ["chief", "worker 0", "worker 1", "ps 0", "evaluator"]
    train = ["python", "-m", "official_trainer", "train", "--experiment=digits_cnn"]
    for name, (environ, argv) in plan.items():
        assert cluster_env(environ).name == name
        mode = "--mode=continuous_eval" if name == "evaluator" else "--mode=train"
        assert argv[:5] == train
        assert sorted(argv[5:]) == sorted(["--model_dir=my run", "--set=trainer.train_steps=7", "--quiet", mode])
    assert [path.name for path in workspace.iterdir()] == ["experiments"]


def test_every_process_imports_and_binds_what_the_launcher_does(workspace, restored, monkeypatch, capsys):
    """T17, T25: as the flags are given, as often, lines and all; here and on a scheduler."""
    (workspace / "a.gin").write_text("f.x = 1\n")
    words = ["--import=my_project.experiments", "--import=math", "--gin_file=a.gin", "--gin_params=f.y = 2\nf.z = 3"]
    (workspace / "slurm.yaml").write_text("node_local: []\n")
    monkeypatch.syspath_prepend(packages.OWN)
    plan = planned(capsys, "--workers=2", "--ps=1", "--evaluator", *words, "--", "sine_1", "--model_dir=run")
    assert len(plan) == 5
    assert all(set(words) <= set(argv) for _, argv in plan.values())
    engine = ["launch", "slurm", "--profile=slurm.yaml", "--workers=2", "sine_1", "--model_dir=run"]
    assert cli.main([*engine, *words[:2]]) == 0
    assert "official_trainer train sine_1 --import=my_project.experiments --import=math" in capsys.readouterr().out


def test_an_empty_address_of_a_tpu_is_none_for_several_workers(workspace, capsys):
    """T26: by the flag and by the field; a name has no effect, and is refused."""
    assert len(planned(capsys, "--workers=2", "digits_cnn", "--model_dir=run", "--tpu=", "runtime.tpu=''")) == 2
    message = refused(capsys, "local", "--workers=2", "digits_cnn", "--model_dir=run", "--tpu=x")
    assert "runtime.tpu: has no effect in the cluster of launch; leave it out" in message


def test_one_worker_is_alone(workspace, capsys):
    """Without a cluster, so any strategy will do."""
    ((environ, _),) = planned(capsys, "digits_cnn", "runtime.distribution_strategy=mirrored").values()
    assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert cluster_env(environ) is None


def test_words_are_those_that_give_the_same_values():
    """What the launcher has read is handed on in one spelling."""
    parser = flags.Parser("train", usage="", description="")
    flags.add_run_flags(parser)
    flags.add_mode_flag(parser)
    given = ["digits", "-mode", "train", "--config_file=a b", "--config_file", "c", "x.y=1", "--z.q=[1, 2]", "--quiet"]
    words = parser.words(parser.read(given))
    assert parser.read(words) == parser.read(given)
    assert words == [
        "digits", "--config_file=a b", "--config_file=c", "--set=x.y=1", "--set=z.q=[1, 2]", "--mode=train", "--quiet",
    ]  # fmt: skip


ENDS = (
    (Outcome(code=0), ""),
    (Outcome(code=75, note="the fork server is gone"), "error: the fork server is gone\n"),
    (
        Outcome(code=143, cause=End(name="worker 1", role="worker", code=143)),
        "stopped: worker 1 ended with exit code 143 (preempted); the same command continues the run\n",
    ),
    (
        Outcome(code=1, cause=End(name="worker 1", role="worker", code=7, last=("a", "b")), note="given up"),
        "error: worker 1 ended with exit code 7; given up; its last lines:\n    a\n    b\n",
    ),
)


def test_what_is_said_at_the_end(capsys):
    for outcome, message in ENDS:
        verb.report(outcome)
        assert capsys.readouterr().err == message
