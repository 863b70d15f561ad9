"""`run_experiment` goes on from the optimizer's state that Model Garden's driver saved, whenever slots are created."""

import shutil

import tensorflow as tf
from official.core import train_lib

from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from tests.support.garden.driver import _untouched_process, params_of  # noqa: F401
from tests.support.garden.side_by_side import differences, saved
from tests.support.garden.toy import GardenTask


class Layered(keras.Model):
    """Its layers have their variables before it is called, as RetinaNet's have; one of them is not used."""

    def __init__(self):
        super().__init__()
        self.hidden, self.logits, self.spare = (keras.layers.Dense(size) for size in (8, 3, 2))
        for layer, size in ((self.hidden, 6), (self.logits, 8), (self.spare, 8)):
            layer.build([None, size])

    def call(self, inputs, training=None):
        return self.logits(tf.tanh(self.hidden(inputs)))


def task_of(params):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    task = GardenTask(params.task)
    task.build_model = Layered
    return task


def test_slots_are_those_of_their_driver_whenever_they_are_created(tmp_path):
    """N4: with the first step; a variable that no gradient reaches, as BERT's pooler, has no slots there."""
    params, strategy = params_of(steps_per_loop=1, summary_interval=1), tf.distribute.get_strategy()
    seen = []

    def copy(output):
        seen.append(output)
        if len(seen) == 8:
            shutil.copytree(tmp_path / "theirs", tmp_path / "copy")

    params.override({"trainer": {"checkpoint_interval": 4}})
    train_lib.run_experiment(strategy, task_of(params), "train", params, str(tmp_path / "theirs"), train_actions=[copy])
    run_experiment(strategy, task_of(params), "train", params, str(tmp_path / "copy"))
    theirs, ours = saved(tmp_path / "theirs"), saved(tmp_path / "copy")
    assert differences(theirs, ours) == []
    assert [name for name in theirs if "spare/kernel/.OPTIMIZER_SLOT" in name] == []
