"""What tells several runs apart: their names, and what differs between their configs.

Owns: these names, and which fields differ. Does not own: reading the runs (`recorded.py`), short names of fields
(`config/text.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config.text import flow
from official_trainer.runs.recorded import RecordedRun

_TRIALS, _RUN = "trials", "run"  # of a sweep: `trials/3/run`

NOT_THERE = "–"
"""The value of a field in a run that does not have it."""


def names(directories: Sequence[str]) -> list[str]:
    """Returns what runs are called beside each other: the part of their paths that they do not share.

    Example:
      >>> from official_trainer.runs.differing import names
      >>> names(["runs/digits/a", "runs/digits/b"]), names(["sweep/trials/1/run", "sweep/trials/2/run"])
      (['a', 'b'], ['trial 1', 'trial 2'])
    """
    paths = [os.path.abspath(directory).split(os.sep) for directory in directories]
    is_trial = [path[-1] == _RUN and path[-3:-2] == [_TRIALS] for path in paths]
    paths = [path[:-1] if of_sweep else path for path, of_sweep in zip(paths, is_trial, strict=True)]
    if all(is_trial) and len({tuple(path[:-1]) for path in paths}) == 1:
        return [f"trial {path[-1]}" for path in paths]
    levels = itertools.takewhile(lambda level: len({*level}) == 1, zip(*(path[:-1] for path in paths), strict=False))
    shared = len(list(levels))
    if len(paths) == 1:
        shared = len(paths[0]) - 1
    return [os.sep.join(path[shared:]) or os.sep for path in paths]


def differing(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
    """Returns for each run the fields in which runs of its experiment differ, by path, each value as YAML."""
    fields_of_runs: list[dict[str, str]] = [{} for _ in runs]
    for numbers in groups(runs):
        for path, texts in fields([runs[number].config for number in numbers]).items():
            for number, text in zip(numbers, texts, strict=True):
                if text is not None:
                    fields_of_runs[number][path] = text
    return fields_of_runs


def groups(runs: Sequence[RecordedRun]) -> list[list[int]]:
    """Returns the runs whose configs are compared with each other, by their places in `runs`: those of an experiment.

    Runs without the name of an experiment are compared if their tasks have the same fields. A run without a config
    is in no group.
    """
    members: dict[object, list[int]] = {}
    for number, run in enumerate(runs):
        if run.config:
            of_task = (path.split(".")[1].partition("[")[0] for path in run.config if path.startswith("task."))
            members.setdefault(run.experiment or frozenset(of_task), []).append(number)
    return [*members.values()]


def fields(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Returns the values of each field that differs between configs, as YAML; None where one is not to show it.

    Args:
      configs: by path the value of each field.
    """
    texts_by_path: dict[str, list[str | None]] = {}
    for path in dict.fromkeys(path for config in configs for path in config):
        texts = [flow(config[path]) if path in config else None for config in configs]
        if len(set(texts)) > 1:
            texts_by_path[path] = texts
    chosen = tuple(path.removesuffix("type") for path in texts_by_path if path.endswith(".type"))
    for path, texts in list(texts_by_path.items()):
        if not path.startswith(chosen):
            texts_by_path[path] = [NOT_THERE if text is None else text for text in texts]
        elif not path.endswith(".type") and len({*texts} - {None}) == 1:
            del texts_by_path[path]  # other runs have chosen another type, which has no such field
    return texts_by_path
