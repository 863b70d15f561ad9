"""Values from inside a step, from the model to the trackers."""

import types

import numpy as np

from official_trainer.actions.action import CallAt, LoopState, Run
from official_trainer.actions.publish_intermediates import PublishIntermediates, PublishIntermediatesConfig
from official_trainer.tracking import Histogram, Image, Tracker


class Recording(Tracker):
    def __init__(self):
        self.said = {}

    def log(self, split, step, values):
        self.said.setdefault((split, step), {}).update(values)

    def publish(self, split, step, media):
        self.said.setdefault((split, step), {}).update(media)


def published():
    picture = Image(np.zeros((2, 2, 1), np.float32))
    return {
        "loss/main": 0.5,
        "gradient_norm": 2.0,
        "gradients/dense/kernel": Histogram(np.ones(3)),
        "hidden": Histogram(np.zeros(4)),
        "inputs/0": picture,
        "inputs/1": picture,
    }


def sent(values, **fields):
    """Returns what the action asks for, and the names that it sends."""
    kernel = types.SimpleNamespace(name="dense/kernel:0", numpy=lambda: np.ones(3))
    statistic = types.SimpleNamespace(name="norm/mean:0", numpy=lambda: np.ones(3))
    model = types.SimpleNamespace(variables=[kernel, statistic], trainable_variables=[kernel])
    trainer = types.SimpleNamespace(windows=types.SimpleNamespace(published=values), model=model)
    tracker = Recording()
    action = PublishIntermediates(PublishIntermediatesConfig(**fields))
    asked = action.on_step(Run(state=LoopState(step=7), trainer=trainer, model_dir="", tracker=tracker))
    assert tracker.said.keys() <= {("intermediates", 7)}
    return asked, set(tracker.said.get(("intermediates", 7), {}))


EVERYTHING = {*published(), "weights/dense/kernel"}


def test_what_is_sent_is_chosen():
    """B7: weights, gradients, patterns of names, so many pictures of a name."""
    for fields, left_out in (
        ({}, set()),
        ({"weights": False}, {"weights/dense/kernel"}),
        ({"gradients": False}, {"gradients/dense/kernel", "gradient_norm"}),
        ({"max_images": 1}, {"inputs/1"}),
        ({"patterns": ("inputs", "*/kernel")}, {"loss/main", "gradient_norm", "hidden"}),
        ({"patterns": ()}, EVERYTHING),
    ):
        assert sent(published(), **fields) == (None, EVERYTHING - left_out)


def test_a_step_that_nobody_foresaw_is_made_up_for_by_the_next():
    """B7: such as after so many seconds, or an evaluation."""
    assert sent(None) == (CallAt(step=8), set())
