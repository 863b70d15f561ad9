"""Where processes listen, as the kernel says it: in /proc, because `ss` may not be there."""

import contextlib
import os
import socket
from pathlib import Path

_LISTENS = "0A"
ALL = {"0.0.0.0", "::"}


def listening(pid):
    """Returns the addresses and ports at which a process listens, in its own network: `{("::", 12345)}`."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and inode in inodes:
                address, port = local.split(":")
                found.add((_address(family, address), int(port, 16)))
    return found


def _address(family, text):
    """Returns an address from words of 32 bits in the order of this machine, each in hexadecimal digits."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(words))


def connects(port, host="127.0.0.1"):
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False
