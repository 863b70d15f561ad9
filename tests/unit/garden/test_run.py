"""T20: commands of Model Garden's programs become words of `train`, or are refused, before TensorFlow is imported."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.cli import verbs
from official_trainer.cli.parser import UsageError
from official_trainer.garden.run import ProgramError, train_words

OFFICIAL = Path(next(iter(importlib.util.find_spec("official").submodule_search_locations)))
PROGRAMS = sorted(
    ".".join(path.relative_to(OFFICIAL.parent).with_suffix("").parts)
    for path in OFFICIAL.rglob("train.py")
    if "tfm_flags.define_flags()" in path.read_text()
)
RUN = ["--experiment=resnet_imagenet", "--mode=train", "--model_dir=runs/x"]


def train_parser():
    return verbs.parser_of(verbs.load("train"), "official-trainer train")


def declared(*modules):
    """Returns the flags that files of Model Garden declare: name and kind, as `string` or `bool`."""
    for module in modules:
        tree = ast.parse((OFFICIAL.parent / module).read_bytes())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("DEFINE_"):
                yield call.args[0].value, call.func.attr.removeprefix("DEFINE_")


FLAGS = sorted({*declared("official/common/flags.py", "official/vision/train.py", "official/nlp/train.py")})


def test_the_release_has_the_programs_and_flags_that_these_tests_are_about():
    assert len(PROGRAMS) >= 17
    assert len(FLAGS) >= 13
    assert ("enable_async_checkpointing", "bool") in FLAGS


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_release_is_train(program):
    """T20: by its module, and by its file as its README names it; flags stay as they are."""
    assert train_words([program, *RUN]) == ["train", *RUN]
    assert train_words([program.replace(".", "/") + ".py", *RUN]) == ["train", *RUN]


@pytest.mark.parametrize(("name", "kind"), FLAGS)
def test_each_of_their_flags_is_read_or_named(name, kind):
    """T20: it has a value here, or a line says that it has no effect, or it is refused with what does it."""
    words = [f"--{name}"] if kind == "bool" else [f"--{name}=1"]
    try:
        arguments = train_parser().read(words)
    except UsageError as error:
        assert re.match(rf"--{name} is not for official-trainer: .+", str(error))
        return
    assert hasattr(arguments, name) or any(line.startswith(f"--{name} has no effect: ") for line in arguments.idle)


def test_what_is_refused_is_one_flag_with_its_field(capsys):
    words = [
        "official.nlp.train",
        "--experiment=bert/squad",
        "--mode=continuous_train_and_eval",
        "--pretrain_steps",
        "9",
    ]
    assert cli.main(words, translate=train_words) == 2
    said = "--pretrain_steps is not for official-trainer: `trainer.continuous_eval_timeout` says how long to wait"
    assert said in capsys.readouterr().err


def test_a_mode_without_a_program_there_is_refused(capsys):
    words = ["official.vision.train", "--experiment=resnet_imagenet", "--mode=train_and_validate", "--model_dir=x"]
    assert cli.main(words, translate=train_words) == 2
    assert "train_and_validate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the program before its flags: python -m official_trainer.garden.run official.vision.train"),
        (RUN, "name the program before its flags"),
        (["official.vison.train"], "official.vison.train: there is no such module; did you mean official.vision.train"),
        (["official/nowhere/train.py"], "official/nowhere/train.py: there is no such module"),
        (["/x/official/vision/train.py"], "there is no such module"),
        (["official.vision.train_spatial_partitioning"], "this is not a program that runs `main` of official.vision"),
        (["official.projects.triviaqa.train"], "by name: `official-trainer list --all`"),
    ],
)
def test_what_is_no_such_program_is_refused(words, said):
    with pytest.raises(ProgramError, match=re.escape(said)):
        train_words(words)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Returns a function that writes `waves/train.py`."""
    folder = tmp_path / "waves_of_others"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('is imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (folder / "train.py").write_text(text)
        return "waves_of_others.train"

    return write


THEIR_MAIN = """
from absl import app
from official.common import flags as tfm_flags
from official.vision import train
from waves_of_others import registry_imports

if __name__ == "__main__":
    tfm_flags.define_flags()
    app.run(train.main)
"""


def test_a_program_of_others_that_runs_their_main_is_imported_for_its_experiments(package):
    """T20: as projects do that add experiments to Model Garden's."""
    assert train_words([package(THEIR_MAIN), *RUN]) == ["train", "--import=waves_of_others.train", *RUN]


def test_a_program_with_a_main_of_its_own_is_refused(package):
    """Nothing that it does besides is left out in silence."""
    program = package(THEIR_MAIN.replace("app.run(train.main)", "app.run(main)"))
    with pytest.raises(ProgramError, match=r"call `official_trainer\.run_experiment` in it"):
        train_words([program, *RUN])


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Returns a program in another folder than the current one, without a package."""
    (tmp_path / "here").mkdir()
    (tmp_path / "project").mkdir()
    program = tmp_path / "project" / "start_waves.py"
    program.write_text(THEIR_MAIN)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return program


@pytest.mark.parametrize("spelling", ["{}/project/start_waves.py", "../project/start_waves.py"])
def test_a_program_of_another_folder_finds_what_lies_beside_it(beside, spelling):
    """T20: as Python does, which looks there first."""
    words = [spelling.format(beside.parent.parent), *RUN]
    assert train_words(words) == ["train", "--import=start_waves", *RUN]
    assert sys.path[0] == str(beside.parent)


def test_a_program_of_another_folder_is_not_mixed_up_with_one_of_this(beside):
    Path("start_waves.py").touch()
    said = f"start_waves.py of this folder has the same name; start the program in {beside.parent}"
    with pytest.raises(ProgramError, match=re.escape(said)):
        train_words([str(beside), *RUN])


def test_a_file_of_a_package_elsewhere_is_its_module(beside):
    (beside.parent / "__init__.py").touch()
    assert train_words([str(beside), *RUN]) == ["train", "--import=project.start_waves", *RUN]
    assert sys.path[0] == str(beside.parent.parent)


def test_a_file_of_a_checkout_is_the_program_of_the_release(tmp_path):
    """T20: Python would take the modules of the release, too, without PYTHONPATH."""
    file = tmp_path / "official" / "vision" / "train.py"
    file.parent.mkdir(parents=True)
    for folder in (file.parent, file.parent.parent):
        (folder / "__init__.py").touch()
    file.touch()
    before = list(sys.path)
    assert train_words([str(file), *RUN]) == ["train", *RUN]
    assert sys.path == before


@pytest.mark.parametrize("content", [b"import waves\ndef (\n", b"\xff\xfe\x00"])
def test_a_program_that_is_not_python_is_named(beside, content):
    beside.write_bytes(content)
    with pytest.raises(ProgramError, match=r"start_waves\.py:\d+: cannot be read as Python: "):
        train_words([str(beside), *RUN])
