"""What a shell is offered at the Tab key, word by word."""

import sys

import pytest

from official_trainer.cli import completion, verbs
from official_trainer.config import modes
from official_trainer.garden import index
from tests.support.packages import registering, write

OPTIMIZER = "trainer.optimizer_config.optimizer"


def offered(line):
    """Returns the candidates for the last word of a line."""
    *words, last = line.split(" ")
    return completion.candidates(words, last)


def test_verbs_are_offered_with_their_lines():
    """G16: at the first word, and after `help`."""
    assert offered("") == {name: verbs.help_line(module) for name, module in verbs.load_some(verbs.names()).items()}
    assert list(offered("help ex")) == list(offered("ex")) == ["export"]
    assert offered("nothing ") == {}


def test_flags_are_offered_with_their_meanings(workspace):
    """G16: those of the verb that its help shows; those with a value end in `=`."""
    found = offered("train --")
    assert found["--model_dir="] == "directory of the run (default: runs/EXPERIMENT)"
    assert "--quiet" in found
    assert "--mode=" in found
    assert list(offered("export --out")) == ["--output_dir="]
    assert offered("show --gin") == offered("show --gin_file ") == {}  # declared only to be refused


def test_experiments_are_offered_with_their_descriptions(workspace):
    """G16: by position or by flag, of the workspace and of Model Garden."""
    summary = "Three grape varieties told apart by 13 measurements."
    assert not offered("eval my_experiment --experiment=my_experiment my")
    for line, start in [("train my", ""), ("eval --experiment=my", "--experiment="), ("check --experiment my", "")]:
        assert offered(line) == {f"{start}my_experiment": summary}
    assert {"my_experiment", "resnet_imagenet"} <= offered("train ").keys()


def test_words_of_flags_and_positional_arguments(workspace):
    """G16: modes, checkpoints, formats."""
    assert list(offered("train --mode=")) == [f"--mode={mode}" for mode in modes.MODES]
    assert list(offered("train --mode continuous_e")) == ["continuous_eval"]
    assert list(offered("predict --format=j")) == ["--format=jsonl"]
    assert list(offered("export --checkpoint=")) == ["--checkpoint=latest", "--checkpoint=best"]
    assert offered("train --tpu=") == {}


def test_files_and_folders(workspace):
    assert list(offered("train --config_file=configs/my")) == ["--config_file=configs/my_experiment.yaml"]
    assert "--model_dir=configs/" in offered("train --model_dir=c")


def test_settings_are_offered_section_by_section(workspace):
    """G16: a section ends in a dot, a field in `=`; where there are only sections, what is in them."""
    found = offered("train my_experiment trainer.optimizer_config.")
    assert found[f"{OPTIMIZER}="] == "Which optimizer updates the weights."
    assert f"{OPTIMIZER}." in found
    assert not [path for path in found if path.startswith(f"{OPTIMIZER}.") and path != f"{OPTIMIZER}."]
    opened = offered("train my_experiment tr")
    assert {"trainer.train_steps=", "trainer.optimizer_config."} <= opened.keys()
    assert next(iter(opened)).endswith("=")
    assert {"task.held_out=", "trainer.train_steps=", "runtime.seed="} <= offered("train my_experiment ").keys()


@pytest.mark.parametrize(
    ("given", "start"),
    [("", ""), ("--", "--"), ("--set=", "--set="), ("--set ", ""), ("--params_override=", "--params_override=")],
)
def test_every_way_to_set_is_completed(given, start, workspace):
    """G16: bare, as a flag, with `--set`, with `--params_override`, there also after a comma."""
    assert list(offered(f"train my_experiment {given}runtime.enable_x")) == [f"{start}runtime.enable_xla="]
    if "params" in given:
        found = offered(f"train my_experiment {given}runtime.seed=1,trainer.train_s")
        assert list(found) == [f"{start}runtime.seed=1,trainer.train_steps="]


def test_words_of_a_field(workspace):
    """G16: of a choice, of `true or false`; nothing for a number."""
    assert list(offered(f"train my_experiment {OPTIMIZER}=ad")) == [
        f"{OPTIMIZER}={word}" for word in ("adam", "adamw", "adagrad")
    ]
    assert list(offered("train my_experiment runtime.enable_xla=")) == [
        "runtime.enable_xla=true",
        "runtime.enable_xla=false",
    ]
    assert offered("train my_experiment trainer.train_steps=") == {}


def test_earlier_settings_decide_what_follows(workspace):
    """G16: the fields of the optimizer that is chosen on the same line; a word that is wrong changes nothing."""
    assert list(offered(f"train my_experiment {OPTIMIZER}=sgd {OPTIMIZER}.sgd.m")) == [f"{OPTIMIZER}.sgd.momentum="]
    assert list(offered("train my_experiment trainer.no=1 trainer.train_s")) == ["trainer.train_steps="]


def test_one_field_is_explained(workspace):
    assert list(offered("show my_experiment --explain=runtime.enable_x")) == ["--explain=runtime.enable_xla"]


@pytest.mark.parametrize("name", ["my_experiment", "resnet_imagenet", "gone"])
def test_an_experiment_that_cannot_be_had_at_once(name, workspace, monkeypatch):
    """G16: its module imports TensorFlow or fails, it is Model Garden's and was never read, or there is none."""
    path = workspace / "experiments" / "my_experiment.py"
    path.write_text("import tensorflow\n" + path.read_text())
    monkeypatch.setattr(index, "is_described", lambda name: False)
    monkeypatch.setattr(index, "description", None)  # which would import Model Garden, and remember that it failed
    assert list(offered(f"train {name} trainer.train_s")) == ["trainer.train_steps="]


def test_experiments_of_modules_are_offered_without_an_import(workspace, restored):
    """T25, G16: by a flag on the line, or by pyproject.toml; one that is named is imported for its settings."""
    write(workspace, mine=registering("flagged"), other=registering("declared"), bad="1 / 0\n" + registering("deceit"))
    (workspace / "pyproject.toml").write_text('[tool.official-trainer]\nexperiments = ["other", "bad"]\n')
    assert offered("train fl") == {}
    assert list(offered("train --import=mine --experiment=fl")) == ["--experiment=flagged"]
    assert list(offered("train dec")) == ["declared", "deceit"]
    assert not {"mine", "other", "bad"} & sys.modules.keys()
    assert list(offered("train declared trainer.train_s")) == ["trainer.train_steps="]
    (workspace / "other.py").write_text(registering("changed"))
    assert list(offered("train dec")) == ["deceit"]
    assert list(offered("train my_experiment task.held")) == ["task.held_out="]


def test_a_damaged_flag_file_is_left_to_the_command(workspace):
    assert offered("train --flagfile=gone ") == {}
