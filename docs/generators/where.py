"""The page `design/where.md`: what each module owns, as its docstring says, so that a change finds its file.

Owns: the layout of that page. Does not own: its sentences, which are the first line and the `Owns:` of the modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "official_trainer"

_HEAD = """\
# Where to change what

What each module is and owns, as its docstring says. [Architecture](architecture.md) shows how they belong together."""

_OWNS = re.compile(r"Owns:\s+(.*?)(?=\s+Does\s+not\s+own|\n\n|\Z)", re.DOTALL)


def page() -> str:
    """Returns the page."""
    return "\n\n".join([_HEAD, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    folders = [folder for folder in sorted(PACKAGE.iterdir()) if (folder / "__init__.py").exists()]
    yield _table("The root", sorted(PACKAGE.glob("*.py")))
    for folder in folders:
        yield _table(
            f"`{folder.name}/`", [path for path in sorted(folder.rglob("*.py")) if "template" not in path.parts]
        )


def _table(title: str, paths: list[Path]) -> str:
    return "\n".join([f"## {title}", "", "| open | which is | to change |", "|---|---|---|", *_rows(paths)])


def _rows(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if (found := _OWNS.search(text)) is not None:
            cells = (text.partition("\n")[0], found[1])
            what, owned = (" ".join(cell.split()).rstrip(".").replace("|", "\\|") for cell in cells)
            yield f"| `{path.relative_to(PACKAGE)}` | {what} | {owned} |"
