"""Values from inside a traced step: what comes out, and that nothing else changes."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.tasks import publish
from official_trainer.tasks.publish import PublishError
from official_trainer.tracking import Histogram, Image
from tests.support import toy
from tests.support.cases import full
from tests.support.toy import FEATURES, ToyTask, assert_bitwise_equal, build, experiment, weights

EAGER = {"train_tf_while_loop": False, "train_tf_function": False}


class PublishingTask(ToyTask):
    """Publishes of each kind, from the step and from inside the model."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        hidden = Publishing()(keras.layers.Dense(8, "tanh")(inputs))
        hidden = keras.layers.Dropout(0.3)(hidden)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        publish.scalar("mean_label", tf.reduce_mean(tf.cast(labels, tf.float32)))
        publish.histogram("features", features)
        publish.image("pictures", tf.reshape(features, [-1, 2, 3, 1]))
        return super().train_step(inputs, model, optimizer, metrics)


class Publishing(keras.layers.Layer):
    def call(self, inputs):
        publish.histogram("hidden", inputs)
        return inputs


def everything(trainer):
    """Returns all that steps change: weights, slots, averages, metrics, the step."""
    metrics = [v for metric in [*trainer.train_metrics, trainer.train_loss] for v in metric.variables]
    return [*weights(trainer), *[v.numpy() for v in [*metrics, *trainer.context.average.values, trainer.global_step]]]


class DeterministicTask(PublishingTask):
    """Without dropout, so that replicas and one device compute the same."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        return keras.Model(inputs, keras.layers.Dense(3, name="logits", kernel_initializer="ones")(inputs))


@pytest.mark.parametrize(("strategy", "options"), [full(("off", {"enable_xla": True})), ("mirrored2", {})])
def test_a_run_that_publishes_is_the_same_bit_by_bit(strategy, options):
    """B7: weights, slots, averages, metrics and the step count, with dropout, however steps are run."""
    config = experiment(ema=EMAConfig(average_decay=0.9), **options)
    plain, publishing = (build(config, task_cls=PublishingTask, strategy=strategy) for _ in range(2))
    plain.run_steps(9)
    for num_steps, is_wanted in ((1, True), (3, False), (1, True), (1, True), (3, False)):
        assert publishing.run_steps(num_steps, publish=is_wanted) == num_steps
        assert (publishing.windows.published is not None) == is_wanted
    assert_bitwise_equal(everything(plain), everything(publishing))


def test_what_is_published_comes_out_as_numpy():
    """B7: scalars are averaged over replicas, histograms put together, images those of the first."""
    trainer = build(task_cls=PublishingTask, strategy="mirrored2")
    trainer.run_steps(3)
    trainer.run_steps(1, publish=True)
    batch = slice(30, 40)  # the fourth batch of ten
    found = trainer.windows.published
    assert type(found) is dict
    assert found["mean_label"] == pytest.approx(toy.LABELS[batch].mean())
    assert isinstance(found["features"], Histogram)
    np.testing.assert_array_equal(np.ravel(found["features"].values), np.ravel(FEATURES[batch]))
    pictures = [found[f"pictures/{index}"] for index in range(3)]
    assert "pictures/3" not in found
    assert all(isinstance(picture, Image) for picture in pictures)
    expected = np.clip(FEATURES[30:33].reshape(-1, 2, 3, 1), 0, 1)
    np.testing.assert_array_equal([picture.pixels for picture in pictures], expected)
    assert found["hidden"].values.size == 10 * 8
    assert {name for name in found if "gradient" in name} == {
        "gradient_norm", "gradients/dense/kernel", "gradients/dense/bias",
        "gradients/logits/kernel", "gradients/logits/bias",
    }  # fmt: skip


def test_gradients_are_those_of_the_mean_over_all_replicas():
    """B7: the same numbers on one device and on two, before anything is clipped."""
    one, two = (build(task_cls=DeterministicTask, strategy=strategy) for strategy in ("off", "mirrored2"))
    with tf.GradientTape() as tape:
        logits = one.model(FEATURES[:10])
        losses = keras.losses.sparse_categorical_crossentropy(toy.LABELS[:10], logits, from_logits=True)
        loss = tf.reduce_mean(losses)
    expected = [gradient.numpy() for gradient in tape.gradient(loss, one.model.trainable_variables)]
    for trainer in (one, two):
        trainer.run_steps(1, publish=True)
        found = trainer.windows.published
        kernel = found["gradients/logits/kernel"].values.reshape(-1, *expected[0].shape)[0]
        np.testing.assert_allclose(kernel, expected[0], rtol=1e-5, atol=1e-7)
        assert found["gradient_norm"] == pytest.approx(np.sqrt(sum((g**2).sum() for g in expected)), rel=1e-5)


def test_an_ordinary_step_has_no_operation_more():
    """B7: a call costs nothing where nobody wants what it publishes."""

    def calling(features):
        publish.scalar("mean", features[0, 0])
        publish.histogram("features", features)
        publish.image("pictures", features[:, :, None, None])

    def indexing(features):
        return features[0, 0], features[:, :, None, None]

    def operations(body):
        trainer = build(task_cls=task_that(body))
        trainer.run_steps(1)
        loop = trainer.windows.loop.get_concrete_function(trainer.train_iterator.iterator(), tf.constant(1))
        return sorted(len(function.node_def) for function in loop.graph.as_graph_def().library.function)

    assert operations(calling) == operations(indexing)


def test_two_values_of_one_name_are_numbered():
    """B7: a layer that is called twice publishes twice."""

    class Twice(ToyTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            for factor in (1.0, 2.0, 3.0):
                publish.scalar("value", factor)
            publish.histogram("value", [4.0])
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = build(task_cls=Twice)
    trainer.run_steps(1, publish=True)
    found = [trainer.windows.published[name] for name in ("value", "value_2", "value_3")]
    assert found == [1.0, 2.0, 3.0]
    assert trainer.windows.published["value_4"].values.tolist() == [4.0]


def task_that(body):
    """Returns a task whose training step calls `body` with the features first."""

    class Calling(ToyTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            body(inputs[0])
            return super().train_step(inputs, model, optimizer, metrics)

    return Calling


def in_a_function(features):
    @tf.function
    def publishing():
        publish.histogram("inner", features * 2.0)

    publishing()


def in_a_condition(features):
    def publishing():
        publish.histogram("inner", features)
        return 0

    def silent():
        return 1

    tf.cond(tf.reduce_max(features) > 0, publishing, silent)


def in_a_loop(features):
    for row in features:
        publish.histogram("inner", row)


NESTED = r"publish.histogram\('inner', …\) is called inside a tf.function, tf.cond or loop .* publish it outside"


@pytest.mark.parametrize(("place", "is_wanted"), [(in_a_function, False), (in_a_condition, True), (in_a_loop, False)])
def test_what_cannot_leave_is_refused_at_the_first_step(place, is_wanted):
    """B7: whether or not somebody wants it then."""
    with pytest.raises(PublishError, match=NESTED):
        build(task_cls=task_that(place)).run_steps(1, publish=is_wanted)


def test_what_cannot_leave_is_refused_in_steps_that_are_not_traced():
    """B7: there a condition is Python's, and a traced function is not."""
    build(experiment(**EAGER), task_cls=task_that(in_a_condition)).run_steps(1, publish=True)
    with pytest.raises(PublishError, match=NESTED):
        build(experiment(**EAGER), task_cls=task_that(in_a_function)).run_steps(1, publish=True)


UNFIT = [
    (lambda x: publish.scalar("x", x), r"publish.scalar\('x', …\) got the shape \[10, 6\], .* tf.reduce_mean"),
    (lambda x: publish.image("x", x), r"publish.image\('x', …\) got the shape \(10, 6\).*\[None, :, :, None\]"),
    (lambda x: publish.image("x", tf.zeros([1, 2, 2, 5])), r"got the shape \(1, 2, 2, 5\).* one to four channels"),
    (lambda x: publish.image("x", tf.zeros([1, 2, 2, 1], tf.int32)), r"got int32; images are uint8, or floats"),
    (lambda x: publish.histogram("x", tf.constant(["a"])), r"publish.histogram\('x', …\) got string; numbers can"),
]


def test_what_cannot_be_published_is_refused():
    """B7: the error names the call and what it takes; also where a shape is known in the step alone."""
    refused = []

    def calling(features):
        for call, message in UNFIT:
            with pytest.raises(PublishError, match=message):
                call(features)
            refused.append(message)

    build(task_cls=task_that(calling)).run_steps(1, publish=True)
    assert len(refused) >= len(UNFIT)
    with pytest.raises(PublishError, match=r"publish.scalar\('x', …\) got the shape \[2\]"):
        build(task_cls=task_that(lambda x: publish.scalar("x", of_unknown_shape(x)))).run_steps(1, publish=True)


def of_unknown_shape(features):
    return tf.py_function(lambda: np.zeros(2, np.float32), [], tf.float32)


def test_other_types_of_numbers_come_out_as_numpy_has_them():
    """B7: half precision as float32, pictures as they are."""

    def body(features):
        publish.scalar("half", tf.cast(1.5, tf.float16))
        publish.histogram("brain", tf.cast([1.0, 2.0], tf.bfloat16))
        publish.histogram("flags", features > 0)
        publish.image("bytes", tf.fill([1, 2, 2, 3], tf.constant(200, tf.uint8)), max_images=1)

    trainer = build(task_cls=task_that(body))
    trainer.run_steps(1, publish=True)
    found = trainer.windows.published
    assert found["half"] == 1.5
    assert (found["brain"].values.dtype, found["brain"].values.tolist()) == (np.float32, [1.0, 2.0])
    assert found["flags"].values.dtype == bool
    assert (found["bytes/0"].pixels.dtype, found["bytes/0"].pixels.max()) == (np.uint8, 200)


def test_outside_of_a_step_nothing_is_published():
    """B7: building, evaluating and calling a model that publishes."""
    publish.scalar("anything", "not even a number")
    assert not publish.is_wanted()
    trainer = build(task_cls=PublishingTask)
    trainer.run_steps(1, publish=True)
    assert trainer.evaluate(1)
    trainer.model(FEATURES[:2])
    assert not publish.is_wanted()


def test_a_step_that_the_data_does_not_hold_publishes_nothing():
    """B7, G6: training data that ends."""

    class Finite(PublishingTask):
        def build_inputs(self, params, input_context=None):
            return toy.examples(20).batch(10)

    trainer = build(experiment(on_data_end="stop"), task_cls=Finite)
    assert [trainer.run_steps(1, publish=True) for _ in range(3)] == [1, 1, 0]
    assert trainer.windows.published is None
    again = build(experiment(on_data_end="repeat"), task_cls=Finite)
    assert [again.run_steps(1, publish=True) for _ in range(3)] == [1, 1, 1]
    np.testing.assert_array_equal(again.windows.published["features"].values, FEATURES[:10])
