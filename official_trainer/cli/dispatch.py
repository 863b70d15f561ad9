"""From an argument list to an exit code: finds the verb, runs it, and reports errors.

Owns: the one place where errors become messages and exit codes; the help of verbs.
Does not own: any verb, and where they are found (`verbs/__init__.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence

from official_trainer import files
from official_trainer.cli import help_text, process, target, terminal, verbs, workspace
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode, UserError, without_arrays
from official_trainer.nearest import did_you_mean, nearest
from official_trainer.shown import printable

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(
    argv: Sequence[str] | None = None,
    *,
    script: str | None = None,
    is_process: bool | None = None,
) -> int:
    """Runs one command and returns its exit code.

    Args:
      argv: the words after the program's name; those of this process when None.
      script: the path of a train.py, whose words are those of `train`; its folder is the workspace if the current
        directory is not in one, or in one without the experiment.
      is_process: whether the process exists for this command alone. A stopped run then ends it here: Python's normal
        exit waits for threads of TensorFlow, and one that waits for data would block it. None means yes without `argv`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = functools.partial(_command, words, None)
    if script is not None:
        command = functools.partial(_command, ["train", *words], os.path.abspath(script))
    return reported(command, words, ends_process=argv is None if is_process is None else is_process)


def reported(command: Callable[[], int], words: Sequence[str], *, ends_process: bool) -> int:
    """Returns the exit code of a command, whose errors are printed.

    Args:
      command: returns its exit code.
      words: the command line.
      ends_process: whether a stopped run ends this process here, and threads that are left do not hold up its end.
    """
    try:
        code = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        code = _report(error, words, ends_process=ends_process)
    if ends_process:
        process.end_soon(code)
    return code


def _report(error: KeyboardInterrupt | Exception, words: Sequence[str], *, ends_process: bool) -> int:
    """Prints the error of a command, and returns its exit code."""
    if isinstance(error, KeyboardInterrupt):
        terminal.report_error("interrupted")
        return _INTERRUPTED
    if isinstance(error, UserError):
        if (found := _report_mistake(error, words)) is not None:
            return found
        label = "stopped" if error.exit_code == ExitCode.PREEMPTED else "error"
        terminal.report_error(str(error), label)
        if error.exit_code == ExitCode.PREEMPTED and ends_process:
            sys.stdout.flush()
            os._exit(int(error.exit_code))
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
    if isinstance(error, ModuleNotFoundError) and _is_imported_here(error):
        terminal.report_error(
            f"{sys.executable} has no module {error.name!r}, which official-trainer needs. Use the Python of the "
            "environment in which it is installed, or install it there: `pip install -e .` in a checkout. "
            "`python -m official_trainer doctor` names all that is missing."
        )
        return int(ExitCode.CONFIG)
    if (found := _report_mistake(error, words)) is not None:
        return found
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
    from official_trainer.runs.mistakes import report

    if (found := report.report_of(error)) is None:
        return None
    if "--traceback" in words:
        _print_traceback(error)
    terminal.report_error(found.fitted(terminal.width(sys.stderr)))
    return int(found.exit_code)


def _command(argv: list[str], script: str | None) -> int:
    if not argv:
        print(_overview(), file=sys.stderr)
        return int(ExitCode.CONFIG)
    name, *rest = argv
    if name == "help" and rest and not rest[0].startswith("-"):
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("--help", "-h", "--helpfull", "--helpshort", "help"):
        print(_overview())
        return int(ExitCode.DONE)
    if name == "--version":
        from importlib import metadata

        version = "(a checkout that is not installed; `pip install -e .` installs it)"
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version("official-trainer")
        print(f"official-trainer {version}")
        return int(ExitCode.DONE)
    if (module := verbs.load(name)) is None:
        raise UsageError(_no_such_verb(name, rest))
    called = "train.py" if script else f"official-trainer {name}"
    parser = verbs.parser_of(module, f"python {called}" if script else called)
    arguments = parser.read(rest)
    arguments.home = os.path.dirname(script) if script else None
    if getattr(module, "OF_A_RUN", False):
        target.read_run(arguments)
    if arguments.help and target.names_experiment(arguments):
        from official_trainer import config

        experiment = target.named_experiment(arguments)
        settings = config.settings(target.resolve(experiment, arguments).config)
        print(printable(help_text.settings_help(parser.prog, experiment, settings)))
    elif arguments.help:
        print(help_text.verb_help(parser, module, arguments))
    if arguments.help:
        return int(ExitCode.DONE)
    arguments.argv = [*called.split(), *rest]
    for line in arguments.idle:
        terminal.report_error(line, "warning", "yellow")
    with contextlib.ExitStack() as held:
        held.enter_context(process.interruptible())
        held.enter_context(terminal.log_shown(quiet=bool(getattr(arguments, "quiet", False))))
        if getattr(module, "IN_WORKSPACE", False):
            held.enter_context(workspace.entered(arguments, target.workspace(arguments)))
        return int(module.run(arguments))


def _is_imported_here(error: ModuleNotFoundError) -> bool:
    """Whether a module of this package imports what is missing, and not a user's own."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__))) in place


def _no_such_verb(name: str, rest: Sequence[str]) -> str:
    """Returns the message for a first word that is not a verb, with the command that may be meant."""
    names = verbs.names()
    known = f"verbs: {', '.join(names)}"
    if name.startswith("-"):
        return f"name a verb before {name}, such as: {shlex.join(['official-trainer', 'train', name, *rest])}\n{known}"
    experiments: list[str] = []
    with contextlib.suppress(ImportError, UserError):  # if they cannot be read, `list` and `doctor` explain
        from official_trainer.tasks import registry

        experiments = list(registry.named(registry.find_workspace()))
    near, alike = nearest(name, names), nearest(name, experiments)
    if name in experiments:
        return f"{name} is an experiment; name a verb before it\n{known}\n{_try('train', name, *rest)}"
    if near:
        return f"no such verb: {name}{did_you_mean(name, names)}\n{known}\n{_try(near[0], *rest)}"
    if alike:
        hint = f"; did you mean the experiment {alike[0]}?"
        return f"no such verb: {name}{hint}\n{known}\n{_try('train', alike[0], *rest)}"
    return f"no such verb: {name}\n{known}\n{_try('--help')}"


def _try(*words: str) -> str:
    return f"try: {shlex.join(['official-trainer', *words])}"


def _overview() -> str:
    modules = verbs.load_some(verbs.names())
    groups = verbs.by_group(modules).items()
    return help_text.overview(
        {title: {name: verbs.help_line(modules[name]) for name in names} for title, names in groups}
    )
