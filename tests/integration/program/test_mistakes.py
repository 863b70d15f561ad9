"""Mistakes in what a user gives to a Program: the error goes on as it is, and below it stands where and what it is."""

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Loop, Program

MAX_LINES = 15

FEATURES, LABELS = np.zeros([16, 4], "float32"), np.arange(16) % 3


def model():
    return keras.Sequential([keras.Input([4], name="features"), keras.layers.Dense(3)])


class NoSuchLog(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        return logs["los"]


class OwnLoss(Program):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return y_pred.loss


def fitting(features=FEATURES, labels=LABELS, cls=Program, **options):
    """Returns a call of `fit` that trains one epoch."""

    def fit():
        program = cls(model)
        program.compile("sgd", "sparse_categorical_crossentropy")
        program.fit(features, labels, verbose=0, **options)

    return fit


class Raises(keras.utils.Sequence):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return {"features": FEATURES[:4]}["features" if number < 2 else "fetures"], LABELS[:4]


def predicting():
    Program(model).predict(np.zeros([16, 5], "float32"), verbose=0)


def evaluating():
    program = Program(model)
    program.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    program.evaluate(FEATURES, LABELS + 1, verbose=0)


ROWS = {
    "a callback": (fitting(callbacks=[NoSuchLog()]), KeyError, "in on_epoch_end, while calling", ["mean 'loss'?"]),
    "batches": (fitting(features=Raises(), labels=None), tf.errors.OpError, "in __getitem__, while training at step",
                ["KeyError: 'fetures'"]),
    "a method": (fitting(cls=OwnLoss), AttributeError, "in compute_loss, while tracing", ["no attribute 'loss'"]),
    "predict": (predicting, ValueError, "while predicting batch 0", ["is built for shape [None, 4]"]),
    "evaluate": (evaluating, tf.errors.InvalidArgumentError, "while evaluating", ["label value of 3"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_note_below_the_error_names_the_line_and_the_cause(name):
    """N28: file, line, function, phase, batch; the error itself is the one that was raised."""
    call, kind, place, words = ROWS[name]
    with pytest.raises(kind) as caught:
        call()
    (note,) = caught.value.__notes__
    lines = note.splitlines()
    assert len(lines) <= MAX_LINES
    assert place in " ".join(note.split())
    assert lines[0].startswith("while" if place.startswith("while") else "tests/") or __file__ in lines[0]
    for word in words:
        assert word in " ".join(note.split()), note
    assert "site-packages" not in note and "official_trainer/" not in note


def test_a_loop_says_it_too():
    """N28: of steps that are run from Python."""
    from tests.support import toy

    class Misspelled(toy.ToyTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return model_output  # noqa: F821 - the mistake

    trainer = toy.build(task_cls=Misspelled)
    with pytest.raises(NameError) as caught:
        Loop(trainer).run_steps(toy.examples(40).batch(10), 2)
    (note,) = caught.value.__notes__
    assert "in build_losses, while training at step 1" in note and "Did you mean model_outputs?" in note
