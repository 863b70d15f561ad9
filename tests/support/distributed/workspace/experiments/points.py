"""Points and their labels: a small classifier that counts how often it has seen each example.

`POINTS_SPINS` makes each step take longer; `SHARES` is where windows are written down.
"""

import dataclasses
import json
import os

import numpy as np

from official_trainer import inputs
from official_trainer.actions import Action, Assign
from official_trainer.config import TaskConfig, When
from official_trainer.lazy import keras, tf
from official_trainer.tasks import registry
from tests.support import toy

if os.environ.get("SHARES"):  # who did how much in each window, a line each
    from official_trainer.engine.coordinator import AsyncWorkers

    run_window = AsyncWorkers.run_window

    def written(workers, iterator, num_steps):
        run_window(workers, iterator, num_steps)
        with open(os.environ["SHARES"], "a") as lines:
            lines.write(json.dumps({"window": int(num_steps), "steps": workers.steps}) + "\n")

    AsyncWorkers.run_window = written

NUM_EXAMPLES = 96
BATCH = 8
SPINS = int(os.environ.get("POINTS_SPINS", "0"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsConfig(TaskConfig):
    """Points.

    Attributes:
      source: `arrays`, which starts anywhere, or a plain finite `stream`, which does not.
      fill: whether every kernel is filled with a number at the end.
    """

    source: str = "arrays"
    fill: bool = False


class Fill(Action):
    """Fills every kernel with a number."""

    when = When(at_end=True)

    def on_step(self, run):
        kernels = {path: v.numpy() for path, v in run.variables.items() if path.endswith("/kernel")}
        return Assign(values={path: np.full_like(value, 0.25) for path, value in kernels.items()})


@registry.register_task_cls(PointsConfig)
class PointsTask(toy.ToyTask):
    """Classifies points."""

    def build_model(self):
        features = keras.Input((7,), name="features")
        x = keras.layers.BatchNormalization()(features[:, 1:])
        x = keras.layers.Dropout(0.1)(keras.layers.Dense(8, "tanh")(x))
        model = keras.Model(features, keras.layers.Dense(3)(x))
        model.seen = tf.Variable(tf.zeros([NUM_EXAMPLES], tf.int64), trainable=False, name="seen")
        return model

    def build_inputs(self, params, input_context=None):
        features = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 7)).astype("float32")
        features[:, 0] = np.arange(NUM_EXAMPLES)
        arrays = features, (features[:, 1] > 0).astype("int32") + (features[:, 2] > 0)
        if self.task_config.source == "arrays" or not params.is_training:
            return inputs.from_arrays(arrays, params, input_context)
        return tf.data.Dataset.from_tensor_slices(arrays).batch(params.global_batch_size)

    def build_actions(self, trainer):
        return [Fill()] if self.task_config.fill else []

    def train_step(self, batch, model, optimizer, metrics=None):
        features, labels = batch
        ids = tf.cast(features[:, 0], tf.int64)
        model.seen.scatter_add(tf.IndexedSlices(tf.ones_like(ids), ids))
        if SPINS:
            matrix = tf.random.stateless_normal((300, 300), (1, 2))
            for _ in range(SPINS):
                matrix = tf.linalg.matmul(matrix, matrix) / 300.0
            features += 1e-12 * tf.reduce_sum(matrix)
        logs = super().train_step((features, labels), model, optimizer, metrics)
        return {**logs, "mean_id": tf.reduce_mean(tf.cast(ids, tf.float32)), "share": tf.size(ids) / BATCH}

    def validation_step(self, batch, model, metrics=None):
        return {**super().validation_step(batch, model, metrics), "ids": batch[0][:, 0]}

    def aggregate_logs(self, state=None, step_outputs=None):
        return [*(state or []), *(int(i) for part in step_outputs["ids"] for i in part.numpy())]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        assert len(set(aggregated_logs)) == len(aggregated_logs)
        return {"examples": float(len(aggregated_logs))}


@registry.register_config_factory("points")
def points():
    """Sixty steps with every kind of event."""
    base = toy.experiment(
        BATCH, 40, train_steps=60, summary_interval=10, checkpoint_interval=20, validation_interval=30,
        best_checkpoint_eval_metric="accuracy",
    )  # fmt: skip
    return base.replace(task=PointsConfig(train_data=base.task.train_data, validation_data=base.task.validation_data))
