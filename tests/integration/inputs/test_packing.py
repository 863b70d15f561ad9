"""Packing: no token lost or shared, whole examples in a row, any job, and what is said about mistakes."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import inputs
from tests.integration.inputs.test_random_access import evaluation, train
from tests.support.sources import Sequences

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


def segments(rows):
    """The tokens of each segment of rows `{"tokens", "segment_ids", "positions"}`, `[rows, length]`."""
    found = []
    for tokens, numbers, positions in zip(rows["tokens"], rows["segment_ids"], rows["positions"], strict=True):
        assert (tokens[numbers == 0] == -1).all()
        assert (np.diff(numbers[numbers > 0]) >= 0).all() and (numbers[: (numbers > 0).sum()] > 0).all()
        for number in range(1, numbers.max() + 1):
            part = tokens[numbers == number]
            assert (positions[numbers == number] == np.arange(len(part))).all()
            found.append(part.tolist())
    return found


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(0, 5), st.sampled_from(["error", "split"]), st.booleans())
def test_each_token_is_in_one_row(lengths, seed, too_long, grouped):
    """N44: whole examples, or with `split` their pieces in a row's length; never one over another."""
    length = 40 if too_long == "error" else 7
    source = Sequences(lengths, groups=[len(lengths) // 2, len(lengths) - len(lengths) // 2] if grouped else ())
    if grouped and not (all(source.groups) and any(lengths[: source.groups[0]])):
        return
    packed = inputs.Packed(source, length, fields={"tokens": -1}, too_long=too_long, seed=seed)
    found = segments(packed.take(range(len(packed))))
    wanted = [
        source[n]["tokens"][b : b + length].tolist() for n, size in enumerate(lengths) for b in range(0, size, length)
    ]
    assert sorted(found) == sorted(wanted)
    assert packed.padding_share == pytest.approx(1 - sum(lengths) / (len(packed) * length))
    assert list(packed.lengths) == lengths
    if grouped and any(lengths[: source.groups[0]]):  # else the first group has no row
        first = packed.take(range(packed.groups[0]))["tokens"]
        assert {token // 1000 for token in first[first >= 0]} <= set(range(source.groups[0]))


def test_rows_are_nearly_full():
    """N44: of 2,000 examples like sentences, 0.5 % is padding; the same seed makes the same rows."""
    lengths = np.random.RandomState(1).geometric(1 / 60, 2000).clip(1, 512)
    packed = [inputs.Packed(Sequences(lengths), 512, seed=seed) for seed in (3, 3, 4)]
    assert packed[0].padding_share < 0.005
    assert packed[0].fingerprint() == packed[1].fingerprint() != packed[2].fingerprint()


@settings(max_examples=3, deadline=None)
@given(job=st.sampled_from([(1, 2), (2, 2), (2, 4)]), start_step=st.integers(0, 25), grouped=st.booleans())
def test_any_job_continues_with_the_same_rows(job, start_step, grouped):
    """N44, N42: at any step, on any number of hosts and replicas, in a mixture of packed parts."""
    lengths = np.random.RandomState(2).randint(1, 30, 200)

    def build(context):
        parts = {
            "a": (inputs.Packed(Sequences(lengths, groups=[50] * 4 if grouped else ()), 64), 2),
            "b": (inputs.Packed(Sequences(lengths[:50], first=500), 64), 1),
        }
        return inputs.from_source(inputs.Mixture(parts), train(8, seed=1, shuffle_buffer_size=9), context)

    def tokens(pipelines, replicas, start_step, steps):
        each, parts = replicas // pipelines, []
        for pipeline in range(pipelines):
            context = inputs.InputContext(
                num_input_pipelines=pipelines,
                input_pipeline_id=pipeline,
                num_replicas_in_sync=replicas,
                start_step=start_step,
            )
            elements = build(context).take(steps * each).as_numpy_iterator()
            parts.append(np.stack([element["tokens"] for element in elements]).reshape([steps, -1, 64]))
        return np.concatenate(parts, axis=1)

    alone = tokens(1, 1, 0, start_step + 3)
    np.testing.assert_array_equal(tokens(*job, start_step, 3), alone[start_step:])


def test_an_epoch_has_each_row_once():
    """N44: with several packed fields, each with its own padding."""
    lengths = [3, 9, 4, 1, 8, 2, 2, 5]
    source = inputs.Mapped(Sequences(lengths), lambda example: {**example, "labels": example["tokens"] + 1})
    context = inputs.InputContext()
    packed = inputs.Packed(source, 10, fields={"tokens": -1, "labels": -100})
    batches = list(inputs.from_source(packed, evaluation(2), context).as_numpy_iterator())
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert context.examples_per_epoch == len(rows["tokens"]) == len(packed)
    assert sorted(map(len, segments(rows))) == sorted(lengths)
    np.testing.assert_array_equal(rows["labels"], np.where(rows["segment_ids"] > 0, rows["tokens"] + 1, -100))


def test_lengths_that_are_given_save_reading():
    """N44: an example is then read only for its row."""

    read = collections.Counter()

    class Counted(Sequences):
        def __getitem__(self, index):
            read[index] += 1
            return super().__getitem__(index)

    source = Counted([4] * 20)
    lengths = inputs.lengths_of(source)
    assert set(read.values()) == {1}
    packed = inputs.Packed(source, 8, lengths=lengths)
    assert set(read.values()) == {1} and len(packed) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: inputs.Packed(Sequences([3, 9, 10]), 8),
            "example 1: tokens has 9 items, more than 8, as have 1 others",
        ),
        (lambda: inputs.Packed(Sequences([0, 0]), 8), "no example of Sequences has a token in tokens"),
        (lambda: inputs.Packed([{"x": 1}], 8), "example 0 of list: it has no field 'tokens', only x"),
        (lambda: inputs.Packed([7], 8), "example 0 of list: it is a int, and no dict with a field 'tokens'"),
        (lambda: inputs.Packed([{"tokens": 7}], 8), "example 0 of list: object of type 'int' has no len()"),
        (lambda: inputs.Packed(Sequences([3], bad=[0]), 8), "example 0: its checksum is wrong"),
        (
            lambda: inputs.Packed(Sequences([3]), 8, lengths=[3, 4]),
            "lengths must be 1 whole numbers from 0, got int64 [2]; measure",
        ),
        (lambda: inputs.Packed(Sequences([3]), 8, lengths=[-3]), "lengths must be 1 whole numbers from 0, got int64"),
        (lambda: inputs.Packed(Sequences([3]), 8, fields={"tokens": 0, "positions": 0}), "'positions' is a field that"),
        (lambda: inputs.Packed(inputs.Mixture({"a": ([1], 1)}), 8), "Packed() of a mixture would lose its weights"),
    ],
)
def test_what_cannot_be_packed_is_refused(make, message):
    """N44, N45"""
    with pytest.raises(inputs.DataError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad": [3]}, "packed ones: example 3: its checksum is wrong"),
        ({"other": 3}, "packed ones: example 3: tokens is int64 [4], and int64 [2] is expected"),
        ({"floats": [3]}, "example 3: tokens is float64 [2], and int64 [2] is expected"),
    ],
)
def test_an_example_of_a_row_is_named(options, message):
    """N44, N45: with its row, place and field."""
    lengths = [2] * 6
    given = list(lengths)
    if other := options.pop("other", None):
        lengths[other] = 4
    packed = inputs.Packed(Sequences(lengths, **options), 4, lengths=given)
    with pytest.raises((tf.errors.OpError, inputs.DataError)) as caught:
        list(inputs.from_source(packed, evaluation(8, workers=1)))
    assert message in str(caught.value)
