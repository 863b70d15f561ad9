"""The picture `docs/images/terminal.svg`: the first run of the README, as a terminal shows it.

Owns: running the command in a pseudo terminal, and drawing what is on the screen at the end.
Does not own: what a run shows (`official_trainer/tracking/console.py`).
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from fcntl import ioctl
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("--experiment=digits_cnn", "--mode=train_and_eval", "--model_dir=runs/digits")
_COLUMNS, _ROWS = 88, 40  # wide enough for the command and for the line of an evaluation


def picture() -> str:
    """Runs the command and returns the picture, an SVG."""
    with tempfile.TemporaryDirectory() as folder:
        lines = screen(COMMAND, Path(folder))
    console = Console(record=True, width=_COLUMNS, file=StringIO(), highlight=False)
    console.print("[bold green]$[/]", "python train.py", *COMMAND)
    for line in lines:
        for part in line.divide(range(_COLUMNS, len(line), _COLUMNS)):  # as a terminal does
            console.print(part)
    drawn = console.export_svg(title="official-trainer", unique_id="terminal")
    return re.sub(r"@font-face {.*?}\s*", "", drawn, flags=re.DOTALL)  # a picture that downloads nothing


def screen(argv: Sequence[str], folder: Path) -> list[Text]:
    """Runs `python train.py` in a new workspace and returns the lines that its terminal shows at the end."""
    for name in ("experiments", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    outer, inner = pty.openpty()
    ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "train.py", *argv], cwd=folder, env=environ, stdout=inner, stderr=inner)
    os.close(inner)
    output = _read(outer)
    if process.wait() != 0:
        raise RuntimeError(f"the run failed:\n{output}")
    return list(Text.from_ansi("\n".join(_settled(output))).split("\n"))


def _settled(output: str) -> list[str]:
    """Returns the lines that are left of an output in which rich erases the lines of its bar, and writes them again."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[hl])", output):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b[?"):
            lines[row] += part
    return lines


def _read(terminal: int) -> str:
    """Returns all that is written until the last process has closed the terminal."""
    parts = []
    while True:
        try:
            parts.append(os.read(terminal, 65536))
        except OSError:  # this is how Linux says that it is closed
            os.close(terminal)
            return b"".join(parts).decode()
