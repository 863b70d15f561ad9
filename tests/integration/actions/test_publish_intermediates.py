"""Values from inside a step, from the model to the trackers."""

import types

import numpy as np
import pytest

from official_trainer import config as configuration
from official_trainer.actions.action import CallAt, LoopState, Run
from official_trainer.actions.publish_intermediates import PublishIntermediates, PublishIntermediatesConfig, TagError
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


RENAMED = {"*/kernel": "kernels/*", "in*": "pictures", "gradient_norm": "norm", "*": "other/*"}


def test_names_are_sent_under_other_tags():
    """B7: by patterns, of which the first that matches counts; pictures keep their numbers."""
    tags = {"kernels/gradients/dense", "kernels/weights/dense", "pictures/0", "pictures/1", "norm"}
    assert sent(published(), tags=RENAMED) == (None, tags | {"other/loss/main", "other/hidden"})
    config = configuration.resolve(
        configuration.ExperimentConfig(),
        sets=["trainer.actions=[{type: publish_intermediates, tags: {'gradients/*': 'slopes/*', hidden: inside}}]"],
    ).config
    assert config.trainer.actions[0].tags == {"gradients/*": "slopes/*", "hidden": "inside"}


def test_two_names_with_one_tag_are_refused():
    """B7: one would take the place of the other."""
    said = "'loss/main' and 'gradient_norm' are both sent as 'x'; give them different tags, or leave one out"
    with pytest.raises(TagError, match=said):
        sent(published(), tags={"*": "x"})


def test_a_tag_with_more_stars_than_its_pattern_is_refused():
    """B7, N7: before anything is built."""
    said = r"trainer.actions\[0\].tags.*the tag 'a/\*/\*' has more `\*` than its pattern 'b/\*', which is to fill them"
    with pytest.raises(configuration.ConfigError, match=f"(?s){said}"):
        configuration.resolve(
            configuration.ExperimentConfig(),
            sets=["trainer.actions=[{type: publish_intermediates, tags: {'b/*': 'a/*/*'}}]"],
        )


def test_a_step_that_nobody_foresaw_is_made_up_for_by_the_next():
    """B7: such as after so many seconds, or an evaluation."""
    assert sent(None) == (CallAt(step=8), set())
