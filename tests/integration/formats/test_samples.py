"""What formats are made from: features as named inputs, and inputs that a signature takes."""

import types

import keras as keras3
import numpy as np
import pytest

from official_trainer.formats import samples
from official_trainer.formats.kinds import FormatError
from official_trainer.lazy import keras, tf

LEFT, RIGHT = np.zeros([2, 4], "float32"), np.ones([2, 3], "float32")


def pair(of=keras, size=4):
    """A model of two inputs."""
    left, right = of.Input([size], name="left"), of.Input([3], name="right")
    return of.Model({"a": left, "b": right}, of.layers.Concatenate()([left, right]))


def test_features_are_found_by_name_by_key_or_in_order():
    """N46: whatever form the data have; what no input takes is left out."""
    ids = np.zeros([2], "int64")
    by_name, by_key = {"left": LEFT, "right": RIGHT, "id": ids}, {"a": LEFT, "b": RIGHT, "id": ids}
    for features in (by_name, by_key, {"x": LEFT, "y": RIGHT}, (LEFT, RIGHT)):
        arrays = samples.arrays(pair(), tf.nest.map_structure(tf.constant, features))
        assert {name: value.shape for name, value in arrays.items()} == {"left": (2, 4), "right": (2, 3)}


@pytest.mark.parametrize("of", [keras, keras3], ids=["tf_keras", "keras3"])
def test_features_have_the_type_and_the_rank_that_keras_gives_them(of):
    """N46: it trains with float64, with whole numbers, without and with a last dimension of 1, and says nothing."""
    for left in (np.arange(2), np.arange(2.0), np.arange(2)[:, None], np.arange(2)[:, None, None]):
        features = {"a": tf.constant(left), "b": tf.constant(RIGHT.astype("float64"))}
        arrays = samples.arrays(pair(of, size=1), features)
        assert {(value.dtype.name, value.shape) for value in arrays.values()} == {
            ("float32", (2, 1)),
            ("float32", (2, 3)),
        }
        assert arrays["left"].ravel().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: (LEFT[:, :2], RIGHT),
            r"'left' of the model is float32 \[None, 4\], and the data give float32 \[2, 2\]",
        ),
        (lambda: (np.array([["a"], ["b"]]), RIGHT), r"and the data give string \[2, 1\]; make such features"),
        (lambda: (LEFT,), "the model has 2 inputs, left, right, and the data 1 features"),
        (lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]), "features are a RaggedTensor; files of other formats take"),
        (lambda: tf.zeros([2, 4], tf.bfloat16), "features are bfloat16, .*; read them as float32, by task.validation"),
    ],
)
def test_features_that_no_file_takes_are_refused(make, message):
    """N46: before anything is converted, with no value of the batch."""
    features = make()
    features = tuple(map(tf.constant, features)) if isinstance(features, tuple) else features
    with pytest.raises(FormatError, match=message):
        samples.named(pair(), features)


def test_a_task_without_data_is_refused():
    """N46: there is nothing to compare formats on."""
    config = types.SimpleNamespace(task=types.SimpleNamespace())
    with pytest.raises(FormatError, match="with data, and the task has no validation_data and no train_data"):
        samples.read(types.SimpleNamespace(config=config))


def test_inputs_of_a_signature_are_features_random_numbers_or_none():
    """N46: of the sizes of features where it leaves them free; a text cannot be made up."""

    def of(shape, dtype):
        return tf.function(lambda x: {"x": x}, input_signature=[tf.TensorSpec(shape, dtype, name="x")])

    features = [{"x": LEFT}]
    assert samples.for_signature(of([None, 4], tf.float32), features)[0] is features
    (batch,), (outputs,) = samples.for_signature(of([None, None], tf.uint8), features)
    assert batch["x"].shape == (2, 4) and np.array_equal(outputs["x"], batch["x"])
    assert samples.for_signature(of([None], tf.string), features) is None
