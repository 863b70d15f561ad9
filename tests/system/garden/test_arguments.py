"""The methods of Model Garden's own Tasks take the arguments that the engine calls them with."""

import importlib

import pytest

from official_trainer.tasks import contract

MODULES = ("official.nlp.tasks", "official.vision.tasks", "official.recommendation.ranking.task")


def test_no_task_of_theirs_is_refused():
    """N28, T1: whatever names and defaults they give them; a subclass with another argument is."""
    for module in MODULES:
        importlib.import_module(module)
    from official.core import base_task

    classes = list(base_task.Task.__subclasses__())
    for cls in classes:  # grows while it is read
        classes += cls.__subclasses__()
        contract.check_task(object.__new__(cls))
    assert len(classes) > 10
    own = type("Own", (classes[0],), {"build_metrics": lambda self: []})
    with pytest.raises(contract.ContractError, match="build_metrics: the engine calls"):
        contract.check_task(object.__new__(own))
