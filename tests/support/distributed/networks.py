"""Machines of a cluster as network namespaces of this one, each with its own address.

A switch (a bridge) is in a namespace of its own, so nothing is changed outside of them, and they leave nothing.
"""

import ctypes
import functools
import itertools
import os
import shutil
import subprocess

CLONE_NEWNET = 0x40000000
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_numbers = itertools.count()


class Network:
    """Hosts on one switch; use it in a `with` block, after whose end there is nothing of it.

    Attributes:
      addresses: of the hosts.
    """

    def __init__(self, count):
        self._name = f"trainer-{os.getpid()}-{next(_numbers)}"
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for number in (*range(len(self.addresses)), "switch"):
            subprocess.run([_ip(), "netns", "delete", self._host(number)], check=False, capture_output=True)

    def _build(self):
        switch = self._host("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, address in enumerate(self.addresses):
            host = self._host(number)
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            cable = ("link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            ip("-n", host, *cable)
            ip("-n", host, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", host, "link", "set", "cable", "up")
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")

    def entrance(self, number):
        """Returns what a process has to call, before it has threads, to be on a host."""
        return functools.partial(_enter, f"/run/netns/{self._host(number)}")

    def _host(self, number):
        return f"{self._name}-{number}"


def why_not():
    """Returns why there can be no network here; an empty text if there can."""
    if _ip() is None:
        return "there is no `ip` of iproute2"
    try:
        with Network(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"


def ip(*words):
    subprocess.run([_ip(), *words], check=True, capture_output=True, text=True)


def _ip():
    return shutil.which("ip", path=_PATH)


def _enter(path):
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}", path)
    os.close(descriptor)
