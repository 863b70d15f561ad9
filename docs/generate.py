"""Writes the generated pages of `docs/reference`, which are committed: `python docs/generate.py`.

`python docs/generate.py terminal` trains for some seconds and draws `docs/images/terminal.svg`.

Owns: which pages are generated. Does not own: their text; each module of `generators/` has a part of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.generators import api, cli, config, exit_codes, terminal  # noqa: E402

REFERENCE = ROOT / "docs/reference"
PICTURE = ROOT / "docs/images/terminal.svg"


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its path in `docs/reference`."""
    return {"cli.md": cli.page(), "exit_codes.md": exit_codes.page(), **config.pages(), **api.pages()}


def main(argv: list[str]) -> None:
    """Writes the pages, or the picture."""
    if argv == ["terminal"]:
        PICTURE.write_text(terminal.picture(), encoding="utf-8")
        return
    for name, text in pages().items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
