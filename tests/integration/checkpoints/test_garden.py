"""Checkpoints as Model Garden's driver writes them, in a directory of ours."""

import json
import logging

import pytest
import tensorflow as tf

from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.store import CheckpointStore
from tests.support.checkpoint_damage import truncate
from tests.support.runs import contents


def state(value=0.0, step=0):
    variable = tf.Variable(value)
    return variable, tf.train.Checkpoint(global_step=tf.Variable(step, dtype=tf.int64), x=variable)


def save(directory, step, value=None, name="ckpt"):
    """Writes one of theirs, with TensorFlow's manager, as their driver does; all of them stay."""
    _, checkpoint = state(float(step) if value is None else value, step)
    manager = tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=None, checkpoint_name=name)
    return manager.save(checkpoint_number=step)


def restored(directory, **options):
    variable, checkpoint = state()
    report = CheckpointStore(str(directory), checkpoint, max_to_keep=1, **options).restore()
    return report.step, float(variable)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_of_theirs_is_restored_and_none_is_deleted(tmp_path):
    """T22: whatever `max_to_keep` is."""
    for step in (2, 10, 9):
        save(tmp_path, step)
    before = names(tmp_path)
    assert restored(tmp_path) == (10, 10.0)
    assert names(tmp_path) == before
    _, checkpoint = state(11.0, 11)
    CheckpointStore(str(tmp_path), checkpoint, max_to_keep=1).save(11)
    assert set(before) < set(names(tmp_path))
    assert restored(tmp_path) == (11, 11.0)


@pytest.mark.parametrize("part", [".data-00000-of-00001", ".index"])
@pytest.mark.parametrize("harm", ["truncated", "missing"])
def test_a_damaged_one_of_theirs_stays_and_an_older_one_is_restored(tmp_path, caplog, part, harm):
    """T22: TensorFlow's checksums tell; it is not moved, and not deleted later."""
    for step in (2, 10):
        save(tmp_path, step)
    path = tmp_path / f"ckpt-10{part}"
    truncate(path) if harm == "truncated" else path.unlink()
    before = names(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert restored(tmp_path) == (2, 2.0)
    assert "ckpt-10 is damaged" in caplog.text or (part, harm) == (".index", "missing")
    _, checkpoint = state(12.0, 12)
    CheckpointStore(str(tmp_path), checkpoint, max_to_keep=1).save(12)
    assert set(before) < set(names(tmp_path))


def test_all_of_theirs_damaged_is_an_error(tmp_path):
    """T22: as for ours, no run begins again at step 0."""
    save(tmp_path, 2)
    truncate(tmp_path / "ckpt-2.data-00000-of-00001")
    with pytest.raises(CheckpointError, match=r"holds checkpoints, but none that is whole:\n  ckpt-2: "):
        restored(tmp_path)
    assert names(tmp_path) == ["checkpoint", "ckpt-2.data-00000-of-00001", "ckpt-2.index"]


def test_ours_without_their_manifests_are_not_taken_for_theirs(tmp_path):
    """T22: theirs count their saves, and hold no `training`."""
    _, checkpoint = state(3.0, 3)
    CheckpointStore(str(tmp_path), checkpoint, max_to_keep=1).save(3)
    (tmp_path / "ckpt-3.manifest.json").unlink()
    assert manifest.committed_steps(str(tmp_path)) == ()
    checkpoint.training = tf.train.Checkpoint(loss=tf.Variable(1.0))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=None).save(checkpoint_number=3)
    assert garden.step_of(str(tmp_path / "ckpt-3")) is None


def best(directory, comp="higher", **options):
    return BestCheckpoint(str(directory), metric="accuracy", comp=comp, **options)


def export(keeper, accuracy, step):
    _, checkpoint = state(0.0, step)
    model = tf.train.Checkpoint(x=tf.Variable(float(step)))
    held = tf.train.Checkpoint(global_step=checkpoint.global_step, model=model)
    return keeper.maybe_export_checkpoint(held, {"accuracy": accuracy}, step)


@pytest.fixture
def their_best(tmp_path):
    """Their best checkpoint: of step 7, by their record."""
    _, checkpoint = state(7.0, 7)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1, checkpoint_name="best_ckpt")
    manager.save()
    info = {"accuracy": 0.5, "validation_loss": 1.25, "best_ckpt_global_step": 7.0}
    (tmp_path / "info.json").write_text(json.dumps(info, indent=4) + "\n")
    return tmp_path


def test_their_best_ranks_with_ours(their_best):
    """T22: it counts at any step, as there, and stays as it is until one of ours is better."""
    before, keeper = contents(their_best), best(their_best)
    assert (keeper.step, keeper.kept[0].value) == (7, 0.5)
    assert not export(keeper, 0.4, 3)
    keeper.tidy()
    assert contents(their_best) == before
    assert export(keeper, 0.6, 9)
    assert (best(their_best).step, best(their_best).kept[0].value) == (9, 0.6)
    after = contents(their_best)
    assert {name for name in before if after[name] != before[name]} == {"info.json", "checkpoint"}
    assert json.loads(after["info.json"]) == {"accuracy": 0.6, "best_ckpt_global_step": 9.0}


def test_theirs_stays_the_first_of_several(their_best):
    """T22: the pointer then names both, theirs as the newest."""
    keeper = best(their_best, max_to_keep=2)
    assert export(keeper, 0.4, 9)
    assert [one.step for one in keeper.kept] == [7, 9]
    assert tf.train.latest_checkpoint(str(their_best)).endswith("best_ckpt-1")
    assert json.loads((their_best / "info.json").read_text())["best_ckpt_global_step"] == 7.0


def test_a_rollback_leaves_theirs(their_best):
    """T22, T12: only ours are dropped."""
    before, keeper = contents(their_best), best(their_best)
    assert keeper.drop_after(3) == ()
    assert contents(their_best) == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "info.json").unlink(),
        lambda folder: (folder / "info.json").write_text('{"accuracy": 0.5, "best_ckpt_global_step": 8.0}'),
        lambda folder: (folder / "info.json").write_text('{"loss": 0.5, "best_ckpt_global_step": 7.0}'),
        lambda folder: truncate(folder / "best_ckpt-1.index"),
    ],
    ids=["no record", "a record of a step that was not saved", "another metric", "damaged"],
)
def test_a_record_of_theirs_counts_only_with_its_checkpoint(their_best, harm):
    """T22: they write the record first, so a killed driver leaves one without its checkpoint."""
    harm(their_best)
    assert best(their_best).step is None
