"""Modes that follow the checkpoints of another run, with an experiment of Model Garden."""

import json

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.forked import run_command
from tests.support.garden import data
from tests.support.garden.families import FAMILIES
from tests.support.runs import rows


@pytest.mark.full
def test_modes_that_follow_a_run_take_each_of_its_checkpoints(tmp_path):
    """T10: an evaluator beside training, and a run that starts from each checkpoint."""
    family = FAMILIES["resnet"]
    data.write(tmp_path / "tiny_data", [family.data])

    def run(mode, model_dir, *words):
        command = ["train", f"--experiment={family.experiment}", f"--config_file={family.overlay}", f"--mode={mode}"]
        command += [f"--model_dir={tmp_path / model_dir}", "--set=trainer.export.at_end=false", *words]
        done = run_command(command, cwd=tmp_path, folder=tmp_path)
        assert done.code == 0, done.err

    run("train", "source")
    assert committed_steps(str(tmp_path / "source")) == (4, 8)
    run("continuous_eval", "source")
    evaluated = rows(tmp_path / "source" / "continuous_eval")
    assert [row["step"] for row in evaluated] == [4, 8]
    assert committed_steps(str(tmp_path / "source" / "best")), "the evaluator keeps the best"

    timeout = "--set=trainer.continuous_eval_timeout=1"
    follow = ("task.init_checkpoint=source", "task.init_checkpoint_modules=all", "trainer.train_steps=4")
    run("continuous_train_and_eval", "followed", *(f"--set={each}" for each in follow), timeout)
    found = json.loads((tmp_path / "followed" / "continuous_train_and_eval.json").read_text())
    assert found.keys() == {"4", "8"}
    for step, results in found.items():
        run_dir = tmp_path / "followed" / f"from-{step}"
        assert results["accuracy"] == rows(run_dir)[-1]["accuracy"]
        assert committed_steps(str(run_dir)) == (4,)
    first, last = (rows(tmp_path / "followed" / f"from-{step}")[0]["training_loss"] for step in (4, 8))
    assert last < first, "each has its own weights"
