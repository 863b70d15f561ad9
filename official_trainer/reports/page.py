"""The report as one file of HTML: it loads nothing, and no text of a run can become markup or a script.

Owns: the file, its Content-Security-Policy, how its data are embedded. Does not own: the data (`content.py`), the
scripts and styles (`static/`, where uPlot lies as it was published, with its licence).

The policy allows this page's own style and script, by their checksums.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import json
import string
from collections.abc import Mapping
from typing import Any

from official_trainer.shown import printable

_SCRIPTS = ("dom.js", "curves.js", "report.js")
_LIBRARY, _LIBRARY_STYLE = "uPlot.iife.min.js", "uPlot.min.css"


def render(content: Mapping[str, Any]) -> str:
    """Returns the page.

    Args:
      content: as `content.of` returns it.
    """
    style = f"{_static(_LIBRARY_STYLE)}\n{_static('report.css')}"
    scripts = "\n".join(map(_static, _SCRIPTS))
    script = f"{_static(_LIBRARY)}\n(() => {{\n{scripts}\n}})();\n"
    policy = [
        "default-src 'none'",
        f"script-src {_checksum(script)}",
        f"style-src {_checksum(style)}",
        "img-src data:",  # the empty icon, which else is asked for
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return string.Template(_static("report.html")).substitute(
        policy="; ".join(policy),
        title=html.escape(printable(content["title"])),
        style=style,
        words="\n".join(f"<p>{html.escape(printable(' · '.join(fact)))}</p>" for fact in content["facts"]),
        data=embedded(content),
        script=script,
    )


def embedded(content: Mapping[str, Any]) -> str:
    r"""Returns JSON that a `<script>` may hold: no text in it can end that, or begin a comment.

    Example:
      >>> from official_trainer.reports.page import embedded
      >>> embedded({"name": "</script>"})
      '{"name":"\\u003c/script>"}'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@functools.cache
def _static(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
