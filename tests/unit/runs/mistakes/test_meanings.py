"""What messages of Keras 3 mean; those of a task of tf_keras are in tests/system."""

import pytest

from official_trainer.errors import first_line
from official_trainer.runs.mistakes.meanings import meaning_of

MIXED = "Layers of Keras 2, that is tf_keras, and of Keras 3 are in one model"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "Only instances of `keras.Layer` can be added to a Sequential model. Received: "
            "<tf_keras.src.layers.core.dense.Dense object at 0x7f53> (of type <class 'tf_keras.src.…Dense'>)",
            MIXED,
        ),
        (
            "The added layer must be an instance of class Layer. Received: layer=<Dense name=dense_2, built=False> of "
            "type <class 'keras.src.layers.core.dense.Dense'>.",
            MIXED,
        ),
        (
            "Only instances of `keras.Layer` can be added to a Sequential model. Received: "
            "<class 'keras.src.layers.core.dense.Dense'> (of type <class 'type'>)",  # not called: of one Keras
            "",
        ),
        (
            "Argument `output` must have rank (ndim) `target.ndim - 1`. Received: target.shape=(32, 3), "
            "output.shape=(32, 3)",
            "`sparse_…` takes class numbers",
        ),
        (
            "Arguments `target` and `output` must have the same shape. Received: target.shape=(32, 1), …",
            "`sparse_…` takes class numbers",
        ),
        (
            "Arguments `target` and `output` must have the same shape up until the last dimension: target.shape=…",
            "`sparse_…` takes class numbers",
        ),
    ],
)
def test_messages_of_keras_3(said, meant):
    """N28: as Keras 3.15 and tf_keras print them."""
    text, _ = meaning_of(ValueError(said))
    assert meant in text if meant else not text


def test_what_a_layer_raises_is_told_without_the_words_of_keras_3_around_it():
    """N28: as printed by Keras 3.15 for a layer without `build`."""
    said = (
        "Could not automatically infer the output shape / "
        "dtype of 'scale' (of type Scale). Either the `Scale.call()` method is incorrect, or you need to implement the "
        "`Scale.compute_output_spec() / compute_output_shape()` method. Error encountered:\n\n"
        "'Scale' object has no attribute 'w'"
    )
    assert first_line(AttributeError(said)) == "'Scale' object has no attribute 'w'"
