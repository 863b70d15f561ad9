"""From an argument list to an exit code: finds the verb, runs it, and reports errors.

Owns: the one place where errors become messages and exit codes; the help of verbs.
Does not own: any verb, and where they are found (`verbs/__init__.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shlex
import sys
import traceback
import types
from collections.abc import Sequence

from official_trainer import files
from official_trainer.cli import help_text, process, target, terminal, verbs
from official_trainer.cli.parser import Parser, UsageError
from official_trainer.errors import ExitCode, UserError, without_arrays
from official_trainer.nearest import did_you_mean, nearest
from official_trainer.shown import printable

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_OF_KERAS = {"fit": "train"}
"""A method of Keras, and the verb that does it."""


def main(argv: Sequence[str] | None = None, *, script: str | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
      argv: the words after the program's name. None is for those of this process, which exists for this command alone:
        a stopped run ends it here, and threads that are left do not hold up its end.
      script: the path of a train.py, whose words are those of `train`; its folder is the workspace if the current
        directory is not in one, or in one without the experiment.
    """
    words = [*(["train"] if script else []), *(sys.argv[1:] if argv is None else argv)]
    try:
        code = _command(words, script)
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        code = _report(error, words)
        if argv is None and code == ExitCode.PREEMPTED:
            sys.stdout.flush()  # Python would wait for threads of TensorFlow that wait for data
            os._exit(code)
    if argv is None:
        process.end_soon(code)
        if "tensorflow" not in sys.modules:
            gc.freeze()  # else Python searches all that the command has made for garbage: a tenth of its time
    return code


def _report(error: KeyboardInterrupt | Exception, words: Sequence[str]) -> int:
    """Prints the error of a command, and returns its exit code."""
    if isinstance(error, KeyboardInterrupt):
        terminal.report_error("interrupted")
        return _INTERRUPTED
    if isinstance(error, UserError):
        if (code := _report_mistake(error, words)) is not None:
            return code
        label = "stopped" if error.exit_code == ExitCode.PREEMPTED else "error"
        terminal.report_error(str(error), label)
        return int(error.exit_code)
    if isinstance(error, BrokenPipeError) and process.reader_is_gone():
        return _BROKEN_PIPE
    if (fault := files.as_storage_error(error)) is not None:
        terminal.report_error(str(fault))
        try:  # to write what stdout did not take: Python's exit would, and end with a code of its own
            sys.stdout.flush()
        except OSError:
            process.drop(sys.stdout)
        return int(fault.exit_code)
    if (code := _report_mistake(error, words)) is not None:
        return code
    if isinstance(error, ModuleNotFoundError):
        terminal.report_error(
            f"{sys.executable} has no module {error.name!r}, which official-trainer needs. Use the Python of the "
            "environment in which it is installed, or install it there: `pip install -e .` in a checkout. "
            "`python -m official_trainer doctor` names all that is missing."
        )
        return int(ExitCode.CONFIG)
    if (denied := files.as_denied(error)) is not None:
        terminal.report_error(str(denied))
        return int(denied.exit_code)
    _print_traceback(error)
    return int(ExitCode.FAILED)


def _print_traceback(error: BaseException) -> None:
    print(without_arrays("".join(traceback.format_exception(error)).rstrip()), file=sys.stderr)


def _report_mistake(error: Exception, words: Sequence[str]) -> int | None:
    """Writes what is wrong in the user's code, and with `--traceback` how it was reached; returns the exit code.

    Returns None, and writes nothing, if the error is another.
    """
    try:
        from official_trainer.runs.mistakes import report
    except ModuleNotFoundError:  # where nothing is installed
        return None
    if (mistake := report.report_of(error)) is None:
        return None
    if "--traceback" in words:
        _print_traceback(error)
    terminal.report_error(mistake.message)
    return int(mistake.exit_code)


def _command(argv: list[str], script: str | None) -> int:
    name, *rest = argv or ["--help"]
    if name == "help" and rest and not rest[0].startswith("-"):
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("--help", "-h", "--helpfull", "--helpshort", "help"):
        print(help_text.overview(verbs.help_lines()), file=sys.stdout if argv else sys.stderr)
        return int(ExitCode.DONE if argv else ExitCode.CONFIG)
    if name == "--version":
        print(f"official-trainer {_version()}")
        return int(ExitCode.DONE)
    if (module := verbs.load(name)) is None:
        raise UsageError(_no_such_verb(name, rest))
    called = ["python", "train.py"] if script else ["official-trainer", name]
    parser = verbs.parser_of(module, " ".join(called))
    arguments = parser.read(rest)
    arguments.home = os.path.dirname(os.path.abspath(script)) if script else None
    if getattr(module, "OF_A_RUN", False):
        target.read_run(arguments)
    if arguments.help:
        print(_help(parser, module, arguments))
        return int(ExitCode.DONE)
    arguments.argv = [*called[bool(script) :], *rest]
    for line in arguments.idle:
        terminal.report_error(line, "warning", "yellow")
    with contextlib.ExitStack() as held:
        held.enter_context(process.interruptible())
        held.enter_context(terminal.log_shown(quiet=bool(getattr(arguments, "quiet", False))))
        if getattr(module, "IN_WORKSPACE", False):
            held.enter_context(target.in_workspace(arguments))
        return int(module.run(arguments))


def _help(parser: Parser, module: types.ModuleType, arguments: argparse.Namespace) -> str:
    """Returns the help of a verb, or the settings of the experiment that is named with it."""
    if not target.names_experiment(arguments):
        return help_text.verb_help(parser, module, arguments)
    from official_trainer import config

    experiment = target.named_experiment(arguments)
    settings = config.settings(target.resolve(experiment, arguments).config)
    return printable(help_text.settings_help(parser.prog, experiment, settings))


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("official-trainer")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed; `pip install -e .` installs it)"


def _no_such_verb(name: str, rest: Sequence[str]) -> str:
    """Returns the message for a first word that is not a verb, with the command that may be meant."""
    names = verbs.names()
    experiments: list[str] = []
    with contextlib.suppress(ImportError, UserError):  # if they cannot be read, `list` and `doctor` explain
        from official_trainer.tasks import registry

        experiments = list(registry.named(registry.find_workspace()))
    if name.startswith("-"):
        what, words = f"name a verb before {name}", ["train", name, *rest]
    elif name in experiments:
        what, words = f"{name} is an experiment; name a verb before it", ["train", name, *rest]
    else:
        meant = _OF_KERAS.get(name, name)
        near = nearest(meant, names)
        what, words = f"no such verb: {name}{did_you_mean(meant, names)}", [*near[:1], *rest] if near else ["--help"]
    return f"{what}\nverbs: {', '.join(names)}\ntry: {shlex.join(['official-trainer', *words])}"
