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
"""Variables that no attribute leads to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachedConfig(TaskConfig):
    """Which program, in which Keras.

    Attributes:
      program: a name of `PROGRAMS`.
      keras: `keras` or `tf_keras`.
    """

    program: str = "second_optimizer"
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


class WithLayer(AttachedTask):
    """With a layer of the program's between two dense ones."""

    def layer(self, base):
        raise NotImplementedError

    def build_model(self):
        layers = self.keras.layers
        x = self.keras.Input([6])
        middle = self.layer(layers.Layer)(name="own")(layers.Dense(5, "tanh")(x))
        return self.keras.Model(x, layers.Dense(1)(middle))


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
class SecondOptimizer(AttachedTask):
    """A generator and a discriminator, which the Task holds with its optimizer."""

    def build_model(self):
        self.discriminator = self.keras.Sequential(
            [self.keras.Input([1]), self.keras.layers.Dense(3, "tanh"), self.keras.layers.Dense(1)]
        )
        self.d_optimizer = self.keras.optimizers.Adam(0.02)
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, real = inputs
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape(persistent=True) as tape:
            fake = model(features, training=True)
            of_fake, of_real = self.discriminator(fake), self.discriminator(real)
            d_loss = tf.reduce_mean(tf.nn.softplus(of_fake) + tf.nn.softplus(-of_real))
            loss = tf.reduce_mean(tf.nn.softplus(-of_fake)) + tf.reduce_mean(tf.square(fake - real))
            scaled, d_scaled = scaled_loss(loss, optimizer), d_loss / replicas
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_scaled, weights), weights, strict=True))
        update(tape, scaled, model, optimizer)
        return {self.loss: loss, "d_loss": d_loss}


@program
class OptimizerOnModel(SecondOptimizer):
    """The same, held by the model."""

    def build_model(self):
        model = super().build_model()
        model.discriminator, model.d_optimizer = self.__dict__.pop("discriminator"), self.__dict__.pop("d_optimizer")
        return model

    def train_step(self, inputs, model, optimizer, metrics=None):
        seen = _Seen(self, discriminator=model.discriminator, d_optimizer=model.d_optimizer)
        return SecondOptimizer.train_step(seen, inputs, model, optimizer, metrics)


class _Seen:
    """A task with other attributes."""

    def __init__(self, task, **attributes):
        self.__dict__.update(attributes, loss=task.loss)


@program
class OptimizersInList(AttachedTask):
    """Each layer but the last is trained by an optimizer of its own, one with a schedule."""

    def build_model(self):
        optimizers = self.keras.optimizers
        rate = optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
        self.optimizers = [optimizers.RMSprop(rate, momentum=0.9), {"last": optimizers.SGD(0.01, momentum=0.5)}]
        layers = self.keras.layers
        inside = [layers.Dense(5, "tanh"), layers.Dense(4, "tanh"), layers.Dense(1)]
        return self.keras.Sequential([self.keras.Input([6]), *inside])

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.build_losses(labels, model(features, training=True)))
            scaled = scaled_loss(loss, optimizer)
        weights = model.trainable_variables
        pairs = list(zip(tape.gradient(scaled, weights), weights, strict=True))
        first, last = self.optimizers[0], self.optimizers[1]["last"]
        for part, chosen in ((pairs[:2], first), (pairs[2:4], last), (pairs[4:], optimizer)):
            chosen.apply_gradients(part)
        return {self.loss: loss}


@program
class OptimizerOfWrapper(SecondOptimizer):
    """The second optimizer scales its loss, as for float16."""

    def build_model(self):
        model = super().build_model()
        if self.task_config.keras == "keras":
            self.d_optimizer = self.keras.optimizers.LossScaleOptimizer(self.d_optimizer, dynamic_growth_steps=2)
        else:
            self.d_optimizer = self.keras.mixed_precision.LossScaleOptimizer(self.d_optimizer, dynamic_growth_steps=2)
        return model


# Teachers, banks, statistics.


@program
class Teacher(AttachedTask):
    """A moving average of the model, which the Task holds."""

    def build_model(self):
        self.teacher, model = self.layers(), self.layers()
        return model

    def train_step(self, inputs, model, optimizer, metrics=None):
        for average, weight in zip(self.teacher.weights, model.weights, strict=True):
            after_step(value(average), functools.partial(_nearer, to=value(weight)))
        return weighted(self, inputs, model, optimizer, self.teacher(inputs[0]))


def _nearer(average, to):
    return 0.9 * average + 0.1 * to


@program
class TeacherInDict(Teacher):
    """The same in a dictionary, seen through a property."""

    def build_model(self):
        model = super().build_model()
        self._networks = {"teacher": self.__dict__.pop("teacher"), "student": model}
        return model

    @property
    def teacher(self):
        return self._networks["teacher"]

    @teacher.setter
    def teacher(self, teacher):
        self.__dict__["teacher"] = teacher


@program
class FrozenTeacher(AttachedTask):
    """One that no step changes, with first weights that depend on the process."""

    def build_model(self):
        self.teacher = self.layers()
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        return weighted(self, inputs, model, optimizer, self.teacher(inputs[0]))


@program
class MemoryBank(AttachedTask):
    """A queue of features, and where its next entry goes."""

    def build_model(self):
        self.bank, self.place = state(tf.zeros([8, 6])), state(tf.constant(0, tf.int64))
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = weighted(self, inputs, model, optimizer, self.bank.read_value())
        mean = tf.reduce_mean(inputs[0], axis=0)
        self.bank.assign(tf.tensor_scatter_nd_update(self.bank.read_value(), [[self.place.read_value()]], [mean]))
        self.place.assign((self.place.read_value() + 1) % 8)
        return logs


@program
class BankOfReplica(MemoryBank):
    """One that each replica fills for itself."""

    def build_model(self):
        self.bank, self.place = tf.Variable(tf.zeros([8, 6])), tf.Variable(0, dtype=tf.int64)
        return self.layers()


@program
class Statistics(AttachedTask):
    """Running statistics in a module."""

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
        self.running = self.Running()
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        return weighted(self, inputs, model, optimizer, self.running(inputs[0]))


@program
class KerasVariable(AttachedTask):
    """A variable of the Keras, on the Task."""

    def build_model(self):
        if self.task_config.keras == "keras":
            self.factor = self.keras.Variable(0.0, trainable=False, aggregation="mean", name="factor")
        else:
            self.factor = state(0.0, name="factor")
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = weighted(self, inputs, model, optimizer, tf.convert_to_tensor(self.factor))
        self.factor.assign(tf.convert_to_tensor(self.factor) + 0.25)
        return logs


@program
class GoingMetric(AttachedTask):
    """A metric that no summary resets and on which the loss depends."""

    def build_model(self):
        self.seen = self.keras.metrics.Mean(name="seen")
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        kind = self.seen
        mean = tf.math.divide_no_nan(value(kind.total).read_value(), value(kind.count).read_value())
        logs = weighted(self, inputs, model, optimizer, mean)
        self.seen.update_state(inputs[0])
        return logs


@program
class Table(AttachedTask):
    """Counts in a hash table that can change."""

    def build_model(self):
        self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        keys = tf.cast(tf.round(inputs[0][:1, 0]), tf.int64)
        before = self.counts.lookup(keys)
        logs = weighted(self, inputs, model, optimizer, before)
        self.counts.insert(keys, before + 1)
        return logs


# Layers.


@program
class Recurrent(AttachedTask):
    """A recurrent layer that keeps its state over consecutive windows."""

    recurrent = "SimpleRNN"

    def build_model(self):
        layers = self.keras.layers
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        x = self.keras.Input(batch_shape=[BATCH // replicas, 3, 2])
        return self.keras.Model(x, layers.Dense(1)(self.layer(layers)(x)))

    def layer(self, layers):
        return getattr(layers, self.recurrent)(5, stateful=True)

    def build_inputs(self, params, input_context=None):
        x = np.random.RandomState(0).randn(24, 3, 2).astype("float32")
        return inputs.from_arrays((x, x[:, 0, :1]), params, input_context)


@program
class RecurrentNested(Recurrent):
    """Two of them around others."""

    def layer(self, layers):
        return layers.Bidirectional(layers.LSTM(3, stateful=True))


@program
class RecurrentCells(Recurrent):
    """Cells of two kinds in one layer."""

    def layer(self, layers):
        return layers.RNN([layers.LSTMCell(3), layers.GRUCell(3)], stateful=True)


@program
class CounterOfBuild(WithLayer):
    """A layer that makes a variable of TensorFlow in `build`."""

    def layer(self, base):
        class Counting(base):
            def build(self, shape):
                self.calls = state(0.0, name="calls")
                self.built = True

            def call(self, x, training=None):
                if training:
                    self.calls.assign(self.calls.read_value() + 1)
                return x * (1 + 0.01 * self.calls.read_value())

        return Counting


@program
class CounterOfCall(WithLayer):
    """A layer that makes it in its first call."""

    def layer(self, base):
        class Counting(base):
            calls = None

            def call(self, x, training=None):
                if self.calls is None:
                    with tf.init_scope():
                        self.calls = state(0.0, name="calls")
                if training:
                    self.calls.assign(self.calls.read_value() + 1)
                return x * (1 + 0.01 * self.calls.read_value())

        return Counting


@program
class MetricOfLayer(WithLayer):
    """A layer with a metric that goes on."""

    def layer(self, base):
        metrics = self.keras.metrics

        class Measuring(base):
            def __init__(self, **options):
                super().__init__(**options)
                self.seen = metrics.Mean(name="seen")

            def call(self, x, training=None):
                scale = 1 + 0.01 * value(self.seen.total).read_value()
                if training:
                    self.seen.update_state(tf.reduce_mean(x))
                return x * scale

        return Measuring


@program
class SpectralNorm(AttachedTask):
    """The singular vector of spectral normalization."""

    def build_model(self):
        layers = self.keras.layers
        x = self.keras.Input([6])
        middle = layers.SpectralNormalization(layers.Dense(5, "tanh"))(x)
        return self.keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(middle)))


# Random numbers.


def _noisy(task, generator, inputs, model, optimizer):
    features, labels = inputs
    if task.task_config.keras == "keras":
        noise = task.keras.random.normal(tuple(features.shape), seed=generator)
    else:
        noise = generator.normal(features.shape)
    return Task.train_step(task, (features + noise, labels), model, optimizer)


def _generator(task):
    return task.keras.random.SeedGenerator(7) if task.task_config.keras == "keras" else tf.random.Generator.from_seed(7)


@program
class GeneratorOfTask(AttachedTask):
    """A generator that the Task holds."""

    def build_model(self):
        self.generator = _generator(self)
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        return _noisy(self, self.generator, inputs, model, optimizer)


@program
class GeneratorOfModule(AttachedTask):
    """One in a module of the Task, in a list."""

    def build_model(self):
        self.module = tf.Module()
        self.module.generators = [_generator(self)]
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        return _noisy(self, self.module.generators[0], inputs, model, optimizer)


@program
class GeneratorOfTeacher(AttachedTask):
    """Dropout in a model that the Task holds."""

    def build_model(self):
        layers = self.keras.layers
        self.teacher = self.keras.Sequential([self.keras.Input([6]), layers.Dropout(0.5), layers.Dense(1)])
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        return weighted(self, inputs, model, optimizer, self.teacher(inputs[0], training=True))


# What no attribute leads to: refused.


@program
class Unseen(AttachedTask):
    """A variable in a list of the module."""

    def build_model(self):
        UNSEEN[:] = [state(0.0, name="unseen")]
        return self.layers()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = weighted(self, inputs, model, optimizer, UNSEEN[0].read_value())
        UNSEEN[0].assign(UNSEEN[0].read_value() + 1)
        return logs


@program
class UnseenTable(AttachedTask):
    """A table there."""

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


@program
class Unsaved(Unseen):
    """A variable that nothing depends on, which the Task says."""

    unsaved_state = ("unseen",)

    def train_step(self, inputs, model, optimizer, metrics=None):
        UNSEEN[0].assign(UNSEEN[0].read_value() + 1)
        return Task.train_step(self, inputs, model, optimizer, metrics)
