"""Combines an experiment, files and flags into one configuration.

Owns: the layers and their order; reporting the problems of all layers at once.
Does not own: reading a layer (`reading.py`, `overrides.py`) or merging it into the layers below (`decode.py`).

Low to high: class defaults, the experiment's factory, files named by `base:`, configuration files in order, dedicated
flags, `--params_override` in order, `--set` in order. Values that refer to others are computed from the result.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence

from official_trainer.config import checks, fields, limits, overrides, references
from official_trainer.config.declaration import Config
from official_trainer.config.decode import Decoder, normalised
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.provenance import Resolved, Trail
from official_trainer.config.reading import Node, Reader, node_at

_OVERRIDE, _SET = "--params_override", "--set"


def resolve(
    base: Config,
    *,
    experiment: str = "",
    config_files: Sequence[str] = (),
    params_overrides: Sequence[str] = (),
    sets: Sequence[str] = (),
    flags: Sequence[tuple[str, str, str]] = (),
) -> Resolved:
    """Merges all layers into one configuration.

    Args:
      base: what the experiment's factory returned.
      experiment: its name, for messages and the record.
      config_files: paths of YAML files.
      params_overrides: arguments of `--params_override`: items, YAML, or a file.
      sets: arguments of `--set`: one item each.
      flags: dedicated flags on the command line: name of the flag, path of the field, text.

    Returns:
      The configuration in force, in `config`, and what set each of its values.

    Raises:
      ConfigError: with all problems of all layers.

    Example:
      >>> from pathlib import Path
      >>> from official_trainer.config import ExperimentConfig, resolve
      >>> _ = Path("short.yaml").write_text("trainer: {train_steps: 500, summary_interval: 100}")
      >>> resolved = resolve(ExperimentConfig(), config_files=["short.yaml"], sets=["trainer.train_steps=200"])
      >>> resolved.config.trainer.train_steps, resolved.config.trainer.summary_interval
      (200, 100)
    """
    base, of_python = normalised(base)
    trail = Trail(base, experiment)
    problems = [dataclasses.replace(problem, origin=trail.origin(problem.path)) for problem in of_python]
    decoder, reader = Decoder(base, trail, problems), Reader(problems)
    # One at a time: so the problems are in the order of the layers.
    for node in _nodes(config_files, flags, params_overrides, sets, reader):
        decoder.merge(node)
    if not references.settle(decoder):
        raise ConfigError(problems)
    sections = list(checks.sections_in_force(decoder.root))
    unused = list(itertools.islice(checks.unused(sections, trail, list(problems)), limits.MAX_PROBLEMS))
    problems += (problem for problem, is_allowed in unused if not is_allowed)
    problems += itertools.islice(checks.rules(sections, trail, list(problems)), limits.MAX_PROBLEMS)
    problems += checks.too_large(decoder.root, trail)
    if problems:
        raise ConfigError(problems)
    overruled = (problem for problem, _ in unused)
    warnings = (*reader.warnings, *overruled, *checks.warnings(decoder.root, sections, trail))
    return Resolved(decoder.root, experiment, trail, warnings)


def _nodes(
    config_files: Sequence[str],
    flags: Sequence[tuple[str, str, str]],
    params_overrides: Sequence[str],
    sets: Sequence[str],
    reader: Reader,
) -> Iterator[Node]:
    """Yields what the layers set, low to high."""
    for name in _several(config_files):
        yield from reader.file(os.path.expanduser(name))
    for flag, path, text in flags:
        node = Node("scalar", text, Origin("flag", flag, 1, 1, text), len(text))
        yield node_at(fields.parse_path(path), node, node)
    for number, node in enumerate(_overrides(params_overrides, sets, reader)):
        if number == limits.MAX_OVERRIDES:
            what = f"is one more than the {limits.MAX_OVERRIDES} overrides that are allowed"
            reader.problems.append(node.problem(what, fix="write them into a file and name it with --config_file"))
            return
        yield node


def _overrides(params_overrides: Sequence[str], sets: Sequence[str], reader: Reader) -> Iterator[Node]:
    for text in _several(params_overrides):
        if overrides.is_file(text):
            yield from reader.file(os.path.expanduser(text.strip()))
        elif overrides.is_yaml(text):
            whole = reader.text(text, Origin("flag", _OVERRIDE, 1, 1, text))
            yield from [] if whole is None else [whole]
        else:
            yield from overrides.parse(text, _OVERRIDE, reader)
    for text in _several(sets):
        if not text.strip():
            reader.problems.append(Problem("expected path=value, got nothing", origin=Origin("flag", _SET)))
        yield from overrides.parse(text, _SET, reader, single=True)


def _several(texts: Sequence[str]) -> Sequence[str]:
    return (texts,) if isinstance(texts, str) else texts
