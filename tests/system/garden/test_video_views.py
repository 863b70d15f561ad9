"""Model Garden's learning from clips without labels, whose batches have two views of each clip."""

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from tests.support import runs
from tests.support.forked import run_command
from tests.support.garden import data
from tests.support.garden.families import FAMILIES
from tests.support.garden.small import STEPS

WORDS = ["train", "--experiment=video_ssl_pretrain_kinetics400", "--mode=train"]


def train(folder, directory, *more):
    data.write(folder / "tiny_data", ["videos"])
    words = [*WORDS, f"--config_file={FAMILIES['video_classification'].overlay}", *(f"--set={each}" for each in STEPS)]
    done = run_command([*words, f"--model_dir={folder / directory}", *more], cwd=folder, folder=folder)
    assert done.code == 0, done.err


@pytest.mark.full
def test_clips_with_two_views_go_on(tmp_path):
    """T14, T11: a run in two parts has the weights of one, and is exported."""
    for directory, *more in (["whole"], ["parts", "--until_step=2"], ["parts"]):
        train(tmp_path, directory, *more)
    rows = [row for row in runs.rows(tmp_path / "whole") if row["split"] == "train"]
    assert [row["step"] for row in rows] == [2, 4]
    assert all(row["contrast_acc"] >= 0 for row in rows)
    whole, parts = (tf.train.load_checkpoint(str(tmp_path / name / "ckpt-4")) for name in ("whole", "parts"))
    names = [name for name in whole.get_variable_to_shape_map() if name.startswith("model/") and "VARIABLE" in name]
    assert len(names) > 20
    assert list(committed_steps(str(tmp_path / "parts"))) == [2, 4]
    assert all((whole.get_tensor(name) == parts.get_tensor(name)).all() for name in names)
    exported = ["export", f"--model_dir={tmp_path / 'whole'}", f"--output_dir={tmp_path / 'served'}"]
    done = run_command(exported, cwd=tmp_path, folder=tmp_path)  # its task has no step for it: the model itself
    assert done.code == 0, done.err
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    assert [spec.shape.as_list() for spec in serve.structured_input_signature[1].values()] == [[None, 4, 32, 32, 3]]
