"""How a value of the configuration refers to another field: `${PATH}`.

Owns: this grammar; the escape `$${` for the characters `${`.
Does not own: which fields there are, and in which order references get their values (`references.py`).
"""

from __future__ import annotations

import dataclasses
import re

from official_trainer.config import fields
from official_trainer.config.errors import Origin
from official_trainer.shown import shorten

_OPEN = re.compile(r"(?<!\$)\$\{")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")


class WrongReferenceError(ValueError):
    """A reference that cannot be read, or has no value; carries what to do."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


def refers(text: str) -> bool:
    """Whether a text has a `${` that is not escaped."""
    return "${" in text and _OPEN.search(text) is not None


def escaped(text: str) -> str:
    """Returns how a text is written, so that it does not refer to anything."""
    return text.replace("${", "$${")


def unescaped(text: str) -> str:
    """Returns the text that is meant by one that does not refer to anything."""
    return text.replace("$${", "${")


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Stands in a configuration for a value that refers to another, until all layers are merged.

    Attributes:
      text: as it is written.
      origin: where it is written.
    """

    text: str
    origin: Origin

    @property
    def shown(self) -> str:
        """The text on one line that only prints, for a terminal and for comments."""
        return shorten(self.text, 100)


def path_of(text: str) -> str:
    """Returns the path of the field that a text refers to.

    Raises:
      WrongReferenceError: it breaks the grammar.

    Example:
      >>> path_of("${trainer.train_steps}")
      'trainer.train_steps'
    """
    written = _REFERENCE.fullmatch(text.strip())
    if written is None:
        fix = "a reference is the whole value, ${PATH}; write $${ for these characters"
        raise WrongReferenceError("has '${' in a text", fix)
    path = written[1].strip()
    if not fields.is_path(path):
        what = f"has '{shorten(path)}' in a reference, which is no path of a field"
        raise WrongReferenceError(what, "a reference is ${PATH}, and nothing is computed in it")
    return path
