"""A network of their own for the processes of a local job: loopback, and nothing else in or out. Linux only.

Owns: making it, and why that is not possible. Does not own: what is started in it (`children.py`).

A program enters a new network namespace, and then becomes another program. That needs a right, so a user without it
enters a new user namespace first, in which the user has it and is still the same user, whose files are the same. The
program that it becomes has no rights beyond those of before.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

from official_trainer.errors import ExitCode, UserError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from official_trainer.processes import isolation
isolation.execute(sys.argv[2:])
"""


class IsolationError(UserError, OSError):
    """This system does not let this user make a network."""

    exit_code = ExitCode.CONFIG


def isolated(command: Sequence[str]) -> list[str]:
    """Returns the command that runs `command`, whose first word is a path, in a new network."""
    return [sys.executable, "-c", _BOOT, search_path(), *command]


def search_path() -> str:
    """Returns where this process finds modules, as JSON, for a Python that has to find the same."""
    return json.dumps([entry or os.getcwd() for entry in sys.path])


def check_possible() -> None:
    """Makes a network and leaves it.

    Raises:
      IsolationError: that is not possible here.
    """
    done = subprocess.run(isolated([sys.executable, "-S", "-c", ""]), capture_output=True, text=True, check=False)
    if done.returncode:
        raise IsolationError(
            f"--isolated: this system does not let you make a network ({done.stderr.strip()}). That takes Linux and, "
            "for users without rights, user namespaces. An administrator allows them with those of the sysctls "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone=1 and "
            "kernel.apparmor_restrict_unprivileged_userns=0 that the system has; a container, with a seccomp profile "
            "that allows `unshare`. Or leave the flag out, and protect the ports of this machine with a firewall"
        )


def execute(command: Sequence[str]) -> None:
    """Makes a network and becomes `command` in it; ends with a message if that is not possible."""
    try:
        enter()
    except (OSError, AttributeError) as error:  # AttributeError: a system whose C library has no `unshare`
        sys.exit(str(error))
    os.execv(command[0], list(command))  # also gives up the rights that a new user namespace gives


def enter() -> None:
    """Moves this process, which has one thread, to a new network, in which it stays until it becomes another program.

    Raises:
      OSError: the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
