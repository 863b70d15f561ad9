"""Asynchronous saves: values of their moment, reported when committed, errors surface, drained at the end."""

import threading

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.checkpoints.store import CheckpointStore, SaveError, Snapshot, StoreOptions
from official_trainer.errors import ExitCode


class State:
    def __init__(self, directory):
        self.weights = tf.Variable(tf.zeros([1000]))
        self.checkpoint = tf.train.Checkpoint(weights=self.weights)
        options = StoreOptions(is_asynchronous=True)
        self.store = CheckpointStore(str(directory), self.checkpoint, max_to_keep=5, options=options)

    def saved(self, step):
        return tf.train.load_variable(self.store.prefix(step), "weights/.ATTRIBUTES/VARIABLE_VALUE")


@pytest.fixture
def gate(monkeypatch):
    """Holds every write until it is set; collects what is raised instead of writing."""

    class Gate(threading.Event):
        error = None

    gate = Gate()
    write = Snapshot.write

    def held_write(snapshot, prefix):
        assert gate.wait(60)
        if gate.error is not None:
            raise gate.error
        write(snapshot, prefix)

    monkeypatch.setattr(Snapshot, "write", held_write)
    yield gate
    gate.set()


def test_a_save_holds_the_values_of_its_moment(model_dir, gate):
    """N3: training goes on while they are written, and the save is reported only when it is committed."""
    state = State(model_dir)
    state.weights.assign_add(tf.ones([1000]))
    state.store.save(1)
    state.weights.assign_add(tf.ones([1000]))
    assert state.store.poll() == []
    assert state.store.steps() == ()
    gate.set()
    state.store.wait()
    assert state.store.poll() == [1]
    assert state.store.poll() == []
    assert set(state.saved(1)) == {1.0}


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_traced_step_does_not_write_into_what_is_being_saved(model_dir, gate, jit_compile):
    state = State(model_dir)

    @tf.function(jit_compile=jit_compile)
    def step():
        state.weights.assign_add(tf.ones([1000]))

    step()
    state.store.save(1)
    for _ in range(3):
        step()
    gate.set()
    state.store.close()
    assert set(state.saved(1)) == {1.0}
    assert set(state.weights.numpy()) == {4.0}


class EachWay:
    """Variables of both Kerases and of TensorFlow, and the ways in which a step changes them."""

    def __init__(self):
        self.dense, self.sparse = tf.Variable(tf.ones([100])), tf.Variable(tf.ones([100, 3]))
        self.counter, self.text = tf.Variable(5, dtype=tf.int64), tf.Variable(["a", "b"])
        self.numbers = tf.random.Generator.from_seed(3)
        self.tf_keras = [
            tf_keras.layers.Embedding(9, 4),
            tf_keras.layers.BatchNormalization(),
            tf_keras.optimizers.Adam(),
            tf_keras.optimizers.legacy.Adam(),
        ]
        self.keras3 = [keras3.layers.Embedding(9, 4), keras3.optimizers.Adam()]
        self.checkpoint = tf.train.Checkpoint(
            **{name: value for name, value in vars(self).items() if not isinstance(value, list)},
            **{f"tf_keras_{number}": value for number, value in enumerate(self.tf_keras)},
            **{f"keras3_{number}": value for number, value in enumerate(self.keras3)},
        )

    def change(self):
        self.dense.assign_sub(tf.random.stateless_normal([100], [1, 2]))
        self.sparse.scatter_nd_add([[2], [5]], tf.ones([2, 3]))
        self.counter.assign_add(1)
        self.text.assign(tf.strings.join([self.text, "c"]))
        self.numbers.normal([3])
        embedding, norm, *optimizers = self.tf_keras
        for optimizer in optimizers:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(norm(embedding(tf.constant([1, 2, 1])), training=True) ** 2 + self.sparse[0, 0])
            optimizer.apply_gradients([(tape.gradient(loss, embedding.embeddings), embedding.embeddings)])
        embedding, optimizer = self.keras3
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(tf.constant([1, 2, 1])) ** 2)
        optimizer.apply([tape.gradient(loss, embedding.embeddings.value)], [embedding.embeddings])


@pytest.mark.parametrize("way", ["eager", "traced"])
def test_no_way_to_change_a_variable_reaches_a_save_that_is_not_written_yet(tmp_path, way):
    """N1, N3: what is written is what a save of that moment would have written, value by value."""
    state = EachWay()
    step = tf.function(state.change) if way == "traced" else state.change
    step()
    state.checkpoint.write(f"{tmp_path}/then")
    snapshot = Snapshot(state.checkpoint)
    for _ in range(2):
        step()
    snapshot.write(f"{tmp_path}/late")
    state.checkpoint.write(f"{tmp_path}/now")
    then, late, now = (tf.train.load_checkpoint(f"{tmp_path}/{name}") for name in ("then", "late", "now"))
    changed = set()
    for name in then.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        saved, expected, current = (reader.get_tensor(name) for reader in (late, then, now))
        np.testing.assert_array_equal(saved, expected, err_msg=name)
        changed |= {name.partition("/")[0]} if not np.array_equal(saved, current) else set()
    assert changed == tf.train.TrackableView.children(state.checkpoint).keys()


def test_what_has_a_format_of_its_own_is_written_as_any_other(tmp_path):
    """N3: quantized values."""
    variable = tf.Variable(tf.cast([1, 2, 3], tf.qint8))
    snapshot = Snapshot(tf.train.Checkpoint(v=variable))
    variable.assign(tf.cast([0, 0, 0], tf.qint8))
    snapshot.write(str(tmp_path / "a"))
    saved = tf.train.load_variable(str(tmp_path / "a"), "v/.ATTRIBUTES/VARIABLE_VALUE")
    assert [int(value) for value in saved.reshape(-1).view("int8")] == [1, 2, 3]


def test_a_failed_save_is_an_error_at_the_next_poll_and_harms_nothing(model_dir, gate):
    state = State(model_dir)
    gate.set()
    state.store.save(1)
    state.store.wait()
    assert state.store.poll() == [1]
    gate.error = tf.errors.ResourceExhaustedError(None, None, "{{node SaveV2}} ckpt-2; No space left on device")
    state.store.save(2)
    with pytest.raises(SaveError, match=r"ckpt-2 could not be saved: No space left on device\. Free some space there"):
        while True:
            state.store.poll()
    gate.error = None
    state.store.save(3)
    state.store.close()
    assert committed_steps(model_dir) == (1, 3)


def test_an_error_is_not_lost_when_another_save_or_the_end_comes_first(model_dir, gate):
    state = State(model_dir)
    gate.error = OSError(5, "Input/output error")
    gate.set()
    state.store.save(1)
    with pytest.raises(SaveError, match=r"ckpt-1 could not be saved: Input/output error\.") as caught:
        state.store.save(2)
    assert caught.value.exit_code == ExitCode.RETRY
    state.store.save(3)
    with pytest.raises(SaveError, match="ckpt-3"):
        state.store.close()


def test_closing_finishes_what_is_being_written(model_dir, gate):
    state = State(model_dir)
    state.store.save(1)
    threading.Timer(0.05, gate.set).start()
    state.store.close()
    assert committed_steps(model_dir) == (1,)


def test_restoring_waits_for_the_save(model_dir, gate):
    state = State(model_dir)
    state.store.save(1)
    state.weights.assign(tf.ones([1000]) * 9)
    threading.Timer(0.05, gate.set).start()
    assert state.store.restore().step == 1
    assert set(state.weights.numpy()) == {0.0}
    state.store.close()
