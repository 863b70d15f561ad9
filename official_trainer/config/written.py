"""The fields that a `params.yaml` holds, by path, for tables over many runs.

Owns: `fields_of`, and the comment behind a field. Does not own: writing such a file (`dump.py`), reading it as a
configuration (`layers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.errors import source_lines
from official_trainer.config.reading import Node, plain_value, whole_text


def fields_of(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    r"""Returns each value of a file by its path, and each comment behind one; a list of values is one value.

    Raises:
      ConfigError: it is no YAML, or too much.

    Example:
      >>> from official_trainer.config.written import fields_of
      >>> fields_of("trainer:\n  train_steps: 500  # --set\n  train_epochs: null\n")
      ({'trainer.train_steps': 500, 'trainer.train_epochs': None}, {'trainer.train_steps': '--set'})
    """
    root, lines = whole_text(text, "params.yaml"), source_lines(text)
    values, comments = {}, {}
    for path, line, node in _leaves(root, "") if root is not None and root.form == "mapping" else ():
        values[path] = plain_value(node)
        if said := comment(lines[line]):
            comments[path] = said
    return values, comments


def _leaves(node: Node, path: str) -> Iterator[tuple[str, int, Node]]:
    """Yields the path of each value in a mapping or a list, the number of its line from 0, and its node."""
    pairs = node.value if node.form == "mapping" else enumerate(node.value)
    for key, item in pairs:
        name, line = (key, item.line) if isinstance(key, int) else (key.value, key.line)
        inside = fields.join(path, name)
        is_list_of_sections = item.form == "list" and any(inner.form == "mapping" for inner in item.value)
        if (item.form == "mapping" and item.value) or is_list_of_sections:
            yield from _leaves(item, inside)
        else:
            yield inside, line, item


def comment(line: str) -> str:
    """Returns the comment at the end of a line that begins with a field; empty without one.

    Example:
      >>> from official_trainer.config.written import comment
      >>> comment("steps: 500  # --set"), comment("text: 'a  # b'"), comment("text: 'a  # b'  # experiment")
      ('--set', '', 'experiment')
    """
    _, mark, text = line.rpartition("  # ")
    is_inside = text.count("'") % 2 or text.count('"') % 2  # the rest of a quoted text
    return "" if not mark or is_inside else text
