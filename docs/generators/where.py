"""The page `design/where.md`: what each module owns, as its docstring says, so that a change finds its file.

Owns: the layout of that page. Does not own: its sentences, which are the `Owns:` of the modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "official_trainer"

_HEAD = """\
# Where to change what

What each module owns, as its docstring says; [Architecture](architecture.md) shows how the packages belong together."""

_OWNS = re.compile(r"Owns: (.*?)(?=\n *Does not\s+own|\n\n|\Z|\. Does not\s+own)", re.DOTALL)


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
    rows = [f"| {owned} | `{path.relative_to(PACKAGE)}` |" for path in paths if (owned := _owned(path))]
    return "\n".join([f"## {title}", "", "| to change | open |", "|---|---|", *rows])


def _owned(path: Path) -> str:
    found = _OWNS.search(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    return "" if found is None else " ".join(found[1].split()).rstrip(".").replace("|", "\\|")
