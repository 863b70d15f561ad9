"""Which way a run directory has begun to draw, by the manifests of its checkpoints."""

import pytest
import tensorflow as tf

from official_trainer.checkpoints import manifest
from official_trainer.runs.resume import draws
from tests.support.toy import commit


@pytest.mark.parametrize(
    ("saved", "way"),
    [
        ([], "by_batch"),
        ([{}], "by_replica"),
        ([{draws.KEY: "by_batch"}], "by_batch"),
        ([{}, {draws.KEY: "by_replica"}], "by_replica"),
    ],
)
def test_a_run_goes_on_as_its_newest_checkpoint_says(saved, way, tmp_path):
    """N43: one of an earlier version says nothing, and drew by replica."""
    for number, metadata in enumerate(saved):
        commit(str(tmp_path), number, metadata)
    assert draws.way_of(str(tmp_path)) == way


def test_a_run_that_model_garden_began_draws_for_the_batch(tmp_path):
    """N43: as a new one, which has no directory, or none yet."""
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(5, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1).save(5)
    assert manifest.committed_steps(str(tmp_path)) == (5,)
    assert [draws.way_of(each) for each in (str(tmp_path), "", str(tmp_path / "none"))] == ["by_batch"] * 3


def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    """N43: it may be deleted while it is read; the one before tells the same."""
    commit(str(tmp_path), 1, {})
    commit(str(tmp_path), 2, {draws.KEY: "by_batch"})
    read = manifest.read

    def vanishing(directory, step):
        if step == 2:
            raise manifest.UnreadableManifestError("gone")
        return read(directory, step)

    monkeypatch.setattr(manifest, "read", vanishing)
    assert draws.way_of(str(tmp_path)) == "by_replica"
