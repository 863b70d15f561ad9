"""What is said of values of a batch that are not finite."""

import numpy as np
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.engine import non_finite

NAN, INF = float("nan"), float("inf")


def column(*values):
    return tf.constant([[value] for value in values], tf.float32)


def labels():
    return tf.constant([0, 1, 2])


BATCHES = {
    "finite": (lambda: [(column(1, 2, 3), labels())], []),
    "nan": (lambda: [(column(1, NAN, 3), labels())], ["features float32[3,1]: 1 value is nan, in row 1"]),
    "inf": (
        lambda: [(column(1, INF, -INF), labels())],
        ["features float32[3,1]: 2 values are inf or -inf, in rows 1, 2"],
    ),
    "labels": (lambda: [(column(1, 2), column(NAN, 0))], ["labels float32[2,1]: 1 value is nan, in row 0"]),
    "integers": (lambda: [(labels(), labels())], []),
    "nested": (
        lambda: [({"a": column(1, 2, 3), "b": {"c": column(NAN, NAN, NAN)}}, labels())],
        ["features['b']['c'] float32[3,1]: 3 values are nan, in all 3 rows"],
    ),
    "no labels": (lambda: [{"x": tf.constant([1.0, NAN])}], ["batch['x'] float32[2]: 1 value is nan, in row 1"]),
    "column": (
        lambda: [tf.constant([[1, NAN, 1], [2, NAN, 2]])],
        ["batch float32[2,3]: 2 values are nan in column 1, in all 2 rows"],
    ),
    "many rows": (
        lambda: [tf.constant([[NAN, 1.0], [1, NAN]] + [[1, 1]] * 3 + [[NAN, NAN]] * 4)],
        ["batch float32[9,2]: 10 values are nan, in rows 0, 1, 5 and 3 more"],
    ),
    "ragged": (
        lambda: [tf.ragged.constant([[1.0], [1.0, NAN]])],
        ["batch float32[2,?]: 1 value is nan in column 1, in row 1"],
    ),
    "sparse": (
        lambda: [tf.sparse.from_dense([[0.0, 0], [NAN, 0]])],
        ["batch float32[2,2]: 1 value is nan in column 0, in row 1"],
    ),
    "bfloat16": (lambda: [tf.cast(column(1, NAN), tf.bfloat16)], ["batch bfloat16[2,1]: 1 value is nan, in row 1"]),
    "complex": (lambda: [tf.complex([1.0, 2.0], [0.0, NAN])], ["batch complex64[2]: 1 value is nan, in row 1"]),
    "second replica": (
        lambda: [(column(1, 2), labels()[:2]), (column(1, NAN), labels()[:2])],
        ["features float32[2,1]: 1 value is nan, in row 3, on replica 1"],
    ),
    "many tensors": (
        lambda: [tuple(column(NAN) for _ in range(5))],
        [*(f"batch[{i}] float32[1,1]: 1 value is nan, in row 0" for i in range(3)), "and 2 more tensors"],
    ),
}


def test_the_tensor_and_the_rows_of_a_batch_are_named():
    """N28"""
    found = {name: non_finite.in_batch(parts()) for name, (parts, _) in BATCHES.items()}
    assert found == {name: lines for name, (_, lines) in BATCHES.items()}


def test_what_may_hold_them_is_left_out():
    """N10: by its key, or by its name in the batch."""
    batch = ({"age": column(NAN, 1), "sex": column(1, INF)}, column(NAN, 0))
    assert [line.split()[0] for line in non_finite.in_batch([batch], allowed=["age", "labels"])] == ["features['sex']"]


def test_the_example_in_the_arrays_is_named():
    """N28: behind the shuffle; not where something after it has moved the examples."""
    values = np.arange(40, dtype="float32")
    values[17] = NAN
    context = inputs.InputContext()
    batches = inputs.from_arrays(values, DataConfig(global_batch_size=8, is_training=True), context)
    for number, batch in enumerate(batches.take(5)):
        if lines := non_finite.in_batch([batch], lambda row, first=8 * number: context.example_at(first + row)):
            assert lines[0].endswith(": example 17") and np.isnan(batch[int(lines[0].split()[-3].strip(":"))])
            moved = non_finite.in_batch([batch[::-1]], lambda row, first=8 * number: context.example_at(first + row))
            assert "example" not in moved[0]
            return
    raise AssertionError("no batch of the epoch holds it")
