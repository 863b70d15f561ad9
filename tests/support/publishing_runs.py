"""Runs of sixty steps that publish values from inside their steps."""

import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import publish, random_streams, registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.runs import differences


class IntermediatesConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(IntermediatesConfig)
class IntermediatesTask(toy.ToyTask):
    """Shuffled data, dropout of Keras and by name, and values from inside."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        kept = tf.random.stateless_uniform(tf.shape(features), random_streams.seed("dropout")) < 0.8
        features = features * tf.cast(kept, tf.float32)
        publish.scalar("kept", tf.reduce_mean(tf.cast(kept, tf.float32)))
        return super().train_step((features, labels), model, optimizer, metrics)


@registry.register_config_factory("intermediates")
def intermediates():
    """Sixty steps."""
    base = toy.experiment(
        steps_per_loop=10, summary_interval=20, checkpoint_interval=20, validation_interval=30,
        export=schema.ExportConfig(at_end=False),
    )  # fmt: skip
    data = schema.DataConfig(global_batch_size=10)
    task = IntermediatesConfig(train_data=data, validation_data=data)
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=60))


def do(model_dir, *sets):
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("intermediates"), experiment="intermediates", sets=sets)
    return run.run("intermediates", resolved, mode="train_and_eval", model_dir=model_dir, quiet=True)


PUBLISHING = "trainer.actions=[{type: publish_intermediates, when: {every: 7}}]"


def rows(model_dir):
    return [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "intermediates"]


def assert_the_same_but_for_what_is_published(whole, silent):
    """A run with `PUBLISHING` ended as one without, bit by bit."""
    extra = [f"metrics.jsonl: {row}" for row in [{k: v for k, v in r.items() if k != "time"} for r in rows(whole)]]
    assert differences(whole, silent) == extra
    assert [row["step"] for row in rows(whole)] == [7, 14, 21, 28, 35, 42, 49, 56]
    assert all(0.6 < row["kept"] < 1 and row["gradient_norm"] > 0 for row in rows(whole))
