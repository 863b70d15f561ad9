"""Programs whose state is not all in one model and one optimizer: `task.program`, in either Keras: `task.keras`."""

import dataclasses
import functools
import importlib

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig, opt
from official_trainer.lazy import tf
from official_trainer.tasks import after_step, scaled_loss, update

NUM_STEPS = 12
BATCH = 4
PROGRAMS = {}
"""Subclasses of the task by name."""
UNSEEN = []
"""What no attribute leads to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachedConfig(TaskConfig):
    """Which program, in which Keras.

    Attributes:
      program: a name of `PROGRAMS`.
      keras: `keras` or `tf_keras`.
    """

    program: str = "several_optimizers"
    keras: str = "keras"


@register_config_factory("attached")
def attached():
    """One of the programs, twelve steps."""
    data = DataConfig(global_batch_size=BATCH)
    return ExperimentConfig(
        task=AttachedConfig(train_data=data, validation_data=dataclasses.replace(data, shuffle_buffer_size=1)),
        trainer=TrainerConfig(
            train_steps=NUM_STEPS, summary_interval=3, validation_interval=4, optimizer_config=opt.adam(0.01)
        ),
    )


def value(variable):
    """Returns the `tf.Variable` of a variable of either Keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def state(initial, **options):
    """Returns a variable that each replica changes alike."""
    initial = tf.convert_to_tensor(initial)
    kinds = tf.VariableAggregation
    aggregation = kinds.MEAN if initial.dtype.is_floating else kinds.ONLY_FIRST_REPLICA
    return tf.Variable(initial, trainable=False, aggregation=aggregation, **options)


def program(cls):
    """Registers a program under its name in snake case."""
    PROGRAMS["".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")] = cls
    return cls


@register_task_cls(AttachedConfig)
class AttachedTask(Task):
    """Fits a line; subclasses are the programs."""

    def __new__(cls, params, *args, **kwargs):
        return object.__new__(PROGRAMS[params.program])

    @property
    def keras(self):
        return importlib.import_module(self.task_config.keras)

    def layers(self, units=5):
        """Returns a small model of its own weights."""
        layers = self.keras.layers
        return self.keras.Sequential([self.keras.Input([6]), layers.Dense(units, "tanh"), layers.Dense(1)])

    def build_model(self):
        return self.layers()

    def build_inputs(self, params, input_context=None):
        x = np.random.RandomState(0).randn(24, 6).astype("float32")
        return inputs.from_arrays((x, x[:, :1] * 2 + 1), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return self.keras.losses.mean_squared_error(labels, model_outputs)


def weighted(task, inputs, model, optimizer, weight):
    """Does a step whose loss depends on some state."""
    features, labels = inputs
    with tf.GradientTape() as tape:
        outputs = model(features, training=True)
        loss = tf.reduce_mean(task.build_losses(labels, outputs)) * (1 + 0.1 * tf.reduce_mean(weight))
        scaled = scaled_loss(loss, optimizer)
    update(tape, scaled, model, optimizer)
    return {task.loss: loss}


# Optimizers.


@program
class SeveralOptimizers(AttachedTask):
    """Layers with optimizers of their own: one on the model, which scales its loss, one in a list of the Task."""

    def build_model(self):
        optimizers = self.keras.optimizers
        scaling = optimizers if self.task_config.keras == "keras" else self.keras.mixed_precision
        rate = optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
        self.optimizers = [{"second": optimizers.SGD(0.01, momentum=0.5)}]
        layers = self.keras.layers
        inside = [layers.Dense(5, "tanh"), layers.Dense(4, "tanh"), layers.Dense(1)]
        model = self.keras.Sequential([self.keras.Input([6]), *inside])
        model.first = scaling.LossScaleOptimizer(optimizers.RMSprop(rate, momentum=0.9), dynamic_growth_steps=2)
        return model

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.build_losses(labels, model(features, training=True)))
            scaled = scaled_loss(loss, optimizer)
        weights = model.trainable_variables
        pairs = list(zip(tape.gradient(scaled, weights), weights, strict=True))
        for part, chosen in (
            (pairs[:2], model.first), (pairs[2:4], self.optimizers[0]["second"]), (pairs[4:], optimizer),
        ):  # fmt: skip
            chosen.apply_gradients(part)
        return {self.loss: loss}


# Teachers, banks, statistics.


@program
class Teacher(AttachedTask):
    """A moving average of the model in a dictionary, and a model that no step changes, whose dropout draws."""

    def build_model(self):
        layers, model = self.keras.layers, self.layers()
        self._networks = {"average": self.layers(), "student": model}
        self.frozen = self.keras.Sequential([self.keras.Input([6]), layers.Dropout(0.5), layers.Dense(1)])
        return model

    @property
    def average(self):
        return self._networks["average"]

    def train_step(self, inputs, model, optimizer, metrics=None):
        for average, weight in zip(self.average.weights, model.weights, strict=True):
            after_step(value(average), functools.partial(_nearer, to=value(weight)))
        seen = self.average(inputs[0]) + self.frozen(inputs[0], training=True)
        return weighted(self, inputs, model, optimizer, seen)


def _nearer(average, to):
    return 0.9 * average + 0.1 * to


@program
class MemoryBank(AttachedTask):
    """A queue of features, where its next entry goes, and a mean that each replica has for itself."""

    def build_model(self):
        self.bank, self.place = state(tf.zeros([8, 6])), state(tf.constant(0, tf.int64))
        self.of_replica = tf.Variable(tf.zeros([6]))
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = weighted(self, inputs, model, optimizer, self.bank.read_value() + self.of_replica.read_value())
        mean = tf.reduce_mean(inputs[0], axis=0)
        self.bank.assign(tf.tensor_scatter_nd_update(self.bank.read_value(), [[self.place.read_value()]], [mean]))
        self.place.assign((self.place.read_value() + 1) % 8)
        self.of_replica.assign(0.5 * self.of_replica.read_value() + mean)
        return logs


@program
class Statistics(AttachedTask):
    """Running statistics in a module, a metric that goes on, a variable of the Keras, counts in a hash table."""

    class Running(tf.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.others = state(tf.zeros([6])), [state(tf.ones([6])), {"count": state(0.0)}]

        def __call__(self, x):
            self.mean.assign(0.9 * self.mean.read_value() + 0.1 * tf.reduce_mean(x, 0))
            self.others[0].assign(0.9 * self.others[0].read_value() + 0.1 * tf.reduce_mean(x * x, 0))
            self.others[1]["count"].assign(self.others[1]["count"].read_value() + 1)
            return self.mean.read_value() + self.others[0].read_value() / self.others[1]["count"].read_value()

    def build_model(self):
        self.running, self.seen = self.Running(), self.keras.metrics.Mean(name="seen")
        if self.task_config.keras == "keras":
            self.factor = self.keras.Variable(0.0, trainable=False, aggregation="mean", name="factor")
        else:
            self.factor = state(0.0, name="factor")
        self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        keys = tf.cast(tf.round(inputs[0][:1, 0]), tf.int64)
        count, factor = self.counts.lookup(keys), tf.convert_to_tensor(self.factor)
        mean = tf.math.divide_no_nan(value(self.seen.total).read_value(), value(self.seen.count).read_value())
        weight = tf.reduce_mean(self.running(inputs[0])) + mean + factor + tf.reduce_mean(count)
        logs = weighted(self, inputs, model, optimizer, weight)
        self.counts.insert(keys, count + 1)
        self.seen.update_state(inputs[0])
        self.factor.assign(factor + 0.25)
        return logs


# Layers.


@program
class Recurrent(AttachedTask):
    """Recurrent layers that keep their state over windows: a plain one, one in another layer, two cells in one."""

    def build_model(self):
        layers = self.keras.layers
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        x = given = self.keras.Input(batch_shape=[BATCH // replicas, 3, 2])
        x = layers.SimpleRNN(5, stateful=True, return_sequences=True)(x)
        x = layers.Bidirectional(layers.SimpleRNN(3, stateful=True, return_sequences=True))(x)
        x = layers.RNN([layers.LSTMCell(3), layers.GRUCell(3)], stateful=True)(x)
        return self.keras.Model(given, layers.Dense(1)(x))

    def build_inputs(self, params, input_context=None):
        x = np.random.RandomState(0).randn(24, 3, 2).astype("float32")
        return inputs.from_arrays((x, x[:, 0, :1]), params, input_context)


@program
class LayersThatCount(AttachedTask):
    """Layers with a variable made in the first call, and with a metric that goes on."""

    def build_model(self):
        keras = self.keras

        class InCall(keras.layers.Layer):
            calls = None

            def call(self, x, training=None):
                if self.calls is None:
                    with tf.init_scope():
                        self.calls = state(0.0, name="calls")
                if training:
                    self.calls.assign(self.calls.read_value() + 1)
                return x * (1 + 0.01 * self.calls.read_value())

        class Measuring(keras.layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.seen = keras.metrics.Mean(name="seen")

            def call(self, x, training=None):
                scale = 1 + 0.01 * value(self.seen.total).read_value()
                if training:
                    self.seen.update_state(tf.reduce_mean(x))
                return x * scale

        x = given = keras.Input([6])
        x = keras.layers.Dense(5, "tanh")(x)
        x = Measuring(name="measuring")(InCall(name="counting")(x))
        return keras.Model(given, keras.layers.Dense(1)(x))


# Random numbers.


def _generator(task):
    return task.keras.random.SeedGenerator(7) if task.task_config.keras == "keras" else tf.random.Generator.from_seed(7)


@program
class Generators(AttachedTask):
    """Generators that the Task holds: one itself, one in a list of its module."""

    def build_model(self):
        self.generator, self.module = _generator(self), tf.Module()
        self.module.generators = [_generator(self)]
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        for generator in (self.generator, self.module.generators[0]):
            if self.task_config.keras == "keras":
                features += self.keras.random.normal(tuple(features.shape), seed=generator)
            else:
                features += generator.normal(features.shape)
        return Task.train_step(self, (features, labels), model, optimizer)


# What no attribute leads to: refused.


@program
class UnseenTable(AttachedTask):
    """A table in a list of the module."""

    def build_model(self):
        UNSEEN[:] = [tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)]
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = weighted(self, inputs, model, optimizer, UNSEEN[0].lookup(tf.constant([1], tf.int64)))
        UNSEEN[0].insert(tf.constant([1], tf.int64), [2.0])
        return logs


@program
class MadeLate(AttachedTask):
    """A variable that the first step makes."""

    late = None

    def train_step(self, inputs, model, optimizer, metrics=None):
        if self.late is None:
            with tf.init_scope():
                self.late = state(0.0, name="late")
        logs = weighted(self, inputs, model, optimizer, self.late.read_value())
        self.late.assign(self.late.read_value() + 1)
        return logs
