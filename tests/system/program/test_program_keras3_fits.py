"""Programs of Keras 3: numbers and calls are Keras 3's own, weights go both ways, a mixture of Kerases is refused."""

from __future__ import annotations

import json

import keras as keras3
import numpy as np
import pytest

from official_trainer.config import RuntimeConfig
from official_trainer.lazy import keras
from official_trainer.program import Program, ProgramCheckpoint, load_program
from official_trainer.program.data import ArgumentError
from tests import ROOT
from tests.support.fits3 import COMBINATIONS, IN_SHORT, X, Y, build, compare, light, lightly
from tests.support.programs import light as light_of_2
from tests.support.programs import lightly as lightly_of_2


@pytest.mark.parametrize("name", IN_SHORT)
def test_what_comes_of_arguments_is_what_keras_3_makes_of_them(name, tmp_path):
    """N38: each number of the history, and each call; the others in `tests/system`."""
    compare(name, tmp_path)


def test_what_differs_is_on_the_page():
    """N38: of at least 40 combinations, with its reason."""
    page = (ROOT / "docs" / "project" / "parity.md").read_text(encoding="utf-8")
    differing = {name: fit.differs for name, fit in COMBINATIONS.items() if fit.differs}
    assert len(COMBINATIONS) >= 40
    assert f"{len(COMBINATIONS)} combinations with Keras 3" in page
    for name, reason in differing.items():
        assert f"- {name}: {reason}" in page


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("optimizer", lambda module: module.optimizers.Adam()),
        ("loss", lambda module: module.losses.MeanSquaredError()),
        ("metrics", lambda module: ["mae", module.metrics.MeanSquaredError()]),
    ],
)
def test_what_is_compiled_of_both_kerases_is_refused(argument, make):
    """N38: the error names both, and where to take them from."""
    said = rf"^{argument}: (Adam|MeanSquaredError) is of Keras 2, that is tf_keras, and the model Sequential of Keras 3"
    with pytest.raises(ArgumentError, match=rf"{said}: take both from `import keras`$"):
        lightly(Program(light()), **{argument: make(keras)})
    said = rf"^{argument}: (Adam|MeanSquaredError) is of Keras 3, and the model Functional of Keras 2, that is tf_keras"
    with pytest.raises(ArgumentError, match=rf"{said}: take both from `from official_trainer.lazy import keras`$"):
        lightly_of_2(Program(light_of_2()), **{argument: make(keras3)})


def test_a_callback_of_the_other_keras_is_refused():
    """N38"""
    with pytest.raises(ArgumentError, match=r"^callbacks: EarlyStopping is of Keras 2, .* Sequential of Keras 3"):
        lightly(Program(light())).fit(X, Y, callbacks=[keras.callbacks.EarlyStopping()], verbose=0)
    with pytest.raises(ArgumentError, match=r"^callbacks: EarlyStopping is of Keras 3, .* Functional of Keras 2"):
        lightly_of_2(Program(light_of_2())).fit(X, Y, callbacks=[keras3.callbacks.EarlyStopping()], verbose=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": keras3.optimizers.Adam}, r"^optimizer: Adam is a class; write Adam\(…\), an object of it$"),
        ({"optimizer": "adm"}, r"^optimizer: Keras knows no 'adm'; did you mean 'Adam'\?$"),
        ({"metrics": ["mae", "acuracy"]}, r"^metrics: Keras knows no 'acuracy'; did you mean 'accuracy'\?$"),
        ({"loss": ["mse", "mse"]}, r"^loss needs one entry for each of the 1 outputs"),
        ({"reward": "accuracy"}, r"^reward: rewards are for models of tf_keras .*, and Sequential is of Keras 3"),
    ],
)
def test_what_cannot_be_compiled_is_refused(given, said):
    """N38: in `compile`, not at the first step."""
    with pytest.raises(ArgumentError, match=said):
        lightly(Program(light()), **given)


def test_a_loss_scale_that_does_not_change_is_refused():
    """N38: Keras 3 has only those that change; the message says how to begin with one."""
    runtime = RuntimeConfig(mixed_precision_dtype="float16", loss_scale=8.0)
    try:
        program = Program(light, runtime=runtime)
    finally:
        Program(light, runtime=RuntimeConfig())  # the precision of later tests
    with pytest.raises(
        ArgumentError, match=r"^runtime\.loss_scale=8\.0: the loss scale of Keras 3 changes; leave it out"
    ):
        lightly(program)


def trained(model_dir=None, *, epochs=3, callbacks=()):
    program = lightly(Program(build(), model_dir), optimizer="adam")
    history = program.fit(X, Y, epochs=epochs, batch_size=8, validation_split=0.2, verbose=0, callbacks=list(callbacks))
    return program, history


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    """N38, K6: weights, optimizer, history and rows of `metrics.jsonl`, whose names are those of Keras 3's logs."""
    whole, told = trained(str(tmp_path / "whole"), epochs=4)
    trained(str(tmp_path / "parts"), epochs=2)
    parts, told_parts = trained(str(tmp_path / "parts"), epochs=4)
    assert told_parts.history == told.history
    assert told_parts.epoch == told.epoch
    for ours, theirs in zip(parts.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(parts.optimizer.variables, whole.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    rows = [json.loads(row) for row in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {"accuracy", "loss"} <= {name for row in rows for name in row}


def test_a_callback_counts_on_after_a_restart(tmp_path):
    """N38, K5: an early stop comes at the epoch of a run that was never stopped, with `min_delta`, too."""
    found = []
    for name, lengths in (("whole", [8]), ("parts", [2, 3, 8])):
        for epochs in lengths:
            stopping = keras3.callbacks.EarlyStopping("accuracy", mode="min", min_delta=0.001, patience=4)
            _, history = trained(str(tmp_path / name), epochs=epochs, callbacks=[stopping])
        found.append((history.history, stopping.stopped_epoch, stopping.wait, stopping.best))
    assert found[0] == found[1]
    assert found[0][1] > 2, "it did not stop, or before a restart"


def test_weights_go_both_ways(tmp_path):
    """N38: get, set, `.weights.h5`, `.keras`, a checkpoint; in Keras 3 itself, too."""
    program, _ = trained()
    expected = program.predict(X[:4], verbose=0)
    of_file, whole = str(tmp_path / "model.weights.h5"), str(tmp_path / "model.keras")
    program.save_weights(of_file)
    program.save(whole)

    def is_same(found):
        np.testing.assert_array_equal(found, expected)

    other = lightly(Program(build()))
    other.model.set_weights([0 * each for each in other.model.get_weights()])
    other.load_weights(of_file)
    is_same(other.predict(X[:4], verbose=0))
    other.model.set_weights([0 * each for each in other.model.get_weights()])
    other.model.set_weights(program.model.get_weights())
    is_same(other.predict(X[:4], verbose=0))
    is_same(keras3.models.load_model(whole).predict(X[:4], verbose=0))
    again = load_program(whole)
    is_same(again.predict(X[:4], verbose=0))
    for each in (program, again):  # the optimizer's state is in the file
        each.fit(X, Y, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again.predict(X, verbose=0), program.predict(X, verbose=0))


def test_a_checkpoint_of_a_program_is_read_again(tmp_path):
    """N38, K7: the callback of both Kerases; training continues with the optimizer's state."""
    saving = ProgramCheckpoint(str(tmp_path / "{epoch}-{val_accuracy:.2f}"), monitor="val_accuracy", max_to_keep=9)
    program, _ = trained(epochs=2, callbacks=[saving])
    assert len(saving.kept) == 2
    other = lightly(Program(build()), optimizer="adam")
    other.load(str(tmp_path / "{epoch}-{val_accuracy:.2f}"))
    for each in (program, other):
        each.fit(X, Y, shuffle=False, verbose=0)
    for ours, theirs in zip(other.model.get_weights(), program.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other.load_weights(saving.kept[0])


def test_a_layer_that_is_not_registered_is_named_without_the_config_of_the_model(tmp_path):
    """N38: which Keras 3 prints twice."""

    class Doubling(keras3.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    Program(keras3.Sequential([keras3.Input([2]), Doubling()])).save(tmp_path / "program.keras")
    with pytest.raises(ArgumentError) as caught:
        load_program(tmp_path / "program.keras")
    said = str(caught.value)
    assert "cannot be read: Could not locate class 'Doubling'. " in said
    assert said.endswith("Layers and functions of your own have to be registered, or named in custom_objects")
    assert "config" not in said.replace("from_config", "")
