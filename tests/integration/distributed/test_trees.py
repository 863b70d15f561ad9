"""Trees of TensorFlow's values: in files, and compared between replicas."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import trees
from official_trainer.distributed import ReplicaIntegrityError
from tests.support import toy
from tests.support.cases import cases


def test_values_of_tensorflow_come_back_bit_by_bit(tmp_path):
    """B15, T16: bfloat16, which is not NumPy's; variables as the arrays that they hold; ragged and sparse ones."""
    numbers = tf.constant([1.5, float("nan"), float("-inf"), -0.0], tf.bfloat16)
    tree = {
        "tensor": numbers,
        "array": numbers.numpy(),
        "variable": tf.Variable(numbers),
        "steps": tf.Variable(2**40, dtype=tf.int64),
        "ragged": tf.ragged.constant([[1.0], []]),
        "words": tf.constant([b"a", b"\0"]),
        "sparse": tf.sparse.from_dense([[0, 5]]),
    }
    trees.write(tmp_path / "tree.json", tree)
    found = trees.read(tmp_path / "tree.json")
    for name in ("tensor", "array", "variable"):
        assert np.asarray(found[name]).tobytes() == numbers.numpy().tobytes(), name
        assert found[name].dtype == tree[name].dtype, name
    assert tf.is_tensor(found["tensor"]) and isinstance(found["variable"], np.ndarray)
    assert (int(found["steps"]), found["steps"].dtype) == (2**40, np.int64)
    assert found["ragged"].to_list() == [[1.0], []] and found["words"].numpy().tolist() == [b"a", b"\0"]
    assert tf.sparse.to_dense(found["sparse"]).numpy().tolist() == [[0, 5]]


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_the_weights_of_a_model_are_read_back(tmp_path, strategy):
    """B15: variables of any strategy."""
    trainer = toy.build(strategy=strategy)
    trainer.run_steps(2)
    named = trainer.checkpoint_state.named_variables()
    trees.write(tmp_path / "weights.json", named)
    found = trees.read(tmp_path / "weights.json")
    assert found.keys() == named.keys()
    assert all(found[path].tobytes() == named[path].numpy().tobytes() for path in named)
    assert trees.gather(named).pop().keys() == named.keys()


def test_replicas_of_a_tree_are_compared():
    """B15, B9: variables and values of replicas; the message names the path, the replicas and the difference."""
    strategy = toy.strategy_of("mirrored2")
    with strategy.scope():
        tree = {"weights": [tf.Variable([1.0, 2.0]), tf.Variable(3)], "loss": 0.5}
    tree["outputs"] = strategy.run(lambda: tf.constant([1.0], tf.bfloat16))
    trees.assert_replica_integrity(tree)
    tree["weights"][0].values[1].assign([1.0, 2.25])
    said = r"^replicas hold different values of weights/0: replicas 0 \(.*CPU:0\), 1 \(.*CPU:1\) differ by up to 0.25"
    with pytest.raises(ReplicaIntegrityError, match=said):
        trees.assert_replica_integrity(tree)
    trees.assert_replica_integrity(tree, relative_tolerance=0.125)
    own = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(ReplicaIntegrityError, match=r"values of the value: .*differ by up to 1"):
        trees.assert_replica_integrity(own)
