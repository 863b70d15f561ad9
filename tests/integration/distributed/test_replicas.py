"""Values that replicas keep separately: each gets its own back from a checkpoint, or all get the common one."""

import pytest
import tensorflow as tf

from official_trainer.distributed.replicas import ReplicaValues, ValueBackup, synchronize_replicas


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def mean(strategy):
    """A statistic as batch norm has it: 1 on the first replica, 2 on the second."""
    with strategy.scope():
        on_read, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.MEAN
        variable = tf.Variable([0.0], trainable=False, synchronization=on_read, aggregation=aggregation)
    fill(strategy, variable, 1.0)
    return variable


def fill(strategy, variable, first):
    def step():
        number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        variable.assign([first + number])

    strategy.run(step)


def values(strategy, variable):
    return [float(part.numpy()[0]) for part in strategy.experimental_local_results(variable)]


def test_each_replica_gets_its_own_value_back_from_a_checkpoint(strategy, mean, tmp_path):
    """N1: TensorFlow saves their mean alone, with which a run would round differently from there on."""
    of_replicas = ReplicaValues([mean])
    of_replicas.collect()
    path = tf.train.Checkpoint(mean=mean, of_replicas=of_replicas.state).write(str(tmp_path / "ckpt"))
    fill(strategy, mean, 7.0)
    again = ReplicaValues([mean])
    tf.train.Checkpoint(mean=mean, of_replicas=again.state).read(path).assert_consumed()
    assert values(strategy, mean) == [1.5, 1.5]
    again.restore()
    assert values(strategy, mean) == [1.0, 2.0]


def test_a_backup_gives_each_replica_its_own_value_back(strategy, mean):
    """T13: averaged weights are only in the model while it is evaluated."""
    backup = ValueBackup([mean])
    fill(strategy, mean, 7.0)
    backup.restore()
    assert values(strategy, mean) == [1.0, 2.0]


def test_synchronized_replicas_have_the_mean(strategy, mean):
    synchronize_replicas([mean])
    assert values(strategy, mean) == [1.5, 1.5]


def test_one_replica_needs_no_values_of_its_own():
    assert ReplicaValues([tf.Variable([1.0])]).state is None
