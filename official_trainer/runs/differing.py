"""What differs between the configs of several runs.

Owns: which fields differ, and their short names. Does not own: reading the runs (`recorded.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from official_trainer.config import lines
from official_trainer.config.text import flow
from official_trainer.runs.recorded import RecordedRun

NOT_THERE = "–"
"""The value of a field in a run that does not have it."""


def differing(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
    """Returns for each run the fields in which runs of its experiment differ, by path, each value as YAML.

    Runs without the name of an experiment are compared if their tasks have the same fields. A run without a config
    has none.
    """
    groups: dict[object, list[int]] = {}
    for number, run in enumerate(runs):
        if run.config:
            groups.setdefault(run.experiment or _fields_of_task(run), []).append(number)
    found: list[dict[str, str]] = [{} for _ in runs]
    for numbers in groups.values():
        for path, texts in _differing_fields([runs[number].config for number in numbers]).items():
            for number, text in zip(numbers, texts, strict=True):
                if text is not None:
                    found[number][path] = text
    return found


def _fields_of_task(run: RecordedRun) -> object:
    """Returns what tells tasks of Model Garden apart, whose driver does not record the experiment."""
    names = (path.split(".")[1] for path in run.config if path.startswith("task."))
    return frozenset(name.partition("[")[0] for name in names)


def _differing_fields(configs: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Returns the values of each field that differs, None where a run is not to show it."""
    found: dict[str, list[str | None]] = {}
    for path in dict.fromkeys(path for config in configs for path in config):
        written = [config.get(path) for config in configs]
        if len(set(written)) > 1:  # also when only the comments differ
            texts = [None if line is None else flow(lines.value(line)) for line in written]
            if len(set(texts)) > 1:
                found[path] = texts
    chosen = tuple(path.removesuffix("type") for path in found if path.endswith(".type"))
    for path, texts in list(found.items()):
        if not path.startswith(chosen):
            found[path] = [NOT_THERE if text is None else text for text in texts]
        elif not path.endswith(".type") and len({*texts} - {None}) == 1:
            del found[path]  # other runs have chosen another type, which has no such field
    return found


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Returns the shortest end of each path that no other one has.

    Example:
      >>> from official_trainer.runs.differing import short_names
      >>> short_names(["trainer.train_steps", "task.train_data.seed", "runtime.seed"])
      {'trainer.train_steps': 'train_steps', 'task.train_data.seed': 'train_data.seed', 'runtime.seed': 'runtime.seed'}
    """
    known = list(dict.fromkeys(paths))
    counts: dict[str, int] = {}
    for path in known:
        for end in _ends(path):
            counts[end] = counts.get(end, 0) + 1
    return {path: next((end for end in _ends(path) if counts[end] == 1), path) for path in known}


def _ends(path: str) -> list[str]:
    names = path.split(".")
    longest_start = max(0, len(names) - (2 if names[-1] == "type" else 1))  # `type` alone says nothing
    return [".".join(names[start:]) for start in range(longest_start, -1, -1)]
