r"""How a text of the configuration refers to other fields: `${…}`.

Owns: this grammar; the escape `$${` for the characters `${`.
Does not own: which fields there are, and in which order references get their values (`references.py`).

    text      = { char | "$${" | "${", path, "}" } ;
    path      as in `overrides.py`
"""

from __future__ import annotations

import dataclasses
import re

from official_trainer.config import fields
from official_trainer.config.errors import Origin
from official_trainer.shown import shorten

_OPEN = re.compile(r"(?<!\$)\$\{")
_REFERENCE = re.compile(r"(?<!\$)\$\{([^{}]*)\}")


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
    """Stands in a configuration for a value that refers to others, until all layers are merged.

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


def parse(text: str) -> list[str]:
    """Splits a text into what is literal and the paths of other fields, by turns; the first and the last are literal.

    Raises:
      WrongReferenceError: it breaks the grammar.

    Example:
      >>> parse("run_${trainer.train_steps}")
      ['run_', 'trainer.train_steps', '']
    """
    pieces = [piece.strip() if number % 2 else piece for number, piece in enumerate(_REFERENCE.split(text))]
    if any(_OPEN.search(literal) for literal in pieces[::2]):
        raise WrongReferenceError("has a '${' without its '}'", "close it, or write $${ for these characters")
    for path in pieces[1::2]:
        if not fields.is_path(path):
            what = f"has '{shorten(path)}' in a reference, which is no path of a field"
            raise WrongReferenceError(what, "a reference is ${PATH}, and nothing is computed in it")
    return [piece if number % 2 else unescaped(piece) for number, piece in enumerate(pieces)]
