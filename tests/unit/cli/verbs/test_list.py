"""What `list` shows."""

import io
import json
import re

import pytest

from official_trainer import cli
from official_trainer.garden import index
from tests.support.packages import registering, write
from tests.support.terminal import Terminal


def own_part(out):
    """Returns what `list` prints of the workspace, before the line about Model Garden's experiments."""
    own, _, theirs = out.partition("\nModel Garden 2.20.0 has ")
    assert theirs == f"{len(index.entries())} more; `official-trainer list --all` lists them\n"
    return own


def test_list(workspace, capsys):
    assert cli.main(["list"]) == 0
    mine = "my_experiment  Three grape varieties told apart by 13 measurements.  experiments/my_experiment.py\n"
    assert own_part(capsys.readouterr().out) == mine
    assert cli.main(["list", "--all"]) == 0
    own, _, theirs = capsys.readouterr().out.partition("\nModel Garden 2.20.0\n")
    assert own == mine
    listed = [line.split()[0] for line in theirs.splitlines()]
    assert {"resnet_imagenet", "bert/pretraining"} <= set(listed) <= set(index.entries())
    assert cli.main(["list", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [experiment] = report["experiments"]
    assert (experiment["name"], report["unlisted"]) == ("my_experiment", [])
    assert report["workspace"] == str(workspace)
    assert experiment["path"] == str(workspace / "experiments" / "my_experiment.py")
    source = (workspace / "experiments" / "my_experiment.py").read_text().splitlines()
    assert source[experiment["line"] - 1] == "def my_experiment():"


@pytest.mark.parametrize("columns", [80, 160])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(workspace, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    (workspace / "experiments" / "broken.py").write_text("@register_config_factory('x'\ndef")
    assert cli.main(["list", "--all"]) == 0
    narrow = re.sub(r"\x1b\[\d*m", "", screen.getvalue())
    assert not [line for line in narrow.splitlines() if len(line) > columns and len(line.split()) > 1]
    monkeypatch.setattr("sys.stdout", piped := io.StringIO())
    assert cli.main(["list", "--all"]) == 0
    assert sorted(narrow.split()) == sorted(piped.getvalue().split())


def test_list_shows_what_it_cannot_read_and_what_would_fail(workspace, capsys):
    (workspace / "experiments" / "broken.py").write_text("@register_config_factory('x'\ndef")
    (workspace / "experiments" / "needy.py").write_text(
        'import no_such_module\n\n@register_config_factory("needy")\ndef needy():\n    """Needs more."""\n'
    )
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "my_experiment " in out and "needy          Needs more." in out
    assert "unlisted  " in out and "broken.py:1: its experiments are not listed" in out


def test_list_outside_of_any_workspace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = (
        f"no workspace: no folder upwards of {tmp_path} holds experiments/; "
        "`official-trainer init DIR` writes a new workspace\n"
    )
    assert cli.main(["list"]) == 0
    assert own_part(capsys.readouterr().out) == said
    monkeypatch.setattr(index, "entries", dict)  # nor is there Model Garden
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == f"error: {said}"
    (tmp_path / "experiments").mkdir()
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == f"no experiments in {tmp_path / 'experiments'}\n"


def test_control_characters_of_a_description_are_shown_as_escapes(workspace, capsys):
    """N34: the first line of a docstring, and a file that cannot be read."""
    source = (workspace / "experiments" / "my_experiment.py").read_text()
    (workspace / "experiments" / "my_experiment.py").write_text(source.replace("Three grape", "Three \\x1b[2Jgrape"))
    (workspace / "experiments" / "bro\x1b[2Jken.py").write_text("@register_config_factory('x'\ndef")
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "Three \\x1b[2Jgrape" in out
    assert "bro\\x1b[2Jken.py:1: its experiments" in out
    assert "\x1b" not in out


def test_list_shows_what_modules_register(workspace, restored, capsys):
    """T25: with the module to import, or the file in the workspace; what is computed is said."""
    write(workspace, mine=registering("computed", computed=True))
    (workspace / "pyproject.toml").write_text('[tool.official-trainer]\nexperiments = ["mine"]\n')
    mine = "my_experiment  Three grape varieties told apart by 13 measurements.  experiments/my_experiment.py\n"
    assert cli.main(["list"]) == 0
    assert own_part(capsys.readouterr().out) == (
        f"{mine}unlisted  {workspace}/mine.py:10: it computes names; `official-trainer list --import=mine` lists them\n"
    )
    assert cli.main(["list", "--import=mine"]) == 0
    computed = "computed       The experiment computed.                              mine.py\n"
    assert own_part(capsys.readouterr().out) == mine + computed
    assert cli.main(["list", "--import=min"]) == 2
    assert "--import=min: there is no module 'min'; searched: " in capsys.readouterr().err
