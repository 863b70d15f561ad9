"""A run directory that begins as a copy of another: what is in it."""

import json
import os

import pytest

from official_trainer import files
from official_trainer.checkpoints.manifest import committed_steps, damage
from official_trainer.sweeps import copied_run
from official_trainer.tracking.record import ModelDirError
from tests.support import copied_runs
from tests.support.copied_runs import content


@pytest.fixture
def source(tmp_path):
    return copied_runs.source(tmp_path)


def test_a_copy_has_what_a_run_continues_with(source, tmp_path):
    """N35: the newest checkpoint, the best ones, rows and events; nothing that is the other run's alone."""
    target = tmp_path / "target"
    assert copied_run.copy(str(source), str(target), step=20)
    found = content(target)
    assert committed_steps(str(target)) == (20,) and damage(str(target), 20) is None
    assert damage(str(target / "best"), 10) is None
    others = {name for name in found if "ckpt-" not in name}
    assert others == {
        *("best/checkpoint", "best/info.json", "checkpoint", "metrics.jsonl", "params.yaml", "run.json", "train/events")
    }
    assert json.loads((target / "run.json").read_text())["run_id"] != "1"
    assert os.path.samefile(source / "ckpt-20.index", target / "ckpt-20.index")  # it takes no space
    assert not os.path.samefile(source / "metrics.jsonl", target / "metrics.jsonl")
    (target / "metrics.jsonl").write_text("more")
    assert not copied_run.copy(str(source), str(target), step=20)
    assert (target / "metrics.jsonl").read_text() == "more"


def test_a_run_in_a_bucket_is_copied_too(source, tmp_path):
    """N35: there, rename and links do not exist."""
    bucket = f"ram://{tmp_path.name}"
    for path in source.rglob("*"):
        if path.is_file():
            target = f"{bucket}/one/{path.relative_to(source)}"
            files.make_dirs(target.rpartition("/")[0])
            files.copy(str(path), target)
    assert copied_run.copy(f"{bucket}/one", f"{bucket}/two", step=20)
    assert not copied_run.copy(f"{bucket}/one", f"{bucket}/two", step=20)
    assert committed_steps(f"{bucket}/two") == (20,) and damage(f"{bucket}/two", 20) is None
    assert files.read_text(f"{bucket}/two/metrics.jsonl") == "metrics.jsonl"
    copied_run.remove_weights(f"{bucket}/two")
    assert not {"best", "ckpt-20.index", "checkpoint"} & set(files.list_dir(f"{bucket}/two"))


def test_what_cannot_be_continued_is_refused(source, tmp_path):
    """N35: with what is missing."""
    for step, missing in ((30, "ckpt-30.manifest.json is missing"), (20, "ckpt-20.index is missing")):
        (source / "ckpt-20.index").unlink(missing_ok=True)
        with pytest.raises(ModelDirError, match=f"cannot be continued from its checkpoint of step {step}: {missing}"):
            copied_run.copy(str(source), str(tmp_path / "target"), step=step)
    assert not (tmp_path / "target").exists()


def test_another_owner_of_the_directory_ends_a_copy(source, tmp_path):
    """N35: before it counts."""

    def lost():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        copied_run.copy(str(source), str(tmp_path / "target"), step=20, check=lost)
    assert not (tmp_path / "target" / "run.json").exists()


def test_weights_are_removed_and_the_record_stays(source):
    """N35: also those of the best checkpoint, and the exports."""
    copied_run.remove_weights(str(source))
    copied_run.remove_weights(str(source))
    found = {path.name for path in source.rglob("*") if not path.name.startswith(".")}
    assert found == {
        *("metrics.jsonl", "metrics.jsonl.tmp-1-0123abcd", "params.yaml", "run.json", "status.json"),
        *("train", "events", "wandb.json"),
    }
