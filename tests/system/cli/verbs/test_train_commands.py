"""Commands as users give them, in processes of their own: every experiment, exit codes."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.cases import full
from tests.support.docs.session import first_run
from tests.support.forked import run_command


def train(model_dir, *words, experiment="digits_cnn", folder=None):
    argv = ["train", f"--experiment={experiment}", f"--model_dir={model_dir}", *words]
    return run_command(argv, cwd=ROOT, folder=folder or Path(model_dir).parent)


def smoke(experiment):
    return f"--config_file=configs/smoke/{experiment}.yaml"


def record(model_dir, name="run.json"):
    return json.loads((Path(model_dir) / name).read_text())


ELSEWHERE = {"diabetes", "digits_cnn", "digits_keras3", "digits_mlp", "digits_tasks", "python_docs_lm"}
"""Experiments of digits, which many tests and pages run, and two whose parts `test_experiments.py` has."""


@pytest.mark.parametrize(
    "experiment", [full(name) if name in ELSEWHERE else name for name in sorted(registry.named(ROOT))]
)
def test_every_experiment_runs_from_its_smoke_config(experiment, model_dir):
    """T20, T19, G9: trains, evaluates, saves and exports in seconds, on real data."""
    done = train(model_dir, smoke(experiment), experiment=experiment)
    assert done.code == 0, done.err
    described = record(model_dir)
    assert described["status"] == "done"
    assert described["steps"]["end"] == 20
    assert committed_steps(model_dir) == (10, 20)
    assert [r["step"] for r in read_rows(f"{model_dir}/metrics.jsonl") if r["split"] == "validation"] == [10, 20]
    assert described["best"]["metric"].replace("|", "/") in described["final_metrics"]
    assert (Path(model_dir) / "export/20/saved_model.pb").exists()


def test_digits_cnn_learns():
    """The experiment of the README: at least 97 % of held-out digits are read right."""
    model_dir, _ = first_run()
    assert record(model_dir)["best"]["value"] >= 0.97


def test_a_loss_that_blows_up_ends_with_exit_code_4(model_dir):
    """N6, G8: and no bad state is saved."""
    rate = "--set=trainer.optimizer_config.learning_rate.cosine.initial_learning_rate=1e30"
    done = train(model_dir, smoke("digits_mlp"), rate, experiment="digits_mlp")
    assert done.code == 4
    assert done.err.startswith("error: the training loss is ")
    assert "Traceback" not in done.err
    assert committed_steps(model_dir) == ()
    assert record(model_dir, "status.json")["exit_code"] == 4


@pytest.fixture(scope="module")
def trained():
    """The directory of the README's first run, which tests only read."""
    return first_run()[0]


def test_eval_and_export_of_a_run(trained, tmp_path):
    """T10, T19: both verbs find the experiment and its config in the run directory."""
    done = run_command(["eval", f"--model_dir={trained}", "--json"], cwd=ROOT, folder=tmp_path)
    assert json.loads(done.out)["accuracy"] > 0.9
    # Alone, whatever the run trains on: so does an evaluator beside it.
    argv = ["eval", f"--model_dir={trained}", "--json", "runtime.distribution_strategy=multi_worker_mirrored"]
    alone = run_command(argv, cwd=ROOT, folder=tmp_path)
    assert json.loads(alone.out) == json.loads(done.out)
    argv = ["export", f"--model_dir={trained}", "--checkpoint=best", f"--output_dir={tmp_path}/model"]
    assert run_command(argv, cwd=ROOT, folder=tmp_path).code == 0
    assert (tmp_path / "model" / "saved_model.pb").exists()


def test_the_actions_of_a_run_directory_start_no_program_unless_it_trains(trained, tmp_path):
    """N6: `eval`, `predict` and `export` take its config; what it starts in training they leave alone."""
    shutil.copytree(trained, tmp_path / "run")
    params, mark = tmp_path / "run" / "params.yaml", tmp_path / "mark"
    config = yaml.safe_load(params.read_text())
    events = ["start", "step", "eval", "end", "failure"]
    config["trainer"]["actions"] = [{"type": "command", "argv": ["touch", str(mark)], "events": events}]
    params.write_text(yaml.safe_dump(config))
    for verb in ("eval", "predict", "export"):
        done = run_command([verb, f"--model_dir={tmp_path}/run"], cwd=ROOT, folder=tmp_path)
        assert done.code == 0, done.err
        assert not mark.exists(), verb
    done = train(tmp_path / "new", f"--config_file={params}", "--set=trainer.train_steps=2", folder=tmp_path)
    assert done.code == 0 and mark.exists(), done.err
