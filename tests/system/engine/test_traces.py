"""Programs that XLA compiles again for every shape of a batch."""

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.config import schema
from official_trainer.engine.traces import RetraceError
from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy


def test_compiled_windows_of_another_shape_trace_again():
    """G12: XLA compiles for fixed shapes, so a block of other batches is another program."""
    trainer = toy.build(toy.experiment(enable_xla=True, steps_per_loop=4, max_traces=1))
    for size in (4, 6):
        trainer.train_dataset = toy.examples(size).repeat().batch(size, drop_remainder=True)
        if size == 4:
            trainer.train(6)
            continue
        with pytest.raises(RetraceError, match=r"float32\[4,6\].*\n.*float32\[6,6\]"):
            trainer.train(4)


class UnevenConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(UnevenConfig)
class UnevenTask(toy.ToyTask):
    """Sequences whose length differs from batch to batch."""

    def build_model(self):
        inputs = keras.Input((None,), name="sequence")
        total = keras.layers.Lambda(lambda x: tf.reduce_sum(x, axis=1, keepdims=True))(inputs)
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Reshape([1])(total)))

    def build_inputs(self, params, input_context=None):
        def batch(number):
            length = number % 5 + 2 if params.is_training else 4
            return tf.zeros([2, length]), tf.zeros([2], tf.int32)

        return tf.data.Dataset.range(100).map(batch)


@registry.register_config_factory("uneven")
def uneven():
    base = toy.experiment(steps_per_loop=1, max_traces=3, enable_xla=True)
    data = schema.DataConfig(global_batch_size=2)
    return base.replace(task=UnevenConfig(train_data=data, validation_data=data))


def test_a_run_whose_batches_have_ever_new_shapes_ends_with_exit_code_3(model_dir):
    """G12: sequences under XLA, as they come when nobody thinks of it."""
    resolved = configuration.resolve(registry.get_config("uneven"), experiment="uneven", sets=())
    with pytest.raises(RetraceError, match=r"float32\[2,2\](.*\n)*.*float32\[2,5\]") as error:
        run.run("uneven", resolved, mode="train", model_dir=model_dir, quiet=True)
    assert error.value.exit_code == ExitCode.DATA
