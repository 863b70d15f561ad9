"""TensorFlow's own random operations, in pipelines and in steps, give the same after every restart.

Outside of these, TensorFlow's modules are as they were.
"""

import random
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_image_ops, gen_random_ops, image_ops_impl, nn_ops, random_ops
from tensorflow_text import SentencepieceTokenizer

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.program import Program
from official_trainer.tasks import keyed_draws, random_streams, registry
from official_trainer.tasks.random_streams import RandomStreams
from tests.support import jobs, runs, toy
from tests.support.cases import full
from tests.support.garden import data
from tests.support.scripted_runs import killed

BOX = np.array([[[0.0, 0.0, 1.0, 1.0]]], np.float32)


def crop(index):
    """Draws as Model Garden does for videos: from no seed at all, whatever `tf.random.set_seed` says."""
    return tf.image.sample_distorted_bounding_box([64, 64, 3], BOX, min_object_covered=0.1, area_range=(0.1, 1.0))[0]


def shuffled(index):
    return tf.random.shuffle(tf.range(8)) + tf.random.uniform([], maxval=100, dtype=tf.int32)


def noise(index):
    return tf.random.normal([3]) + tf.random.uniform([3]) + tf.random.truncated_normal([3])


def category(index):
    return tf.random.categorical(tf.math.log([[0.25, 0.25, 0.5]]), 20)


def drawn_in_a_loop(index):
    total = tf.zeros([2])
    for _ in tf.range(3):
        total += tf.random.uniform([2])
    return total


def drawn_side_by_side(index):
    """As tensorflow_text selects words to mask: up to ten turns at a time."""
    rows = tf.map_fn(lambda row: tf.random.shuffle(tf.range(9)), tf.range(20))
    return rows + tf.map_fn(lambda row: tf.map_fn(lambda column: tf.random.uniform([], 0, 99, tf.int32), row), rows)


def pipeline(function, skip=0, epochs=1, num_parallel_calls=8):
    tf.random.set_seed(3)
    with keyed_draws.of_pipeline(3):
        dataset = tf.data.Dataset.range(40).map(function, num_parallel_calls=num_parallel_calls).repeat(epochs)
    return np.array([value.numpy() for value in dataset.skip(skip)])


@pytest.mark.parametrize("function", [crop, drawn_in_a_loop, drawn_side_by_side])
def test_a_parallel_map_draws_the_same_each_time(function):
    """N1: from the start and from the middle, though whichever of its threads comes first draws first."""
    elements = pipeline(function)
    assert len({element.tobytes() for element in elements}) > 15
    np.testing.assert_array_equal(pipeline(function), elements)
    np.testing.assert_array_equal(pipeline(function, skip=25), elements[25:])
    first, second = np.split(pipeline(function, epochs=2), 2)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("function", [full(noise), drawn_in_a_loop])
@pytest.mark.parametrize("build", [inputs.from_arrays, inputs.from_source])
def test_a_transform_draws_the_same_where_its_data_starts_later(build, function):
    """N1: without seeds, and other numbers for each batch and for each section."""

    def drawn(start, seed=0):
        params, context = (
            schema.DataConfig(global_batch_size=4, is_training=True),
            inputs.InputContext(start_step=start),
        )
        with keyed_draws.of_pipeline(3):
            batches = build(np.arange(8), params.replace(seed=seed), context, transform_fn=lambda x, seeds: function(x))
        return np.array([batch.numpy() for batch in batches.take(6 - start)])

    whole = drawn(0)
    np.testing.assert_array_equal(drawn(2), whole[2:])
    assert len(np.unique(np.concatenate([whole, drawn(0, seed=1)]))) == 2 * whole.size


def test_turns_of_a_loop_draw_the_same_each_time_and_not_alike():
    """N1: also in a map that is not parallel, because its turns are."""
    elements = pipeline(drawn_side_by_side, num_parallel_calls=None)
    np.testing.assert_array_equal(pipeline(drawn_side_by_side, num_parallel_calls=None), elements)
    assert len({row.tobytes() for row in elements.reshape(-1, 9)}) == 40 * 20


def test_categories_are_drawn_as_often_as_their_logits_say():
    drawn = pipeline(lambda index: tf.random.categorical(tf.math.log([[0.25, 0.25, 0.5]]), 500))
    shares = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5], atol=0.02)


def test_without_keys_it_does_not():
    """The control: the same pipeline, built as it stands."""
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.range(40).map(crop, num_parallel_calls=8)
    assert not np.array_equal(*[[value.numpy() for value in dataset] for _ in range(2)])


def test_elements_and_what_draws_nothing_or_in_order_stay_as_they_are():
    with keyed_draws.of_pipeline(0):
        pairs = tf.data.Dataset.range(5).map(lambda i: (i, {"twice": 2 * i}))
        mapped = pairs.map(lambda i, rest: (i, rest["twice"], tf.random.uniform([])), num_parallel_calls=4)
    assert [(int(i), int(twice)) for i, twice, _ in mapped] == [(i, 2 * i) for i in range(5)]
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


def test_compiled_steps_draw_what_their_number_says():
    """N1: under XLA too, which draws in its own way."""
    streams = RandomStreams(toy.ToyTask(None).build_model(), seed=4)
    place = tf.Variable(0, dtype=tf.int64)
    drawn = []
    for numbers in ((3, 4), (3,)):

        @tf.function(jit_compile=True)
        def step():
            with streams.named("train", place):
                return noise(0), shuffled(0), category(0)

        for number in numbers:
            place.assign(number)
            drawn.append([value.numpy() for value in step()])
    for first, other, again in zip(*drawn, strict=True):
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)


def test_draws_in_a_loop_of_the_step_are_keyed_by_its_turn():
    """N1: the same for the same step, and another number in each turn."""
    place = tf.Variable(0, dtype=tf.int64)
    streams = RandomStreams(toy.ToyTask(None).build_model(), seed=4)

    @tf.function
    def step():
        with streams.named("train", place):
            return drawn_in_a_loop(0), tf.map_fn(lambda i: tf.random.uniform([]), tf.range(4), dtype=tf.float32)

    total, turns = step()
    assert len(set(turns.numpy())) == 4 and total.shape == [2]
    again, place_after = step(), place.assign_add(1)
    np.testing.assert_array_equal(again[0], total)
    np.testing.assert_array_equal(again[1], turns)
    assert place_after == 1 and not set(step()[1].numpy()) & set(turns.numpy())


# Whole runs.


class DrawingConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


class Noisy(keras.layers.Layer):
    def call(self, inputs, training=None):
        return inputs * tf.random.uniform([6], 0.5, 1.5) if training else inputs


@registry.register_task_cls(DrawingConfig)
class DrawingTask(toy.ToyTask):
    """Draws in a map, in a layer and in the step, as users do; `fails` is what the step raises while it is traced."""

    fails = None

    def build_model(self):
        return keras.Sequential([keras.Input([6]), Noisy(), keras.layers.Dense(3)])

    def build_inputs(self, params, input_context=None):
        def flipped(features, label):
            return features * tf.cast(tf.random.uniform([6]) < 0.9, tf.float32), label

        dataset = toy.examples(100).map(flipped, num_parallel_calls=4)
        return (dataset.repeat() if params.is_training else dataset).batch(10)

    def train_step(self, inputs, model, optimizer, metrics=None):
        if self.fails is not None:
            raise self.fails
        features, labels = inputs
        logs = super().train_step((features + tf.random.normal([6]), labels), model, optimizer, metrics)
        return {**logs, "drawn": tf.reduce_mean(tf.random.uniform([3]))}


def train(model_dir, *, steps=20, mode="train_and_eval", **runtime):
    keras.backend.clear_session()
    base = toy.experiment(summary_interval=5, checkpoint_interval=10, validation_interval=10, async_checkpoint=False)
    section = schema.DataConfig(global_batch_size=10)
    config = base.replace(
        task=DrawingConfig(train_data=section, validation_data=section),
        trainer=base.trainer.replace(train_steps=steps, steps_per_loop=5, export=schema.ExportConfig(at_end=False)),
        runtime=schema.RuntimeConfig(**runtime),
    )
    resolved = configuration.resolve(config, experiment="drawing")
    return jobs.run("drawing", resolved, mode=mode, model_dir=str(model_dir), quiet=True)


@pytest.mark.parametrize(
    "runtime", [{}, full({"run_eagerly": True}), full({"distribution_strategy": "mirrored", "num_logical_cpus": 2})]
)
def test_a_killed_run_draws_in_maps_layers_and_steps_what_an_unbroken_one_does(runtime, monkeypatch, tmp_path):
    """N1, N32: each place of draws has its share in the weights; rows have the numbers that the step returns."""
    train(tmp_path / "whole", **runtime)
    with killed(monkeypatch, "after the save", 10):
        train(tmp_path / "killed", **runtime)
    train(tmp_path / "killed", **runtime)
    assert runs.differences(tmp_path / "killed", tmp_path / "whole") == []
    drawn = [row["drawn"] for row in runs.rows(tmp_path / "whole") if "drawn" in row]
    assert len(set(drawn)) == len(drawn) >= 4


def attributes():
    """Returns the functions and classes of TensorFlow's and Keras's modules: those that are replaced, and others."""
    owners = [
        *(tf.random, tf.image, tf.nn, tf.raw_ops, tf.data.Dataset),
        *(gen_random_ops, gen_image_ops, random_ops, image_ops_impl, nn_ops),
        *(keras.src.backend, keras.src.backend.RandomGenerator, keras.backend, keras.layers),
    ]
    return {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}


def changed(before):
    now = attributes()
    return [f"{owner.__name__}.{name}" for owner, name in before if now.get((owner, name)) is not before[owner, name]]


def test_tensorflow_is_as_it_was_after_everything_that_replaces(monkeypatch, tmp_path):
    """N1: after a run, an error and Ctrl-C within a step, an evaluation, `fit`, `evaluate`, `predict`."""
    random_streams.enable(0)  # sets which kind of generator Keras's layers have
    before = attributes()
    train(tmp_path / "run")
    assert changed(before) == []
    train(tmp_path / "run", mode="eval")
    assert changed(before) == []
    for error in (RuntimeError("is mine"), KeyboardInterrupt()):
        monkeypatch.setattr(DrawingTask, "fails", error)
        with pytest.raises(BaseException):  # noqa: B017
            train(tmp_path / type(error).__name__)
        assert changed(before) == []
    program = Program(lambda: keras.Sequential([keras.Input([6]), Noisy(), keras.layers.Dense(3)]))
    program.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((toy.FEATURES, tf.zeros([101, 3])))
    dataset = dataset.map(lambda x, y: (x + tf.random.normal([6]), y), num_parallel_calls=2).batch(10)
    program.fit(dataset, epochs=1, verbose=0)
    program.evaluate(dataset, verbose=0)
    program.predict(dataset, verbose=0)
    assert changed(before) == []


def test_blocks_that_overlap_in_threads_end_as_one():
    """N1: the first of them may end first; the other still draws from its keys."""
    before = attributes()
    entered, may_end = threading.Event(), threading.Event()
    drawn = []

    def other():
        with keyed_draws.keyed(lambda number: tf.constant([5, number], tf.int64)):
            entered.set()
            may_end.wait()
            drawn.append(float(tf.random.uniform([])))

    thread = threading.Thread(target=other)
    with keyed_draws.of_pipeline(0), keyed_draws.keyed(lambda number: tf.constant([7, number], tf.int64)):
        thread.start()
        entered.wait()
        assert float(tf.random.uniform([])) == float(tf.random.stateless_uniform([], [7, 0]))
    may_end.set()
    thread.join()
    assert drawn == [float(tf.random.stateless_uniform([], [5, 0]))]
    assert changed(before) == []


# Seeds.


def test_tokenizers_outlive_a_seed(tmp_path):
    """N1: those of SentencePiece belong to a kernel; the translation task of Model Garden holds one from its start."""
    data.translation(tmp_path / "train.tfrecord", 2, 0)
    tokenizer = SentencepieceTokenizer((tmp_path / "sentencepiece.model").read_bytes())
    before = tokenizer.tokenize("the cat").numpy().tolist()
    random_streams.enable(3)
    keyed_draws.set_seed(3)
    assert tokenizer.tokenize("the cat").numpy().tolist() == before


def test_eager_draws_of_a_pipeline_are_those_after_tensorflows_own_seed():
    """N1: operations start again, with the numbers that `tf.random.set_seed` gives."""
    drawn = []
    for set_seed in (tf.random.set_seed, keyed_draws.set_seed, keyed_draws.set_seed):
        set_seed(5)
        with keyed_draws.of_pipeline(0):
            drawn.append([tf.random.uniform([2]).numpy().tolist(), tf.random.normal([2], seed=1).numpy().tolist()])
    assert drawn[0] == drawn[1] == drawn[2]
