"""The warm server: a process that has imported TensorFlow, and from which a user's commands are forked.

Owns: its socket; what it compares with a command before it takes it; the process of a command, and the one that watches
over that, passes signals on and tells how it has ended; the server's end.
Does not own: the process in whose place the command runs (`client.py`), what is imported (`processes/preloading.py`).

The process of a command has what a process that is started from scratch would have: folder, files, variables, search
path, arguments, streams, signals, limits. What a process cannot change is compared, and files of modules above all: the
server has loaded them once, and they may have changed since. A workspace's modules are never loaded here. The server
never starts TensorFlow's runtime: a process with a running runtime cannot be forked.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from official_trainer import files
from official_trainer.distributed.began import BEGAN, process_start_seconds
from official_trainer.processes import commands
from official_trainer.processes.preloading import Imports, preload
from official_trainer.user_code import INSTALLED
from official_trainer.warm import client

_LOOK_SECONDS = 5.0  # how often it looks whether commands have ended, and whether the socket is still its own
_TRIAL_SECONDS = 0.1  # how often it looks whether the trial of a package has ended
_REQUEST_SECONDS = 5.0
_MOST_DESCRIPTORS = 250
_PREFIXES = (
    *("ABSL_", "BLIS_", "CUBLAS", "CUDA_", "CUDNN_", "FSSPEC", "GLIBC_", "GOMP_", "GOTO_", "GRPC_"),
    *("HIP_", "KERAS_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NUMEXPR_", "NVIDIA_"),
    *("OMP_", "ONEDNN_", "OPENBLAS_", "PROTOCOL_BUFFERS_", "PYTHON", "ROCM_", "ROCR_", "TF", "TPU_"),
    *("VECLIB_", "XLA_"),
)
_NAMES = ("HOME", "LANG", "LANGUAGE", "TMPDIR", "TZ")
"""Variables that libraries may read while they are imported, in native code too."""
_STATUS = ("Uid", "Gid", "Groups", "SigBlk", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_CORES = ("Cpus_allowed", "Mems_allowed")
_CGROUP_LIMITS = ("cpu.max", "cpu.weight", "cpuset.cpus", "memory.high", "memory.max", "pids.max")


def main(text: str, began: float) -> None:
    """Serves until it is not needed any more; in the process of a command, runs that.

    Args:
      text: JSON of `same` (the interpreter that starts the server), `modules` to import, and `idle_seconds`.
      began: when this process began to import modules of this package, in seconds since the epoch.
    """
    options = json.loads(text)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    request = _Server(**options, began=began).serve()
    if request["module"]:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = script = types.ModuleType("__main__")
    script.__file__ = request["file"]
    _Script("__main__", request["file"]).exec_module(script)  # `runpy.run_path` would change `sys.argv`


class _Script(importlib.machinery.SourceFileLoader):
    """Reads a file as Python reads a script: it is not looked for in a cache, and not put there."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError


class _Loaded:
    """The files and variables on which what this process has loaded depends.

    Attributes:
      environ: the variables that this process was started with.
    """

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self._read: set[str] = set(_NAMES)
        self._files: dict[str, tuple[int, ...] | None] = {}
        self._keras_settings = _content_of(_keras_file())
        self._originals = os._Environ.__getitem__, os._Environ.__iter__
        getitem, iterate = self._originals
        listed: collections.deque[Any] = collections.deque()

        def noted_getitem(environ: Any, name: Any) -> Any:
            if listed and listed[0] == name:  # all are read in order: for a copy, or a prefix
                listed.popleft()
            else:
                listed.clear()
                self._read.add(name)
            return getitem(environ, name)

        def noted_iter(environ: Any) -> Iterator[Any]:
            listed.clear()
            for name in iterate(environ):
                listed.append(name)
                yield name

        os._Environ.__getitem__, os._Environ.__iter__ = noted_getitem, noted_iter  # type: ignore[method-assign]

    def note(self, since: float) -> None:
        """Takes what has been loaded.

        Args:
          since: when that began, in seconds since the epoch; a file that changed later may have been loaded before.
        """
        for path in set(_files()) - self._files.keys():
            state = _state(path)
            self._files[path] = None if state and max(state[:2]) > since * 1e9 else state
        if not self._keras_settings:  # Keras has written them, unless there were some
            self._keras_settings = _content_of(_keras_file())

    def changed(self) -> str:
        """Returns a file that is not as it was when it was loaded; empty if all are."""
        if _content_of(_keras_file()) != self._keras_settings:
            return _keras_file()
        return next((path for path, state in self._files.items() if state is None or _state(path) != state), "")

    def other_variable(self, environ: Mapping[str, str]) -> str:
        """Returns a variable that had another value when this process read it; empty if all are the same."""
        names = [name for name in {*environ, *self.environ} if name.startswith(_PREFIXES) or name in self._read]
        return next((name for name in sorted(names) if environ.get(name) != self.environ.get(name)), "")

    def close(self) -> None:
        """Notes no further variables."""
        os._Environ.__getitem__, os._Environ.__iter__ = self._originals  # type: ignore[method-assign]

    def set_by_imports(self) -> dict[str, str]:
        """Returns the variables that imports have set."""
        return {name: value for name, value in os.environ.items() if self.environ.get(name) != value}


class _Server:
    """Takes commands at the socket.

    Attributes:
      imports: what the processes of commands import.
    """

    def __init__(self, same: Mapping[str, Any], modules: Sequence[str], idle_seconds: float, began: float) -> None:
        self.imports = Imports()
        self._same, self._idle_seconds = same, idle_seconds
        self._began, self._taken = began, 0
        self._loaded = _Loaded()
        preload(modules)
        self._loaded.note(began)
        self._process = _process(os.getpid())
        self._watchers: set[int] = set()
        self._needed_seconds = time.monotonic()
        self._socket = self._listen()
        _say_ready()

    def _listen(self) -> socket.socket:
        """Takes the place of any other server of this user."""
        path = client.socket_path()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.at_socket(listening.bind, own := f"{path}.{os.getpid()}")
        os.chmod(own, 0o600)
        listening.listen()
        os.rename(own, path)
        self._inode = os.stat(path).st_ino
        return listening

    def _is_in_place(self) -> bool:
        with contextlib.suppress(OSError):
            return os.stat(client.socket_path()).st_ino == self._inode
        return False

    def _leave(self) -> None:
        if self._is_in_place():
            os.unlink(client.socket_path())

    def serve(self) -> dict[str, Any]:
        """Works until it is idle for too long, or another server is in its place; only a command's process returns."""
        while True:
            wait_seconds = _TRIAL_SECONDS if self.imports.is_trying else self.imports.wait_seconds()
            wait_seconds = _LOOK_SECONDS if wait_seconds is None else min(wait_seconds, _LOOK_SECONDS)
            ready, _, _ = select.select([self._socket.fileno(), self.imports.fileno()], [], [], wait_seconds)
            self._reap()
            if self.imports.fileno() in ready:
                self.imports.hear()
            self.imports.advance()
            if self._watchers:
                self._needed_seconds = time.monotonic()
            if time.monotonic() - self._needed_seconds > self._idle_seconds or not self._is_in_place():
                self._leave()
                os._exit(0)
            if self._socket.fileno() in ready:
                connection, _ = self._socket.accept()
                with connection, contextlib.suppress(OSError, ValueError, LookupError):  # of a client
                    if (request := self._answer(connection)) is not None:
                        return request

    def _reap(self) -> None:
        since = time.time()
        if self.imports.look():
            self._loaded.note(since)
        for pid in list(self._watchers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._watchers.remove(pid)

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Does what a client asks; only a command's process returns something."""
        connection.settimeout(_REQUEST_SECONDS)
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            return None
        request, descriptors = _receive(connection)
        why = self._why_cold(request, pid)
        if request["ask"] == "run" and not why:
            self._needed_seconds = time.monotonic()
            return self._fork(connection, request, pid, descriptors)
        for each in descriptors:
            os.close(each)
        age = time.time() - self._began
        about = {"pid": os.getpid(), "age_seconds": age, "taken": self._taken, "packages": self.imports.packages}
        _send(connection, {"why": why, "idle_seconds": self._idle_seconds, **about})
        if request["ask"] == "stop":
            self._leave()
            os._exit(0)
        if why and request["ask"] == "run" and self._loaded.changed():
            self._leave()
            os.execve(sys.executable, sys.orig_argv, self._loaded.environ)
        return None

    def _why_cold(self, request: Mapping[str, Any], pid: int) -> str:
        """Returns why a command would find something else in a process of its own; empty if it would not."""
        for name, mine in self._same.items():
            if request["same"].get(name) != mine:
                return f"{name} is another than that of the server; {_FIX}"
        try:
            process = _process(pid)
        except OSError as error:
            return f"what this process has cannot be compared: {error}"
        for name, mine in self._process.items():
            if process.get(name) != mine and name not in ("nice", "umask"):
                return f"{name} of this process are not those of the server; {_FIX}"
        if process["nice"] < self._process["nice"]:
            return f"the server has a lower priority than this process; {_FIX}"
        if name := self._loaded.other_variable(request["environ"]):
            return f"the variable {name} is another than that of the server; {_FIX}"
        if name := _shadowed(request["path"][0]):
            return f"the module {name} in {request['path'][0]} would be imported instead of the server's"
        if path := self._loaded.changed():
            return f"{path} has changed; the server starts again"
        return ""

    def _fork(
        self, connection: socket.socket, request: dict[str, Any], sender: int, descriptors: list[int]
    ) -> dict[str, Any] | None:
        """Starts the process that watches over the command's, and that starts this; returns there alone."""
        self._taken += 1
        if pid := os.fork():
            self._watchers.add(pid)
            for each in descriptors:
                os.close(each)
            return None
        try:
            self._socket.close()
            process, ignored = _process(sender), _ignored(sender)
            began = process_start_seconds(sender)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            _send(connection, {})  # from here on, the client does not run the command itself
            watcher = os.getpid()
            if pid := os.fork():
                for each in descriptors:
                    os.close(each)
                _watch(connection, pid)
            commands.die_with(watcher)
            connection.close()
            os.chdir(f"/proc/{sender}/cwd")
            self._become(request, descriptors, process, ignored)
            if began is not None:
                os.environ[BEGAN] = f"{os.getpid()} {began}"
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        return request

    def _become(
        self, request: dict[str, Any], descriptors: list[int], process: Mapping[str, Any], ignored: set[int]
    ) -> None:
        """Gives this process, which has just been forked, what a process has that is started from scratch.

        Args:
          request: of the client.
          descriptors: its open files.
          process: what `_process` returned of it.
          ignored: the signals that it ignores.
        """
        os.setsid()
        above = max([*request["descriptors"], 2]) + 1
        self.imports.tell(above)
        _place(descriptors, request["descriptors"], above)
        os.umask(process["umask"])
        os.setpriority(os.PRIO_PROCESS, 0, process["nice"])
        environ = {**self._loaded.set_by_imports(), **request["environ"]}
        self._loaded.close()
        os.environ.clear()
        os.environ.update(environ)
        _set_signals(ignored)
        _set_python(request)


def _say_ready() -> None:
    """Tells the process that has started this one, and lets go of its output."""
    with contextlib.suppress(OSError):  # Ctrl-C has ended it
        os.write(1, b"ready")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


_FIX = "`official-trainer warm --stop`, then `official-trainer warm` from here"


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, 8, _MOST_DESCRIPTORS)
    with connection.makefile("rb") as file:
        text = file.read(int.from_bytes(header, "big"))
    return json.loads(text), descriptors


def _send(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(f"{json.dumps(answer)}\n".encode())


def _watch(connection: socket.socket, pid: int) -> NoReturn:
    """Passes signals to a command's process and tells how it has ended; ends it if its client is gone."""
    connection.settimeout(None)
    has_ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([connection.fileno(), has_ended], [], [])
        if has_ended in ready:
            break
        numbers = b""
        with contextlib.suppress(ConnectionError):
            numbers = connection.recv(64)
        for number in numbers or [signal.SIGKILL]:
            os.kill(pid, number)  # not reaped yet, so the pid is still its own
        if not numbers:
            break
    with contextlib.suppress(OSError):
        _send(connection, {"status": os.waitpid(pid, 0)[1]})
    os._exit(0)


# What a command has to have in common with the server.


def _process(pid: int) -> dict[str, Any]:
    """Returns what a process has that may be compared, by what it is called in a message."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
        limits = file.read()
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        groups = sorted(limit for line in file for limit in _limits_of_group(line.rstrip("\n")))
    names = sorted(os.listdir(f"/proc/{pid}/ns"))
    return {
        "the user or the rights": [status.get(name) for name in _STATUS],
        "the cores": [status.get(name) for name in _CORES],
        "the limits (`ulimit -a`)": limits,
        "the limits of the cgroup": groups,
        "the namespaces": [os.readlink(f"/proc/{pid}/ns/{name}") for name in names],
        "the root folder": os.readlink(f"/proc/{pid}/root"),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "umask": int(status["Umask"], 8),
    }


def _limits_of_group(line: str) -> Iterator[str]:
    """Yields what limits a cgroup, and those around it: two terminals may be in different ones without a limit."""
    hierarchy, _, path = line.split(":", 2)
    if hierarchy != "0":  # of version 1
        yield line
        return
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts) + 1):
        folder = os.path.join("/sys/fs/cgroup", *parts[:depth])
        for name in _CGROUP_LIMITS:
            with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="utf-8") as file:
                value = file.read().strip()
                if value and not value.startswith("max") and not (name == "cpu.weight" and value == "100"):
                    yield f"{folder}/{name} {value}"


def _ignored(pid: int) -> set[int]:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def _files() -> Iterator[str]:
    """Yields the files that this process has loaded, and the folders in which packages are installed."""
    for module in list(sys.modules.values()):
        if path := getattr(module, "__file__", None):
            yield os.path.abspath(path)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        yield from {line[line.index("/") :].rstrip("\n") for line in file if "/" in line}
    yield from (entry for entry in sys.path if os.path.basename(entry) in INSTALLED)


def _keras_file() -> str:
    """Returns the file of Keras's settings, which Keras writes at its import if there is none."""
    return os.path.join(os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras"), "keras.json")


def _content_of(path: str) -> bytes:
    """Returns the content of a file; empty if it cannot be read."""
    try:
        return files.read_bytes(path)
    except OSError:
        return b""


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _shadowed(folder: str) -> str:
    """Returns a module of the server that would be another where a folder is searched first; empty if there is none."""
    with contextlib.suppress(OSError):
        loaded = {name for name in sys.modules if "." not in name}
        for name in loaded & {entry.partition(".")[0] for entry in os.listdir(folder)}:
            found = importlib.machinery.PathFinder.find_spec(name, [folder])
            file = getattr(sys.modules[name], "__file__", None)
            if found is not None and found.origin and found.origin != file and name != "__main__":
                return name
    return ""


# What a process is given before it runs a command.


def _place(descriptors: Sequence[int], numbers: Sequence[int], above: int) -> None:
    """Gives files the numbers that they had in another process, all of them below `above`."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for source, number in zip(moved, numbers, strict=True):
        os.dup2(source, number)
        os.close(source)


def _set_signals(ignored: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)


def _set_python(request: Mapping[str, Any]) -> None:
    """Sets what Python sets when it starts."""
    time.tzset()
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    sys.argv[:], sys.orig_argv[:] = request["argv"], request["orig_argv"]
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr)  # type: ignore[misc]
    commands.draw_anew()


def _stream(number: int, mode: str, like: TextIO) -> Any:
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = f"<{('stdin', 'stdout', 'stderr')[number]}>"
    is_direct = mode == "w" and bool(getattr(like, "write_through", False))  # `python -u`
    buffer: Any = io.BufferedReader(raw) if mode == "r" else raw if is_direct else io.BufferedWriter(raw)
    is_live = number == 2 or raw.isatty()
    stream: Any = io.TextIOWrapper(buffer, like.encoding, like.errors, line_buffering=is_live, write_through=is_direct)
    stream.mode = mode
    return stream
