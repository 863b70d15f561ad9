"""What messages of Keras 3 mean; those of a task of tf_keras are in tests/system."""

import pytest

from official_trainer.errors import first_line
from official_trainer.runs.mistakes.meanings import meaning_of, swap_of
from tests.support import golden


def test_messages_of_keras_3(request):
    """N28: as Keras 3.15 and tf_keras print them; a class that is not called says nothing of two Kerases."""
    golden.check({"what Keras 3 raises": lambda said: meaning_of(ValueError(said))[0]}, request)


@pytest.mark.parametrize(
    ("said", "batch", "is_meant"),
    [
        ("expected shape=(None, 13), found shape=(32,)", "features int64[32], labels float32[32,13]", True),
        ("Expected shape (None, 8, 8, 1), but input has …", "features int64[?], labels uint8[?,8,8,1]", True),
        ("expected shape=(None, 13), found shape=(32, 12)", "features float32[32,12], labels int64[32]", False),
        ("expected shape=(None, 13), found shape=(32, 12)", "features float32[32,12], labels float32[32,3]", False),
        ("expected min_ndim=2, found ndim=1", "features int64[32], labels float32[32,13]", False),
    ],
)
def test_features_and_labels_in_each_others_place(said, batch, is_meant):
    """N28: the shape of the labels shows it, as both Kerases print the one that the model is built for."""
    meant = "The labels have the shape of the model's input: have build_inputs yield (features, labels), in this order."
    assert swap_of(ValueError(said), batch) == (meant if is_meant else "")


def test_what_a_layer_raises_is_told_without_the_words_of_keras_3_around_it():
    """N28: as printed by Keras 3.15 for a layer without `build`."""
    said = (
        "Could not automatically infer the output shape / "
        "dtype of 'scale' (of type Scale). Either the `Scale.call()` method is incorrect, or you need to implement the "
        "`Scale.compute_output_spec() / compute_output_shape()` method. Error encountered:\n\n"
        "'Scale' object has no attribute 'w'"
    )
    assert first_line(AttributeError(said)) == "'Scale' object has no attribute 'w'"
