"""What a SavedModel computes for one made-up example."""

import numpy as np

from tests.support.garden import data

SHAPES = {(4, 3): [data.SIZE, data.SIZE, 3], (5, 3): [4, 32, 32, 3], (5, 1): [data.VOLUME, data.VOLUME, data.VOLUME, 1]}
"""Of an image, a clip and a volume, by the rank of a batch and the channels."""


def served(directory):
    """Returns the outputs of its `serving_default`."""
    import tensorflow as tf

    model = tf.saved_model.load(str(directory))
    serve = model.signatures["serving_default"]
    rng = np.random.default_rng(0)
    inputs = {}
    for name, spec in serve.structured_input_signature[1].items():
        if spec.dtype == tf.string:
            inputs[name] = tf.constant(["the big cat sees a dog"])
            continue
        length = data.PREDICTIONS if name == "masked_lm_positions" else data.SEQUENCE
        shape = [length] if spec.dtype != tf.uint8 else SHAPES[len(spec.shape), spec.shape[-1]]
        inputs[name] = tf.constant(rng.integers(0, 255 if spec.dtype == tf.uint8 else 2, [1, *shape]), spec.dtype)
    return {name: value.numpy() for name, value in serve(**inputs).items()}
