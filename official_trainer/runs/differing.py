"""What tells several runs apart: their names, and what differs between their configs.

Owns: these names, and which fields differ. Does not own: reading the runs (`recorded.py`), short names of fields
(`config/text.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from official_trainer.config.text import flow
from official_trainer.runs.recorded import RecordedRun

_TRIALS, _RUN = "trials", "run"  # of a sweep: `trials/3/run`

_NOT_THERE = "–"
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
    """Returns for each run the fields in which runs of its experiment differ, by path, each value as YAML.

    Runs without the name of an experiment are compared if their tasks have the same fields.
    """
    fields_of_runs: list[dict[str, str]] = [{} for _ in runs]
    numbers_of: dict[object, list[int]] = {}
    for number, run in enumerate(runs):
        if run.config:
            of_task = (path.split(".")[1].partition("[")[0] for path in run.config if path.startswith("task."))
            numbers_of.setdefault(run.experiment or frozenset(of_task), []).append(number)
    for numbers in numbers_of.values():
        configs = [runs[number].config for number in numbers]
        paths = dict.fromkeys(itertools.chain.from_iterable(configs))
        texts_by_path = {path: [flow(config[path]) if path in config else None for config in configs] for path in paths}
        texts_by_path = {path: texts for path, texts in texts_by_path.items() if len(set(texts)) > 1}
        chosen = tuple(path.removesuffix("type") for path in texts_by_path if path.endswith(".type"))
        for path, texts in texts_by_path.items():
            is_of_choice = path.startswith(chosen)
            if is_of_choice and not path.endswith(".type") and len({*texts} - {None}) == 1:
                continue  # other runs have chosen another type, which has no such field
            for number, text in zip(numbers, texts, strict=True):
                if text is not None or not is_of_choice:
                    fields_of_runs[number][path] = _NOT_THERE if text is None else text
    return fields_of_runs
