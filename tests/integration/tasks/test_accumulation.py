"""Gradient accumulation: micro-batches that train like one batch."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.tasks import publish, random_streams
from official_trainer.tasks.keras import AccumulationError
from tests.support.toy import ToyTask, assert_bitwise_equal, build, experiment, weights

BATCH = 24


class Plain(ToyTask):
    """Without dropout, so that what is learned does not depend on how a batch is cut."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))


def trainer_of(count, strategy="off", task_cls=Plain, **options):
    options = {"batch": BATCH, **options}
    return build(experiment(gradient_accumulation_steps=count, **options), task_cls=task_cls, strategy=strategy)


def losses(trainer, steps=6):
    return [float(trainer.train(1)["batch_loss"]) for _ in range(steps)]


def curve(trainer):
    """Returns the losses of a few steps, then weights and slots, then the accuracy over three steps more."""
    return losses(trainer), weights(trainer), float(trainer.train(3)["accuracy"])


def assert_same_curve(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert found[2:] == expected[2:]


class Custom(Plain):
    """A step of one's own, with other words for the same."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            per_example = self.build_losses(labels, model(features, training=True))
            if tf.reduce_max(features) > 1e9:  # only AutoGraph can make anything of it
                per_example = per_example * 2
            loss = tf.reduce_mean(per_example) / tf.distribute.get_strategy().num_replicas_in_sync
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        self.process_metrics(metrics, labels, model(features))
        return {self.loss: tf.reduce_mean(per_example)}


@pytest.fixture(scope="module")
def whole():
    """What a trainer learns that takes batches whole, on one device."""
    return curve(trainer_of(1))


def test_micro_batches_train_like_one_batch(whole):
    """G14: the same loss curve, the same metrics; steps and the optimizer count updates."""
    cut = trainer_of(3)
    assert_same_curve(curve(cut), whole)
    assert int(cut.global_step.numpy()) == int(cut.optimizer.iterations.numpy()) == 9


def test_micro_batches_of_replicas_train_like_one_batch(monkeypatch):
    """G14: the same curve and metrics as whole batches; gradients are summed over replicas once for each update."""
    calls, trainer = [], trainer_of(3, "mirrored2")
    batch_reduce = trainer.strategy.extended._batch_reduce_to

    def counted(*args, **kwargs):
        calls.append(1)
        return batch_reduce(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.strategy.extended, "_batch_reduce_to", counted)
        assert_same_curve(curve(trainer), curve(trainer_of(1, "mirrored2")))
    assert len(calls) == 2, "one for each of the two trainers"


def test_micro_batches_under_xla():
    """G14: the same curve as without; whole windows are compiled."""
    one, cut = (trainer_of(count, enable_xla=True) for count in (1, 4))
    assert_same_curve(curve(cut), curve(one))


def test_untraced_steps_accumulate_too(whole):
    """G14: the same without tracing."""
    options = {"train_tf_while_loop": False, "train_tf_function": False}
    assert_same_curve(curve(trainer_of(3, **options)), whole)


def test_windows_do_not_change_what_is_drawn():
    """G14: with dropout, every micro-batch draws its own numbers, which depend on the step alone."""
    whole, cut = (trainer_of(3, task_cls=ToyTask) for _ in range(2))
    whole.run_steps(7)
    for steps in (1, 4, 2):
        cut.run_steps(steps)
    assert_bitwise_equal(weights(whole), weights(cut))


def test_micro_batches_draw_for_themselves():
    """G14, B11: a name gives each micro-batch a seed of its own."""
    seen = []

    class Drawing(Plain):
        def train_step(self, inputs, model, optimizer, metrics=None):
            tf.py_function(lambda seed: seen.append(tuple(seed.numpy())), [random_streams.seed("noise")], [])
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = trainer_of(4, task_cls=Drawing)
    trainer.train(2)
    assert len(seen) == len(set(seen)) == 8


def test_a_step_is_traced_twice_however_many_micro_batches_there_are():
    """G14: they are one loop, one after another, so memory is that of one micro-batch; the last one updates."""
    sizes, updates = [], []

    class Watching(Plain):
        def train_step(self, inputs, model, optimizer, metrics=None):
            sizes.append(inputs[0].shape[0])
            return super().train_step(inputs, model, optimizer, metrics)

        def after_step(self, model):
            updates.append(True)

    trainer_of(12, task_cls=Watching).train(2)
    assert sizes == [2, 2]
    assert updates == [True], "after_step is for updates"


def test_steps_of_ones_own_accumulate(whole):
    """G14: any step that calls the optimizer once, `minimize` too."""
    cut = trainer_of(4, task_cls=Custom)
    assert_same_curve(curve(cut)[:2], whole[:2])  # its accuracy is that of the weights after a step


def test_loss_scaling_accumulates():
    """G14: float16 with a loss scale; the optimizer is of the same class as without."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    pair = []
    for count in (1, 4):
        config = experiment(batch=BATCH, gradient_accumulation_steps=count)
        config = config.replace(runtime=config.runtime.replace(mixed_precision_dtype="float16"))
        pair.append(build(config, task_cls=Plain))
    assert isinstance(pair[1].optimizer, keras.mixed_precision.LossScaleOptimizer)
    np.testing.assert_allclose(*map(losses, pair), rtol=1e-2)


def test_published_values_are_those_of_the_last_micro_batch():
    """G14, B7: what is published in a loop could not leave it."""

    class Publishing(Plain):
        def train_step(self, inputs, model, optimizer, metrics=None):
            publish.scalar("examples", tf.cast(tf.shape(inputs[0])[0], tf.float32))
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = trainer_of(4, task_cls=Publishing)
    trainer.run_steps(1, publish=True)
    assert trainer.windows.published["examples"] == BATCH / 4


class TwoUpdates(Plain):
    def train_step(self, inputs, model, optimizer, metrics=None):
        super().train_step(inputs, model, optimizer, metrics)
        return super().train_step(inputs, model, optimizer, metrics)


class NoUpdate(Plain):
    def train_step(self, inputs, model, optimizer, metrics=None):
        return {self.loss: tf.reduce_mean(model(inputs[0]))}


class Synchronized(Plain):
    def build_model(self):
        inputs = keras.Input((6,))
        hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(8)(inputs))
        return keras.Model(inputs, keras.layers.Dense(3)(hidden))


class Sparse(Plain):
    def build_inputs(self, params, input_context=None):
        return super().build_inputs(params, input_context).map(lambda x, y: (tf.sparse.from_dense(x), y))


class Views(Plain):
    """Two rows of features for each label."""

    def build_inputs(self, params, input_context=None):
        return super().build_inputs(params, input_context).map(lambda x, y: (tf.concat([x, -x], 0), y))


@pytest.mark.parametrize(
    ("task_cls", "strategy", "said"),
    [
        (TwoUpdates, "off", "train_step called optimizer.apply_gradients 2 times"),
        (NoUpdate, "off", "train_step called optimizer.apply_gradients 0 times"),
        (Synchronized, "mirrored2", "replicas communicate within the task's step"),
        (Sparse, "off", "sparse tensors cannot be cut"),
        (Views, "off", "an example has more rows in one tensor of the batch than in another"),
    ],
)
def test_what_cannot_be_accumulated_is_refused(task_cls, strategy, said):
    """G14: with the reason and what to do."""
    with pytest.raises(AccumulationError, match=f"trainer.gradient_accumulation_steps: .*{said}"):
        trainer_of(2, strategy, task_cls).train(1)


def test_gradients_of_other_variables_are_refused():
    """G14: names the variable."""
    other = tf.Variable(1.0, name="other")

    class Elsewhere(Plain):
        def train_step(self, inputs, model, optimizer, metrics=None):
            optimizer.apply_gradients([(tf.constant(1.0), other)])
            return {self.loss: tf.constant(0.0)}

    with pytest.raises(
        AccumulationError, match=r"a gradient of other:0, which is not one of model.trainable_variables"
    ):
        trainer_of(2, task_cls=Elsewhere).train(1)


def test_a_trainer_that_steps_by_itself_is_refused():
    """G14, T3: rather than training without accumulation."""

    class Own(Trainer):
        def train_step(self, iterator):
            inputs = next(iterator)
            self.task.train_step(inputs, self.model, self.optimizer, self.train_metrics)
            self.global_step.assign_add(1)

    config = experiment(gradient_accumulation_steps=2)
    with pytest.raises(AccumulationError, match=r"Own.train_step does not call the method that it overrides"):
        build(config, task_cls=Plain, trainer_cls=Own).train(1)


def test_batches_that_do_not_divide_are_refused():
    """G14: where their size is known, while tracing; else at the step."""
    with pytest.raises(AccumulationError, match=r"24 examples .* into 5 .* set it to a number that divides 24,"):
        trainer_of(5).train(1)

    class Unknown(Plain):
        def build_inputs(self, params, input_context=None):
            spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32))
            batches = super().build_inputs(params, input_context)
            return tf.data.Dataset.from_generator(lambda: iter(batches.take(9)), output_signature=spec)

    trainer_of(4, task_cls=Unknown).train(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="batch does not divide into 5 micro-batches"):
        trainer_of(5, task_cls=Unknown).train(1)
