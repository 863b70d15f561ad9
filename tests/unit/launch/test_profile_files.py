"""Which file is the profile of a job, and what in it is left to the user."""

import pytest

from official_trainer import cli
from official_trainer.config import resolve
from official_trainer.errors import ExitCode
from official_trainer.launch.profile import Profile
from tests.support.launch import engine as scripted
from tests.support.workspace import copy_workspace

JOB = ("--", "digits_mlp", "--model_dir=run")


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace with profiles, and a target that runs nothing."""
    copy_workspace(tmp_path, "experiments")
    (tmp_path / "launch").mkdir()
    for name, workers in (("scripted", 2), ("large", 8), ("local", 3)):
        (tmp_path / "launch" / f"{name}.yaml").write_text(f"workers: {workers}\n")
    scripted.be_the_only_target(monkeypatch, tmp_path / "bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capfd, *words):
    assert cli.main(["launch", "scripted", *words, *JOB]) == 0
    return capfd.readouterr()


def refused(capfd, *words):
    assert cli.main(["launch", *words, *JOB]) == ExitCode.CONFIG
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "path", "workers"),
    [([], "launch/scripted.yaml", 2), (["--profile=large"], "launch/large.yaml", 8)],
)
def test_a_profile_of_the_workspace(workspace, capfd, words, path, workers):
    """N20: that of the target, or that of a name; the output says which; flags go over it."""
    out, err = shown(capfd, *words)
    assert out.startswith(f"{workers} workers of ") and err.startswith(f"profile: {path}\n")
    assert shown(capfd, *words, "--workers=4").out.startswith("4 workers of ")


def test_a_file_is_named_by_its_path(workspace, capfd, monkeypatch):
    """N20: also one of that folder, and nothing is printed about it; from anywhere; without one, with the defaults."""
    (workspace / "own.yaml").write_text("workers: 4\n")
    for path, workers in (("own.yaml", 4), ("launch/large.yaml", 8), (f"{workspace}/own.yaml", 4)):
        out, err = shown(capfd, f"--profile={path}")
        assert out.startswith(f"{workers} workers of ") and "profile: " not in err
    monkeypatch.chdir(workspace / "experiments")
    assert shown(capfd).err.startswith("profile: ../launch/scripted.yaml\n")
    (workspace / "launch" / "scripted.yaml").unlink()
    out, err = shown(capfd)
    assert out.startswith("1 workers of ") and "profile: " not in err


def test_a_name_that_no_profile_has(workspace, capfd):
    """N20: with the nearest, and with all that there are."""
    message = refused(capfd, "scripted", "--profile=lrge")
    assert message == (
        "error: --profile=lrge: there is no launch/lrge.yaml; profiles there: large, local, scripted; "
        "did you mean large?\n"
    )
    for path in (workspace / "launch").iterdir():
        path.unlink()
    assert refused(capfd, "scripted", "--profile=large") == (
        "error: --profile=large: there is no launch/large.yaml; name a file by its path\n"
    )


def test_a_file_that_is_not_there(workspace, capfd):
    """N20: it may be meant as a name."""
    how = "--profile=NAME, without a folder and an ending, takes launch/NAME.yaml\n"
    for given, near in (("large.yaml", ""), ("launch/large.yml", "; did you mean launch/large.yaml?")):
        message = refused(capfd, "scripted", f"--profile={given}")
        assert message == f"error: --profile={given}: there is no such file{near}; {how}"


def test_a_profile_whose_variable_is_not_set(workspace, capfd):
    """N20: else the job would have the defaults of the target."""
    message = "error: --profile is empty: is a variable not set? Name a profile, or leave the flag out\n"
    assert refused(capfd, "scripted", "--profile=") == message


# Placeholders.

WITH = "# to change\nworkers: 2\nname: change-me-please\nenviron:\n  BUCKET: gs://CHANGE-ME/x\n  A: b\n"


def test_placeholders_are_shown_and_not_submitted(workspace, capfd):
    """N20: each with its file and line."""
    (workspace / "launch" / "scripted.yaml").write_text(WITH)
    out, err = shown(capfd)
    assert out.startswith("2 workers of ")
    assert [line for line in err.splitlines() if line.startswith("warning")] == [
        "warning: launch/scripted.yaml:3: name: is a placeholder, got 'change-me-please'; write your own",
        "warning: launch/scripted.yaml:5: environ.BUCKET: is a placeholder, got 'gs://CHANGE-ME/x'; write your own",
    ]
    message = refused(capfd, "scripted", "--submit")
    assert "launch/scripted.yaml:3: name: is a placeholder, got 'change-me-please'; write your own" in message
    assert "launch/scripted.yaml:5: environ.BUCKET: is a placeholder" in message
    assert not (workspace / "launches").exists()


def test_placeholders_of_a_base(workspace, capfd):
    """N20: in the file that has them, until another one sets the field."""
    (workspace / "launch" / "scripted.yaml").write_text(WITH)
    (workspace / "launch" / "mine.yaml").write_text("base: scripted.yaml\nname: mine\n")
    message = refused(capfd, "scripted", "--submit", "--profile=mine")
    assert "launch/scripted.yaml:5: environ.BUCKET: is a placeholder" in message and "name: is" not in message
    (workspace / "launch" / "mine.yaml").write_text("base: scripted.yaml\nname: mine\nenviron: {BUCKET: gs://b}\n")
    assert cli.main(["launch", "scripted", "--submit", "--profile=mine", *JOB]) == 0


def test_placeholders_on_this_machine(workspace, capfd):
    """N20: where the job starts at once; `--dry_run` shows it."""
    (workspace / "launch" / "local.yaml").write_text("environ: {A: change-me}\n")
    assert "launch/local.yaml:1: environ.A: is a placeholder, got 'change-me'" in refused(capfd, "local")
    assert cli.main(["launch", "local", "--dry_run", *JOB]) == 0
    assert "warning: launch/local.yaml:1: environ.A: is a placeholder" in capfd.readouterr().err


def test_a_configuration_without_references():
    """N30: a launch profile's variables are for a shell."""
    override = '{"environ": {"A": "${HOME}", "B": "$${HOME}"}}'
    assert resolve(Profile(), params_overrides=[override]).config.environ == {"A": "${HOME}", "B": "$${HOME}"}
