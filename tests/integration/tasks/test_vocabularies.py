"""Vocabularies and statistics of layers: what checkpoints hold of them, and which of two is used."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.checkpoints import restore
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.program import Program, ProgramCheckpoint
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import vocabularies
from tests.support.cases import full
from tests.support.vocabulary_runs import KERASES, OTHER, ROWS, do, fixed, shape_free, small, table_layer

OF_ROWS = small, f"(?s)wrong shape or dtype .*embedding.*other vocabularies, which may be why.*{OTHER}"
OF_OUTPUTS = shape_free, f"{OTHER}.*an output for each"


@pytest.mark.parametrize(("name", "build", "said"), [("tf_keras", *OF_ROWS), full(("Keras 3", *OF_OUTPUTS))])
def test_sizes_that_a_file_decides_are_explained_by_its_vocabulary(tmp_path, name, build, said):
    """N53: an embedding with other rows, and outputs for other words, are refused, and the layer is named."""
    do(tmp_path, "trainer.train_steps=2", kind=KERASES[name], build=build)
    for mode in ("eval", "train_and_eval"):
        with pytest.raises(CheckpointError, match=said):
            do(tmp_path, kind=KERASES[name], build=build, file="grown", mode=mode)


def test_statistics_of_missing_values_are_refused(tmp_path):
    """N53, N45: before the first step; what a `relu` makes of them has a loss."""

    def scaled(kind, file):
        scale = kind.layers.Normalization(name="scale")
        scale.adapt(np.array([[1.0], [np.nan]]))
        number = kind.Input((1,), name="number")
        return kind.Model({"number": number}, {"scored": kind.layers.Dense(1, "relu")(scale(number))})

    with pytest.raises(inputs.DataError, match=r"layer scale: its mean is NaN, because adapt\(\) has seen NaN; let a"):
        do(tmp_path, kind=KERASES["Keras 3"], build=scaled)


@pytest.mark.parametrize("name", [full("tf_keras"), "Keras 3"])
def test_a_program_takes_the_words_with_the_weights(tmp_path, name):
    """N53: also after steps were traced with others."""
    kind, labels = KERASES[name], {"scored": ROWS["number"]}

    def program(file):
        model = fixed(kind, file)
        model.compile(optimizer=kind.optimizers.Adam(0.05), loss={"scored": "mse"})
        return Program(model)

    first = program("as it was")
    first.fit(ROWS, labels, verbose=0, callbacks=[ProgramCheckpoint(str(tmp_path / "c-{epoch}"))])
    wanted = first.evaluate(ROWS, labels, verbose=0), first.predict(ROWS, verbose=0)["scored"].tolist()
    for method in ("load_weights", "load"):
        later = program("grown")
        later.evaluate(ROWS, labels, verbose=0)
        later.predict(ROWS, verbose=0)
        getattr(later, method)(str(tmp_path / "c-1"))
        assert (later.evaluate(ROWS, labels, verbose=0), later.predict(ROWS, verbose=0)["scored"].tolist()) == wanted


def reread(tmp_path, *, of, into):
    """Writes what a checkpoint holds of one layer or model, and reads it into another."""
    prefix = tf.train.Checkpoint(model=of).write(str(tmp_path / "ckpt-1"))
    restore.read_items(prefix, {"model": into})


@pytest.mark.parametrize("name", KERASES)
def test_any_words_come_back(tmp_path, name):
    """N53: numbers, no text, what a number is turned into; a layer that has none yet takes them."""
    lookup, own = KERASES[name].layers.StringLookup, table_layer(KERASES[name])
    integers = [KERASES[name].layers.IntegerLookup(num_oov_indices=2, name="l") for _ in range(2)]
    for layer, numbers in zip(integers, ([1, 2, 2, 6], [6, 7]), strict=True):
        layer.adapt(np.array(numbers)[:, None])
    inverted = [lookup(vocabulary=words, invert=True, name="i") for words in (["a", "b"], ["c", "a", "b"])]
    adapted = lookup(name="n")
    adapted.adapt(np.array([["x"], ["y"], ["y"]]))
    layers = [
        (own([b"\xff", b"\xfe\n"]), own([b"a"]), np.array([b"\xff", b"\xfe\n", b"a"])),
        (*inverted, np.array([1, 2, 3])),
        (*integers, np.array([1, 2, 6, 7])),
        (adapted, lookup(name="n"), np.array(["y", "z"])),
    ]
    for saved, live, given in layers:
        reread(tmp_path, of=vocabularies.in_checkpoint(saved), into=vocabularies.in_checkpoint(live))
        np.testing.assert_array_equal(live(given), saved(given))


@pytest.mark.parametrize("name", KERASES)
def test_words_are_written_again_only_after_another_adapt(name):
    """N53: a save takes the text that is there."""
    layer = KERASES[name].layers.Normalization(axis=None)
    layer.adapt(np.array([1.0, 3.0]))
    (vocabulary,) = vocabularies.of(layer).values()
    text = vocabulary.serialize()
    assert vocabulary.serialize() is text
    layer.adapt(np.array([1.0, 5.0]))
    assert json.loads(text)["mean"] != json.loads(vocabulary.serialize())["mean"]


@pytest.mark.parametrize("name", KERASES)
def test_a_checkpoint_of_another_tool_holds_none(tmp_path, name, caplog):
    """N53: that is said; statistics that the layer has as variables are used all the same. Ours adds nothing else."""
    kind = KERASES[name]
    theirs, live = [kind.Sequential([kind.Input((1,)), kind.layers.Normalization()]) for _ in range(2)]
    theirs.layers[-1].adapt(np.array([[1.0], [3.0]]))
    values = kerases.of(theirs).trackable(theirs)
    reread(tmp_path, of=values, into=vocabularies.in_checkpoint(live))
    np.testing.assert_array_equal(live(np.array([[1.0]])), [[-1.0]])
    assert "layer normalization: the checkpoint holds no vocabulary or statistics of it; the code's are" in caplog.text
    plain = kind.Sequential([kind.Input((1,)), kind.layers.Dense(1), kind.layers.Rescaling(2.0)])
    both = [vocabularies.in_checkpoint(plain), kerases.of(plain).trackable(plain)]
    assert len({repr(tf.train.TrackableView(each).descendants()) for each in both}) == 1
