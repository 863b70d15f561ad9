"""Combines an experiment, files and flags into one configuration.

Owns: the layers and their order; reporting the problems of all layers at once.
Does not own: reading a layer (`nodes.py`, `overrides.py`) or merging it into the layers below (`decode.py`).

Low to high: class defaults, the experiment's factory, files named by `base:`, configuration files in order, dedicated
flags, `--params_override` in order, `--set` in order.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from official_trainer.config import checks, fields, nodes, overrides, values
from official_trainer.config.declaration import Config
from official_trainer.config.decode import Decoder
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.nodes import Node, node_at
from official_trainer.config.provenance import Resolved, Trail

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
      config_files: YAML or JSON files.
      params_overrides: arguments of `--params_override`: items, YAML, or a file.
      sets: arguments of `--set`: one item each.
      flags: dedicated flags on the command line: name of the flag, path of the field, text.

    Raises:
      ConfigError: with all problems of all layers.
    """
    layers = _Layers(base, experiment)
    for name in _several(config_files):
        layers.add_file(os.path.expanduser(name))
    for flag, path, text in flags:
        layers.add_flag(flag, path, text)
    for text in _several(params_overrides):
        layers.add_override(text)
    for text in _several(sets):
        layers.add_items(text, _SET, single=True)
    return layers.finish()


class _Layers:
    def __init__(self, base: Config, experiment: str) -> None:
        found: list[Problem] = []
        self._experiment = experiment
        self._base = values.normalise(base, type(base), "", found.append)
        self._trail = Trail(self._base, experiment)
        self._problems = [dataclasses.replace(each, origin=self._trail.origin(each.path)) for each in found]
        self._decoder = Decoder(self._base, self._trail, self._problems)

    def add_file(self, name: str) -> None:
        for node in nodes.load(name, self._problems):
            self._decoder.merge(node)

    def add_flag(self, flag: str, path: str, text: str) -> None:
        origin = Origin("flag", flag, 1, 1, text)
        node = Node("scalar", text, origin, len(text))
        self._decoder.merge(node_at(fields.parse_path(path), node, node))

    def add_override(self, text: str) -> None:
        if overrides.is_file(text):
            self.add_file(os.path.expanduser(text.strip()))
        elif overrides.is_yaml(text):
            node = nodes.compose(text, Origin("flag", _OVERRIDE, 1, 1, text), self._problems)
            if node is not None:
                self._decoder.merge(node)
        else:
            self.add_items(text, _OVERRIDE, single=False)

    def add_items(self, text: str, flag: str, single: bool) -> None:
        found = overrides.parse(text, flag, self._problems, single=single)
        if single and not found and not text.strip():
            self._problems.append(Problem("expected path=value, got nothing", origin=Origin("flag", flag)))
        for node in found:
            self._decoder.merge(node)

    def finish(self) -> Resolved:
        config = self._decoder.root
        self._problems += list(checks.unused(config, self._trail, self._problems))
        self._problems += list(checks.rules(config, self._trail, self._problems))
        if self._problems:
            raise ConfigError(self._problems)
        warnings = tuple(checks.warnings(config, self._trail))
        return Resolved(config, self._experiment, self._trail, warnings)


def _several(texts: Sequence[str]) -> Sequence[str]:
    return (texts,) if isinstance(texts, str) else texts
