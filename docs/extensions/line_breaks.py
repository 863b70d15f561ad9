"""Where long names in code may break: after `_`, `.`, `/` and the like, never inside a word.

Owns: the places for breaks in code inside of a text. Does not own: how narrow a cell may be (`_static/site.css`).
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_WHOLE = 20  # letters; a shorter name fits into each cell
_PART = re.compile(r"[\W_]*[^\W_]+(?:\.[^\W_]{1,4}(?![^\W_]))*[\W_]*|[\W_]+")
"""A word with what follows it; the ending of a file stays with its name."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds the breaks to each page of HTML, after the index for the search has its text."""
    app.connect("doctree-resolved", _break_code)
    return {"parallel_read_safe": True}


def _break_code(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    if app.builder.format != "html":
        return
    for code in list(doctree.findall(lambda node: isinstance(node, nodes.literal | addnodes.literal_emphasis))):
        for text in list(code.findall(nodes.Text)):
            text.parent.replace(text, [new for part in parts(text) for new in (nodes.Text(part), _place())][:-1])


def parts(text: str) -> list[str]:
    """Returns a text in the parts between which it may break.

    Example:
      >>> from docs.extensions.line_breaks import parts
      >>> parts("--flag=1"), parts("trainer.optimizer_config.type")
      (['--flag=1'], ['trainer.', 'optimizer_', 'config.', 'type'])
    """
    words = re.findall(r"\S+\s*|\s+", text)
    return [part for word in words for part in (_PART.findall(word) if len(word) > _WHOLE else [word])] or [text]


def _place() -> nodes.raw:
    return nodes.raw("", "<wbr>", format="html")
