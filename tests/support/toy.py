"""A small task, its config, and the strategies that tests run it under."""

import functools
from pathlib import Path

import numpy as np
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.config import opt, schema
from official_trainer.distributed import strategy as distribute
from official_trainer.engine.trainer import Trainer
from official_trainer.inputs import from_arrays
from official_trainer.lazy import keras
from official_trainer.tasks import random_streams, registry
from official_trainer.tasks.task import Task
from tests.support import jobs

NUM_EXAMPLES = 101
FEATURES = np.random.RandomState(0).randn(NUM_EXAMPLES, 6).astype("float32")
LABELS = np.random.RandomState(1).randint(0, 3, NUM_EXAMPLES).astype("int32")


def examples(count):
    """Plain tf.data, without the tuning thread that an iterator waits for when it goes away."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count])).with_options(options)


class ToyTask(Task):
    """Classifies random points; finite, unshuffled data that does not know how to start at a step."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        hidden = keras.layers.Dropout(0.3)(hidden)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        dataset = examples(NUM_EXAMPLES)
        if params.is_training:
            return dataset.repeat().batch(size, drop_remainder=True)
        return dataset.batch(size)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy("accuracy")]


class InMemory(ToyTask):
    """Shuffled data in memory, which start at any step."""

    def build_inputs(self, params, input_context=None):
        return from_arrays((FEATURES, LABELS), params, input_context)


class Undropped(ToyTask):
    """Without dropout, whose draws depend on the step."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(inputs))


class Exact(ToyTask):
    """Its sums need no rounding, so that no bit depends on how a batch is divided; give it batches of 16."""

    def build_model(self):
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))

    def build_inputs(self, params, input_context=None):
        features = np.random.RandomState(0).randint(-2, 3, (16, 6)).astype("float32")
        return from_arrays((features, features[:, :1]), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return (labels - model_outputs) ** 2

    def build_metrics(self, training=True):
        return []


def experiment(batch=10, eval_batch=10, enable_xla=False, ema=None, **trainer):
    optimizer_config = opt.adam(0.01).replace(ema=ema)
    return schema.ExperimentConfig(
        task=schema.TaskConfig(
            train_data=schema.DataConfig(global_batch_size=batch),
            validation_data=schema.DataConfig(global_batch_size=eval_batch),
        ),
        trainer=schema.TrainerConfig(**{"train_steps": 100, "optimizer_config": optimizer_config, **trainer}),
        runtime=schema.RuntimeConfig(enable_xla=enable_xla),
    )


def runs_of(name, task_cls, task_config=schema.TaskConfig, *, batch=10, eval_batch=32, ema=None, **trainer):
    """Registers an experiment of a task; returns `do(model_dir, *sets, …)`, which runs it in this process.

    Where the config of the task has fields of its own, it tells the task, and `task_cls` is None.
    """

    def factory():
        base = experiment(batch, eval_batch, ema=ema, **trainer)
        data = {"train_data": base.task.train_data, "validation_data": base.task.validation_data}
        return base.replace(task=task_config(**data))

    registry.register_config_factory(name, task_cls=task_cls)(factory)
    return functools.partial(jobs.do, name)


NO_EXPORT = schema.ExportConfig(at_end=False)


def commit(model_dir, step, facts=None):
    """Leaves what discovery takes for a committed checkpoint, without a value in it."""
    files.make_dirs(model_dir)
    name = f"ckpt-{step}.index"
    Path(model_dir, name).write_bytes(b"x")
    described = manifest.describe(model_dir, [name])
    others = {"run": facts or manifest.RunFacts(), "versions": {}, "extra": {}}
    manifest.write(model_dir, manifest.Manifest(step=step, created="", files=described, **others))


@functools.cache  # two strategies over the same devices in one process confuse each other's collectives
def strategy_of(name):
    return {
        "off": tf.distribute.get_strategy,
        "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored1": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
        "mirrored2": lambda: distribute.build_strategy(schema.RuntimeConfig(distribution_strategy="mirrored")),
    }[name]()


STRATEGIES = ["off", "one_device", "mirrored1", "mirrored2"]


def build(config=None, task_cls=ToyTask, strategy="off", trainer_cls=Trainer, **kwargs):
    config = config or experiment()
    keras.backend.clear_session()
    random_streams.enable(0)
    with (strategy_of(strategy) if isinstance(strategy, str) else strategy).scope():
        task = task_cls(config.task)
        model = task.build_model()
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        return trainer_cls(config, task, model, optimizer, **kwargs)


def weights(trainer):
    return [v.numpy() for v in trainer.model.variables] + [v.numpy() for v in trainer.optimizer.variables()]


def assert_bitwise_equal(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
