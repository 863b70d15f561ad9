"""Experiments of Model Garden as both have them, and whether two configs are the same."""

import importlib

from official.core import exp_factory

from official_trainer.garden import index, to_garden


def theirs(name):
    importlib.import_module(index.entries()[name].module)
    return exp_factory.get_exp_config(name)


BETTER = ("distribution_strategy", "num_gpus", "task_index", "best_checkpoint_export_subdir")
"""Fields that have another default here, and are left at it by the experiment."""


def flat(value, path=""):
    """Returns values by path; Model Garden's lists and tuples are one thing, as they are in a file."""
    if isinstance(value, dict):
        return {key: found for name, part in value.items() for key, found in flat(part, f"{path}.{name}").items()}
    if isinstance(value, list | tuple):
        parts = {key: found for i, part in enumerate(value) for key, found in flat(part, f"{path}[{i}]").items()}
        return {path: len(value), **parts}
    return {path: value}


def differing(ours, live_config):
    """Returns the fields of which our values, as Model Garden holds them, are not those of a live config of theirs."""
    one, other = flat(to_garden.to_object(ours.config).as_dict()), flat(live_config.as_dict())
    keys = {*one, *other}
    return {key: (one.get(key), other.get(key)) for key in sorted(keys) if one.get(key) != other.get(key)}


def is_better(path):
    return path.rpartition(".")[2] in BETTER


def assert_same(ours, live_config):
    assert {path: found for path, found in differing(ours, live_config).items() if not is_better(path)} == {}
