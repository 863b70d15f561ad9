"""From an argument list to an exit code: finds the verb, runs it, and reports errors.

Owns: the discovery of verbs, and the one place where errors become messages and exit codes.
Does not own: any verb. A verb is a module beside this one with a docstring, whose first line is its help, and

    USAGE: str                                what follows the verb in its help
    add_flags(parser: flags.Parser) -> None
    run(arguments: argparse.Namespace) -> int
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Sequence

from official_trainer import files
from official_trainer.cli import terminal
from official_trainer.cli.flags import Parser
from official_trainer.cli.parser import UsageError, did_you_mean
from official_trainer.errors import ExitCode, UserError

_INTERRUPTED = 130
_BROKEN_PIPE = 141

_USAGE = "usage: official-trainer VERB [flags]"
_DESCRIPTION = (
    "Trains, evaluates, checks and exports the experiments of a workspace (the folder that holds experiments/)."
)


def main(
    argv: Sequence[str] | None = None,
    *,
    prog: str = "official-trainer",
    home: str | None = None,
    is_process: bool | None = None,
) -> int:
    """Runs one command and returns its exit code.

    Args:
      argv: the words after the program's name; those of this process when None.
      prog: `official-trainer`, or the script that replaces `official-trainer train`.
      home: the workspace if the current directory is not in one.
      is_process: whether the process exists for this command alone. A stopped run then ends it here: Python's normal
        exit waits for threads of TensorFlow, and one that waits for data would block it. None means yes without `argv`.
    """
    try:
        code = _command(list(sys.argv[1:] if argv is None else argv), prog, home)
        sys.stdout.flush()
        return code
    except UserError as error:
        label = "stopped" if error.exit_code == ExitCode.PREEMPTED else "error"
        terminal.report_error(str(error), label)
        if error.exit_code == ExitCode.PREEMPTED and (argv is None if is_process is None else is_process):
            sys.stdout.flush()
            os._exit(int(error.exit_code))
        return int(error.exit_code)
    except KeyboardInterrupt:
        terminal.report_error("interrupted")
        return _INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return _BROKEN_PIPE
        if (fault := files.as_storage_error(error)) is not None:
            terminal.report_error(str(fault))
            return int(fault.exit_code)
        import traceback

        traceback.print_exc()
        return int(ExitCode.FAILED)


def verbs() -> dict[str, types.ModuleType]:
    """Imports the modules of this folder that are verbs; alphabetical."""
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in _module_names()}
    return {name.replace("_", "-"): module for name, module in modules.items() if hasattr(module, "add_flags")}


def help_line(module: types.ModuleType) -> str:
    """Returns the help line of a verb."""
    return (module.__doc__ or "").partition("\n")[0]


def _command(argv: list[str], prog: str, home: str | None) -> int:
    if not argv:
        print(_overview(), file=sys.stderr)
        return int(ExitCode.CONFIG)
    name, *rest = argv
    if name in ("--help", "-h", "--helpfull", "--helpshort", "help"):
        print(_overview())
        return int(ExitCode.DONE)
    if name == "--version":
        from importlib import metadata

        print(metadata.version("official-trainer"))
        return int(ExitCode.DONE)
    module = _verb(name)
    called = prog if prog.endswith(".py") else f"{prog} {name}"
    parser = Parser(called, usage=module.USAGE, description=help_line(module))
    module.add_flags(parser)
    arguments = parser.read(rest)
    if arguments.help:
        print(parser.format_help(), end="")
        return int(ExitCode.DONE)
    arguments.home = home
    arguments.argv = [*called.split(), *rest]
    with terminal.log_shown(quiet=bool(getattr(arguments, "quiet", False))):
        return int(module.run(arguments))


def _verb(name: str) -> types.ModuleType:
    """Imports the called verb alone, to start fast."""
    if (file := name.replace("-", "_")) in _module_names():
        module = importlib.import_module(f"{__package__}.{file}")
        if hasattr(module, "add_flags"):
            return module
    known = ", ".join(verbs())
    if name.startswith("-"):
        raise UsageError(f"name a verb before {name}, such as: official-trainer train {name} …\nverbs: {known}")
    raise UsageError(f"no such verb: {name}{did_you_mean(name, verbs())}\nverbs: {known}")


def _overview() -> str:
    lines = terminal.columns([(f"  {name}", help_line(module)) for name, module in verbs().items()])
    ending = "`official-trainer VERB --help` shows a verb's flags."
    return "\n".join([_USAGE, "", _DESCRIPTION, "", "verbs:", *lines, "", ending])


def _module_names() -> tuple[str, ...]:
    here = os.path.dirname(os.path.abspath(__file__))
    names = sorted(name.removesuffix(".py") for name in os.listdir(here) if name.endswith(".py"))
    return tuple(name for name in names if name != "__init__")


def _reader_is_gone() -> bool:
    """Returns whether the reader of our output (`| head`) is gone; if so, the flush at exit writes to /dev/null."""
    import io
    import select

    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)  # without requested events, poll reports errors only
    except io.UnsupportedOperation:
        return False
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True
