"""Run directories that Model Garden's `train.py` and our commands share."""

import functools
import hashlib
import json
import re
import shutil
import signal
import sys
import types

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from tests.support import runs
from tests.support.chaos import disk
from tests.support.forked import Child, Command, run_command
from tests.support.garden.two_heads import WORKSPACE

SETTINGS = (
    "trainer.steps_per_loop=3,trainer.summary_interval=6,trainer.validation_interval=6,trainer.continuous_eval_timeout=1,"
    "trainer.best_checkpoint_eval_metric=accuracy,trainer.best_checkpoint_export_subdir=best"
)
EMA = ",trainer.optimizer_config.ema.average_decay=0.9"


def flags(model_dir, train_steps=12, more=EMA):
    """The same words for their `train.py` and for ours."""
    override = f"--params_override={SETTINGS},trainer.train_steps={train_steps}{more}"
    return ["--experiment=points_alone", f"--model_dir={model_dir}", override]


def garden_command(argv, folder):
    """Runs Model Garden's own `train.py` to its end."""
    return Child(functools.partial(_their_train, list(argv)), cwd=WORKSPACE, folder=folder).wait()


def _their_train(argv):
    """Runs `official.nlp.train`, with the workspace in place of `registry_imports`, which imports all projects."""
    from absl import flags, logging
    from official import common

    # Model Garden's tree of modules, of which only what the experiment needs.
    common.registry_imports = sys.modules["official.common.registry_imports"] = types.ModuleType("registry_imports")
    import experiments.two_heads  # noqa: F401 - registers them
    from official.common import flags as their_flags
    from official.nlp import train

    logging.set_verbosity(logging.ERROR)
    their_flags.define_flags()
    flags.FLAGS(["train.py", *argv])
    train.main(None)


def theirs(folder, *words, **options):
    done = garden_command([*words, *flags(**options)], folder)
    assert done.code == 0, done.out + done.err
    return done


def ours(folder, *words, code=0, **options):
    done = run_command([*words, *flags(**options)], cwd=WORKSPACE, folder=folder)
    assert done.code == code, done.out + done.err
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of theirs to step 12, with averages, slots and a best checkpoint, which tests only read."""
    folder = tmp_path_factory.mktemp("their_run")
    said = theirs(folder, "--mode=train_and_eval", model_dir=folder / "run").out
    assert not (folder / "run" / "run.json").exists()
    (folder / "said").write_text(said)
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def contents(directory):
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def changed(before, directory):
    """Returns the files that were there before and are gone, or hold something else."""
    after = contents(directory)
    return {name for name, checksum in before.items() if after.get(name) != checksum}


def test_a_checkpoint_of_theirs_is_evaluated_as_there(trained, run, tmp_path):
    """T22: the newest one, with its averages, and the best one; to the last digit, and nothing there changes."""
    said = (trained.parent / "said").read_text()  # last of step 12
    wanted = float(re.findall(r"'accuracy': np\.float32\(([\d.e-]+)\)", said)[-1])
    before = contents(run)
    newest = json.loads(ours(tmp_path, "eval", "--json", model_dir=run).out)
    assert tf.constant(newest["accuracy"]) == tf.constant(wanted)
    best = json.loads(ours(tmp_path, "eval", "--checkpoint=best", "--json", model_dir=run).out)
    info = json.loads((run / "best" / "info.json").read_text())
    assert best["accuracy"] == info["accuracy"]
    assert contents(run) == before


def test_their_checkpoints_are_predicted_from_and_exported(run, tmp_path):
    """T22: the newest, and the best one."""
    before, info = contents(run), json.loads((run / "best" / "info.json").read_text())
    done = ours(tmp_path, "predict", f"--output={tmp_path}/rows", model_dir=run)
    assert "101 predictions of ckpt-12" in done.err
    ours(tmp_path, "export", "--checkpoint=best", f"--output_dir={tmp_path}/exported", model_dir=run)
    assert json.loads((tmp_path / "exported" / "export.json").read_text())["step"] == info["best_ckpt_global_step"]
    assert not changed(before, run)


def test_their_checkpoints_are_followed(run, tmp_path):
    """T22: each is evaluated once; one that they did not evaluate may be better than their best, which stays."""
    before = contents(run)
    ours(tmp_path, "train", "--mode=continuous_eval", model_dir=run)
    assert changed(before, run) <= {"best/checkpoint", "best/info.json"}
    rows = [json.loads(line) for line in (run / "continuous_eval" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 9, 12]


def test_their_run_goes_on_here_and_ours_goes_on_there(run, tmp_path):
    """T22: checkpoints of both lie side by side; only the files that say what is newest and best are written anew."""
    before, params = contents(run), (run / "params.yaml").read_bytes()
    assert "is writable" in ours(tmp_path, "check", model_dir=run, train_steps=30).out
    assert contents(run) == before
    done = ours(tmp_path, "train", "--mode=train_and_eval", model_dir=run, train_steps=30)
    assert "continuing from step 12" in done.out
    assert "It does not say which examples were read" in done.err
    assert changed(before, run) <= {"checkpoint", "params.yaml", "best/checkpoint", "best/info.json"}
    assert (run / "params.1.yaml").read_bytes() == params
    assert committed_steps(str(run)) == (3, 9, 12, 18, 24, 30)

    there = theirs(tmp_path, "--mode=train_and_eval", model_dir=run, train_steps=42)
    assert "restored from checkpoint" in there.out
    assert "train | step:     30 | training until step" in there.out
    assert committed_steps(str(run))[-1] == 42

    back = ours(tmp_path, "train", "--mode=train_and_eval", model_dir=run, train_steps=48)
    assert "continuing from step 42" in back.out
    assert [row["step"] for row in runs.rows(run) if row["split"] == "train"] == [18, 24, 30, 48]


def test_a_checkpoint_of_theirs_in_the_place_of_ours_counts(trained, tmp_path):
    """T22: without TensorFlow's pointer their driver begins again, and saves over ours; here by copies."""
    run = tmp_path / "run"
    ours(tmp_path, "train", "--mode=train", model_dir=run)
    before = contents(run)
    for path in (*trained.glob("ckpt-12.*"), trained / "checkpoint"):
        shutil.copy(path, run)
    assert "ckpt-12.index" in changed(before, run)
    done = ours(tmp_path, "train", "--mode=train", model_dir=run, train_steps=15)
    assert "continuing from step 12" in done.out
    assert "ckpt-12 was saved by Model Garden" in done.err


def test_another_config_than_theirs_is_refused_and_their_devices_are_not_compared(run, tmp_path):
    """T22, N5: by the params.yaml that they wrote; as for a run of ours."""
    rate = f"{EMA},trainer.optimizer_config.learning_rate.constant.learning_rate=0.5"
    done = ours(tmp_path, "train", "--mode=train", model_dir=run, train_steps=15, more=rate, code=2)
    assert "trainer.optimizer_config.learning_rate.constant.learning_rate: 0.01 -> 0.5" in done.err
    assert "distribution_strategy" not in done.err
    devices = f"{EMA},runtime.distribution_strategy=mirrored,runtime.num_logical_cpus=2"
    done = ours(tmp_path, "train", "--mode=train", model_dir=run, train_steps=15, more=devices)
    assert "on 2 CPUs, mirrored, continuing from step 12" in done.out


def test_a_run_of_theirs_that_has_no_checkpoint_yet_begins_here(run, tmp_path):
    """T22: killed before its first one, it has left `params.yaml` and summaries."""
    for path in (*run.glob("ckpt-*"), run / "checkpoint"):
        path.unlink()
    shutil.rmtree(run / "best")
    done = ours(tmp_path, "train", "--mode=train", model_dir=run)
    assert "starting in" in done.out
    assert committed_steps(str(run))[-1] == 12


def test_our_params_yaml_is_one_to_their_train_py(tmp_path):
    """T22: what it does not know, fields that only we have and devices, is a comment to it, and not to us."""
    run, words = tmp_path / "run", ["--set=runtime.seed=7", "--set=trainer.actions=[{type: publish_environment}]"]
    ours(tmp_path, "train", "--mode=train", *words, model_dir=run)
    text = (run / "params.yaml").read_text()
    assert "\n  #official-trainer: seed: 7  # --set\n" in text
    assert "\n  #official-trainer: distribution_strategy: auto\n" in text
    shared = [f"--config_file={run}/params.yaml", "--experiment=points_alone", f"--model_dir={run}"]
    shown = run_command(["show", *shared[:2]], cwd=WORKSPACE, folder=tmp_path)
    assert "seed: 7" in shown.out, shown.err
    assert "type: publish_environment" in shown.out
    done = garden_command(["--mode=train", *shared, "--params_override=trainer.train_steps=15"], tmp_path)
    assert done.code == 0, done.out + done.err
    assert committed_steps(str(run))[-1] == 15


def test_eval_of_pre_trained_weights_in_an_empty_directory(trained, tmp_path):
    """T23: those of `task.init_checkpoint`; `test_to_garden.py` compares them with what their driver evaluates."""
    empty, source = tmp_path / "empty", f",task.init_checkpoint={trained}"
    done = ours(tmp_path, "eval", "--json", model_dir=empty, more=source)
    assert 0 <= json.loads(done.out)["accuracy"] <= 1
    assert f"the weights that are evaluated are those of task.init_checkpoint={trained}" in done.err
    assert not empty.exists()


@pytest.mark.full
def test_a_run_of_theirs_that_is_killed_here_ends_as_an_unbroken_one(trained, tmp_path):
    """T22, N1: at each eleventh change on the disk; and nothing of theirs is changed but what names the newest."""
    disk.require()
    log = tmp_path / "changes"
    whole = shutil.copytree(trained, tmp_path / "whole")
    _struck(whole, tmp_path, log=log).wait()
    wanted, count = runs.bits(whole / "ckpt-18"), len(log.read_bytes().splitlines())
    assert count > 100
    for number in range(5, count, 11):
        run = shutil.copytree(trained, tmp_path / f"run{number}")
        before = contents(run)
        assert _struck(run, tmp_path, number).wait().code == -signal.SIGKILL
        ours(tmp_path, "train", "--mode=train_and_eval", model_dir=run, train_steps=18)
        assert runs.bits(run / "ckpt-18") == wanted, number
        assert changed(before, run) <= {"checkpoint", "params.yaml", "best/checkpoint", "best/info.json"}, number
        assert (run / "params.1.yaml").read_bytes() == (trained / "params.yaml").read_bytes()
        shutil.rmtree(run)


def _struck(run, folder, number=0, log=None):
    """Starts our training to step 18; it is killed at a change below its directory."""
    words = ["train", "--mode=train_and_eval", *flags(run, train_steps=18)]
    first = functools.partial(disk.arm, str(run.resolve()), number, -signal.SIGKILL, log=log)
    return Command(words, cwd=WORKSPACE, folder=folder, first=first)
