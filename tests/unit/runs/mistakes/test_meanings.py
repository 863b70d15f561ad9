"""What messages of Keras 3 mean; those of a task of tf_keras are in tests/system."""

from official_trainer.errors import first_line
from official_trainer.runs.mistakes.meanings import meaning_of
from tests.support import golden


def test_messages_of_keras_3(request):
    """N28: as Keras 3.15 and tf_keras print them; a class that is not called says nothing of two Kerases."""
    golden.check({"what Keras 3 raises": lambda said: meaning_of(ValueError(said))[0]}, request)


def test_what_a_layer_raises_is_told_without_the_words_of_keras_3_around_it():
    """N28: as printed by Keras 3.15 for a layer without `build`."""
    said = (
        "Could not automatically infer the output shape / "
        "dtype of 'scale' (of type Scale). Either the `Scale.call()` method is incorrect, or you need to implement the "
        "`Scale.compute_output_spec() / compute_output_shape()` method. Error encountered:\n\n"
        "'Scale' object has no attribute 'w'"
    )
    assert first_line(AttributeError(said)) == "'Scale' object has no attribute 'w'"
