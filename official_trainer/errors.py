"""The exit-code contract, and the base of every error that a user is meant to read.

Owns: what a process's exit code means, `UserError`, which the command line prints without a traceback, and how
messages show names: the nearest known one, the first few, long text cut, control characters visible, secrets hidden;
which texts look like a secret; lines that end between words; the one line of a message of TensorFlow's that says what
is wrong.
Does not own: the errors themselves. Each is defined where it is raised and subclasses the nearest builtin.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Mapping, Sequence

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


class ExitCode(enum.IntEnum):
    """The exit codes of a run: for a scheduler, 75 and 143 mean "start again", 2 to 5 mean "do not"."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    DATA = 3
    NON_FINITE = 4
    STALLED = 5
    RETRY = 75
    PREEMPTED = 143


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed: a bug, in the task, whose line is said, or in this package",
    ExitCode.CONFIG: "the configuration, the command line or `model_dir` is wrong, `model_dir` was moved, or the "
    "checkpoint has another model",
    ExitCode.DATA: "the data is missing, empty or damaged, ended early, or does not fit the task: a label that is "
    "no class of the model",
    ExitCode.NON_FINITE: "the loss is not finite, or above `trainer.loss_upper_bound`",
    ExitCode.STALLED: "stalled: no progress for far longer than ever before; the stacks of all threads are in "
    "`stall-<n>.txt`. Of several workers, the one that hangs",
    ExitCode.RETRY: "the disk is full or fails, another process has `model_dir`, a stop came while a step hung, or "
    "another process of the run is gone or hangs; what was saved is whole",
    ExitCode.PREEMPTED: "stopped by SIGTERM, Ctrl-C, a closed terminal or `runtime.max_wall_seconds`; the state is "
    "saved",
}
"""Why a process ends with each code, in Markdown, for docs/reference/exit_codes.md."""

START_AGAIN = (ExitCode.RETRY, ExitCode.PREEMPTED)
"""A launcher starts again after these, as often as it is configured to; 0 is the end; all others need a person."""


class UserError(Exception):
    """An error the user can act on: printed as its message alone, and ends the process with `exit_code`.

    Attributes:
      exit_code: of the process.
      names_line: whether the line of the user's code that led to it stands in front of the message.
    """

    exit_code: ExitCode = ExitCode.FAILED
    names_line: bool = False


def describe_error(error: BaseException) -> str:
    """Returns the message of an error, with its class unless it is meant for users."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Returns the message of an error; empty if the code of its class cannot make one."""
    try:
        return str(error)
    except Exception:
        return ""


def first_line(error: BaseException) -> str:
    """Returns the line of an error's message that says what is wrong, without the names of nodes and graphs."""
    text = getattr(error, "message", None)  # of TensorFlow's errors; others may have anything there
    text = text if text and isinstance(text, str) else text_of(error)
    # A graph's error begins with where it was built; the message precedes the name of the node.
    if behind_trace := re.search(r"(?m)^([^\n]+)\n\s*\[\[\{\{node", text):
        text = behind_trace[1]
    text = re.sub(r"^\s*(\([^)]*\)\s*)?(\w+: )?\{\{function_node [^}]*\}\}\s*", "", text)
    text = re.sub(r"^\s*\(\d+\) [A-Z_]+:\s+", "", text)
    text = re.sub(r"^Error in user-defined function passed to .*? with iterator: [\w:\[\]]+: ", "", text)
    text = re.sub(r" for '?\{\{node .*?' with input shapes: (.*?)\.?$", r", for input shapes \1", text, flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\s*\[Op:\w+\].*$", "", lines[0]) if lines else ""


def first_few(names: Sequence[str]) -> str:
    """Returns the first names of what may be many, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def nearest(word: str, options: Iterable[str]) -> list[str]:
    """Returns up to three of `options` that `word` may be a misspelling of, best first.

    A word of one or two letters is no misspelling: too much is as near to it.
    """
    found: list[tuple[int, int, str]] = []
    meant, limit = word.lower(), len(word) // 3
    for position, option in enumerate(options):
        right = option.lower()
        distance = _edits(meant, right) if abs(len(meant) - len(right)) <= limit else limit + 1
        if distance <= limit or _alike(meant, right) or _alike(_sorted_parts(meant), _sorted_parts(right)):
            found.append((distance, position, option))
    return [option for *_, option in sorted(found)[:3]]


def mistyped(word: str, options: Iterable[str]) -> str:
    """Returns the one of `options` that `word` is but for one letter, or two of a long word; "" if there is none.

    For names of modules, of which many are there, and what was meant may not be.
    """
    most = min(2, len(word) // 4)
    near = [option for option in nearest(word, options) if _edits(word.lower(), option.lower()) <= most]
    return near[0] if near else ""


def did_you_mean(word: str, options: Iterable[str], *, prefix: str = "", otherwise: str = "") -> str:
    """Returns `; did you mean …?` with the options nearest to a word, for the end of a message.

    Args:
      word: that is none of the options.
      options: the words that are allowed.
      prefix: is put before each option.
      otherwise: the answer if no option is near.
    """
    near = [prefix + option for option in nearest(word, options)]
    return f"; did you mean {' or '.join(near)}?" if near else otherwise


def printable(text: str) -> str:
    r"""Returns text that only prints: control characters become escapes such as `\x1b`; line ends and tabs stay.

    Example:
      >>> from official_trainer.errors import printable
      >>> print(printable("\x1b[31mred"))
      \x1b[31mred
    """
    return _HIDDEN.sub(lambda found: escaped(found[0]), text)


def without_secrets(text: str) -> str:
    """Returns text in which passwords of URLs and what looks like a token or a key are hidden.

    Example:
      >>> from official_trainer.errors import without_secrets
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
      >>> from official_trainer.errors import secret_in
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
      >>> from official_trainer.errors import wrapped
      >>> print(wrapped("the data ended at step 20, which takes 5 % of an epoch", 32))
      the data ended at step 20, which
        takes 5 % of an epoch
    """
    if width is None:
        return text
    return "\n".join(_wrapped_line(line, width, indent) for line in text.split("\n"))


def _wrapped_line(line: str, width: int, indent: str) -> str:
    if len(line) <= width or _LAID_OUT.match(line):
        return line
    import textwrap  # takes milliseconds, which most commands need not spend

    indent = line[: len(line) - len(line.lstrip())] or indent
    kept = _BEFORE_UNIT.sub("\u00a0", line)  # a number and its unit stay together
    lines = textwrap.wrap(
        kept, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return "\n".join(lines).replace("\u00a0", " ")


def _alike(a: str, b: str) -> bool:
    matcher = difflib.SequenceMatcher(None, a, b)
    return matcher.real_quick_ratio() >= 0.75 and matcher.quick_ratio() >= 0.75 and matcher.ratio() >= 0.75


def _sorted_parts(name: str) -> str:
    """Returns `steps_train` as `train_steps`, and the other way round."""
    return "_".join(sorted(name.split("_")))


def _edits(a: str, b: str) -> int:
    """Counts insertions, deletions, substitutions and swaps of neighbours between two words."""
    before: Sequence[int] = ()
    row: list[int] = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, last[j] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before = last
    return row[-1]
