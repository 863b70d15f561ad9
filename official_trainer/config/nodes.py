"""Configuration text as a tree of nodes with their places. Nothing has a type yet: `1e-4` is four characters.

Owns: `Node`. Does not own: reading text into nodes (`reading.py`, `overrides.py`), or what they mean; `decode.py` reads
them by the types of the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from official_trainer.config import fields, scalars
from official_trainer.config.errors import Origin, Problem
from official_trainer.shown import shorten


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A piece of configuration text.

    Attributes:
      kind: `scalar` (value: text), `list` (value: nodes), `mapping` (value: pairs of nodes), `reference` (value: text
        with `${…}`; decoding makes it of a scalar).
      value: see kind.
      origin: where it starts.
      length: columns it takes on its first line.
      quoted: whether a scalar was quoted.
      op: `=` set or merge, `:=` replace, `+=` append, `-=` remove, `~` reset.
      is_part: whether it is a mapping with one key of a path, for one part of what is there; all else stays as it is.
    """

    kind: Literal["scalar", "list", "mapping", "reference"]
    value: Any
    origin: Origin
    length: int = 1
    quoted: bool = False
    op: str = "="
    is_part: bool = False

    @property
    def is_glued(self) -> bool:
        """Whether text looks like a name and a value without the space between."""
        name, colon, value = self.value.partition(":")
        return bool(colon and value and not self.quoted and fields.is_path(name))

    @property
    def is_null(self) -> bool:
        """Whether it is null, or nothing at all."""
        return self.kind == "scalar" and not self.quoted and self.value in scalars.NULLS

    @property
    def shown(self) -> str:
        """The node as messages show it."""
        if self.kind == "scalar":
            if self.is_null:
                return "null" if self.value else "nothing"
            return ("the quoted text " if self.quoted else "") + f"'{shorten(self.value)}'"
        if self.kind == "reference":
            return f"'{shorten(self.value)}'"
        return "a list" if self.kind == "list" else "a mapping"

    def problem(self, what: str, path: str = "", **parts: str) -> Problem:
        """Returns a problem at the place of this node."""
        return Problem(what, path, origin=self.origin, length=self.length, **parts)


def node_at(keys: Sequence[fields.Key], mark: Node, node: Node) -> Node:
    """Returns what puts `node` at `keys`, a path that is written at `mark`; all else stays as it is."""
    for key in reversed(keys):
        at = dataclasses.replace(mark, value=key, quoted=True)
        node = Node("mapping", ((at, node),), node.origin, node.length, is_part=True)
    return node
