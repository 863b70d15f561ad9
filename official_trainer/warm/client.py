"""A command that gives itself to the warm server of its user, and stands in for the process that then runs it.

Owns: where the server's socket is, and who may have put it there; what is sent to it; passing on signals, and the exit
code. Does not own: what the server compares, the process of the command (`server.py`), the verb (`cli/verbs/warm.py`).

Before each command this looks whether there is a socket, so it imports little. The process of the command has the
files, the terminal's input and output, the variables and the folder of this one, but not its session: what the terminal
sends to this one is passed on.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

VERBS = ("train", "eval", "predict", "check", "export", "find-lr")
"""The commands that import TensorFlow in their own process."""

_PACKAGE, _PROGRAM = "official_trainer", "official-trainer"
_OF_JOB = ("TF_CONFIG",)  # whose launcher has to be the parent of its processes
_HELP = ("-h", "--help", "--helpfull", "--helpshort")
_ANSWER_SECONDS = 10.0
_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH", "SIGTSTP", "SIGCONT")
_LOST = "the process that watched over this command was killed, and the command with it; start again"


def folder() -> str:
    """Returns the folder of the socket, which the server makes for its user alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "official-trainer") if runtime else f"/tmp/official-trainer-{os.geteuid()}"


def socket_path() -> str:
    """Returns the path of the socket."""
    return os.path.join(folder(), "warm")


def at_socket(do: Callable[[str], None], path: str) -> None:
    """Calls `connect` or `bind` with a path that is short: a socket's address has at most 107 bytes."""
    place, name = os.path.split(path)
    descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        do(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def why_not_trusted() -> str:
    """Returns why the folder may not be this user's alone; empty if it is."""
    found = os.lstat(folder())
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder()} is not a folder"
    if found.st_uid != os.geteuid():
        return f"{folder()} belongs to another user, with the number {found.st_uid}"
    if found.st_mode & 0o077:
        return f"{folder()} can be used by others: its mode is {stat.S_IMODE(found.st_mode):o}, and has to be 700"
    return ""


def connect() -> socket.socket | None:
    """Returns a connection to the server; None without one.

    Raises:
      PermissionError: others could have put the socket there.
    """
    if not os.path.exists(socket_path()):
        return None
    import socket

    if why := why_not_trusted():
        raise PermissionError(why)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        at_socket(connection.connect, socket_path())
    except OSError:  # it was killed
        connection.close()
        return None
    return connection


def command() -> dict[str, Any]:
    """Returns all about this process that another one cannot read in `/proc`."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    return {
        "module": spec.name.removesuffix(".__main__") if spec is not None else "",
        "file": os.path.abspath(file) if file else "",
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "environ": dict(os.environ),
        "path": sys.path,
        "same": interpreter(),
    }


def interpreter() -> dict[str, Any]:
    """Returns what the server has to have in common with this process, by what it is called."""
    return {
        "the interpreter": [sys.executable, sys.version, sys.prefix],
        "a flag of Python": [
            list(sys.flags),
            sys.warnoptions,
            {name: str(each) for name, each in sys._xoptions.items()},
        ],
        "the encoding or buffering of the output": [
            getattr(sys.__stdout__, name, None) for name in ("encoding", "errors", "write_through")
        ],
        "the installed official-trainer": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        "the search path of modules": sys.path[1:],
    }


def ask(connection: socket.socket, what: str, descriptors: Sequence[int] = ()) -> dict[str, Any]:
    """Sends this command to the server, with what it asks, and returns the answer.

    Args:
      connection: to the server.
      what: `run`, `status` or `stop`.
      descriptors: of open files that the process of the command gets under the same numbers.

    Raises:
      OSError: the server does not answer.
    """
    import json
    import socket

    text = json.dumps({**command(), "ask": what, "descriptors": list(descriptors)}).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], list(descriptors))
    connection.sendall(text)
    with connection.makefile("rb", buffering=0) as answers:
        line = answers.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the warm server has ended")
    return dict(json.loads(line))


def hand_over(script: str | None) -> int | None:
    """Has the server run the command of this process; returns its exit code, or None if this process is to run it.

    Ends this process by the signal that ended the command, if one did. Says why a server does not run it.

    Args:
      script: the path of a train.py; None for the command `official-trainer`.
    """
    if sys.platform != "linux" or not os.path.exists(socket_path()) or not _may_be_handed_over(script):
        return None
    try:
        connection = connect()
        if connection is None:
            return None
        why = _why_not_twice(os.path.abspath(script)) if script else ""
        why = why or str(ask(connection, "run", _open_files()).get("why", ""))
    except OSError as error:
        why = str(error.strerror or error)
    if why or connection is None:
        print(f"a cold start, without the warm server: {why}", file=sys.stderr, flush=True)
        return None
    with connection:
        return _stand_in(connection)


def _may_be_handed_over(script: str | None) -> bool:
    from official_trainer.distributed.began import is_given

    words = ["train", *sys.argv[1:]] if script else sys.argv[1:]
    if not words or words[0] not in VERBS or any(word in _HELP for word in words):
        return False
    main = command()
    of_us = main["module"] == _PACKAGE or (not main["module"] and os.path.basename(main["file"]) == _PROGRAM)
    is_plain = main["file"] == os.path.abspath(script) and not main["module"] if script else of_us
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None  # by a debugger or a profiler
    is_of_job = is_given() or any(name in os.environ for name in _OF_JOB)
    return is_plain and not is_watched and not is_of_job and "tensorflow" not in sys.modules


def _why_not_twice(script: str) -> str:
    """Returns why a script may not run from its beginning elsewhere too; empty if nothing is then done twice."""
    import ast

    with open(script, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {"official_trainer", "sys", "__future__"}
    others = [name for name in imported if name.partition(".")[0] not in known]
    others += sorted(calls - {"main", "cli.main", "train.main", "SystemExit", "sys.exit", "exit"})
    return f"{os.path.basename(script)} does more than calling official-trainer: {others[0]}" if others else ""


def _open_files() -> list[int]:
    """Returns the descriptors that a program gets that is started from here: 0 to 2, and those of `<(…)` in a shell."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found += [int(name)] if os.get_inheritable(int(name)) else []
        except OSError:  # that of the folder itself
            continue
    return sorted(found)


def _stand_in(connection: socket.socket) -> int:
    """Passes signals on until the command has ended, and ends as it has."""
    import contextlib
    import json
    import select
    import signal

    connection.settimeout(None)
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing)
    for number in map(signal.Signals.__getitem__, _SIGNALS):
        # Others are passed on where this process ignores them, too: the command ignores them as well, or handles them.
        if number != signal.SIGTSTP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    answer = b""
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([connection.fileno(), reading], [], [])
        for came in os.read(reading, 64) if reading in ready else b"":
            is_stop = came == signal.SIGTSTP  # a process without a terminal is not continued
            with contextlib.suppress(ConnectionError):  # it has just ended
                connection.sendall(bytes([signal.SIGSTOP if is_stop else came]))
            if is_stop:
                os.kill(os.getpid(), signal.SIGSTOP)
        if connection.fileno() in ready:
            data = connection.recv(1024)
            if not data:
                from official_trainer.errors import ExitCode

                print(f"error: {_LOST}", file=sys.stderr, flush=True)
                return int(ExitCode.RETRY)
            answer += data
    code = os.waitstatus_to_exitcode(json.loads(answer)["status"])
    if code < 0:
        _end_by(-code)
    return code


def _end_by(number: int) -> None:
    """Ends this process by a signal, without another file of its memory."""
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
