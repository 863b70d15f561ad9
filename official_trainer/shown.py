"""Text as messages, records and terminals show it.

Owns: control characters made visible, long text cut, lines that end between words, the first few of many names;
secrets hidden, and which texts look like one. Does not own: what messages say; `cli/terminal.py` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SHOWN = 3
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing, that turn the direction of text, or that no stream takes."""
_PASSWORD = re.compile(
    r"(://[^/\s:@]*:)(?P<of_user>\S+)(@)|([?&]\w*(?:password|passwd|pwd)=)(?P<in_query>[^&\s]+)", re.IGNORECASE
)
_SECRETS: Mapping[str, str] = {
    "a GitHub token": r"\b(gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "a GitLab token": r"\b(gl(?:pat|rt|dt|cbt|ptt)-[\w-]{20,})",
    "an npm token": r"\b(npm_[A-Za-z0-9]{36,})",
    "a PyPI token": r"\b(pypi-AgE[\w-]{50,})",
    "a Stripe key": r"\b([rs]k_(?:live|test)_[A-Za-z0-9]{20,})",
    "a bearer token": r"\b(?i:bearer) +((?=\S*[0-9])[\w.~+/-]{20,}=*)",
    "an AWS access key": r"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b",
    "a Hugging Face token": r"\b(hf_[A-Za-z0-9]{30,})",
    "a Weights & Biases key": r"(?:(?i:wandb(?!\w{0,40}(?:commit|sha|hash|_id)\W)[\w.]{0,40}[\"']?\s{0,3}[=:]\s{0,3})"
    r"[\"']?(?=[0-9a-f]{40}\b)|\b(?=wandb_v1_))(\w{40,})",
    "a Google API key": r"\b(AIza[\w-]{35})",
    "a Slack token": r"\b(xox[a-z]-[A-Za-z0-9-]{10,})",
    "an OpenAI key": r"(?<![\w-])(sk-(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,})",
    "a JSON Web Token": r"\b(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})",
    "a private key": r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
    r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z))",
}
"""The shape of each kind of secret, in its group 1. 40 hexadecimal digits are a key only behind a name with `wandb`,
because the hash of a commit looks the same."""
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
    return _HIDDEN.sub(lambda found: escaped(found[0]), text)


def without_secrets(text: str) -> str:
    """Returns text in which passwords of URLs and what looks like a token or a key are hidden.

    Example:
      >>> from official_trainer.shown import without_secrets
      >>> print(without_secrets("--storage=postgresql://me:secret@host/db"))
      --storage=postgresql://me:***@host/db
    """
    text = _PASSWORD.sub(lambda found: f"{found[1] or found[4]}***{found[3] or ''}", text)
    for shape in _SECRETS.values():
        text = re.sub(shape, lambda found: found[0].replace(found[1], "***"), text, flags=re.ASCII)
    return text


def secret_in(text: str) -> str:
    """Returns what kind of secret a text holds, by its shape, such as `a GitHub token`; empty if it holds none.

    Args:
      text: with the name in front of the value where there is one, as in `NAME=VALUE`.

    Example:
      >>> from official_trainer.shown import secret_in
      >>> secret_in("--set=task.key=AKIAABCDEFGHIJKLMNOP")
      'an AWS access key'
    """
    if passwords_in(text):
        return "a password"
    return next((kind for kind, shape in _SECRETS.items() if re.search(shape, text, re.ASCII)), "")


def passwords_in(text: str) -> list[str]:
    """Returns the passwords of the URLs in a text, as they are written there."""
    return [found["of_user"] or found["in_query"] for found in _PASSWORD.finditer(text)]


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
        own_indent = line[: len(line) - len(line.lstrip())] or indent
        options = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
        found = textwrap.wrap(kept, width, subsequent_indent=own_indent, **options)  # type: ignore[arg-type]
        lines += (each.replace("\u00a0", " ") for each in found)
    return "\n".join(lines)
