"""What is a source, and the tensors that values of Python become."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode


def evaluation(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=False, **fields)


def test_values_become_tensors_with_the_types_of_python():
    """N41: numbers are int64 and float32, text is string, arrays keep their type, lists are arrays."""
    example = {"i": 1, "f": 0.5, "t": "é", "b": True, "a": np.zeros([2], np.float64), "l": [1, 2], "p": (1, "x")}
    spec = inputs.from_source([example] * 3, evaluation(2)).element_spec
    found = {key: (value.dtype.name, value.shape.as_list()) for key, value in spec.items() if key != "p"}
    assert found == {
        "i": ("int64", [None]),
        "f": ("float32", [None]),
        "t": ("string", [None]),
        "b": ("bool", [None]),
        "a": ("float64", [None, 2]),
        "l": ("int64", [None, 2]),
    }
    assert [part.dtype for part in spec["p"]] == [tf.int64, tf.string]


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (iter([1]), "__len__ and __getitem__, got a list_iterator; an iterable has no order to start in the middle of"),
        ({"id": 1}, "__len__ and __getitem__, got a dict"),
        (None, "is not set, and from_source() needs it"),
        ([], "from_source(): the evaluation data are empty: list has no example"),
        ([{}], "example 0 of list: it has no field"),
        ([{"id": None}], "example 0 of list: id is None; fill in what is missing"),
        ([{"id": object()}], "example 0 of list: id is a object, which no tensor holds"),
        ([{"id": [[1], [2, 3]]}], "example 0 of list: id is no array, because its parts differ in length"),
        ([{"id": np.datetime64("2026-01-01")}], "id is a time (datetime64[D]); convert it to a number"),
    ],
)
def test_what_is_no_source_is_refused(thing, message):
    """N45"""
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_source(thing, evaluation())
    assert message in str(caught.value)
    assert caught.value.exit_code == ExitCode.DATA
