"""Links from pages to files of the repository, which the site then shows.

Owns: one page for each linked file that is no page itself, under `source/`; links from the Python API to the code.
Does not own: where a relative link leads (`links.py`); links between pages, which MyST checks.
"""

from __future__ import annotations

import functools
import html
import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import util as pygments_util
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

from docs.extensions.links import DOCS, ROOT, relink

_logger = logging.getLogger(__name__)
_FROM_API = "../../source/"
_LANGUAGES = {".sbatch": "bash", "Dockerfile": "docker"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the steps below to the build."""
    app.connect("source-read", _page_read)
    app.connect("include-read", _include_read)
    app.connect("doctree-read", _link_to_source_pages, priority=400)  # before Sphinx copies files for download
    app.connect("doctree-read", _note_code, priority=900)  # after Sphinx has added the links to code
    app.connect("html-collect-pages", _source_pages)
    return {"parallel_read_safe": True}


def _page_read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    source[0] = relink(source[0], page.parent, page)


def _include_read(app: Sphinx, path: Path, _parent: str, content: list[str]) -> None:
    content[0] = relink(content[0], (DOCS / path).parent.resolve(), Path(app.env.doc2path(app.env.docname)))


def _link_to_source_pages(app: Sphinx, doctree: nodes.document) -> None:
    """MyST offers a file that is no page for download; here the link leads to a page with the file's text."""
    docname = app.env.docname
    linked = app.env.metadata[docname].setdefault("linked_files", [])
    for node in list(doctree.findall(addnodes.download_reference)):
        target = Path(os.path.normpath(Path(app.env.doc2path(docname)).parent / node["reftarget"]))
        if not target.is_file() or not target.is_relative_to(ROOT):
            _logger.warning("no such file in the repository: %s", node["reftarget"], location=node)
            continue
        path = target.relative_to(ROOT)
        uri = app.builder.get_relative_uri(docname, f"source/{path}")
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))
        linked.append(str(path))


def linkcode_resolve(_domain: str, info: Mapping[str, str]) -> str | None:
    """Returns the link from a name of the Python API to its code; all pages of the API are in `reference/api/`."""
    try:
        found = functools.reduce(getattr, info["fullname"].split("."), importlib.import_module(info["module"]))
        found = inspect.unwrap(found.fget if isinstance(found, property) else found)
        path, line = Path(inspect.getfile(found)), inspect.getsourcelines(found)[1]
    except (AttributeError, OSError, TypeError):  # an attribute, or a value
        return None
    return f"{_FROM_API}{path.relative_to(ROOT)}.html#L-{line}" if path.is_relative_to(ROOT) else None


def _note_code(app: Sphinx, doctree: nodes.document) -> None:
    linked = app.env.metadata[app.env.docname].setdefault("linked_files", [])
    for node in doctree.findall(nodes.reference):
        if node.get("refuri", "").startswith(_FROM_API):
            linked.append(node["refuri"].removeprefix(_FROM_API).partition(".html#")[0])


def _source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields a page for each file that a page links to."""
    for path in sorted({path for data in app.env.metadata.values() for path in data.get("linked_files", ())}):
        text = (ROOT / path).read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, _language(path), linenos="inline", lineanchors="L")
        body = f"<h1><code>{html.escape(path)}</code></h1>\n{code}"
        yield f"source/{path}", {"title": path, "body": body}, "page.html"


def _language(path: str) -> str:
    name = Path(path).name
    if known := _LANGUAGES.get(Path(path).suffix) or _LANGUAGES.get(name):
        return known
    try:
        return get_lexer_for_filename(name).aliases[0]
    except pygments_util.ClassNotFound:
        return "text"
