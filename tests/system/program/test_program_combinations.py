"""Arguments of fit together: replicas, data that does not say its size, runs whose data has ended."""

from __future__ import annotations

import json

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.fits import IN_SYSTEM, compare, own_steps
from tests.support.programs import examples, generated, light, lightly

X, Y = examples()


@pytest.mark.parametrize(("name", "which"), IN_SYSTEM)
def test_more_of_what_keras_makes_of_arguments(name, which, tmp_path):
    """K2, K4, K5: as `integration/program/test_program_combinations.py`."""
    compare(name, which, tmp_path)


@pytest.mark.full
def test_several_replicas_are_told_of_as_one():
    """K2, K5: with validations; a number that each replica has for itself is the mean of them, Keras's their sum."""
    # Without collectives: those of two strategies over the same devices would confuse each other.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    found = []
    for owner in (lambda model: model, Program):
        with strategy.scope():
            program = lightly(owner(own_steps(keras)))
        given = {"x": X, "y": Y, "epochs": 2, "batch_size": 10, "validation_split": 0.2, "shuffle": False}
        found.append(program.fit(verbose=0, **given).history)
    theirs, ours = found
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        scale = 2 if name == "last" else 1
        assert [value * scale for value in ours[name]] == pytest.approx(values, rel=1e-5)


def test_data_of_unknown_size_is_read_once_where_that_is_enough(tmp_path):
    """K2, K4: as by Keras; only several epochs of training have their batches counted first."""
    passes = []

    def batches():
        passes.append(len(passes))
        yield from generated(7)

    spec = tuple(tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in next(generated(1)))
    unknown = tf.data.Dataset.from_generator(batches, output_signature=spec)
    found = []
    for owner in (light(), Program(light()), Program(light(), str(tmp_path / "run"))):
        program = lightly(owner)
        history = program.fit(unknown, validation_data=unknown, verbose=0).history
        found.append((history, program.evaluate(unknown, verbose=0), program.predict(unknown, verbose=0).shape))
        assert len(passes) == 4, owner
        passes.clear()
    assert found[1] == found[2] == found[0]
    program = lightly(Program(light()))
    program.fit(unknown, epochs=3, verbose=0)
    assert program.model.optimizer.iterations.numpy() == 21
    assert len(passes) == 4


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def test_a_run_whose_data_has_ended_is_done(tmp_path):
    """K2, K6: the same call again trains nothing and says the same."""
    found = []
    for _ in range(2):
        program = lightly(Program(light(), str(tmp_path / "run")))
        given = {"steps_per_epoch": 3, "epochs": 4, "validation_data": dataset().take(1)}
        history = program.fit(dataset(), verbose=0, **given)
        rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        kept = [{k: v for k, v in json.loads(row).items() if k != "time"} for row in rows if '"time",' not in row]
        found.append((history.history, history.epoch, committed_steps(str(tmp_path / "run")), kept))
    assert found[0] == found[1]
    assert found[0][1:3] == ([0, 1, 2], (3, 6, 7))
