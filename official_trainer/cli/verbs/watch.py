"""Run a command again after each change, TensorFlow imported.

A process on this terminal imports TensorFlow once, and nothing of yours. A change of a .py or .yaml file in the
workspace, or Enter, then starts the command again, in about half the time; one that still runs is stopped first,
and saves. Ctrl-C stops it; Ctrl-C again, or q and Enter, ends the watch. Linux only.

Owns: `watch`: the process that forks the command, the files it looks at, what is typed to it.
Does not own: what is imported before (`processes/children.py`), what a forked process runs (`processes/commands.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import select
import signal
import sys
import time

from official_trainer import files
from official_trainer.cli import flags, process, target, terminal, verbs
from official_trainer.cli.parser import UsageError
from official_trainer.nearest import did_you_mean

USAGE = "VERB [its flags]"
EXAMPLES = (
    ("official-trainer watch check digits_cnn", "try all that a run does, after each change"),
    ("official-trainer watch train digits_mlp --model_dir=/tmp/tried", "train, and go on after each change"),
)
NEXT = ("official-trainer train --experiment=digits_mlp", "train, once all is well")

_VERBS = ("train", "eval", "predict", "check", "export", "find-lr")
_MARKS = {files.RUN_FILE, files.SWEEP_FILE, files.PARAMS_FILE, "pyvenv.cfg"}  # of folders of runs, sweeps, environments
_LOOK_SECONDS = 0.2
_State = tuple[int, int]
_SIGNALS = (signal.SIGINT, signal.SIGCHLD)
_say = functools.partial(terminal.report_error, label="watch", colour="cyan")
_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from official_trainer.cli.verbs import watch
watch.main(sys.argv[2], sys.argv[3:])
"""


def add_flags(parser: flags.Parser) -> None:
    """Declares the command that is run."""
    parser.group("Command")
    parser.other_command("verb", "VERB", f"one of {', '.join(_VERBS)}, with its flags", choices=_VERBS)


def run(arguments: argparse.Namespace) -> int:
    """Becomes the process that imports TensorFlow; first refuses a command that cannot be read."""
    from official_trainer import cli
    from official_trainer.processes import children

    verb, words = arguments.verb or "", arguments.rest
    if verb not in _VERBS:
        near = did_you_mean(verb, _VERBS)
        raise UsageError(f"watch needs one of {', '.join(_VERBS)} behind it, and has {verb or 'nothing'}{near}")
    module = verbs.load(verb)
    assert module is not None
    if verbs.parser_of(module, f"official-trainer {verb}").read(words).help:
        return cli.main([verb, *words])
    if sys.platform != "linux":
        raise UsageError(f"watch needs Linux, and this is {sys.platform}; call `official-trainer {verb}` each time")
    folder = str(target.workspace(arguments) or os.getcwd())
    os.execv(sys.executable, [sys.executable, "-c", _BOOT, children.search_path(), folder, verb, *words])


def main(folder: str, words: list[str]) -> None:
    """Imports TensorFlow, and forks the command until the watch is over; in a forked process, runs it."""
    from official_trainer.processes import children, commands, starter

    process.prepare()
    _say("importing TensorFlow")
    starter.import_all(children.preloaded())
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they wait until they are asked for
    changed: str | None = ""
    while changed is not None:
        if changed in loaded:  # what is forked from this process would find it as it was
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.execv(sys.executable, sys.orig_argv)
        before, began, parent = _look(folder), time.monotonic(), os.getpid()
        if not (pid := os.fork()):
            commands.die_with(parent, signal.SIGTERM)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return commands.run(["official_trainer", *words], dict(os.environ))
        code, num_interrupts, changed = _attend(pid, folder, before)
        _say(f"{'exit code' if code >= 0 else 'killed by signal'} {abs(code)}, after {time.monotonic() - began:.1f} s")
        if num_interrupts or not changed:
            changed = _rest(folder, before) if num_interrupts < 2 else None


def _attend(pid: int, folder: str, before: dict[str, _State]) -> tuple[int, int, str]:
    """Waits for the end of a command; returns its exit code, how often Ctrl-C came, and the file that ended it."""
    num_interrupts, changed = 0, ""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if _is_interrupted(_LOOK_SECONDS):  # by the terminal, which tells the command too
            num_interrupts += 1
            if num_interrupts == 1:
                _say("the command got Ctrl-C; another one ends the watch, too")
        if not num_interrupts and not changed and (changed := _changed(folder, before)):
            os.kill(pid, signal.SIGTERM)  # not reaped yet, so the pid is still its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), num_interrupts + _is_interrupted(0), changed


def _rest(folder: str, before: dict[str, _State]) -> str | None:
    """Waits for what starts the command again; returns the file that does, empty for Enter, None to end."""
    _say(f"waiting for a change in {folder}, or Enter; Ctrl-C, or q and Enter, ends the watch")
    while not _is_interrupted(_LOOK_SECONDS):
        if changed := _changed(folder, before):
            return changed
        if os.isatty(0) and select.select([0], [], [], 0)[0]:
            typed = os.read(0, 1024)
            return None if typed.strip() == b"q" or not typed else ""
    return None


def _is_interrupted(seconds: float) -> bool:
    """Returns whether Ctrl-C came, or comes in time and before a command ends."""
    came = signal.sigtimedwait(_SIGNALS, seconds)
    return came is not None and came.si_signo == signal.SIGINT


def _changed(folder: str, before: dict[str, _State]) -> str:
    """Returns a file of the user's code that differs; empty without one."""
    began, now = time.monotonic(), _look(folder)
    changed = min((path for path in {*before, *now} if before.get(path) != now.get(path)), default="")
    if changed:
        _say(f"{os.path.relpath(changed, folder)} has changed")
    time.sleep(5 * (time.monotonic() - began))  # a large workspace takes no core of its own
    return changed


def _look(folder: str) -> dict[str, _State]:
    """Returns the time and the size of each file of the user's code."""
    found = {}
    for place, folders, names in os.walk(folder):
        is_code = place == folder or _MARKS.isdisjoint(names)
        folders[:] = [name for name in folders if is_code and not name.startswith(".") and name != "launches"]
        for name in names if is_code else ():
            if name.endswith((".py", ".yaml", ".yml")):
                with contextlib.suppress(OSError):  # an editor is replacing it
                    state = os.stat(os.path.join(place, name))
                    found[os.path.join(place, name)] = state.st_mtime_ns, state.st_size
    return found
