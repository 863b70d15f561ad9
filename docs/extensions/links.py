"""Relative links of a page, as MyST has to read them.

Owns: links out of `docs/`, links in files that pages include. Does not own: anything of Sphinx, so that its tests need
no Sphinx.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

INCLUDED = {"benchmarks/README.md": "project/benchmarks.md", "CHANGELOG.md": "project/changelog.md"}
"""Files of the repository that are shown as pages."""

_LINK = re.compile(r"\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")


def relink(text: str, folder: Path, page: Path) -> str:
    """Returns Markdown whose relative links count from `folder`, with links that count from the folder of `page`."""

    def new(match: re.Match[str]) -> str:
        target, anchor = Path(os.path.normpath(folder / match[1])), match[2] or ""
        if target.is_relative_to(ROOT) and str(target.relative_to(ROOT)) in INCLUDED:
            target = DOCS / INCLUDED[str(target.relative_to(ROOT))]
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        path = os.path.relpath(target, page.parent)
        return f"]({path}{anchor})" if target.is_relative_to(DOCS) else f"](path:{path})"

    return _LINK.sub(new, text)
