"""What formats are made from: features as named inputs, and inputs that a signature takes."""

import types

import keras as keras3
import numpy as np
import pytest

from official_trainer.formats import samples
from official_trainer.formats.kinds import FormatError
from official_trainer.lazy import keras, tf

LEFT, RIGHT = np.zeros([2, 4], "float32"), np.ones([2, 3], "float32")


@pytest.fixture(scope="module")
def pair():
    """A model of two inputs."""
    left, right = keras.Input([4], name="left"), keras.Input([3], name="right")
    return keras.Model({"a": left, "b": right}, keras.layers.Concatenate()([left, right]))


@pytest.mark.parametrize(
    "features",
    [
        {"left": LEFT, "right": RIGHT, "id": np.zeros([2], "int64")},
        {"a": LEFT, "b": RIGHT, "id": np.zeros([2], "int64")},
        {"x": LEFT, "y": RIGHT},
        (LEFT, RIGHT),
    ],
)
def test_features_are_found_by_name_by_key_or_in_order(pair, features):
    """N46: whatever form the data have; what no input takes is left out."""
    found = samples.arrays(pair, tf.nest.map_structure(tf.constant, features))
    assert {name: value.shape for name, value in found.items()} == {"left": (2, 4), "right": (2, 3)}


KERASES = pytest.mark.parametrize("of", [keras, keras3], ids=["tf_keras", "keras3"])


@KERASES
def test_features_have_the_type_and_the_rank_that_keras_gives_them(of):
    """N46: it trains with float64, with whole numbers, without and with a last dimension of 1, and says nothing."""
    left, right = of.Input([1], name="left"), of.Input([3], name="right")
    model = of.Model({"left": left, "right": right}, of.layers.Concatenate()([left, right]))
    for one in (np.arange(2), np.arange(2.0), np.arange(2)[:, None], np.arange(2)[:, None, None]):
        features = {"left": tf.constant(one), "right": tf.constant(RIGHT.astype("float64"))}
        found = samples.arrays(model, features)
        assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
            "left": (np.float32, (2, 1)),
            "right": (np.float32, (2, 3)),
        }
        assert found["left"].ravel().tolist() == [0, 1]


@pytest.mark.parametrize("one", [np.array([["a"], ["b"]]), LEFT[:, :2]], ids=["texts", "another size"])
def test_features_that_are_not_those_of_the_model_are_refused(pair, one):
    """N46: by what is wanted and given, and with no value of the batch."""
    given = r"(string \[2, 1\]|float32 \[2, 2\])"
    said = rf"the input 'left' of the model is float32 \[None, 4\], and the data give {given}; make such features"
    with pytest.raises(FormatError, match=said):
        samples.named(pair, (tf.constant(one), tf.constant(RIGHT)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: (tf.constant(LEFT),), "the model has 2 inputs, left, right, and the data 1 features"),
        (
            lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
            "features are a RaggedTensor; files of other formats take dense",
        ),
        (lambda: tf.sparse.from_dense(LEFT), "features are a SparseTensor; files of other formats take dense"),
        (
            lambda: tf.zeros([2, 4], tf.bfloat16),
            "features are bfloat16, .*; read them as float32, by task.validation_data.dty",
        ),
    ],
)
def test_features_that_no_file_takes_are_refused(pair, make, said):
    """N46: before anything is converted."""
    with pytest.raises(FormatError, match=said):
        samples.named(pair, make())


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"task_routines": ()}, "formats are of one task, and this experiment has several"),
        ({}, "formats are made and compared with data, and the task has no validation_data and no train_data"),
        ({"validation_data": 1, "section": "train_data"}, "and the task has no train_data$"),
    ],
)
def test_a_task_without_data_of_its_own_is_refused(task, said):
    """N46: there is nothing to compare formats on, or to calibrate them with."""
    section = task.pop("section", None)
    config = types.SimpleNamespace(task=types.SimpleNamespace(**task))
    with pytest.raises(FormatError, match=said):
        samples.read(types.SimpleNamespace(config=config), section)


def test_inputs_of_a_signature_are_features_random_numbers_or_none():
    """N46: of the sizes of features where it leaves them free; a text cannot be made up."""

    def of(shape, dtype):
        return tf.function(lambda x: {"x": x}, input_signature=[tf.TensorSpec(shape, dtype, name="x")])

    features = [{"x": LEFT}]
    assert samples.for_signature(of([None, 4], tf.float32), features)[0] is features
    (batch,), (outputs,) = samples.for_signature(of([None, None], tf.uint8), features)
    assert batch["x"].shape == (2, 4) and batch["x"].dtype == np.uint8
    assert np.array_equal(outputs["x"], batch["x"])
    assert samples.for_signature(of([None], tf.string), features) is None
