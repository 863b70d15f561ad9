import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from official_trainer.inputs import order
from tests.support.record_files import contexts


def ids(n):
    return {"id": np.arange(n)}


def read(arrays, params, count, context=None, **settings):
    dataset = inputs.from_arrays(arrays, params, context, **settings)
    return [element["id"] for element in itertools.islice(dataset.as_numpy_iterator(), count)]


def train(batch, **settings):
    return DataConfig(global_batch_size=batch, is_training=True, **settings)


def evaluation(batch, **settings):
    return DataConfig(global_batch_size=batch, is_training=False, **settings)


JOBS = [(1, 1), (1, 2), (2, 2), (2, 4)]  # (pipelines, replicas)


def global_batches(arrays, params, steps, job, **settings):
    """What a whole job reads: the elements of all pipelines put together as replicas get them."""
    pipelines, replicas = job
    each = replicas // pipelines
    parts = []
    for context in contexts(job, **settings):
        elements = read(arrays, params, steps * each, context)
        parts.append([np.concatenate(elements[s * each : (s + 1) * each]) for s in range(steps)])
    return [np.concatenate(step) for step in zip(*parts, strict=True)]


@settings(max_examples=3)
@given(
    n=st.integers(1, 40),
    quarter=st.integers(1, 4),
    start=st.integers(0, 40),
    job=st.sampled_from(JOBS),
    seed=st.integers(-5, 2**40),
    shuffle=st.booleans(),
)
@example(n=23, quarter=2, start=7, job=(2, 4), seed=3, shuffle=True)
def test_order_from_any_step_for_any_job(n, quarter, start, job, seed, shuffle):
    """N1, N25: batches from any step on are those of a run from step 0, whoever reads them."""
    params = train(4 * quarter, shuffle=shuffle)
    whole = read(ids(n), params, start + 3, inputs.InputContext(seed=seed))
    assert all(batch.shape == (4 * quarter,) for batch in whole)
    part = global_batches(ids(n), params, 3, job, seed=seed, start_step=start)
    np.testing.assert_array_equal(part, whole[start:])


@settings(max_examples=3)
@given(n=st.integers(1, 50), batch=st.integers(1, 16), seed=st.integers(0, 9))
def test_each_example_once_in_every_epoch(n, batch, seed):
    """N1: batches run across the edge of an epoch and nothing is dropped."""
    epochs = 3
    batches = read(ids(n), train(batch, seed=seed), math.ceil(epochs * n / batch))
    order = np.concatenate(batches)[: epochs * n].reshape(epochs, n)
    for epoch in order:
        assert sorted(epoch) == list(range(n))


def test_epochs_and_seeds_differ():
    order = np.concatenate(read(ids(200), train(50), 8)).reshape(2, 200)
    assert not np.array_equal(order[0], order[1])
    other = np.concatenate(read(ids(200), train(50, seed=1), 4))
    assert not np.array_equal(order[0], other)
    context = inputs.InputContext(seed=1)
    np.testing.assert_array_equal(np.concatenate(read(ids(200), train(50), 4, context)), other)
    np.testing.assert_array_equal(
        np.concatenate(read(ids(200), train(50, seed=1), 4, inputs.InputContext(seed=2))), other
    )


def test_shuffling_is_uniform():
    """With unmixed keys the first of five examples stays first in 97 of 100 epochs."""
    epochs = 1050
    order_of_all = order.shuffled(tf.range(epochs * 5, dtype=tf.int64), 5, 0).numpy().reshape(epochs, 5)
    for place in range(5):
        share = np.bincount(order_of_all[:, place], minlength=5) / epochs
        np.testing.assert_allclose(share, 0.2, atol=0.04)
    assert len({tuple(epoch) for epoch in order_of_all}) == 120


def test_shuffle_off_keeps_the_order_across_epochs():
    np.testing.assert_array_equal(read(ids(5), train(3, shuffle=False), 3), [[0, 1, 2], [3, 4, 0], [1, 2, 3]])


def test_blocks_hold_the_batches_of_their_steps():
    """T2: what is offered in place of single batches are the same ones, over the edges of epochs."""
    context = inputs.InputContext(start_step=5)
    arrays = {"id": np.arange(23), "pair": (np.arange(46).reshape(23, 2), np.array([f"{n}" for n in range(23)]))}
    batches = inputs.from_arrays(arrays, train(8), context)
    block = next(iter(context.blocks_of(batches)))
    assert block["id"].shape == (128, 8)
    for step, batch in enumerate(itertools.islice(batches, 128)):
        tf.nest.map_structure(
            lambda many, one, step=step: np.testing.assert_array_equal(many[step].numpy(), one.numpy()), block, batch
        )


def test_blocks_are_offered_for_what_from_arrays_returned_alone():
    """T2: a pipeline of the user's own behind it gets batches; so does augmentation, and so do several replicas."""
    context = inputs.InputContext()
    batches = inputs.from_arrays(ids(10), train(4), context)
    assert context.blocks_of(batches.map(lambda batch: batch)) is None
    assert context.blocks_of(batches) is not None
    for params, options, replicas in [
        (evaluation(4), {}, 1),
        (train(4), {"transform_fn": lambda batch, seeds: batch}, 1),
        (train(4), {}, 2),
    ]:
        context = inputs.InputContext(num_replicas_in_sync=replicas)
        assert context.blocks_of(inputs.from_arrays(ids(10), params, context, **options)) is None


def test_blocks_of_large_batches_are_shorter(monkeypatch):
    """A block never takes more memory than is reasonable."""
    images_of_a_mebibyte = tf.TensorSpec([8, 512, 512, 1])
    assert order.window_length(images_of_a_mebibyte, 128) == 8
    monkeypatch.setattr(order, "_WINDOW_BYTES", order._WINDOW_BYTES >> 10)
    images = np.zeros([40, 16, 16, 1], "f")  # 1 KiB each
    context = inputs.InputContext()
    blocks = context.blocks_of(inputs.from_arrays(images, train(8), context))
    assert next(iter(blocks)).shape == (8, 8, 16, 16, 1)


def test_augmentation_is_exact_after_a_restart_and_differs_between_epochs():
    """N1: what augmentation draws depends on (seed, epoch, position) alone."""

    def seeds_of(start, count, seed=0):
        context = inputs.InputContext(start_step=start, seed=seed)
        dataset = inputs.from_arrays(ids(10), train(4), context, transform_fn=lambda batch, seeds: seeds)
        assert dataset.element_spec == tf.TensorSpec([4, 2], tf.int64)
        return np.stack(list(itertools.islice(dataset.as_numpy_iterator(), count)))

    whole = seeds_of(0, 9)
    np.testing.assert_array_equal(seeds_of(6, 3), whole[6:])
    assert len({tuple(seed) for seed in whole.reshape(-1, 2)}) == 36
    assert not np.array_equal(seeds_of(0, 9, seed=1), whole)


@settings(max_examples=3)
@given(n=st.integers(1, 40), quarter=st.integers(1, 3), job=st.sampled_from(JOBS), drop=st.booleans())
@example(n=10, quarter=1, job=(2, 4), drop=False)
def test_evaluation_counts_each_example_once(n, quarter, job, drop):
    """N17: once, in order, for any batch size, number of replicas and pipelines."""
    batch = 4 * quarter
    params = evaluation(batch, drop_remainder=True if drop and n >= batch else None)
    whole = np.concatenate(read(ids(n), params, None))
    wanted = np.arange(n // batch * batch if params.drop_remainder else n)
    np.testing.assert_array_equal(whole, wanted)
    seen = []
    for context in contexts(job):
        elements = read(ids(n), params, None, context)
        assert all(0 < len(element) <= batch // job[1] for element in elements)
        seen += list(np.concatenate(elements)) if elements else []
    assert sorted(seen) == list(wanted)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 9])
def test_evaluation_starts_at_any_step(start):
    """N18: predictions go on where they were broken off."""
    context = inputs.InputContext(start_step=start)
    dataset = inputs.from_arrays(ids(10), evaluation(4), context)
    assert context.starts_here
    assert dataset.element_spec["id"].shape.as_list() == [None]
    batches = [batch["id"].tolist() for batch in dataset.as_numpy_iterator()]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]][start:]
    assert int(dataset.cardinality()) == len(batches)


def test_any_nest_of_arrays_and_types():
    nest = {"image": np.arange(12.0).reshape(4, 3), "text": np.array(["a", "b", "c", "d"]), "pair": (np.arange(4),)}
    (batch,) = inputs.from_arrays((nest, np.arange(4, dtype=np.int32)), evaluation(8)).as_numpy_iterator()
    features, labels = batch
    np.testing.assert_array_equal(features["image"], nest["image"])
    assert features["text"].tolist() == [b"a", b"b", b"c", b"d"]
    np.testing.assert_array_equal(features["pair"][0], labels)
    assert labels.dtype == np.int32


def test_replicas_get_consecutive_parts_of_one_batch():
    """T8: under a strategy, the global batch is the one that a single device would see."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def build(context):
        return inputs.from_arrays(ids(20), train(6), context)

    iterator = iter(strategy.distribute_datasets_from_function(build))
    got = [np.concatenate([part.numpy() for part in strategy.experimental_local_results(next(iterator)["id"])])
           for _ in range(4)]  # fmt: skip
    np.testing.assert_array_equal(got, read(ids(20), train(6), 4))


def test_examples_that_are_held_out():
    """N37: one call divides arrays: always the same examples, each in one part, in the order of the arrays."""
    arrays = {"id": np.arange(50), "value": np.where(np.arange(50) % 2, np.nan, 1.0)}
    kept = np.concatenate(read(arrays, evaluation(4), 100, held_out=0.2))
    again = np.concatenate(read({"id": np.arange(100, 150)}, evaluation(4), 100, held_out=0.2))
    np.testing.assert_array_equal(kept, again - 100)
    assert len(kept) == 10
    assert sorted(kept) == list(kept)
    assert set(kept) != set(range(40, 50))
    context = inputs.InputContext()
    trained = np.concatenate(read(arrays, train(8), 5, context, held_out=0.2))
    assert sorted([*trained, *kept]) == list(range(50))
    assert context.examples_per_epoch == 40
    assert [context.example_at(position) for position in range(40)] == [each if each % 2 else None for each in trained]


@pytest.mark.parametrize(
    ("count", "held_out", "message"),
    [
        (10, 0, r"held_out is a share of the examples, between 0 and 1, got 0; leave it out"),
        (10, 1.0, r"got 1.0; leave"),
        (10, True, r"got True"),
        (10, "0.2", r"got '0.2'"),
        (1, 0.2, r"the evaluation data are empty: arrays has 1 examples"),
    ],
)
def test_a_share_that_cannot_be_held_out(count, held_out, message):
    """N37."""
    with pytest.raises(inputs.DataError, match=message):
        inputs.from_arrays(np.zeros(count), evaluation(4), held_out=held_out)


@pytest.mark.parametrize(
    ("arrays", "params", "message"),
    [
        ({}, train(4), r"from_arrays\(\) received no array for the training data"),
        ({"x": np.zeros([0, 3])}, evaluation(4), r"the evaluation data are empty: arrays\['x'\] has 0 examples"),
        (
            (np.zeros(3), {"y": np.zeros(4)}),
            train(4),
            r"training data differ in their number of examples: arrays\[0\] has 3, arrays\[1\]\['y'\] has 4",
        ),
        (([1, 2], np.zeros(2)), train(4), r"arrays\[0\] is a list, not an array.*np\.asarray"),
        (
            ({"text": np.array(["a", "b", np.nan], object)}, np.zeros(3)),
            train(3),
            r"from_arrays\(\): no tensor holds these: .*; .*fillna",
        ),
        (
            np.array([["a", 4.0], ["b", 5.0]], object),
            train(2),
            r"from_arrays\(\): no tensor holds these: .*; .*fillna",
        ),
        (np.zeros(3, object), train(3), r"no tensor holds these: .*astype\('float32'\)"),
        (np.zeros(3, "datetime64[s]"), train(3), r"no tensor holds these: "),
        ((np.float32(3), np.zeros(2)), train(4), r"arrays\[0\] is a float32, not an array with a row"),
        (
            {"x": np.zeros(3)},
            evaluation(4, drop_remainder=True),
            "evaluation data have 3 examples, fewer than one batch of 4.*set drop_remainder: false",
        ),
    ],
)
def test_unusable_arrays(arrays, params, message):
    with pytest.raises(inputs.DataError, match=message) as caught:
        inputs.from_arrays(arrays, params)
    assert caught.value.exit_code == ExitCode.DATA


@pytest.mark.parametrize("changes", [{"input_path": "/data/x"}, {"tfds_name": "mnist", "tfds_split": "train"}])
def test_the_fields_that_name_data_are_those_of_the_task(changes):
    """N28: a task that reads a file of its own into arrays finds the path in the data section."""
    (batch,) = inputs.from_arrays(np.arange(3), train(3, **changes)).take(1)
    assert sorted(batch.numpy()) == [0, 1, 2]
