"""What processes of a run send each other, where it is TensorFlow's."""

import pytest
import tensorflow as tf

from official_trainer.distributed.messages import UnsendableError, decode, encode


def _dense(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    return tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.constant([[1, 2]], tf.int64),
        lambda: tf.constant([1.5, -0.0], tf.bfloat16),
        lambda: tf.constant([b"a", b"\0"]),
        lambda: tf.constant(3.0),
        lambda: tf.ragged.constant([[[1.0], []], [[2.0, 3.0]]]),
        lambda: tf.sparse.from_dense([[0, 5], [6, 0]]),
    ],
)
def test_tensors_arrive_as_they_are(make):
    """T16: a task may hand over to its workers what its steps return."""
    value = make()
    found = decode(encode({"of": (value,)}), "worker 1")["of"][0]
    assert type(found) is type(value)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert bool(tf.reduce_all(_dense(found) == _dense(value)))


def test_an_object_of_a_task_is_refused_with_its_place():
    """T16: and with what can be sent."""
    said = r"^\['boxes'\]: a value of class object cannot be sent to the other workers, nor written to a file; use"
    with pytest.raises(UnsendableError, match=said):
        encode({"boxes": [object()]})
