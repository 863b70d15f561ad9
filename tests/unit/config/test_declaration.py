"""N7: a resolved configuration is frozen at any depth; nothing is imported or read on import."""

import copy
import dataclasses
import pickle

import pytest

from official_trainer.config import Above, Between, FrozenDict
from official_trainer.config.fields import docs, hints
from official_trainer.config.optimization import AdamConfig
from tests.support.config.sample import Block, Model, base, resolved


@pytest.mark.parametrize("path", ["", "trainer", "trainer.optimizer_config.optimizer.adam", "task.model.blocks[0]"])
def test_assignment_is_refused_at_any_depth(path):
    """N7: frozen once resolved."""
    from official_trainer.config.fields import find

    section = find(resolved().config, path) if path else resolved().config
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(section, next(iter(hints(type(section)))), None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        section.something_new = 1


def test_frozen_mappings_refuse_every_change_and_can_be_copied():
    mapping = FrozenDict(a=1)
    changes = {
        **{"update": [{"b": 2}], "pop": ["a"], "popitem": [], "clear": [], "setdefault": ["b", 2]},
        **{"__setitem__": ["a", 2], "__delitem__": ["a"], "__ior__": [{"b": 2}]},
    }
    for method, arguments in changes.items():
        with pytest.raises(TypeError, match=r"frozen configuration; build a new one with dict\(old\) and replace\(\)"):
            getattr(mapping, method)(*arguments)
    assert mapping == {"a": 1}
    assert hash(mapping) == hash(FrozenDict(a=1))
    for twin in (copy.copy(mapping), copy.deepcopy(mapping), pickle.loads(pickle.dumps(mapping))):
        assert twin == mapping
        assert isinstance(twin, FrozenDict)


def test_a_resolved_configuration_can_be_hashed_copied_and_pickled():
    config = resolved("task.model.weights={a: 1}").config
    assert hash(config) == hash(resolved("task.model.weights={a: 1}").config)
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_resolving_leaves_the_factory_s_object_alone():
    start = base(Model(blocks=(Block(x=1),)))
    before = copy.deepcopy(start)
    from official_trainer.config import resolve

    resolve(start, sets=["task.model.blocks[0].x=5", "trainer.train_steps=1"])
    assert start == before


def test_ranges():
    for limit, good, bad, said in (
        (Between(0, 1), (0, 0.5, 1), (-0.1, 1.1, float("nan")), "must be between 0 and 1"),
        (Between(1), (1, 5), (0,), "must be at least 1"),
        (Between(None, 2), (2, -9), (3,), "must be at most 2"),
        (Above(0), (0.1,), (0, -1), "must be greater than 0"),
    ):
        assert [limit.problem(value) for value in good] == [None] * len(good)
        assert [limit.problem(value) for value in bad] == [said] * len(bad)


def test_docs_end_with_their_block():
    own = {"integer": "an integer.", "truth": "a truth value, or not."}
    assert docs(Model) == {**own, "shape": "A one-of whose choices are its fields."}, (
        "a section has its class's first line"
    )
    assert docs(AdamConfig)["clipnorm"] == "largest L2 norm of each gradient.", "of a base class"
