"""A whole program in one file."""

import zipfile

import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program, ProgramCheckpoint, ScoreFunction, load_program
from tests.support.cases import cases
from tests.support.programs import build, examples, light, lightly

X, Y = examples()


@keras.saving.register_keras_serializable("tests.saving")
def is_right(y_true, y_pred):
    return tf.cast(tf.cast(tf.reshape(y_true, [-1]), tf.int64) == y_pred, tf.float32)


REWARDED = {"reward": is_right, "reward_estimator": ScoreFunction(samples=2), "reward_weights": 0.5}


@pytest.mark.parametrize("is_rewarded", cases([False, True], True))
def test_a_program_is_read_without_the_code_that_built_it(tmp_path, is_rewarded):
    """K9: weights, optimizer, losses, metrics and rewards; it evaluates and trains on as the one that was saved."""
    program = lightly(Program(build(), seed=5), optimizer="adam", **(REWARDED if is_rewarded else {}))
    program.fit(X, Y, epochs=2, verbose=0)
    program.save(tmp_path / "program.keras")
    read = load_program(tmp_path / "program.keras", seed=5)
    assert read.evaluate(X, Y, verbose=0, return_dict=True) == program.evaluate(X, Y, verbose=0, return_dict=True)
    assert read.optimizer.iterations.numpy() == program.optimizer.iterations.numpy() > 0
    if not is_rewarded:  # what rewards draw follows from the global step, which a file of Keras does not have
        assert read.train_on_batch(X, Y) == pytest.approx(program.train_on_batch(X, Y), rel=1e-5)


class Praised(Program):
    def compute_reward(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.reduce_mean(y_pred)


def test_a_reward_that_a_subclass_computes_is_not_in_the_file(tmp_path):
    """K9: the file has the model, and `load_program` returns a Program without that reward."""
    program = lightly(Praised(light()))
    program.save(tmp_path / "program.keras")
    read = load_program(tmp_path / "program.keras")
    assert list(read.evaluate(X, Y, verbose=0, return_dict=True)) == ["loss", "accuracy"]


def test_keras_reads_it_too(tmp_path):
    """K9: the rewards lie beside what Keras writes."""
    program = lightly(Program(light()), **REWARDED)
    program.train_on_batch(X, Y)
    program.save(tmp_path / "program.keras")
    assert "rewards.json" in zipfile.ZipFile(tmp_path / "program.keras").namelist()
    model = keras.models.load_model(tmp_path / "program.keras")
    assert model.predict(X, verbose=0) == pytest.approx(program.predict(X, verbose=0), abs=1e-6)


def test_layers_that_are_not_registered_are_given(tmp_path):
    """K9"""

    class Doubling(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    inputs = keras.Input([6])
    program = lightly(Program(keras.Model(inputs, Doubling()(keras.layers.Dense(3)(inputs)))))
    program.save(tmp_path / "program.keras")
    with pytest.raises(ArgumentError, match=r"load_program: .*program\.keras cannot be read: .* in custom_objects"):
        load_program(tmp_path / "program.keras")
    read = load_program(tmp_path / "program.keras", custom_objects={"Doubling": Doubling})
    assert (read.predict(X, verbose=0) == program.predict(X, verbose=0)).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("program.h5", r"save: filepath='.*program\.h5'; allowed: a path that ends with \.keras\. Keras's own save"),
        ("program.keras", r"reward=<function .*> cannot be read from a config again; give each function of yours the"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, name, message):
    """K9"""

    def unregistered(y_true, y_pred):
        return y_pred[:, 0]

    program = lightly(Program(light()), reward=unregistered)
    with pytest.raises(ArgumentError, match=message):
        program.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_program_is_named(tmp_path):
    """K9"""
    (tmp_path / "broken.keras").write_bytes(b"no archive")
    for name in ("broken.keras", "missing.keras"):
        with pytest.raises(ArgumentError, match=rf"load_program: .*{name} cannot be read"):
            load_program(tmp_path / name)


def test_a_checkpoint_is_no_program(tmp_path):
    """K9: it has no layers; the error says how it is read."""
    program, saving = lightly(Program(light())), ProgramCheckpoint(tmp_path / "{epoch:02d}")
    program.fit(X, Y, callbacks=[saving], verbose=0)
    for path in (saving.kept[0], tmp_path / "{epoch:02d}"):
        said = r"^load_program: .*/01/ckpt-\d+ is a checkpoint, which has no layers; build and compile the program as"
        with pytest.raises(ArgumentError, match=said):
            load_program(path)


def test_code_in_a_file_does_not_run(tmp_path):
    """K9: a function that Keras would write into the file; and formats that contain such functions are not read."""
    inputs = keras.Input([6])
    model = keras.Model(inputs, keras.layers.Lambda(lambda x: 2 * x)(inputs))
    model.save(tmp_path / "program.keras")
    with pytest.raises(ArgumentError, match=r"load_program: .*program\.keras cannot be read: .*code execution"):
        load_program(tmp_path / "program.keras")
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "saved_model.pb").write_bytes(b"")
    for name in ("program.h5", "saved_model"):
        with pytest.raises(ArgumentError, match=rf"load_program: filepath='.*{name}'; allowed: a path that ends with"):
            load_program(tmp_path / name)
