"""How many functions of this package stand between the loop of a run and the step that a user has written."""

import traceback
from pathlib import Path

import pytest
import tensorflow as tf

import official_trainer
from official_trainer.inputs import from_arrays
from tests.support import loops, toy

PACKAGE = str(Path(official_trainer.__file__).parent)


class Looking(toy.ToyTask):
    """Keeps the functions above its step, while it is traced."""

    above = ()

    def train_step(self, inputs, model, optimizer, metrics=None):
        type(self).above = tf.autograph.experimental.do_not_convert(functions_above)()
        return super().train_step(inputs, model, optimizer, metrics)


class InBlocks(Looking):
    """The same over blocks of batches."""

    def build_inputs(self, params, input_context=None):
        return from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


def functions_above():
    """The functions of this package, from the loop, or the beginning of this thread, to the step."""
    stack = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
    names = [f"{Path(frame.filename).stem}.{frame.name}" for frame in stack]
    return names[names.index("loop.run") + 1 :] if "loop.run" in names else names


@pytest.mark.parametrize(
    ("task_cls", "strategy", "most"),
    [
        (Looking, "off", 8),
        (InBlocks, "off", 8),
        (Looking, "mirrored2", 1),  # a replica has a thread of its own
    ],
)
def test_few_functions_stand_above_a_users_step(task_cls, strategy, most):
    """N28: what a person reads through, from the loop of a run to the step."""
    trainer = toy.build(toy.experiment(), strategy=strategy, task_cls=task_cls)
    trainer.config.trainer.__dict__["train_steps"] = 2
    loops.run_trainer(trainer, "never")
    assert 0 < len(task_cls.above) <= most, task_cls.above
