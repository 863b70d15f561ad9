"""A driver of its own: trains in stages, each with a rate of its own, by a Trainer that counts how the level moves."""

import os

import tasks  # noqa: F401
import tensorflow as tf
import tf_keras
from absl import app, flags
from official.core import base_trainer, exp_factory, task_factory, train_lib, train_utils
from official.modeling import hyperparams

import configs  # noqa: F401

FLAGS = flags.FLAGS
flags.DEFINE_string("out", None, "where the run goes", required=True)
flags.DEFINE_multi_string("settings", [], "YAML files, in their order")
flags.DEFINE_list("stages", ["4:0.05", "8:0.01"], "STEPS:RATE of each stage; the steps are counted from the start")


class StagedTrainer(base_trainer.Trainer):
    """Reports how far apart outputs are, and the number of the stage."""

    def __init__(self, stage, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._stage = stage
        self._spread = tf_keras.metrics.Mean("spread")

    def eval_begin(self):
        super().eval_begin()
        self._spread.reset_states()

    def eval_step(self, iterator):
        def step(inputs):
            logs = self.task.validation_step(inputs, self.model, metrics=self.validation_metrics)
            self.validation_loss.update_state(logs[self.task.loss])
            self._spread.update_state(tf.math.reduce_std(self.model(inputs[0], training=False)))

        self.strategy.run(step, args=(next(iterator),))

    def eval_end(self, aggregated_logs=None):
        return {**super().eval_end(aggregated_logs), "spread": self._spread.result(), "stage": self._stage}


def train_stage(number, steps, rate):
    params = exp_factory.get_exp_config("tide_level")
    for path in FLAGS.settings:
        params = hyperparams.override_params_dict(params, path, is_strict=True)
    params.override({"trainer": {"train_steps": steps, "validation_interval": steps, "checkpoint_interval": steps}})
    params.trainer.optimizer_config.learning_rate.constant.learning_rate = rate
    params.validate()
    params.lock()
    train_utils.serialize_config(params, FLAGS.out)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=FLAGS.out)
        optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
        trainer = StagedTrainer(number, params, task, task.build_model(), optimizer, train=True, evaluate=True)
    return train_lib.run_experiment(
        distribution_strategy=strategy,
        task=task,
        mode="train_and_eval",
        params=params,
        model_dir=FLAGS.out,
        run_post_eval=True,
        trainer=trainer,
    )


def main(_):
    tf_keras.utils.set_random_seed(7)
    os.makedirs(FLAGS.out, exist_ok=True)
    for number, stage in enumerate(FLAGS.stages):
        steps, rate = stage.split(":")
        _, logs = train_stage(number, int(steps), float(rate))
        print(f"stage {int(logs['stage'])}: error {float(logs['error']):.6f}, spread {float(logs['spread']):.6f}")


if __name__ == "__main__":
    app.run(main)
