"""What the documents say is so: links, commands, outputs, examples, tables, names."""

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import cli, config
from official_trainer.cli import dispatch, flags, job_spec, launch, target
from official_trainer.config import modes
from official_trainer.errors import ExitCode
from official_trainer.launch import targets
from official_trainer.launch.profile import Profile
from official_trainer.lazy import keras
from official_trainer.runs.job import Job
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import toy
from tests.support.forked import run_command

TEMPLATE = Path("official_trainer/cli/template/README.md")
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "launch/*.md", str(TEMPLATE))
    for path in ROOT.glob(pattern)
)
_TOOLS = {"pip", "pytest", "ruff", "mypy", "lint-imports", ".ci/run"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the language after the fence, the text, where it stands."""

    language: str
    text: str
    place: str

    @property
    def path(self):
        """The workspace file that a first line `# folder/name` says it is."""
        match = re.match(r"# ((?:experiments|configs|actions|launch)/\S+)\n", self.text)
        return match and match[1]


def read(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document):
    found, text = [], read(document)
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], f"{document}:{line}"))
    return found


ALL_BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
FILES = [block for block in ALL_BLOCKS if block.path]


def transcripts():
    """Yields (command, lines of its output, place) of console blocks."""
    for block in ALL_BLOCKS:
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, *output = part.splitlines()
                yield command, output, block.place


def commands():
    """Yields (words, place, document) of every command line in a block, but not of those shown to fail."""
    for block in ALL_BLOCKS:
        document = Path(block.place.rpartition(":")[0])
        if block.language in ("", "sh"):
            for line in block.text.splitlines():
                if block.language == "sh" or re.match(r"(pip|python|official-trainer) ", line):  # else a diagram
                    yield from ((words, block.place, document) for words in split(line))
    for command, output, place in transcripts():
        if not any(line.startswith("error: ") for line in output):
            yield from ((words, place, Path(place.rpartition(":")[0])) for words in split(command))
    for line in re.findall(r"^    (\S.*)$", read(TEMPLATE), flags=re.MULTILINE):
        yield from ((words, str(TEMPLATE), TEMPLATE) for words in split(line))
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        for line in re.findall(r"^#\s+(python train\.py .*)$", path.read_text(), flags=re.MULTILINE):
            yield from ((words, str(path.relative_to(ROOT)), path.relative_to(ROOT)) for words in split(line))


def split(line):
    """Returns the words of each command of a shell line."""
    words = shlex.split(line, comments=True)
    ends = [i for i, word in enumerate(words) if word == "&&"]
    return [words[start:end] for start, end in zip([0, *(i + 1 for i in ends)], [*ends, len(words)], strict=True)]


COMMANDS = [(words, place, document) for words, place, document in commands() if words and "=" not in words[0]]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """This repository's workspace with the files that the documents show, and what the README's first run leaves."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("experiments", "configs", "launch"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for block in FILES:
        path = folder / block.path
        assert not path.exists(), f"{block.place}: {block.path} is a file of the repository already"
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    resolved = config.resolve(registry.get_config("digits_cnn", folder), experiment="digits_cnn")
    first_run = Job(experiment="digits_cnn", resolved=resolved, model_dir=str(folder / "runs/digits"), mode="train")
    toy.commit(first_run.model_dir, resolved.config.trainer.train_steps, first_run.metadata)
    (folder / "runs/digits/run.json").write_text('{"experiment": "digits_cnn", "run_id": "1"}')
    return folder


def answers(argv, workspace, monkeypatch, capfd):
    """Returns exit code, stdout and stderr of a command that needs no TensorFlow."""
    monkeypatch.chdir(workspace)
    capfd.readouterr()
    code = cli.main(argv)
    return code, *capfd.readouterr()


def verb_and_arguments(words):
    """Returns the verb of `official-trainer VERB …` or `python train.py …` and the words after it; else None."""
    if words[0] == "official-trainer":
        return words[1], words[2:]
    return ("train", words[2:]) if words[:2] == ["python", "train.py"] else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document):
    """Files exist, and so do headings."""
    prose = re.sub(r"^```.*?^```$", "", read(document), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), f"{document}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], link


@pytest.mark.parametrize(("words", "place", "document"), COMMANDS, ids=[f"{p} {' '.join(w)}" for w, p, _ in COMMANDS])
def test_commands_can_be_given(words, place, document, workspace, monkeypatch):
    """T20, N7: verb, flags, experiment, files and values of every command in a document are right."""
    monkeypatch.chdir((ROOT / document).parent if document == TEMPLATE else workspace)
    found = verb_and_arguments(words)
    if found is None:
        return check_other_program(words)
    verb, rest = found
    module = dispatch.verbs()[verb]
    parser = flags.Parser(verb, usage="", description="")
    module.add_flags(parser)
    arguments = parser.read(rest)
    arguments.home = None
    if verb == "launch":
        job_spec.read_mode(arguments, job_spec.read_profile(arguments, _profile_of(arguments.target)))
    if verb in ("train", "check", "launch"):
        flags.read_mode(arguments)
        target.from_flags(arguments)
    if verb in ("eval", "export", "predict"):
        flags.read_checkpoint(arguments)
    if verb == "predict":
        flags.read_prediction(arguments)
    if verb in ("eval", "export", "predict", "show") and (arguments.name or arguments.experiment):
        if (arguments.name or "").startswith("runs/"):
            return None
        resolved = target.resolve(target.named_experiment(arguments), arguments)
        if verb == "show" and arguments.explain:
            assert config.explain(resolved, arguments.explain)


def _profile_of(name):
    """Returns the section that a target's profiles fill."""
    return Profile() if name == launch.LOCAL else targets.get(name).profile_class()


def check_other_program(words):
    """A tool of the project with files that exist, or a module that does."""
    if words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words
        return
    assert words[0] in _TOOLS, words
    for word in words[1:]:
        if "/" in word or word.endswith(".py"):
            assert (ROOT / word.partition("::")[0]).exists(), words
    if words[0] == ".ci/run":
        assert os.access(ROOT / words[0], os.X_OK)


def test_the_two_commands_of_the_start():
    """Each does all of its own set-up, and the extra it names exists."""
    first, second = blocks(Path("README.md"))[0].text.splitlines()
    assert first.startswith("pip install -e . && python train.py --experiment=")
    assert second == "pip install -e '.[test]' && pytest"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(line.startswith("pytest") for line in project["project"]["optional-dependencies"]["test"])
    assert "pip install" in (ROOT / ".ci/run").read_text()


def test_verbs_in_the_text_exist():
    """Verbs that are named in a sentence."""
    named = {verb for d in DOCUMENTS for verb in re.findall(r"`official-trainer ([a-z]\w*)", read(d))}
    assert named
    assert named <= dispatch.verbs().keys()


def test_configs_shown_are_used_by_a_command(workspace):
    """N23: every YAML block says which file it is, and some command or file uses it, so that it gets resolved."""
    used = " ".join(word for words, _, _ in COMMANDS for word in words)
    for block in ALL_BLOCKS:
        if block.language == "yaml":
            assert block.path, f"{block.place}: begin it with `# configs/NAME.yaml`"
            name = Path(block.path).name
            bases = [other for other in FILES if f"base: {name}" in other.text and other.path in used]
            assert block.path in used or bases, f"{block.place}: no command uses {block.path}"


def lines_match(said, shown):
    """Whether `said` is `shown`, where a line `…` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in said)) is not None


ANSWERS = [
    (command, output, place)
    for command, output, place in transcripts()
    if verb_and_arguments(split(command)[0])[0] != "train" or output[0].startswith("error: ")
]


@pytest.mark.parametrize(("command", "output", "place"), ANSWERS, ids=[command for command, _, _ in ANSWERS])
def test_answers_are_shown_as_they_are(command, output, place, workspace, monkeypatch, capfd):
    """N7, N8, N9: messages and explanations in the documents are what the command line says, letter by letter."""
    verb, rest = verb_and_arguments(split(command)[0])
    code, out, err = answers([verb, *rest], workspace, monkeypatch, capfd)
    said = (out + err).splitlines()
    assert lines_match(said, output), f"{place}: {command} now says\n" + "\n".join(said)
    assert code == (ExitCode.CONFIG if output[0].startswith("error: ") else ExitCode.DONE)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A short run of the README's experiment: its directory and what it printed."""
    folder = tmp_path_factory.mktemp("smoke")
    argv = ["train", "--experiment=digits_cnn", "--config_file=configs/smoke/digits_cnn.yaml"]
    done = run_command([*argv, f"--model_dir={folder}/run"], cwd=ROOT, folder=folder)
    assert done.code == 0, done.err
    return folder / "run", done.out.replace(f"{folder}/run", "runs/digits")


def test_the_run_of_the_readme_looks_as_shown(smoke):
    """Every line that is shown has a form that a run prints; numbers may differ."""
    shown = next(output for command, output, _ in transcripts() if command.startswith("python train.py"))

    def masked(lines):
        return {re.sub(r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "#", line) for line in lines} - {"…"}

    _, out = smoke
    assert masked(shown) <= masked(out.splitlines()), f"paste a new run; a short one now prints\n{out}"
    assert len(shown) > 5


def table(document, heading):
    """Returns the first cells of the first table under a heading, without backticks."""
    section = re.split(rf"^#+ {re.escape(heading)}$", read(document), flags=re.MULTILINE)[1]
    rows = re.search(r"^\|.*?\n\|---.*?\n((?:\|.*\n)+)", section, flags=re.MULTILINE)
    return [row.split("|")[1].strip().strip("`") for row in rows[1].splitlines()]


def test_what_a_run_leaves_behind(smoke):
    """N15, T19: each file of a run is in the table, and each row of the table is there."""
    model_dir, _ = smoke
    names = table("docs/reference/files.md", "Always there")
    patterns = {name: re.compile(re.escape(name).replace("<step>", r"\d+").replace(r"\*", ".*")) for name in names}
    seen = set()
    for path in (p for p in model_dir.rglob("*") if p.is_file()):
        relative = str(path.relative_to(model_dir))
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
    page = "docs/reference/exit_codes.md"
    assert set(table(page, "Modes")) == set(modes.MODES)
    assert [int(code) for code in table(page, "Exit codes")] == sorted(ExitCode)


def test_the_task_of_the_readme_trains(workspace, model_dir, tmp_path):
    """T14: copied from the README as it stands, it is found by name, trains and evaluates."""
    experiments = [block for block in FILES if block.language == "python" and block.path.startswith("experiments/")]
    (example,) = [block for block in experiments if block.place.startswith("README")]
    experiment = Path(example.path).stem
    assert experiment in registry.experiments(workspace)
    argv = ["train", f"--experiment={experiment}", f"--model_dir={model_dir}"]
    done = run_command(argv, cwd=workspace, folder=tmp_path)
    assert done.code == 0, done.err
    best = re.search(r"best accuracy (\S+) at step", done.out)
    assert float(best[1]) > 0.9


def test_the_tasks_of_model_gardens_page_train(workspace, model_dir, tmp_path):
    """T21, T14: copied from the page as they stand, by the command below them."""
    command = next(words for words, place, _ in COMMANDS if "--experiment=garden_digits" in words)
    _, rest = verb_and_arguments([word for word in command if not word.startswith("--model_dir")])
    done = run_command(["train", *rest, f"--model_dir={model_dir}"], cwd=workspace, folder=tmp_path)
    assert done.code == 0, done.err
    assert float(re.search(r"best digit\|accuracy (\S+) at step", done.out)[1]) > 0.9


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
    assert "to go on after all, change or remove the action 'plateau'" in again.out
    run = json.loads(Path(model_dir, "run.json").read_text())
    assert run["stopped_early"].startswith("the loss has not fallen below")


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
