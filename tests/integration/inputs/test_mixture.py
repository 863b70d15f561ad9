"""Mixtures: exact shares at every position, each part's own epochs, any job, and what is said about mistakes."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import inputs
from tests.integration.inputs.test_random_access import evaluation, flat, global_batches, ids, train
from tests.support.sources import Columns, Numbers

GROUPS = (10, 3, 17, 1, 12, 10)


class Above(Columns):
    """Examples whose `id` begins at a number of their own."""

    def __init__(self, first, count, **options):
        super().__init__(count, **options)
        self._first = first

    def __getitem__(self, index):
        example = super().__getitem__(index)
        return {**example, "id": example["id"] + self._first}

    def take(self, indices):
        batch = super().take(indices)
        return {**batch, "id": batch["id"] + self._first}


def parts(weights, sizes):
    """Parts whose examples are numbered by hundreds: in columns, in groups of examples, one by one."""
    made = {}
    for number, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
        groups = (3,) * (size // 3) + (size % 3,) * bool(size % 3) if number % 3 == 1 else ()
        source = Above(100 * number, size, groups=groups)
        made["abcdefgh"[number]] = (source if number % 3 else list(source.__getitems__(range(size))), weight)
    return made


class Holding(Columns):
    """Knows how many examples it may hold."""

    expected = 0

    def expect(self, examples):
        self.expected = examples


def test_parts_hold_the_groups_that_are_needed():
    """N44: those of two windows of a shuffle, and of what a worker reads ahead."""
    rows = Holding(100, groups=(10,) * 10)
    mixture = inputs.Mixture({"rows": (rows, 1), "more": (Columns(100), 2)})
    inputs.from_source(mixture, train(8, workers=1, shuffle_buffer_size=20))
    assert rows.expected == 64 * 8 + 2 * 20


@settings(max_examples=4, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=5), st.integers(0, 50))
def test_every_prefix_has_its_shares_and_each_part_its_epochs(weights_and_sizes, seed):
    """N44: never as much as one example off, and no example of a part again before all its others."""
    weights, sizes = zip(*weights_and_sizes, strict=True)
    mixture = inputs.Mixture(parts(weights, sizes))
    read = np.asarray(flat(ids(inputs.from_source(mixture, train(16, seed=seed, shuffle_buffer_size=7)), 20)))
    steps = np.arange(1, len(read) + 1)
    for number, (weight, size) in enumerate(weights_and_sizes):
        done = np.cumsum(read // 100 == number)
        assert (np.abs(done * sum(weights) - steps * weight) < sum(weights)).all()
        own = read[read // 100 == number] % 100
        for epoch in np.split(own, range(size, len(own), size)):  # the last is cut off
            assert len(set(epoch)) == len(epoch) and set(epoch) <= set(range(size))


def test_weights_that_need_a_longer_table_are_rounded():
    """N44: to a hundred-thousandth of all."""
    shares = inputs.Mixture({"a": ([1], 1 / 3), "b": ([2], 1 / 7), "c": ([3], 1 / 11)}).shares
    exact = np.asarray([1 / 3, 1 / 7, 1 / 11])
    np.testing.assert_allclose(list(shares.values()), exact / exact.sum(), atol=1e-5)
    assert sum(shares.values()) == 1
    assert inputs.Mixture({"a": ([1], 0.1), "b": ([2], 0.7)}).shares == {"a": 0.125, "b": 0.875}


@settings(max_examples=4, deadline=None)
@given(
    job=st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 4)]),
    start_step=st.integers(0, 60),
    batch=st.sampled_from([4, 12]),
    shuffle=st.booleans(),
)
def test_any_job_continues_with_the_same_examples(job, start_step, batch, shuffle):
    """N44, N42: a mixture in a mixture, at any step, on any number of hosts and replicas."""

    def build(context):
        inner = inputs.Mixture(parts([1, 1], [23, 53]))
        mixture = inputs.Mixture({"inner": (inner, 3), "other": (Above(500, 31), 2)})
        return inputs.from_source(mixture, train(batch, seed=5, shuffle=shuffle), context)

    alone = global_batches(build, start_step + 3)
    pipelines, replicas = job
    assert global_batches(build, 3, pipelines=pipelines, replicas=replicas, start_step=start_step) == alone[start_step:]
    assert sum(each >= 500 for each in flat(alone)) == pytest.approx(0.4 * batch * (start_step + 3), abs=1)


def test_parts_shuffle_apart():
    """N44: two parts with the same examples have other orders."""
    same = {name: (Columns(53), 1) for name in ("a", "b")}
    read = flat(ids(inputs.from_source(inputs.Mixture(same), train(seed=5)), 13))
    assert read[::2] != read[1::2] and sorted(read[::2][:52]) != read[::2][:52]


def test_an_evaluation_has_each_example_of_each_part_once():
    """N44: part after part, whatever the weights."""
    mixture = inputs.Mixture(parts([9, 1], [5, 7]))
    context = inputs.InputContext()
    assert flat(ids(inputs.from_source(mixture, evaluation(), context))) == [*range(5), *range(100, 107)]
    assert context.examples_per_epoch == 12


@pytest.mark.parametrize("transforms", [(), [dict]])
def test_examples_of_parts_share_batches(transforms):
    """N44: in one batch of columns or one by one."""
    mixture = inputs.Mixture(parts([1, 2, 1], [5, 7, 9]))
    batch = next(inputs.from_source(mixture, train(32), transforms=transforms).as_numpy_iterator())
    assert collections.Counter((batch["id"] // 100).tolist()) == {0: 8, 1: 16, 2: 8}
    assert all(text == b"number %d" % (number % 100) for text, number in zip(batch["text"], batch["id"], strict=True))


@pytest.mark.parametrize(
    ("mixed", "message"),
    [
        ({}, "a mixture needs parts"),
        ({"a": ([], 1)}, "part 'a' of the mixture has no example"),
        ({"a": (iter([1]), 1)}, "part 'a' of the mixture: from_source() needs examples by their number"),
        ({"a": ([1], 1), "b": ([2], 0)}, "part 'b' of the mixture: the weight must be above 0, got 0"),
        ({"a": ([1], 1), "b": ([2], float("nan"))}, "part 'b' of the mixture: the weight must be above 0, got nan"),
        ({"a": ([1], 1.0), "b": ([2], 1e-9)}, "part 'b' of the mixture: its share is below 1 in 100,000"),
    ],
)
def test_parts_that_make_no_mixture_are_refused(mixed, message):
    """N44"""
    with pytest.raises(inputs.DataError) as caught:
        inputs.Mixture(mixed)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Numbers(9, bad=[4]), "b: example 4: its checksum is wrong"),
        ([{"id": 1}] * 9, "b: example 0 of list: it has id, and the first example id, text"),
        ([{"id": 1.5, "text": ""}] * 9, "b: example 0 of list: id is float32, and in the first example int64"),
    ],
)
def test_an_example_that_fits_badly_is_named_with_its_part(second, message):
    """N44, N45: by the part, the example and the field."""
    with pytest.raises((inputs.DataError, tf.errors.OpError)) as caught:
        ids(inputs.from_source(inputs.Mixture({"a": (Numbers(5), 1), "b": (second, 1)}), evaluation(14, workers=1)))
    assert message in str(caught.value)
    assert isinstance(caught.value, inputs.DataError) == isinstance(second, list), "other fields, before training"


def test_a_mixture_changes_with_its_parts():
    """N44, N45: its fingerprint has the shares, the sizes and the fingerprints of the parts."""
    sizes = [(3, 4), (4, 4)]
    found = {inputs.Mixture(parts(weights, size)).fingerprint() for weights in [(1, 2), (2, 1)] for size in sizes}
    assert len(found) == 4
