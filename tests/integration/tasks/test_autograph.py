"""AutoGraph rewrites what users write, wherever it is called from, and none of the engine's own functions."""

import pytest
from tensorflow.python.autograph.impl import api

from tests.support import toy
from tests.support.branching import check_branches_change_nothing


@pytest.fixture
def rewritten(monkeypatch):
    """The functions that AutoGraph rewrites, by module."""
    found, transform = [], api._TRANSPILER.transform

    def recorded(function, context):
        found.append((function.__module__, function.__qualname__))
        return transform(function, context)

    monkeypatch.setattr(api._TRANSPILER, "transform", recorded)
    return found


def test_users_may_branch_on_tensors_in_all_that_they_define():
    """T3, T4: steps, losses and what a Trainer of one's own reads; the same numbers as without the branches."""
    check_branches_change_nothing("off")


def test_steps_of_the_engine_are_not_rewritten(rewritten):
    """T3: rewriting takes a tenth of a second for each function, before the first step of every run."""
    trainer = toy.build()
    trainer.train(2)
    trainer.evaluate(-1)
    ours = {(module, name) for module, name in rewritten if module.startswith("official_trainer.")}
    outermost = {"_counted_loop.<locals>.loop", "Traces.watched.<locals>.watched"}
    assert {
        name for module, name in ours if module != "official_trainer.tasks.task"
    } <= outermost  # a task's may be a user's
    assert ("tests.support.toy", "ToyTask.build_losses") in rewritten
