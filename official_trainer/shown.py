"""Text as messages, records and terminals show it.

Owns: control characters made visible, long text cut, lines that end between words, the first few of many names;
secrets hidden, and which texts look like one. Does not own: what messages say; `cli/terminal.py` prints them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

_SHOWN = 3
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing, that turn the direction of text, or that no stream takes."""
_PASSWORD = re.compile(r"(://[^/\s:@]*:)(\S+)(?=@)|([?&]\w*(?:password|passwd|pwd)=)([^&\s]+)", re.IGNORECASE)
_TOKEN = r"""
(   # what stands before a token, whose shape does not tell it; a hash of a commit looks like a key of W&B
    \b(?i:bearer)\ +(?=\S*[0-9])(?=[\w.~+/-]{20})
  | (?i:wandb(?!\w{0,40}(?:commit|sha|hash|_id)\W)[\w.]{0,40}["']?\s{0,3}[=:]\s{0,3})["']?(?=[0-9a-f]{40}\b)
)[\w.~+/=-]+
| \b(?:gh[oprsu]|npm|hf)_[A-Za-z0-9]{30,}
| \b(?:github_pat_|gl(?:pat|rt|dt|cbt|ptt)-|pypi-AgE|[rs]k_(?:live|test)_|AIza|xox[a-z]-|wandb_v1_)[\w-]{10,}
| \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
| (?<![\w-])sk-(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}
| \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}
| -----BEGIN\ [A-Z0-9\ ]*PRIVATE\ KEY[\s\S]*?(?:-----END\ [A-Z0-9\ ]*PRIVATE\ KEY[A-Z\ ]*-----|\Z)
"""
"""Tokens and keys of GitHub, GitLab, npm, PyPI, Hugging Face, Stripe, Google, Slack, W&B, AWS, OpenAI and others."""
_LAID_OUT = re.compile(r"\s+(\d+ )?\|")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|MB|GB|examples/s)(?!\w))")


def counted(number: int, noun: str) -> str:
    """Returns `1 example`, `1,024 examples`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def first_few(names: Sequence[str]) -> str:
    """Returns the first names of what may be many, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def printable(text: str) -> str:
    r"""Returns text that only prints: control characters become escapes such as `\x1b`; line ends and tabs stay.

    Example:
      >>> from official_trainer.shown import printable
      >>> print(printable("\x1b[31mred"))
      \x1b[31mred
    """
    return _HIDDEN.sub(lambda match: escaped(match[0]), text)


def without_secrets(text: str) -> str:
    """Returns text in which passwords of URLs and what looks like a token or a key are hidden.

    Example:
      >>> from official_trainer.shown import without_secrets
      >>> print(without_secrets("--set=task.db=postgresql://me:secret@host/db"))
      --set=task.db=postgresql://me:***@host/db
    """
    text = _PASSWORD.sub(lambda match: f"{match[1] or match[3]}***", text)
    return _token().sub(lambda match: f"{match[1] or ''}***", text)


def secret_in(text: str) -> str:
    """Returns which secret a text seems to hold, `a password` or `a token or a key`; empty if it holds none.

    Args:
      text: with the name in front of the value where there is one, as in `NAME=VALUE`.
    """
    return "a password" if passwords_in(text) else "a token or a key" if _token().search(text) else ""


@functools.cache
def _token() -> re.Pattern[str]:
    """Returns the expression of tokens; it takes 20 ms to compile, which most commands need not spend."""
    return re.compile(_TOKEN, re.ASCII | re.VERBOSE)


def passwords_in(text: str) -> list[str]:
    """Returns the passwords of the URLs in a text, as they are written there."""
    return [match[2] or match[4] for match in _PASSWORD.finditer(text)]


def escaped(char: str) -> str:
    """Returns a character as Python and YAML write it between double quotes."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shorten(text: str, limit: int = 60) -> str:
    """Returns `text` on one line, printable, cut in the middle when it is long."""
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= limit else f"{text[: limit - 12]}…{text[-10:]}"


def wrapped(text: str, width: int | None, indent: str = "  ") -> str:
    """Returns text whose lines end between words where they would be longer than a terminal is wide.

    A word that is longer, such as a path, stays in one piece, to be copied. So does a line of a file that is shown with
    its number, and the marks below it.

    Args:
      text: of any number of lines.
      width: in columns; None changes nothing.
      indent: of the lines that continue one; those of an indented line have its own.

    Example:
      >>> from official_trainer.shown import wrapped
      >>> print(wrapped("the data ended at step 20, which takes 5 % of an epoch", 32))
      the data ended at step 20, which
        takes 5 % of an epoch
    """
    lines: list[str] = []
    for line in text.split("\n"):
        if width is None or len(line) <= width or _LAID_OUT.match(line):
            lines.append(line)
            continue
        import textwrap  # takes milliseconds, which most commands need not spend

        kept = _BEFORE_UNIT.sub("\u00a0", line)  # a number and its unit stay together
        below = line[: len(line) - len(line.lstrip())] or indent
        options = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
        parts = textwrap.wrap(kept, width, subsequent_indent=below, **options)  # type: ignore[arg-type]
        lines += (part.replace("\u00a0", " ") for part in parts)
    return "\n".join(lines)
