"""N7: what `--help` prints: the overview, and for every verb its flags, its examples and the verb after it."""

import re
import shlex
import subprocess
import sys

import pytest

from official_trainer import cli, config
from official_trainer.cli import help_text, verbs
from official_trainer.launch import targets
from official_trainer.launch.profile import Profile
from official_trainer.launch.verbs import launch
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.docs import given

VERBS = verbs.load_some(verbs.names())
EXAMPLES = [command for module in VERBS.values() for command, _ in (*module.EXAMPLES, module.NEXT)]


def helped(capsys, *words):
    assert cli.main([*words, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def section(text, title):
    """Returns the lines below a title, up to the next empty line."""
    return re.split(rf"^{re.escape(title)}:\n", text, flags=re.MULTILINE)[1].partition("\n\n")[0].splitlines()


def test_the_overview_starts_with_the_verbs_of_the_first_day(capsys):
    """N7: in the order in which they are needed; then every other verb once, by group."""
    text = helped(capsys)
    first, *others = (section(text, title) for title in help_text.GROUPS)
    assert [line.split()[0] for line in first] == ["init", "list", "show", "check", "train", "eval"]
    listed = [line.split()[0] for lines in (first, *others) for line in lines]
    assert sorted(listed) == sorted(VERBS)
    assert max(map(len, text.splitlines())) <= help_text.WIDTH
    assert "official-trainer VERB --help" in text


def test_help_of_each_verb(capsys, monkeypatch):
    """N7: usage, description, flags by purpose, examples with their purpose, the verb after it; in 80 columns.

    Each example is shown below what it does, and can be pasted into a shell as it stands.
    """
    monkeypatch.setenv("COLUMNS", "200")
    for verb, module in VERBS.items():
        text = helped(capsys, verb)
        assert text.startswith(f"usage: official-trainer {verb} ")
        assert help_text.description(module).startswith(verbs.help_line(module)), verb
        assert help_text.description(module) in " ".join(text.split()), verb
        assert not re.search(r"^(options|positional arguments):", text, flags=re.MULTILINE), verb
        assert section(text, "Output and help")[0].startswith("  --help "), verb
        order = [text.index(f"\n{title}:") for title in ("Output and help", "Examples", "Next")]
        assert order == sorted(order), verb
        assert text.splitlines()[-1] == f"Next: {module.NEXT[0]}  # {module.NEXT[1]}"
        assert max(map(len, text.splitlines())) <= help_text.WIDTH, verb
        shown = "\n".join(section(text, "Examples")).replace("\\\n", " ").splitlines()
        assert module.EXAMPLES and shown[::2] == [f"  # {why}" for _, why in module.EXAMPLES], verb
        words = [shlex.split(command) for command, _ in module.EXAMPLES]
        assert [shlex.split(line) for line in shown[1::2]] == words, verb
        assert all(command[:2] == ["official-trainer", verb] for command in words), verb
        assert shlex.split(module.NEXT[0])[1] in VERBS.keys() - {verb}, verb


def test_examples_can_be_given(monkeypatch):
    """N7: in the workspace of this repository: flags, experiments, files and values are right."""
    monkeypatch.chdir(ROOT)
    problems = {}
    for command in EXAMPLES:
        try:
            given.check(shlex.split(command))
        except Exception as error:
            problems[command] = error
    assert problems == {}


def test_help_of_all_verbs_needs_no_tensorflow():
    """N7: one process for all; `--help` answers at once."""
    program = """
import sys
from official_trainer import cli, config
from official_trainer.cli import verbs
from tests.support.terminal import Terminal
codes = [cli.main([verb, "--help"]) for verb in verbs.names()] + [cli.main(["--help"])]
heavy = {"tensorflow", "tf_keras", "keras", "numpy", "rich", "sklearn", "orbit"} & set(sys.modules)
raise SystemExit(f"imported {heavy}" if heavy else max(codes))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_of_a_target_or_an_action_has_its_examples(capsys):
    for words in (["launch", "slurm"], ["job", "logs"]):
        shown = [line for line in section(helped(capsys, *words), "Examples") if line.startswith("  official-trainer")]
        assert shown and all(line.split()[1:3] == words for line in shown)


@pytest.mark.parametrize("name", [launch.LOCAL, "kubernetes", "slurm"])
def test_help_of_a_target_has_the_fields_of_its_profile(name, capsys):
    """N20: each once, with its default, its type and its meaning; `launch local` has those that it reads."""
    text = helped(capsys, "launch", name)
    title = f"Fields of a profile, launch/{name}.yaml, with their defaults"
    profile = Profile() if name == launch.LOCAL else targets.get(name).profile_class()
    settings = list(config.settings(profile))
    assert all(setting.meaning for setting in settings)
    own = [setting for setting in settings if not setting.section]
    if name == launch.LOCAL:
        own = [setting for setting in own if setting.path != "name"]
    listed = [line for line in section(text, title) if not line.startswith("   ")]
    assert [line.split(":")[0].strip() for line in listed] == [setting.path for setting in own]
    after = (
        "a signal or an unknown exit\n      code; after 75, 143" if name.startswith("kube") else "exit code 75 or 143"
    )
    assert f"  max_restarts: 10\n      an integer at least 0: the most restarts after {after}" in text
    if name != launch.LOCAL:
        assert section(text, "resources")[:2] == [
            "  cpus: null",
            "      an integer at least 1 or null: number of cores; None leaves it to the",
        ]
    assert max(map(len, text.splitlines())) <= help_text.WIDTH


def test_help_of_an_unknown_target_has_all_examples(capsys):
    assert len(section(helped(capsys, "launch", "slrm"), "Examples")) > 2 * len(targets.names())


def test_help_of_train_py_names_train_py(capsys):
    """T20: the script stands in its own usage and examples."""
    assert cli.main(["--help"], script="train.py") == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: python train.py ")
    commands = [line for line in section(text, "Examples") if not line.startswith("  #")]
    assert all(line.startswith("  python train.py --experiment=") for line in commands[:2])
    assert "official-trainer train" not in text


TRAIN_STEPS = """
  trainer.train_steps=200
      an integer at least 0: global step at which training ends.
"""


def test_help_of_an_experiment_lists_its_settings(workspace, capsys):
    """G16: every field, with path, value, type and meaning, by section, in 80 columns, and plain where it is piped."""
    resolved = config.resolve(registry.get_config("my_experiment", workspace), experiment="my_experiment")
    paths = [setting.path for setting in config.settings(resolved.config)]
    for words, script, called in (
        (["train", "--help", "my_experiment"], None, "official-trainer train"),
        (["help", "train", "my_experiment"], None, "official-trainer train"),
        (["eval", "my_experiment", "-h"], None, "official-trainer eval"),
        (["launch", "local", "my_experiment", "--help"], None, "official-trainer launch"),
        (["--help", "--experiment=my_experiment"], "train.py", "python train.py"),
    ):
        assert cli.main(words, script=script) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: {called} my_experiment [flags] [PATH=VALUE …]\n")
        assert TRAIN_STEPS in text
        assert "\ntrainer.optimizer_config.optimizer.adam:\n  trainer.optimizer_config.optimizer.adam.clipnorm=" in text
        assert max(map(len, text.splitlines())) <= help_text.WIDTH and "\x1b" not in text
        assert [line.split("=")[0].strip() for line in text.splitlines() if re.match(r"  [a-z]", line)] == paths


def test_help_of_an_experiment_follows_its_settings(workspace, capsys):
    """G16: the fields of what is chosen, with the values of files and flags."""
    sets = ["trainer.optimizer_config.optimizer=sgd", "trainer.optimizer_config.optimizer.sgd.momentum=0.75"]
    text = helped(capsys, "train", "my_experiment", *sets, "--config_file=configs/my_experiment.yaml")
    assert "\n  trainer.optimizer_config.optimizer=sgd\n" in text
    assert "\n  trainer.optimizer_config.optimizer.sgd.momentum=0.75\n" in text
    assert "\n  trainer.train_steps=400\n" in text


def test_a_long_value_is_cut_and_a_hidden_character_shown(workspace, capsys):
    """N34: the list keeps to its width, and to the terminal's colours."""
    text = helped(capsys, "train", "my_experiment", f"task.init_checkpoint=\x1b[31m{'long/' * 30}")
    [line] = [line for line in text.splitlines() if line.startswith("  task.init_checkpoint=")]
    assert len(line) <= help_text.WIDTH
    assert "…" in line
    assert "\x1b" not in text


def test_help_of_an_unknown_experiment_names_the_nearest(workspace, capsys):
    """G16, N7: exit code 2, the usual message."""
    assert cli.main(["train", "--help", "my_experimnt"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: unknown experiment 'my_experimnt'; ")
    assert "did you mean 'my_experiment'?" in said.err


def test_help_with_the_directory_of_a_run_is_that_of_the_verb(run_dir, capsys):
    assert helped(capsys, "show", "runs/seven") == helped(capsys, "show")
