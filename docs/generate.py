"""Writes the generated pages, which are not committed: `python docs/generate.py`; the build of the site does so, too.

`python docs/generate.py terminal` trains for some seconds and draws `docs/images/terminal.svg`, and
`python docs/generate.py packages` draws `docs/images/packages.svg`.

Owns: which pages are generated. Does not own: their text; each module of `generators/` has a part of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.generators import api, cli, config, exit_codes, packages, terminal  # noqa: E402

REFERENCE = ROOT / "docs/reference"
IMAGES = ROOT / "docs/images"
PICTURES = {"terminal": terminal.picture, "packages": packages.picture}


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its path from `docs/reference`."""
    return {"cli.md": cli.page(), "exit_codes.md": exit_codes.page(), **config.pages(), **api.pages()}


def main(argv: list[str]) -> None:
    """Writes the pages, or the pictures that are named."""
    for name in argv:
        (IMAGES / f"{name}.svg").write_text(PICTURES[name](), encoding="utf-8")
    if argv:
        return
    for name, text in pages().items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
