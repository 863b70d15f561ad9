"""The experiment works: every part of it, its learning, and a run that is stopped. Run them with `pytest`."""

import numpy as np

import official_trainer
from official_trainer.lazy import tf

EXPERIMENT = "my_experiment"


def test_every_part_works():
    """Build, one step, one evaluation, save, restore and export: what `official-trainer check` does."""
    official_trainer.check(EXPERIMENT)


def test_it_learns_two_batches():
    """Model, loss and learning rate can bring the loss of two batches near zero."""
    result = official_trainer.overfit(EXPERIMENT, num_batches=2, overrides=["task.dropout=0"])
    assert result.last_loss < 0.1 * result.first_loss


def test_a_resumed_run_equals_an_unbroken_one(tmp_path):
    """A run that stops at step 5 and goes on has the same weights at step 10 as one that never stopped."""
    overrides = ["trainer.train_steps=10", "trainer.export.at_end=false"]
    unbroken = official_trainer.run(EXPERIMENT, "train", model_dir=tmp_path / "unbroken", overrides=overrides)
    official_trainer.run(EXPERIMENT, "train", model_dir=tmp_path / "resumed", overrides=overrides, until_step=5)
    resumed = official_trainer.run(EXPERIMENT, "train", model_dir=tmp_path / "resumed", overrides=overrides)
    assert unbroken.step == resumed.step == 10
    expected, actual = weights_of(unbroken), weights_of(resumed)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def weights_of(result):
    """Returns the weights in the checkpoint of a run, and the state of its optimizer, by name."""
    reader = tf.train.load_checkpoint(result.checkpoint)
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model/", "optimizer/"))]
    return {name: reader.get_tensor(name) for name in names}
