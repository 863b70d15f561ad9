"""`task.init_checkpoint` of an experiment of Model Garden, on the command line."""

import json
import shutil

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.forked import run_command
from tests.support.garden import data
from tests.support.garden.families import FAMILIES


@pytest.mark.full
def test_a_run_of_model_garden_says_what_it_starts_from_or_is_refused(tmp_path):
    """T6: by a copied checkpoint without its pointer file; before the first step, in `check` too."""
    family = FAMILIES["resnet"]
    data.write(tmp_path / "tiny_data", [family.data])

    def run(verb, model_dir, *settings, code=0):
        command = [verb, "--mode=train", f"--experiment={family.experiment}", f"--config_file={family.overlay}"]
        command += [f"--model_dir={tmp_path / model_dir}"]
        command += [f"--set={each}" for each in ("trainer.export.at_end=false", "trainer.train_steps=2", *settings)]
        done = run_command(command, cwd=tmp_path, folder=tmp_path)
        assert done.code == code, done.err
        return done

    run("train", "source")
    (tmp_path / "empty").mkdir()
    (tmp_path / "copied").mkdir()
    for file in (tmp_path / "source").glob("ckpt-2.[id]*"):
        shutil.copy(file, tmp_path / "copied" / file.name.replace("-2.", "-60."))
    modules = "task.init_checkpoint_modules=backbone"
    said = f"task.init_checkpoint: 65 of 67 variables have new values from {tmp_path}/copied/ckpt-60"
    assert said in run("train", "run", f"task.init_checkpoint={tmp_path}/copied/", modules).out
    (recorded,) = json.loads((tmp_path / "run" / "run.json").read_text())["init_checkpoint"]
    assert (recorded["restored"], recorded["variables"]) == (65, 67)
    done = run("check", "refused", f"task.init_checkpoint={tmp_path}/empty", modules, code=2)
    assert f"task.init_checkpoint: {tmp_path}/empty holds no checkpoint: it is empty." in done.err
    assert not committed_steps(str(tmp_path / "refused"))
