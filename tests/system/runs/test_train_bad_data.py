"""Runs on record files that go on."""

import numpy as np
import tensorflow as tf

from tests.support.record_runs import do, write_all


def test_records_train_and_resume_exactly(tmp_path):
    """N1: a run on files in two parts equals one in one."""
    folder, other = tmp_path / "parts", tmp_path / "whole"
    for each in (folder, other):
        each.mkdir()
        write_all(each)
    do(folder, "trainer.train_steps=7")
    do(folder)
    do(other)
    ours, theirs = (tf.train.load_checkpoint(str(f / "run" / "ckpt-20")) for f in (folder, other))
    names = [n for n in ours.get_variable_to_shape_map() if n.startswith(("model/", "optimizer/"))]
    assert len(names) > 10
    for name in names:
        assert np.asarray(ours.get_tensor(name)).tobytes() == np.asarray(theirs.get_tensor(name)).tobytes(), name
