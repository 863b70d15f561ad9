"""What the documents say is so: commands, programs and files run; links, outputs, tables and names are right.

The README, launch/README.md, the template's README and each page of docs/ (but not `project/` and `design/`) are
carried out as their reader would: all blocks of a page, in order, in one fresh copy of the workspace, which is
`/shared/workspace`.

- A block that begins with `# configs/NAME.yaml` or another path is written there. Files of the repository stay.
- `sh`, `bash` and `console` run word for word, with exit code 0. Below a `$` line of `console` stands what is
  printed: a line `…` is any lines, `…` in a line any text, a line `error: ` means exit code 2, a line `^C` presses
  Ctrl-C after the line above and expects 143. `show`, `list`, `launch TARGET` and errors are compared letter by
  letter, the rest without numbers. In a block without a label, only lines of `pip`, `python` and `official-trainer`
  run.
- `python` blocks are one program per page. A fragment that cannot run alone is `py` and has to compile; `text` is
  read only.
- A `diff` block that begins with `--- ONE.py` and `+++ OTHER.py` writes the second file from the first.
- A page that reads `runs/digits` without training there gets the run of the README's first command.
- A training that does not set `train_steps` is shortened by `configs/smoke/EXPERIMENT.yaml`, or to SHORT_STEPS, but for
  WORD_FOR_WORD.
"""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import tensorflow as tf

from docs.generators import exit_codes
from docs.generators.config import anchor as anchor_of
from official_trainer import cli
from official_trainer.cli import verbs
from official_trainer.config import modes
from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from tests import ROOT
from tests.support import toy
from tests.support.docs import given
from tests.support.docs.pages import DOCUMENTS, GENERATED, LANGUAGES, PAGES, blocks, commands, read, words_of
from tests.support.docs.session import Session, first_run
from tests.support.forked import run_command
from tests.support.packages import entry_point
from tests.support.workspace import copy_workspace

WORD_FOR_WORD = {
    "README.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/guides/several_models.md",
    "docs/guides/stages.md",
    "docs/guides/tables.md",
}
"""Pages whose trainings are never shortened; `-m full` runs the others word for word too."""

NOT_HERE = {
    r"(pip|uv|apt-get|git|source|python3? -m (pip|venv|ipykernel)) ": ".ci/run",
    r"(pytest|ruff|mypy|lint-imports|\.ci/run)\b": ".ci/run",
    r"jupyter ": "tests/system/test_notebook.py",
    r"tensorboard ": "a server; tests/integration/tracking/test_tensorboard.py",
    r"curl ": "a server; tests/system/tasks/test_export_runs.py",
    r"(prometheus|promtool) ": "tests/system/tracking/test_prometheus.py",
    r"docker ": "tests/unit/launch/test_image.py",
    r"(kubectl|helm) ": "tests/system/launch/targets/test_kubernetes.py",
    r"(gcloud|gsutil) ": "tests/unit/launch/targets/test_tpu.py",
    r"(sbatch|squeue|scancel|srun|sinfo) ": "tests/system/launch/targets/test_slurm_cluster.py",
    r"official-trainer launch slurm .*--submit": "tests/system/launch/targets/test_slurm_cluster.py",
    r"official-trainer launch kubernetes .*--submit": "tests/system/launch/targets/test_kubernetes.py",
    r"official-trainer launch tpu .*--submit": "tests/unit/launch/targets/test_tpu.py",
    r"official-trainer job ": "tests/unit/launch/test_submit.py",
    r"official-trainer data-service ": "tests/system/inputs/test_data_service.py::test_roles_end_when_they_are_told_to",
    r".*--tf_data_service=grpc://HOST": "tests/system/inputs/test_data_service.py",
    r"python train\.py --experiment=resnet_imagenet --config_file": "tests/system/garden/test_families.py",
    r"official-trainer (eval|export) --model_dir=runs/resnet": "tests/system/garden/test_families.py",
    r"python own_(trainer|loop)(_here)?\.py ": "tests/system/garden/test_own_driver.py",
}
"""Commands that no session runs, by how they begin, and the test that has them, or something like them, run."""

ALL_BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
FILES = [block for block in ALL_BLOCKS if block.path]


def is_not_here(command):
    return any(re.match(pattern, command) for pattern in NOT_HERE)


# Sessions.


def carry_out(page, folder, *, shorten):
    """Carries out a page; fails with all that went wrong."""
    session, problems = Session(page, folder, not_here=is_not_here, shorten=shorten), []
    try:
        for block in blocks(page):
            problems += session.carry_out(block)
    finally:
        session.close()
    best = {} if shorten else session.best
    problems += [f"{page}: {name} is 0.9 right at no training" for name, value in best.items() if value < 0.9]
    assert not problems, "\n\n".join([f"{len(problems)} problems on {page}", *problems])


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_everything_on_the_page_runs(page, tmp_path):
    """T14, T20, T21, N7, N8, N9: commands and programs, in order; what is printed is what is shown."""
    carry_out(page, tmp_path, shorten=str(page) not in WORD_FOR_WORD)


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in PAGES if str(page) not in WORD_FOR_WORD], ids=str)
def test_everything_on_the_page_runs_word_for_word(page, tmp_path):
    """T20: trainings too have all their steps."""
    carry_out(page, tmp_path, shorten=False)


def test_blocks_have_a_known_language():
    """Else a misspelt `python` would be a program that nothing runs."""
    assert not [f"{block.place}: {block.language}" for block in ALL_BLOCKS if block.language not in LANGUAGES]


# Commands that no session runs.


def commands_not_run():
    """Yields (words, place) of the commands of pages that are in NOT_HERE, of other documents and of overlays."""
    for block in ALL_BLOCKS:
        for command in commands(block):
            if not command.is_refused:
                for words in words_of(command.line):
                    if block.page not in PAGES or is_not_here(" ".join(words)):
                        yield words, command.place
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        for line in re.findall(r"^#\s+(python train\.py .*)$", path.read_text(), flags=re.MULTILINE):
            yield from ((words, str(path.relative_to(ROOT))) for words in words_of(line))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """This repository's workspace with the files that the documents show."""
    folder = tmp_path_factory.mktemp("workspace")
    copy_workspace(folder)
    for block in FILES:
        (folder / block.path).parent.mkdir(exist_ok=True)
        (folder / block.path).write_text(block.text)
    return folder


def test_commands_that_are_not_run_can_be_given(workspace, monkeypatch):
    """T20, N7: verb, flags, experiment, files and values are right."""
    monkeypatch.chdir(workspace)
    problems = []
    for words, place in commands_not_run():
        if "=" not in words[0]:
            try:
                given.check(words)
            except Exception as error:
                problems.append(f"{place}: {' '.join(words)}: {error}")
    assert problems == []


def test_what_is_not_run_is_tested_elsewhere():
    """Each row of the table names a file, or a test in one, that exists."""
    for pattern, where in NOT_HERE.items():
        path, _, name = where.split("; ")[-1].partition("::")
        assert (ROOT / path).exists(), f"{pattern}: {where}"
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{pattern}: {where}"


# Links, names and tables.


def test_links_lead_somewhere():
    """Files exist, and so do headings."""
    problems = []
    for document in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", read(document), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = link.partition("#")
            path = Path(os.path.normpath(document.parent / name if name else document))
            if "://" in link:
                continue
            if path not in GENERATED and not (ROOT / path).exists():
                problems.append(f"{document}: {link}")
            elif anchor:
                text = GENERATED[path] if path in GENERATED else read(path)
                headings = re.findall(r"^(?:#+ |\()(.*?)(?:\)=)?$", text, flags=re.MULTILINE)
                if anchor not in map(anchor_of, headings):
                    problems.append(f"{document}: {link}: there is no such heading")
    assert problems == []


def test_the_two_commands_of_the_start():
    """Each does all of its own set-up, and the extra it names exists."""
    first, second = blocks(Path("README.md"))[0].text.splitlines()
    assert first.startswith("pip install -e . && python train.py --experiment=")
    assert second == "pip install -e '.[test]' && pytest"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(line.startswith("pytest") for line in project["project"]["optional-dependencies"]["test"])
    assert "pip install" in (ROOT / ".ci/run").read_text()


def test_the_command_for_tensorflow_2_21_is_what_the_script_runs():
    """It is on its page once, and installs the project from the current folder, which the script replaces."""
    script = ROOT / ".ci/tensorflow-2.21"
    assert os.access(script, os.X_OK)
    (pattern,) = re.findall(r"grep -m1 '(.+)' docs/guides/install\.md", script.read_text())
    (command,) = [line for line in read(Path("docs/guides/install.md")).splitlines() if pattern in line]
    assert command.endswith(" -e .")


def test_verbs_in_the_text_exist():
    """Verbs that are named in a sentence."""
    named = {verb for d in DOCUMENTS for verb in re.findall(r"`official-trainer ([a-z][\w-]*)", read(d))}
    assert named
    assert named <= set(verbs.names())


def test_configs_shown_are_used_on_their_page():
    """N23: every YAML block says which file it is, and a command, a program or a file of the page uses it."""
    for page in PAGES:
        shown = blocks(page)
        for block in shown:
            if block.language == "yaml":
                assert block.path, f"{block.place}: begin it with `# configs/NAME.yaml`"
                others = "".join(other.text for other in shown if other is not block)
                is_base = re.search(rf"^base: \S*{re.escape(Path(block.path).name)}$", others, flags=re.MULTILINE)
                assert block.path in others or is_base, f"{block.place}: no command of the page uses {block.path}"


def table(document, heading):
    """Returns the first cells of the first table under a heading, without backticks."""
    return table_in(read(document), heading)


def table_in(text, heading):
    section = re.split(rf"^#+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    rows = re.search(r"^\|.*?\n\|---.*?\n((?:\|.*\n)+)", section, flags=re.MULTILINE)
    return [row.split("|")[1].strip().strip("`") for row in rows[1].splitlines()]


def test_what_a_run_leaves_behind():
    """N15, T19: each file of a run is in the table, and each row of the table is there."""
    run, _ = first_run()
    names = table("docs/reference/files.md", "Always there")
    patterns = {name: re.compile(re.escape(name).replace("<step>", r"\d+").replace(r"\*", ".*")) for name in names}
    seen = set()
    for path in (p for p in run.rglob("*") if p.is_file()):
        relative = str(path.relative_to(run))
        rows = [
            name
            for name, pattern in patterns.items()
            if (pattern.match(relative) if name.endswith("/") else pattern.fullmatch(relative))
        ]
        assert len(rows) == 1, f"{relative}: {rows}"
        seen.update(rows)
    assert seen == set(names)


def test_modes_and_exit_codes_are_all_there():
    """T10, N6: the tables list what there is."""
    page = exit_codes.page()
    assert set(table_in(page, "Modes")) == set(modes.MODES)
    assert [int(code) for code in table_in(page, "Exit codes")] == sorted(ExitCode)


# What examples do.


def test_the_action_of_the_docs_ends_a_run(workspace, model_dir, tmp_path):
    """G1, B1: copied from the page as it stands, it is found by its name; started again, the run stays ended."""
    argv = ["train", "--experiment=digits_mlp", f"--model_dir={model_dir}", "--set", "trainer.train_steps=50000"]
    argv += ["--set", "trainer.actions=[{type: plateau, patience: 2}]"]
    done = run_command(argv, cwd=workspace, folder=tmp_path)
    assert done.code == 0, done.err
    (last,) = re.findall(r"finished early at step (\d+)", done.out)
    assert int(last) < 50000
    again = run_command(argv, cwd=workspace, folder=tmp_path)
    assert f"finished early at step {last}" in again.out
    assert "to go on after all, change or remove the action 'plateau'" in again.err
    run = json.loads(Path(model_dir, "run.json").read_text())
    assert run["stopped_early"].startswith("the loss has not fallen below")


def test_the_verb_of_the_guide(monkeypatch, tmp_path, capsys):
    """T27: the complete example on the page, as it stands there."""
    (code,) = [block.text for block in blocks(Path("docs/guides/packages.md")) if block.path == "fleet/fleet/failed.py"]
    entry_point(tmp_path, "failed_verb", "failed", group="verbs", package="fleet")
    (tmp_path / "failed_verb.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failed_verb", raising=False)
    for name, status in (("a", {"step": 3, "exit_code": 3, "error": "no data"}), ("b", {"step": 9, "error": None})):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "status.json").write_text(json.dumps(status))
    runs = str(tmp_path / "runs")
    assert [cli.main(["failed", runs]), cli.main(["failed", runs, "--code=4"])] == [1, 0]
    assert capsys.readouterr().out == f"{runs}/a  step 3  no data\n"
    assert cli.main(["failed", str(tmp_path / "none")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert cli.main(["failed", "--help"]) == 0
    assert "Each has its step and the error" in capsys.readouterr().out


def test_a_task_from_here_trains_under_model_gardens_trainer():
    """T1: the contract is duck-typed both ways; `test_from_garden.py` has the other."""
    from official.core import base_trainer
    from official.core import config_definitions as garden

    data = tf.data.Dataset.from_tensor_slices((toy.FEATURES, toy.LABELS)).batch(10, drop_remainder=True)
    theirs = garden.ExperimentConfig(
        task=garden.TaskConfig(train_data=garden.DataConfig(), validation_data=garden.DataConfig()),
        trainer=garden.TrainerConfig(),
    )
    ours = toy.ToyTask(toy.experiment().task)
    sgd = keras.optimizers.SGD(0.1)
    trainer = base_trainer.Trainer(theirs, ours, ours.build_model(), sgd, True, True, data.repeat(), data)
    assert float(trainer.train(tf.constant(3))["training_loss"]) > 0
    assert set(trainer.evaluate(tf.constant(-1))) == {"accuracy", "validation_loss"}


def mentioned(document):
    """Returns names of files and folders in backticks, but for those under “Not there yet”."""
    present = re.split(r"^## Not there yet$", read(document), flags=re.MULTILINE)[0]
    present = re.sub(r"^```.*?^```$", "", present, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([\w./]+(?:\.py|\.md|\.yaml|/))`", present))


def test_names_in_the_architecture_exist():
    """A file or folder that the page names is there, in the engine or in the repository."""
    missing = [
        name
        for name in mentioned("docs/design/architecture.md")
        if not any((base / name).exists() for base in (ROOT, ROOT / "official_trainer"))
    ]
    assert not missing


def test_every_package_is_in_the_architecture():
    """A reader finds the place of each package on the page."""
    packages = {f"{path.parent.name}/" for path in (ROOT / "official_trainer").glob("*/__init__.py")}
    assert packages <= mentioned("docs/design/architecture.md")


def test_contributing_and_changelog():
    """The changelog names the version that the package has; the license is the one it declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"## [{project['version']}]" in read("CHANGELOG.md")
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_names_break_between_their_parts_and_lose_nothing():
    """A short one stays whole, and so does the ending of a file."""
    pytest.importorskip("sphinx", reason="there is no Sphinx: `pip install -e .[docs]`")
    from docs.extensions.line_breaks import parts

    assert parts("--flag=1") == ["--flag=1"]
    assert parts("trainer.optimizer_config.type") == ["trainer.", "optimizer_", "config.type"]
    assert parts("program/test_settings.py::test_a") == ["program/", "test_", "settings.py::", "test_", "a"]
    for text in (
        "__init__of_a_very_long_name",
        " a  b ",
        "_" * 30 + " a",
        "--model_base_path=RUN/export/best and x",
        "",
    ):
        assert "".join(parts(text)) == text
