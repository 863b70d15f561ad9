"""TensorFlow's own random operations, in pipelines and in steps, give the same after every restart."""

import random

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.tasks import keyed_draws, random_streams
from official_trainer.tasks.random_streams import RandomStreams
from tests.support import toy
from tests.support.cases import cases
from tests.support.draws import category, noise, shuffled

BOX = np.array([[[0.0, 0.0, 1.0, 1.0]]], np.float32)


def crop(index):
    """Draws as Model Garden does for videos: from no seed at all, whatever `tf.random.set_seed` says."""
    return tf.image.sample_distorted_bounding_box([64, 64, 3], BOX, min_object_covered=0.1, area_range=(0.1, 1.0))[0]


def crop_some(index):
    return tf.cond(index % 2 == 0, lambda: crop(index), lambda: tf.zeros([3], tf.int32))


def drawn_in_a_loop(index):
    total = tf.zeros([2])
    for _ in tf.range(3):
        total += tf.random.uniform([2])
    return total


def pipeline(function, skip=0, epochs=1):
    tf.random.set_seed(3)
    with keyed_draws.of_pipeline(3):
        dataset = tf.data.Dataset.range(40).map(function, num_parallel_calls=8).repeat(epochs)
    return np.array([value.numpy() for value in dataset.skip(skip)])


@pytest.mark.parametrize(
    "function", cases([crop, crop_some, shuffled, noise, category, drawn_in_a_loop], crop, drawn_in_a_loop)
)
def test_a_parallel_map_draws_the_same_each_time(function):
    """N1: from the start and from the middle, though whoever of its threads comes first draws first."""
    elements = pipeline(function)
    assert len({element.tobytes() for element in elements}) > 15
    np.testing.assert_array_equal(pipeline(function), elements)
    np.testing.assert_array_equal(pipeline(function, skip=25), elements[25:])


def test_categories_are_drawn_as_often_as_their_logits_say():
    drawn = pipeline(lambda index: tf.random.categorical(tf.math.log([[0.25, 0.25, 0.5]]), 500))
    shares = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5], atol=0.02)


def test_without_keys_it_does_not():
    """The control: the same pipeline, built as it stands."""
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.range(40).map(crop, num_parallel_calls=8)
    assert not np.array_equal(*[[value.numpy() for value in dataset] for _ in range(2)])


def test_each_epoch_draws_anew():
    first, second = np.split(pipeline(crop, epochs=2), 2)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(pipeline(crop, epochs=2, skip=40), second)


def test_elements_and_their_structure_stay():
    with keyed_draws.of_pipeline(0):
        pairs = tf.data.Dataset.range(5).map(lambda i: (i, {"twice": 2 * i}))
        mapped = pairs.map(lambda i, rest: (i, rest["twice"], tf.random.uniform([])), num_parallel_calls=4)
    assert [(int(i), int(twice)) for i, twice, _ in mapped] == [(i, 2 * i) for i in range(5)]


def test_a_map_that_draws_nothing_and_one_in_order_stay_as_they_are():
    tf.random.set_seed(1)
    plain = [float(x) for x in tf.data.Dataset.range(4).map(lambda i: tf.random.uniform([]))]
    tf.random.set_seed(1)
    with keyed_draws.of_pipeline(0):
        kept = tf.data.Dataset.range(4).map(lambda i: tf.random.uniform([]))
        parallel = tf.data.Dataset.range(4).map(lambda i: 2 * i, num_parallel_calls=2)
    assert [float(x) for x in kept] == plain
    assert parallel._input_dataset is not None and [int(x) for x in parallel] == [0, 2, 4, 6]


def test_the_order_of_files_that_model_garden_draws_from_python_is_the_same():
    """N1: `random` starts from the seed while a pipeline is built, and goes on as if nothing had been drawn."""
    random.seed(5)
    expected = random.random()
    random.seed(5)
    orders = []
    for seed in (7, 7, 8):
        with keyed_draws.of_pipeline(seed):
            orders.append(random.randint(0, 2**31))
    assert orders[0] == orders[1] != orders[2]
    assert random.random() == expected


def draws_of_steps(first, last, domain="train"):
    place = tf.Variable(first, dtype=tf.int64)
    streams = RandomStreams(toy.ToyTask(None).build_model(), seed=4)

    @tf.function
    def step():
        with streams.named(domain, place):
            drawn = tf.random.uniform([2]), tf.random.uniform([2]), tf.cast(tf.random.shuffle(tf.range(9)), tf.float32)
        place.assign_add(1)
        return tf.concat(drawn, 0)

    return [step().numpy() for _ in range(first, last)]


def test_a_step_draws_what_its_number_says():
    """N1: a step that is done again draws again what it drew; steps, draws in one and evaluations are apart."""
    steps = draws_of_steps(0, 6)
    np.testing.assert_array_equal(draws_of_steps(4, 6), steps[4:])
    assert len({step.tobytes() for step in steps}) == 6
    assert not np.array_equal(steps[0][:2], steps[0][2:4])
    assert not np.array_equal(draws_of_steps(0, 1, "validation")[0], steps[0])


def test_draws_in_a_loop_of_the_step_are_left_alone():
    """A key of its own for each turn is more than a key for each place in the code can give."""
    place = tf.Variable(0, dtype=tf.int64)
    streams = RandomStreams(toy.ToyTask(None).build_model(), seed=4)

    @tf.function
    def step():
        with streams.named("train", place):
            return drawn_in_a_loop(0), tf.map_fn(lambda i: tf.random.uniform([]), tf.range(4), dtype=tf.float32)

    total, each = step()
    assert len(set(each.numpy())) == 4 and total.shape == [2]


def test_outside_of_a_step_nothing_changes():
    random_streams.enable(0)
    tf.random.set_seed(0)
    first = tf.random.uniform([3]).numpy()
    with RandomStreams(toy.ToyTask(None).build_model(), seed=0).named("train", tf.Variable(0, dtype=tf.int64)):
        pass
    tf.random.set_seed(0)
    np.testing.assert_array_equal(tf.random.uniform([3]).numpy(), first)
