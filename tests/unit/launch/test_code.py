"""Jobs that run the code as it was when they were submitted, with a scheduler of a few lines of shell."""

import json
import os
import shutil
import tarfile

import pytest

from official_trainer import cli
from official_trainer.launch import snapshot
from tests.support.launch import engine as scripted
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace, a scheduler's program on the PATH, and a target whose jobs run snapshots."""
    folder = tmp_path / "work space"
    folder.mkdir()
    copy_workspace(folder, "experiments", "configs")
    scripted.be_the_only_target(monkeypatch, tmp_path / "bin")
    (folder / "p.yaml").write_text("code_as: folder\n")
    monkeypatch.chdir(folder)
    return folder


def launch(capfd, *words, code=0):
    """Runs `launch`, and returns what it prints to stdout, and to stderr."""
    capfd.readouterr()
    profile = "../p.yaml" if os.getcwd().endswith("configs") else "p.yaml"
    found = cli.main(["launch", "scripted", f"--profile={profile}", *words, "--", "digits_mlp", "--model_dir=run"])
    out, err = capfd.readouterr()
    assert found == code, err
    return out, err


def folder_of_job(workspace):
    (folder,) = (workspace / "launches").iterdir()
    return folder


def copies(workspace):
    return sorted(path.name for path in folder_of_job(workspace).glob("code-*") if path.is_dir())


def test_a_job_runs_a_copy_of_the_code(workspace, capfd):
    """N33: in the folder of the job; what is shown before is what is submitted."""
    (workspace / "data").mkdir()
    shown, summary = launch(capfd)
    assert not (workspace / "launches").exists()
    assert "  code           as it is now, " in summary and " files, which --submit copies\n" in summary
    said, _ = launch(capfd, "--submit")
    (name,) = copies(workspace)
    copy = folder_of_job(workspace) / name
    assert f"it runs the code as it is now, of which {copy.relative_to(workspace)} is a copy\n" in said
    assert (folder_of_job(workspace) / "job.txt").read_text() == shown
    assert shown.splitlines()[-1] == str(copy)
    assert (copy / "experiments" / "digits.py").read_bytes() == (workspace / "experiments" / "digits.py").read_bytes()


def test_files_that_flags_name_are_those_of_the_copy(workspace, capfd, monkeypatch):
    """N33: relative to the folder of the command, which may be one of the workspace, or absolute."""
    monkeypatch.chdir(workspace / "configs")
    outside = workspace.parent / "outside.yaml"
    outside.write_text("{}\n")
    names = ("digits_mlp.yaml", workspace / "configs" / "digits_mlp.yaml", outside)
    shown, _ = launch(capfd, *(f"--config_file={name}" for name in names))
    copy = shown.splitlines()[-1].removesuffix("/configs")
    assert copy.startswith(str(workspace / "launches"))
    for name in ("digits_mlp.yaml", f"{copy}/configs/digits_mlp.yaml", outside):
        assert f"'--config_file={name}'" in shown


def test_a_file_above_the_workspace_stays_where_it_is(workspace, capfd):
    """N33: a relative path does not lead there from the copy."""
    (workspace.parent / "outside.yaml").write_text("{}\n")
    shown, _ = launch(capfd, "--config_file=../outside.yaml", "--config_file=./../work space/configs/digits_mlp.yaml")
    copy = shown.splitlines()[-1]
    for name in (workspace.parent / "outside.yaml", f"{copy}/configs/digits_mlp.yaml"):
        assert f"--config_file={name}'" in shown


def test_a_value_that_leads_out_of_the_workspace_is_refused(workspace, capfd, monkeypatch):
    """N33: the copy is elsewhere, so the job would look for it in another place, after it has waited."""
    _, said = launch(capfd, "--set=task.init_checkpoint=../other/run", code=2)
    assert said.endswith(
        "error: task.init_checkpoint=../other/run leads out of the workspace, and the job runs in a copy of it, "
        "elsewhere; use an absolute path, or a URL\n"
    )
    launch(capfd, "--set=task.init_checkpoint=other/run")
    monkeypatch.chdir(workspace / "configs")
    launch(capfd, "--set=task.init_checkpoint=../other/run")
    (workspace / "p.yaml").write_text("code_as: archive\n")
    _, said = launch(capfd, code=2)
    assert said.endswith(
        "error: the processes of the job start at the top of the code, where relative paths mean something else; run "
        f"this command in {workspace}, not in {workspace}/configs\n"
    )


def test_what_an_archive_does_not_hold_is_named(workspace, capfd):
    """N33: a copy on shared storage has links to it, a machine with an archive has not."""
    (workspace.parent / "library").mkdir()
    (workspace / "experiments" / "library").symlink_to("../../library")
    (workspace / ".hidden" / "weights").mkdir(parents=True)
    checkpoint = "--set=task.init_checkpoint=.hidden/weights"
    said = (
        "warning: experiments/library, task.init_checkpoint=.hidden/weights: no code (git ignores it, or it is a link "
        "out of the workspace), so the machines of the job will lack it\n"
    )
    assert "warning" not in launch(capfd, checkpoint)[1]
    (workspace / "p.yaml").write_text("code_as: archive\n")
    assert said in launch(capfd, checkpoint)[1]
    assert "init_checkpoint" not in launch(capfd, "--set=task.init_checkpoint=experiments/../configs")[1]
    launch(capfd, "--submit")
    (archive,) = folder_of_job(workspace).glob("code-*.tar.gz")
    found = snapshot.unpack(str(archive), str(workspace.parent / "there"))
    assert found.as_it_is() == found
    assert not os.path.lexists(workspace.parent / "there" / "experiments" / "library")


def test_a_job_whose_code_was_edited_or_removed_is_not_resumed(workspace, capfd):
    """N33: it is another one, or would fail on its node."""
    launch(capfd, "--submit")
    job = folder_of_job(workspace)
    (copy,) = copies(workspace)
    cli.main(["job", "cancel", job.name])
    again = (
        "submit the job again: official-trainer launch scripted --profile=p.yaml --submit -- digits_mlp --model_dir=run"
    )

    def refused(what):
        capfd.readouterr()
        assert cli.main(["job", "resume", job.name]) == 2
        assert f"{job.name} runs the code in {job / copy}, {what}; {again}\n" in capfd.readouterr().err

    (job / copy / "experiments" / "digits.py").write_text("")
    refused("where experiments/digits.py changed")
    shutil.rmtree(job / copy)
    refused("which is gone")
    launch(capfd, "--submit")
    cli.main(["job", "cancel", job.name])
    assert cli.main(["job", "resume", job.name]) == 0


def test_code_that_has_not_changed_is_copied_once(workspace, capfd):
    launch(capfd, "--submit")
    first = copies(workspace)
    cli.main(["job", "cancel", folder_of_job(workspace).name])
    launch(capfd, "--submit")
    assert copies(workspace) == first
    cli.main(["job", "cancel", folder_of_job(workspace).name])
    (workspace / "experiments" / "mine.py").write_text("")
    launch(capfd, "--submit")
    assert len(copies(workspace)) == 2


def test_a_submission_that_fails_leaves_no_copy(workspace, capfd, monkeypatch):
    monkeypatch.setenv("ENGINE_FAILS", "start")
    launch(capfd, "--submit", code=1)
    assert not (workspace / "launches").exists()
    monkeypatch.delenv("ENGINE_FAILS")
    launch(capfd, "--submit")
    before = copies(workspace)
    cli.main(["job", "cancel", folder_of_job(workspace).name])
    monkeypatch.setenv("ENGINE_FAILS", "start")
    launch(capfd, "--submit", code=1)
    assert copies(workspace) == before  # `job resume` needs it


def test_a_submission_that_fails_leaves_what_was_there(workspace, capfd, monkeypatch):
    """N33: a job may run there whose record is lost, and need its code, and its output is not ours to remove."""
    launch(capfd, "--submit")
    job, before = folder_of_job(workspace), copies(workspace)
    (job / "launch.json").unlink()
    (job / "slurm.out").write_text("said")
    monkeypatch.setenv("ENGINE_FAILS", "start")
    (workspace / "experiments" / "mine.py").write_text("")
    for _ in range(2):
        launch(capfd, "--submit", code=1)
        assert copies(workspace) == before and (job / "slurm.out").read_text() == "said"
        (workspace / "experiments" / "mine.py").unlink(missing_ok=True)


def test_a_job_that_was_started_in_part_keeps_its_code(workspace, capfd):
    """Its first command has succeeded, so it can be cancelled, and resumed."""
    (workspace / "p.yaml").write_text("code_as: archive\nsteps: 2\n")
    launch(capfd, "--submit", code=1)
    (copy,) = copies(workspace)
    assert (folder_of_job(workspace) / f"{copy}.tar.gz").exists()


def test_a_file_that_is_edited_while_the_job_is_submitted_is_named(workspace, capfd, monkeypatch):
    planned = snapshot.planned

    def edited(*args):
        found = planned(*args)
        (workspace / "configs" / "digits_mlp.yaml").write_text("{}\n")
        return found

    monkeypatch.setattr(snapshot, "planned", edited)
    _, said = launch(capfd, "--submit", code=2)
    assert "configs/digits_mlp.yaml changed while the job was being submitted; submit it again" in said
    assert not (workspace / "launches").exists()


def test_a_target_whose_jobs_run_the_workspace_copies_nothing(workspace, capfd):
    (workspace / "p.yaml").write_text("code_as: null\n")
    said, _ = launch(capfd, "--submit")
    assert "copy" not in said
    assert copies(workspace) == []
    record = json.loads((folder_of_job(workspace) / "launch.json").read_text())
    assert record["name"] == folder_of_job(workspace).name


def test_an_engine_may_get_an_archive(workspace, capfd, monkeypatch):
    """N33: with what describes the code; files that flags name are relative to its top."""
    (workspace / "p.yaml").write_text("code_as: archive\n")
    path = workspace / "configs" / "digits_mlp.yaml"
    shown, _ = launch(capfd, f"--config_file={path}", "--submit")
    assert "is a copy\n" in shown
    (archive,) = folder_of_job(workspace).glob("code-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert {".official-trainer.json", "experiments/digits.py", "configs/digits_mlp.yaml"} <= set(names)
    assert "'--config_file=configs/digits_mlp.yaml'" in (folder_of_job(workspace) / "job.txt").read_text()
    cli.main(["job", "cancel", folder_of_job(workspace).name])
    shutil.rmtree(workspace / "launches")
    monkeypatch.setenv("ENGINE_FAILS", "start")
    launch(capfd, "--submit", code=1)
    assert not (workspace / "launches").exists()
