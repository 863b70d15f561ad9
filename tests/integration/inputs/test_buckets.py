"""Buckets: the examples of a window regrouped by length, the same batches on any job, padding, and mistakes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import inputs
from official_trainer.inputs import order
from tests.integration.inputs.test_random_access import evaluation, flat, ids, train
from tests.support.sources import Columns, Sequences

LENGTHS = np.random.RandomState(4).randint(1, 33, 150)
BUCKETS = inputs.Buckets(boundaries=(8, 16, 24, 32), fields={"tokens": -1}, window_steps=6)


def jobs_batches(build, steps, *, pipelines=1, replicas=1, start_step=0):
    """Each global batch of a whole job: the ids, the tokens and the lengths of the parts of all replicas."""
    each, parts = replicas // pipelines, []
    for pipeline in range(pipelines):
        context = inputs.InputContext(
            num_input_pipelines=pipelines,
            input_pipeline_id=pipeline,
            num_replicas_in_sync=replicas,
            start_step=start_step,
        )
        elements = list(build(context).take(steps * each).as_numpy_iterator())
        parts.append([elements[step * each : (step + 1) * each] for step in range(steps)])
    whole = [flat(step) for step in zip(*parts, strict=True)]
    return [
        (flat(part["id"].tolist() for part in step), {part["tokens"].shape[1] for part in step}, step) for step in whole
    ]


def sources(kind):
    if kind == "mixture":
        half = {"a": (Sequences(LENGTHS[:70]), 1), "b": (Sequences(LENGTHS[70:], first=70), 2)}
        return inputs.Mixture(half)
    return Sequences(LENGTHS, groups=[30] * 5 if kind == "groups" else ())


@settings(max_examples=5, deadline=None)
@given(
    kind=st.sampled_from(["plain", "groups", "mixture"]),
    job=st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 4)]),
    start_step=st.integers(0, 60),
    shuffle=st.booleans(),
)
def test_any_job_continues_with_the_same_batches_of_one_length(kind, job, start_step, shuffle):
    """N44, N42: all replicas of a step have the same bucket; at any step, on any number of hosts."""

    def build(context):
        params = train(8, seed=5, shuffle=shuffle, shuffle_buffer_size=40)
        return inputs.from_source(sources(kind), params, context, buckets=BUCKETS)

    alone = jobs_batches(build, start_step + 3)
    pipelines, replicas = job
    continued = jobs_batches(build, 3, pipelines=pipelines, replicas=replicas, start_step=start_step)
    assert [step[:2] for step in continued] == [step[:2] for step in alone[start_step:]]
    for numbers, lengths, _ in alone:
        longest = LENGTHS[numbers].max()
        assert lengths == {min(size for size in BUCKETS.boundaries if size >= longest)}


@pytest.mark.parametrize("kind", ["plain", "groups", "mixture"])
def test_a_window_has_the_examples_that_it_has_without_buckets(kind):
    """N44: so each example comes once in an epoch wherever it does without them; batches are full."""
    params = train(8, seed=5, shuffle_buffer_size=40)
    ends = [lambda example: {"id": example["id"]}]
    plain = flat(ids(inputs.from_source(sources(kind), params, transforms=ends), 48))
    found = flat(ids(inputs.from_source(sources(kind), params, buckets=BUCKETS), 48))
    assert found != plain
    for first in range(0, len(plain), 48):
        assert sorted(found[first : first + 48]) == sorted(plain[first : first + 48])


def test_few_batches_mix_buckets_and_padding_shrinks():
    """N44: in a window at most one for each boundary."""
    lengths = np.random.RandomState(1).randint(1, 33, 4000)
    buckets = inputs.Buckets(boundaries=(8, 16, 24, 32), window_steps=100)
    dataset = inputs.from_source(Sequences(lengths), train(16), buckets=buckets)
    batches = list(dataset.take(100).as_numpy_iterator())
    per_batch = [{np.searchsorted(buckets.boundaries, size) for size in lengths[batch["id"]]} for batch in batches]
    assert sum(len(found) > 1 for found in per_batch) <= 3
    assert sorted({batch["tokens"].shape[1] for batch in batches}) == [8, 16, 24, 32]
    assert {len(batch["id"]) for batch in batches} == {16}
    used = sum(lengths[batch["id"]].sum() for batch in batches)
    assert 1 - used / sum(batch["tokens"].size for batch in batches) < 0.25


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_evaluation_has_each_example_once(hosts):
    """N44: its last batch may be smaller."""
    found = []
    for host in range(hosts):
        context = inputs.InputContext(num_input_pipelines=hosts, input_pipeline_id=host, num_replicas_in_sync=hosts)
        found += flat(ids(inputs.from_source(Sequences(LENGTHS), evaluation(8), context, buckets=BUCKETS)))
    assert sorted(found) == list(range(150))


@pytest.mark.parametrize("workers", [{"workers": 1}, {"workers": 2, "use_multiprocessing": True}])
def test_fields_are_padded_each_with_its_value(workers):
    """N44: in pairs and deeper fields, by their paths; others stay; in threads and in processes."""
    buckets = inputs.Buckets(boundaries=(4, 6), fields={"[0].x": -1, "[1]": 0.5})
    batches = list(inputs.from_source(PAIRS, evaluation(2, **workers), buckets=buckets).as_numpy_iterator())
    (features, labels), (longer, others) = batches
    np.testing.assert_array_equal(features["x"], [[[7, 7]] * 2 + [[-1, -1]] * 2, [[7, 7]] * 4])
    np.testing.assert_array_equal(labels, [[1.0, 1.0, 0.5, 0.5], [1.0] * 4])
    assert features["n"].tolist() == [2, 4] and longer["x"].shape == (2, 6, 2) and others.shape == (2, 6)


PAIRS = [({"x": [[7, 7]] * size, "n": size}, [1.0] * size) for size in (2, 4, 5, 6)]


def test_a_block_of_batches_of_several_lengths_holds_one():
    """N44: windows that XLA compiles take blocks of one batch each, so that lengths may differ."""
    dataset = inputs.from_source(Sequences(LENGTHS), train(8), buckets=BUCKETS)
    shapes = {block["tokens"].shape for block in order.stack_windows(dataset, 64).take(12).as_numpy_iterator()}
    assert shapes == {(1, 8, size) for size in BUCKETS.boundaries}


def test_an_example_that_is_longer_than_measured_is_named():
    """N44, N45: given lengths that are of other data."""
    buckets = inputs.Buckets(boundaries=(8, 32), lengths=[5] * 150)
    with pytest.raises(tf.errors.OpError) as caught:
        list(inputs.from_source(Sequences(LENGTHS), evaluation(150, workers=1), buckets=buckets))
    first = int((LENGTHS > 8).argmax())
    assert f"example {first}: tokens has {LENGTHS[first]} items, and the lengths that were measured leave 8" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Sequences([3, 9, 12]), {"boundaries": (4, 8)}, "example 1: tokens has 9 items, more than 8, as have 1 others"),
        (Columns(3), {"boundaries": (4,)}, "example 0: it has no field 'tokens' to pad, only scalars"),
        (Sequences([3]), {"boundaries": (4,), "fields": {"word": 0}}, "has no field 'word' to pad, only tokens"),
        (
            Sequences([3]),
            {"boundaries": (4,), "lengths": [1, 2]},
            "lengths must be 1 whole numbers from 0, got int64 [2]",
        ),
        (Sequences([3, 3], bad=[1]), {"boundaries": (4,)}, "example 1: its checksum is wrong"),
        (Sequences([3]), {"boundaries": (4, 4)}, "boundaries must rise, from 1 or more, got (4, 4)"),
        (Sequences([3]), {"boundaries": ()}, "boundaries must rise, from 1 or more, got ()"),
        (Sequences([3]), {"boundaries": (4,), "fields": {}}, "give at least one field"),
    ],
)
def test_what_fits_no_bucket_is_refused(source, options, message):
    """N44, N45"""
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_source(source, train(), buckets=inputs.Buckets(**options))
    assert message in str(caught.value)
