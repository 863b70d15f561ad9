"""Keep TensorFlow imported, so that your commands start fast.

A server of yours, on this machine, waits for `python train.py`, `official-trainer train`, `eval`, `predict`, `check`,
`export` and `find-lr`, and each of them then runs in a process that is forked from it. Your experiments are read anew
each time. It ends by itself when it was not used for an hour. Linux only.

Owns: `warm`: starting the server, showing it, ending it.
Does not own: the server (`warm/server.py`), how a command finds it (`warm/client.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode, UserError

USAGE = "[--idle_minutes=N] [--status] [--stop]"
EXAMPLES = (
    ("official-trainer warm", "start the server, in seconds"),
    ("official-trainer warm --status", "say whether it runs, and whether a command from here would use it"),
    ("official-trainer warm --stop", "end it; commands that run go on"),
)
NEXT = ("official-trainer train --experiment=digits_mlp", "start at once")

_IDLE_MINUTES = 60
_BOOT = """
import json, sys, time
began = time.time()
sys.path[:] = json.loads(sys.argv[2])
from official_trainer.warm import server
server.main(sys.argv[1], began)
"""


class WarmError(UserError, OSError):
    """The warm server cannot be started, or reached."""

    exit_code = ExitCode.CONFIG


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `warm`."""
    parser.group("Server")
    parser.value("idle_minutes", "N", f"end the server when it was not used for so long (default: {_IDLE_MINUTES})")
    parser.switch("status", "say whether the server runs, and whether a command from here would use it")
    parser.switch("stop", "end the server")


def run(arguments: argparse.Namespace) -> int:
    """Starts the server, shows it or ends it."""
    minutes = flags.read_number(arguments, "idle_minutes", least=1)
    if arguments.status and arguments.stop:
        raise UsageError("--status and --stop are two commands; leave one of them out")
    if minutes is not None and (arguments.status or arguments.stop):
        raise UsageError("--idle_minutes is for the start of the server; leave it out")
    if sys.platform != "linux":
        raise WarmError(f"the warm server needs Linux, and this is {sys.platform}; commands start cold here")
    if arguments.stop:
        terminal.show("the warm server has ended" if _ask("stop") else "no warm server runs")
        return int(ExitCode.DONE)
    found = _ask("status")
    if arguments.status:
        terminal.show(_described(found) if found else "no warm server runs; `official-trainer warm` starts one")
    elif found and not found["why"] and minutes in (None, found["idle_seconds"] / 60):
        terminal.show(f"it runs already: {_described(found)}")
    else:
        _ask("stop")
        _start((minutes or _IDLE_MINUTES) * 60)
        terminal.show(_described(_ask("status") or {}))
    return int(ExitCode.DONE)


def _ask(what: str) -> dict[str, Any] | None:
    """Returns what the server answers; None if none runs."""
    from official_trainer.warm import client

    try:
        connection = client.connect()
        if connection is None:
            return None
        with connection:
            return client.ask(connection, what)
    except OSError as error:
        raise WarmError(f"the warm server: {error}") from error


def _described(found: dict[str, Any]) -> str:
    packages = f"; also imported: {', '.join(found['packages'])}" if found["packages"] else ""
    use = f"a command from here starts cold: {found['why']}" if found["why"] else "commands from here use it"
    return (
        f"the warm server, pid {found['pid']}, {found['age_seconds'] / 60:.0f} minutes old, has started "
        f"{found['taken']} commands{packages}\n{use}\nit ends {found['idle_seconds'] / 60:g} minutes after the last one"
    )


def _start(idle_seconds: float) -> None:
    """Starts the server, and returns once it takes commands.

    Raises:
      WarmError: it does not start, or others could take its place.
    """
    from official_trainer.processes.children import PRELOAD
    from official_trainer.warm import client

    os.makedirs(client.folder(), mode=0o700, exist_ok=True)
    if why := client.why_not_trusted():
        raise WarmError(f"{why}; remove it, or set XDG_RUNTIME_DIR to a folder of yours")
    same = client.interpreter()
    package = same["the installed official-trainer"]
    path = same["the search path of modules"]
    path = path if os.path.dirname(package) in path else [*path, os.path.dirname(package)]
    options = {"same": same, "modules": PRELOAD, "idle_seconds": idle_seconds}
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(options), json.dumps(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        is_ready = bool(process.stdout.read())
    except BaseException:
        process.kill()
        raise
    if not is_ready:
        raise WarmError(f"the warm server ended with exit code {process.wait()}; its error is above")
