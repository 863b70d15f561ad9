"""Commands of Model Garden's programs, each as it is but for the words before the program, in a process of its own."""

import functools

from official_trainer.checkpoints.manifest import committed_steps
from tests.support import runs
from tests.support.docs import children
from tests.support.forked import Child
from tests.support.garden import data
from tests.support.garden.families import FAMILIES


def run(folder, program, *words):
    """Returns how `python -m official_trainer.garden.run PROGRAM WORDS…` ends in `folder`."""
    argv = [program, *map(str, words)]
    target = functools.partial(children.run_program, "official_trainer.garden.run", argv, is_module=True)
    return Child(target, cwd=folder, folder=folder).wait()


def words_of(name, folder):
    """Returns the flags of a family, whose data are written."""
    family = FAMILIES[name]
    data.write(folder / "tiny_data", [family.data])
    return [f"--experiment={family.experiment}", "--config_file", str(family.overlay), f"--model_dir={folder / 'run'}"]


def test_a_command_of_vision_trains_and_goes_on(tmp_path):
    """T20: with flags as launch scripts have them."""
    words = words_of("resnet", tmp_path)
    more = ["--params_override=trainer.train_steps=4", "--tpu=", "--gin_params=", "-alsologtostderr"]
    done = run(tmp_path, "official.vision.train", *words, *more, "--mode=train", "--noenable_async_checkpointing")
    assert done.code == 0, done.err
    assert "warning: --alsologtostderr has no effect" in done.err
    assert [row["split"] for row in runs.rows(tmp_path / "run")] == ["train"]
    done = run(tmp_path, "official.vision.train", *words, "--mode=train_and_eval")
    assert done.code == 0, done.err
    assert "accuracy" in [row for row in runs.rows(tmp_path / "run") if row["step"] == 8][-1]
    assert max(committed_steps(str(tmp_path / "run"))) == 8


def test_a_command_of_nlp_trains_and_evaluates(tmp_path):
    """T20: by the file of the program, as its README names it."""
    words = words_of("bert_sentence_prediction", tmp_path)
    done = run(tmp_path, "official/nlp/train.py", *words, "--mode=train_and_eval")
    assert done.code == 0, done.err
    rows = [row for row in runs.rows(tmp_path / "run") if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    assert "cls_accuracy" in rows[0]


def test_a_project_with_a_program_that_runs_their_main(tmp_path):
    """T20: its experiments are those of the modules that the program imports."""
    package = tmp_path / "waves_of_others"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "registry_imports.py").write_text(EXPERIMENT)
    (package / "train.py").write_text(PROGRAM)
    words = ["--experiment=waves_resnet", *words_of("resnet", tmp_path)[1:], "--mode=train"]
    done = run(tmp_path, "waves_of_others.train", *words, "--params_override=trainer.train_steps=4")
    assert done.code == 0, done.err
    assert list(committed_steps(str(tmp_path / "run"))) == [4]


EXPERIMENT = """
from official.core import exp_factory
from official.vision.configs import image_classification


@exp_factory.register_config_factory("waves_resnet")
def waves_resnet():
    return image_classification.image_classification_imagenet()
"""

PROGRAM = """
from absl import app

from official.common import flags as tfm_flags
from official.vision import train
from waves_of_others import registry_imports

if __name__ == "__main__":
    tfm_flags.define_flags()
    app.run(train.main)
"""
