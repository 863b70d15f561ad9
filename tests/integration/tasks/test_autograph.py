"""AutoGraph rewrites what users write, wherever it is called from, and none of the engine's own functions."""

import pytest
from tensorflow.python.autograph.impl import api

from official_trainer.lazy import tf
from official_trainer.tasks import export
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


def test_no_function_of_the_engine_is_rewritten(rewritten):
    """T3: rewriting takes a tenth of a second for each function, before the first step of every run."""
    trainer = toy.build()
    trainer.train(2)
    trainer.evaluate(-1)
    export.default_signatures(trainer.task, trainer.model)["serving_default"].get_concrete_function()
    assert [name for module, name in rewritten if module.startswith("official_trainer.")] == []
    assert ("tests.support.toy", "ToyTask.build_losses") in rewritten


def test_a_debugger_sees_the_lines_of_the_user_where_steps_run_eagerly(rewritten):
    """T3: nothing is rewritten there, so a breakpoint stops in the user's file."""
    trainer = toy.build()
    tf.config.run_functions_eagerly(True)
    try:
        trainer.train(1)
    finally:
        tf.config.run_functions_eagerly(False)
    assert [found for found in rewritten if found[0].startswith("tests.")] == []
