"""What a step draws on two replicas is what it draws on one, for each kind of draw and each layer that draws."""

import functools

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from official_trainer.lazy import keras as keras2
from official_trainer.tasks import random_streams
from official_trainer.tasks.random_streams import RandomStreams
from tests.support.toy import strategy_of

IMAGES = np.random.RandomState(0).rand(12, 8, 8, 3).astype("float32")


def seed(name="noise"):
    return random_streams.seed(name)


def rows(images, *others):
    return tf.concat([tf.shape(images)[:1], tf.constant(others, tf.int32)], 0)


OF_THE_BATCH = {
    "uniform": lambda x: tf.random.uniform(rows(x, 3)),
    "normal": lambda x: tf.random.normal(tf.shape(x)),
    "truncated": lambda x: tf.random.truncated_normal(rows(x, 7)),
    "truncated, of 8 bytes": lambda x: tf.random.stateless_truncated_normal(rows(x, 7), seed(), dtype=tf.float64),
    "integers": lambda x: tf.random.uniform(rows(x, 3), maxval=100, dtype=tf.int32),
    "integers of 8 bytes": lambda x: tf.random.uniform(rows(x, 3), maxval=100, dtype=tf.int64),
    "any integers": lambda x: tf.random.stateless_uniform(rows(x), seed(), None, None, dtype=tf.int32),
    "of 2 bytes": lambda x: tf.random.stateless_normal(rows(x, 5), seed(), dtype=tf.bfloat16),
    "of 8 bytes": lambda x: tf.random.stateless_normal(rows(x, 5), seed(), dtype=tf.float64),
    "gamma": lambda x: tf.random.stateless_gamma(rows(x, 5), seed(), alpha=0.3),
    "one for each": lambda x: tf.random.uniform(rows(x)),
    "several for each": lambda x: tf.random.uniform([3 * tf.shape(x)[0], 5]),
    "in a branch": lambda x: tf.cond(tf.shape(x)[0] > 0, lambda: tf.random.uniform(rows(x)), lambda: tf.zeros(rows(x))),
    "dropped": lambda x: tf.nn.dropout(x, 0.5),
    "categories": lambda x: tf.random.categorical(tf.math.log(tf.reshape(x, rows(x, 192))), 5),
}
OF_KERAS_3 = {
    "normal of Keras": lambda x: keras3.random.normal(rows(x, 3)),
    "beta": lambda x: keras3.random.beta(rows(x, 1), 0.2, 0.4),
}


def drawn(draws, strategy, size=10, layers=None, kind=keras3):
    """Returns what two steps draw for a batch, by name: for each replica, one after another."""
    strategy = strategy_of(strategy)
    with strategy.scope():
        random_streams.enable(3)
        made = {name: make(kind.layers) for name, make in (layers or {}).items()}
        image = kind.Input([8, 8, 3])
        streams = RandomStreams(kind.Model(image, [layer(image) for layer in made.values()] or image), seed=7)
    calls = {name: functools.partial(layer, training=True) for name, layer in made.items()}

    def of_replica(images, number, share_of_replica):
        share = share_of_replica()
        streams.begin_step(number, share)
        with streams.named("train", number, share):
            return {name: draw(images) for name, draw in {**draws, **calls}.items()}

    @tf.function
    def step(inputs, number):
        return strategy.run(of_replica, args=(inputs, number, streams.shares(strategy, inputs)))

    data = tf.data.Dataset.from_tensors(IMAGES[:size]).repeat(2)
    inputs = iter(strategy.experimental_distribute_dataset(data.rebatch(size, drop_remainder=size % 2 == 0)))
    found = [step(next(inputs), tf.constant(number, tf.int64)) for number in (4, 5)]
    return {name: [strategy.experimental_local_results(each[name]) for each in found] for name in found[0]}


def joined(found):
    return {name: [np.concatenate(parts).astype("float64") for parts in steps] for name, steps in found.items()}


class StochasticDepth(keras3.layers.Layer):
    """Leaves examples out, as models of KerasHub do."""

    def __init__(self):
        super().__init__()
        self.seeds = keras3.random.SeedGenerator(1)

    def call(self, inputs, training=None):
        shape = (keras3.ops.shape(inputs)[0], 1, 1, 1)
        return inputs * keras3.ops.floor(0.5 + keras3.random.uniform(shape, seed=self.seeds)) if training else inputs


def assert_alike(one, two):
    assert one.keys() == two.keys()
    different = [name for name in one if not np.allclose(one[name], two[name], rtol=1e-5, atol=1e-5)]
    assert not different
    assert not [name for name, (first, second) in one.items() if np.array_equal(first, second)], "a step draws anew"


@pytest.mark.parametrize("size", [10, 11])
def test_draws_for_the_batch_are_slices_of_one(size):
    """N43: of all types, in a whole batch, whose shapes are known, and in one that does not divide."""
    draws = OF_THE_BATCH | OF_KERAS_3
    assert_alike(joined(drawn(draws, "off", size)), joined(drawn(draws, "mirrored2", size)))


def test_a_strategy_of_one_device_draws_as_none():
    """N43: TensorFlow's generators would draw others there."""
    one = joined(drawn(OF_THE_BATCH, "off", layers=LAYERS_2, kind=keras2))
    assert_alike(one, joined(drawn(OF_THE_BATCH, "one_device", layers=LAYERS_2, kind=keras2)))


OF_NO_BATCH = {
    "number": lambda x: tf.random.uniform([1]),
    "a few": lambda x: tf.random.normal([7]),
    "for each pixel": lambda x: tf.random.uniform([8, 8, 3]),
}
APART = {
    "a batch in another dimension": lambda x: tf.random.uniform([7, tf.shape(x)[0]]),
    "one by one": lambda x: tf.map_fn(lambda _: tf.random.stateless_uniform([7], seed()), x),
    "order": lambda x: tf.random.experimental.stateless_shuffle(tf.range(100), seed()),
    "poisson": lambda x: tf.random.stateless_poisson([7, 9], seed(), 5.0),
    "binomial": lambda x: keras3.random.binomial((7, 9), 50, 0.5),
    "categories": lambda x: tf.random.stateless_categorical(tf.zeros([7, 9]), 20, seed()),
}


def test_draws_that_are_not_for_the_batch_are_alike_or_apart():
    """N43: as on one device where that is sure; replicas never take what may be for examples from each other."""
    one, two = (drawn({**OF_NO_BATCH, **APART}, strategy) for strategy in ("off", "mirrored2"))
    for name in OF_NO_BATCH:
        for (expected,), parts in zip(one[name], two[name], strict=True):
            assert all(np.array_equal(expected, part) for part in parts), name
    for name in APART:
        assert all(not np.array_equal(*parts) for parts in two[name]), name


LAYERS_2 = {
    "Dropout": lambda layers: layers.Dropout(0.5),
    "SpatialDropout2D": lambda layers: layers.SpatialDropout2D(0.5),
    "GaussianNoise": lambda layers: layers.GaussianNoise(1.0),
    "GaussianDropout": lambda layers: layers.GaussianDropout(0.5),
    "AlphaDropout": lambda layers: layers.AlphaDropout(0.5),
    "RandomFlip": lambda layers: layers.RandomFlip(),
    "RandomTranslation": lambda layers: layers.RandomTranslation(0.3, 0.3),
    "RandomRotation": lambda layers: layers.RandomRotation(0.3),
    "RandomZoom": lambda layers: layers.RandomZoom(0.3),
    "RandomContrast": lambda layers: layers.RandomContrast(0.3),
    "RandomBrightness": lambda layers: layers.RandomBrightness(0.3, value_range=(0, 1)),
    "RandomCrop": lambda layers: layers.RandomCrop(5, 5),
}
LAYERS_3 = {
    **LAYERS_2,
    "StochasticDepth": lambda layers: StochasticDepth(),
    "RandomHue": lambda layers: layers.RandomHue(0.5, value_range=(0, 1)),
    "RandomSaturation": lambda layers: layers.RandomSaturation(0.5, value_range=(0, 1)),
    "RandomSharpness": lambda layers: layers.RandomSharpness(0.5, value_range=(0, 1)),
    "RandomErasing": lambda layers: layers.RandomErasing(0.5, value_range=(0, 1)),
    "RandomInvert": lambda layers: layers.RandomInvert(0.5, value_range=(0, 1)),
    "RandomPosterization": lambda layers: layers.RandomPosterization(3, value_range=(0, 1)),
    "RandomShear": lambda layers: layers.RandomShear(0.3, 0.3),
    "RandomPerspective": lambda layers: layers.RandomPerspective(0.5, 0.5),
    "RandomGrayscale": lambda layers: layers.RandomGrayscale(0.5),
    "RandomColorDegeneration": lambda layers: layers.RandomColorDegeneration(0.5),
    "RandomColorJitter": lambda layers: layers.RandomColorJitter((0, 1), 0.3, 0.3, 0.3, 0.3),
    "RandomGaussianBlur": lambda layers: layers.RandomGaussianBlur(0.5),
    "RandomElasticTransform": lambda layers: layers.RandomElasticTransform(0.5),
}


@pytest.mark.parametrize(("kind", "layers"), [(keras2, LAYERS_2), (keras3, LAYERS_3)], ids=["keras2", "keras3"])
def test_layers_draw_slices(kind, layers):
    """N43: those of both Kerases; from the states of a step, whatever their number."""
    one, two = (joined(drawn({}, strategy, layers=layers, kind=kind)) for strategy in ("off", "mirrored2"))
    assert_alike(one, two)
