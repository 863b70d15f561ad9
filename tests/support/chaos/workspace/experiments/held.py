"""An experiment that can be held in any phase of a run: `HOLD` names it; the file `HELD` appears when it is there.

`HOLD_SKIP` is how often the phase is reached before that. Gin may say how wide its model is.
"""

import ctypes
import dataclasses
import os
import pathlib
import time

import gin

from official_trainer.config import TaskConfig
from official_trainer.lazy import keras, tf
from official_trainer.tasks import registry
from tests.support import toy

HOLD = os.environ.get("HOLD")
SECONDS = float(os.environ.get("HOLD_SECONDS", "120"))
HELD_AT_STEP = 25
passing = [int(os.environ.get("HOLD_SKIP", "0"))]


def hold(phase):
    """Stays in `phase`, the first time it is reached (after `HOLD_SKIP` times), if it is the one."""
    held = pathlib.Path(os.environ.get("HELD", "/nowhere"))
    if phase != HOLD or held.exists():
        return
    if passing[0]:
        passing[0] -= 1
        return
    held.write_text(phase)
    if os.environ.get("HOLD_HARD"):  # one call that Python does not come back from
        ctypes.CDLL(None).sleep(int(SECONDS))
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.01)


def hold_save():
    from official_trainer.checkpoints.store import Snapshot

    write = Snapshot.write

    def held_write(snapshot, prefix):
        hold("save")
        write(snapshot, prefix)

    Snapshot.write = held_write


def hold_in_graph(phase, count, value):
    """Returns `value`, after holding `phase` once `count` has reached its step; traced."""

    def wait(number):
        if number >= HELD_AT_STEP:
            hold(phase)
        return number

    with tf.control_dependencies([tf.numpy_function(wait, [tf.cast(count, tf.int64)], tf.int64)]):
        return tf.nest.map_structure(tf.identity, value)


@gin.configurable
def width(units=8):
    return units


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldConfig(TaskConfig):
    """Points and their labels."""


@registry.register_task_cls(HeldConfig)
class HeldTask(toy.ToyTask):
    """A small classifier."""

    def build_model(self):
        hold("build")
        if HOLD == "save":
            hold_save()

        class Traced(keras.layers.Layer):
            def call(self, x, training=None):
                if training:
                    hold("trace")
                return x

        features = keras.Input((6,), name="features")
        hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(width(), "tanh")(features))
        return keras.Model(features, keras.layers.Dense(3)(Traced()(hidden)))

    def initialize(self, model):
        hold("restore")

    def build_inputs(self, params, input_context=None):
        features = tf.random.stateless_normal((64, 6), (1, 2))
        dataset = tf.data.Dataset.from_tensor_slices((features, tf.range(64) % 3))
        if params.is_training:
            dataset = dataset.repeat()
        phase = "input" if params.is_training else "evaluate_input"
        first = 0 if params.is_training else HELD_AT_STEP
        return dataset.batch(8).enumerate(first).map(lambda index, batch: hold_in_graph(phase, index, batch))

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return hold_in_graph("step", optimizer.iterations, logs) if HOLD == "step" else logs

    def aggregate_logs(self, state=None, step_outputs=None):
        hold("evaluate")
        return state or {}

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {}

    def build_signatures(self, model):
        hold("export")
        return super().build_signatures(model)


@registry.register_config_factory("held")
def held():
    """Sixty steps with every kind of event."""
    base = toy.experiment(
        8, 8, train_steps=60, summary_interval=10, checkpoint_interval=20, validation_interval=30,
        best_checkpoint_eval_metric="accuracy",
    )  # fmt: skip
    return base.replace(task=HeldConfig(train_data=base.task.train_data, validation_data=base.task.validation_data))


hold("import")
