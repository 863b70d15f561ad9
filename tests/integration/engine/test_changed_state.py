"""State beside the model and its optimizer: kept, refused by name, or left alone by evaluations."""

import dataclasses
import gc

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.checkpoints import restore
from official_trainer.lazy import keras as keras2
from official_trainer.tasks.contract import ContractError
from official_trainer.tasks.registry import register_task_cls
from official_trainer.user_code import notes_on
from tests.support import several_tasks
from tests.support.cases import cases
from tests.support.toy import ToyTask, build, experiment

GLOBAL = []


class Undropped3(ToyTask):
    """Of Keras 3."""

    def build_model(self):
        layers = keras3.layers
        return keras3.Sequential([keras3.Input([6]), layers.Dense(4, "tanh"), layers.Dense(3)])

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras3.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return []

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return keras3.optimizers.Adam(0.01)


class Counting(Undropped3):
    """Changes a variable that only a list of the module holds."""

    unsaved_state = ()

    def build_model(self):
        GLOBAL[:] = [tf.Variable(0.0, trainable=False, name="counter")]
        return super().build_model()

    def train_step(self, inputs, model, optimizer, metrics=None):
        GLOBAL[0].assign_add(1.0)
        return super().train_step(inputs, model, optimizer, metrics)


class InLoop(Counting):
    """In a loop inside of a branch inside of another traced function."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        @tf.function
        def count():
            tf.cond(tf.reduce_sum(inputs[0]) > -1e9, self._loop, lambda: 0)

        count()
        return Undropped3.train_step(self, inputs, model, optimizer, metrics)

    def _loop(self):
        def body(number):
            GLOBAL[0].assign_add(1.0)
            return [number + 1]

        return tf.while_loop(lambda number: number < 3, body, [0])[0]


class OnlyRead(Counting):
    """Reads it, in a nested function too."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        read = tf.function(lambda: GLOBAL[0].read_value() * 0.0)
        logs = Undropped3.train_step(self, inputs, model, optimizer, metrics)
        return {**logs, "read": read() + GLOBAL[0].read_value()}


class Allowed(Counting):
    """Says that it need not be kept."""

    unsaved_state = ("count*",)


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_what_no_checkpoint_holds_is_refused(strategy):
    """N52: before the first step, by name, shape, line and way out; nothing has changed."""
    trainer = build(task_cls=InLoop, strategy=strategy)
    with pytest.raises(ContractError) as refused:
        trainer.train(1)
    said = " ".join(str(refused.value).split())
    assert "the step changes counter (float32 [])" in said
    assert 'unsaved_state = ("counter",)' in said
    assert notes_on(refused.value)["line"][0] == __file__
    assert int(trainer.global_step.numpy()) == 0 and float(GLOBAL[0].numpy()) == 0.0


@pytest.mark.parametrize("task_cls", [OnlyRead, Allowed])
def test_what_is_read_or_need_not_be_kept_is_not_refused(task_cls):
    """N52: an error is for what a run would lose."""
    trainer = build(task_cls=task_cls)
    trainer.train(2)
    assert int(trainer.global_step.numpy()) == 2


class MadeLate(Undropped3):
    """Keeps a number of each step in a variable that the first one makes."""

    unsaved_state = ("task/numbers/*",)

    def build_model(self):
        self.numbers = {}
        return super().build_model()

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        if not self.numbers:
            with tf.init_scope():
                self.numbers["last"] = tf.Variable(0.0, trainable=False)
        self.numbers["last"].assign(logs[self.loss])
        return logs


def test_what_is_attached_is_found_without_a_look_at_all_objects(monkeypatch):
    """N52: a process has a million objects; looking at them took seconds for each variable on two replicas."""
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked at all objects"))
    trainer = build(task_cls=MadeLate)
    assert float(trainer.train(2)["training_loss"]) > 0.0
    assert float(trainer.task.numbers["last"].numpy()) > 0.0


class TwoOptimizers(Undropped3):
    """The last layer has an optimizer of its own, without variables before the first step."""

    def build_model(self):
        self.of_last = keras3.optimizers.Adam(0.05)
        return super().build_model()

    def train_step(self, inputs, model, optimizer, metrics=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.build_losses(inputs[1], model(inputs[0], training=True)))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients[:2], weights[:2], strict=True))
        self.of_last.apply_gradients(zip(gradients[2:], weights[2:], strict=True))
        return {self.loss: loss}


def test_each_optimizer_is_saved_and_has_its_rate_in_the_rows(tmp_path, caplog):
    """N52: slots are named by what they update; a rate that the code has changed since is told, and not used."""
    trainer = build(task_cls=TwoOptimizers)
    logs = trainer.train(3)
    assert float(logs["learning_rate"]) == pytest.approx(0.01)
    assert float(logs["of_last/learning_rate"]) == pytest.approx(0.05)
    prefix = trainer.checkpoint.write(str(tmp_path / "ckpt-3"))
    keys = restore.saved_keys(prefix)
    assert "state/task/of_last/slots/model/dense_1/kernel/momentum/.ATTRIBUTES/VARIABLE_VALUE" in keys

    other = build(task_cls=TwoOptimizers)
    other.task.of_last.learning_rate = 0.07
    other = type(other)(other.config, other.task, other.model, other.optimizer)
    other.checkpoint_state.after_restore(other.checkpoint_state.read_checkpoint(prefix, 3))
    assert "of_last/learning_rate is 0.05, as in the checkpoint; the code sets 0.07" in caplog.text
    assert [v.numpy().tolist() for v in other.task.of_last.variables] == [
        v.numpy().tolist() for v in trainer.task.of_last.variables
    ]


def test_a_checkpoint_of_one_model_and_one_optimizer_holds_nothing_more():
    """N52: that of Model Garden's tools, and of runs before, stays as it is."""
    assert "state" not in tf.train.TrackableView.children(build(task_cls=Undropped3).checkpoint)
    assert "state" not in tf.train.TrackableView.children(build().checkpoint)


class Windows(ToyTask):
    """Consecutive windows of a recurrent layer with a state."""

    keras = keras3

    def build_model(self):
        layers = self.keras.layers
        x = self.keras.Input(batch_shape=[4, 3, 2])
        return self.keras.Model(x, layers.Dense(1)(layers.SimpleRNN(5, stateful=True)(x)))

    def build_inputs(self, params, input_context=None):
        x = np.random.RandomState(params.is_training).randn(16, 3, 2).astype("float32")
        return inputs.from_arrays((x, x[:, 0, :1]), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return self.keras.losses.mean_squared_error(labels, model_outputs)

    def build_metrics(self, training=True):
        return []

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return cls.keras.optimizers.SGD(0.05)


class Windows2(Windows):
    """The same of tf_keras."""

    keras = keras2


@pytest.mark.parametrize("task_cls", [Windows, Windows2])
def test_an_evaluation_begins_from_its_own_state_and_gives_trainings_back(task_cls, tmp_path):
    """N52: training does not depend on evaluations, nor they on it; a process that only evaluates says the same."""
    config = experiment(batch=4, eval_batch=4)
    trainer = build(config, task_cls=task_cls)
    trainer.train(2)
    held = [*trainer.model.layers[1].states, *trainer.model.trainable_variables]
    before = [variable.numpy() for variable in held]
    assert np.any(before[0]), "training has left a state"
    first = trainer.evaluate(-1)["validation_loss"]
    assert float(trainer.evaluate(-1)["validation_loss"]) == float(first)
    for value, variable in zip(before, held, strict=True):
        assert value.tobytes() == variable.numpy().tobytes()
    trainer.checkpoint.write(str(tmp_path / "ckpt-2"))

    only = build(config, task_cls=task_cls, train=False)
    only.checkpoint_state.load_weights(str(tmp_path), 2)
    assert float(only.evaluate(-1)["validation_loss"]) == float(first)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedConfig(several_tasks.SumsConfig):
    """Of a part."""


@register_task_cls(CountedConfig)
class CountedSums(several_tasks.SumsTask):
    """A part of several tasks that counts its steps: in a variable of its own, and in one that nothing leads to."""

    hides = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        GLOBAL[:] = [tf.Variable(0.0, trainable=False, name="hidden")]

    def train_step(self, inputs, model, optimizer, metrics=None):
        (GLOBAL[0] if self.hides else self.steps).assign_add(1.0)
        return super().train_step(inputs, model, optimizer, metrics)


def test_a_part_of_several_tasks_keeps_its_own(monkeypatch):
    """N52: under the name of its task; what it hides is refused as of one task."""
    part = several_tasks.routine("sums", CountedConfig, 6)
    trainer = several_tasks.build(several_tasks.experiment(several_tasks.POINTS, part))
    assert "steps" in tf.train.TrackableView.children(trainer.checkpoint.state["task"]["sums"])
    with monkeypatch.context() as patch, pytest.raises(ContractError, match=r"changes hidden \(float32 \[\]"):
        patch.setattr(CountedSums, "hides", True)
        trainer.train(1)
    trainer.train(8)
    assert 0 < float(trainer.task.parts["sums"].task.steps.numpy()) < 8
