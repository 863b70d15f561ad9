"""The page `docs/reference/exit_codes.md`, from `ExitCode` and the modes.

Owns: the layout. Does not own: what a code or a mode means (`official_trainer/errors.py`, `config/modes.py`).
"""

from __future__ import annotations

from official_trainer.config import modes
from official_trainer.errors import MEANINGS, START_AGAIN, ExitCode


def page() -> str:
    """Returns the page."""
    codes = [_row(code) for code in ExitCode]
    does = [f"| `{mode}` | {meaning} |" for mode, meaning in modes.MODES.items()]
    return "\n".join([_HEAD, *codes, _OTHERS, _MODES, *does]) + "\n"


_HEAD = """\
# Exit codes and modes

## Exit codes

A scheduler decides by the exit code whether to start the same command again, as `official-trainer launch local
--supervise` and the jobs of the other targets of `official-trainer launch` do.

| code | name | means | start again? |
|---|---|---|---|"""

_OTHERS = """
A shell shows other numbers too:

| code | means |
|---|---|
| 130 | Ctrl-C ended a command that has nothing to save: one that does not train, or a run before its first step |
| 141 | what reads a command's output has ended, as in `official-trainer list \\| head -1`; a run goes on |
| 129 to 165 | 128 and the number of the signal that has killed the process, or asked it to stop a second time |

A closed terminal (SIGHUP) stops a run as SIGTERM does. Under `nohup`, `setsid`, `tmux` or `screen` the run goes on.

A thread or a process of `multiprocessing` that your code leaves running, and that is no daemon, has 10 seconds after
the end of a command. Then it is ended, and the exit code stays; after 0 a warning names it."""

_MODES = """
## Modes

`--mode` says what a run does.

| mode | what it does |
|---|---|"""


def _row(code: ExitCode) -> str:
    again = "yes" if code in START_AGAIN else "" if code is ExitCode.DONE else "no"
    return f"| {int(code)} | `{code.name}` | {MEANINGS[code]} | {again} |"
