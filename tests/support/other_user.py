"""Commands as another user of this machine, who may not read or write what root alone may."""

import contextlib
import importlib
import os
import sys

import pytest

NOBODY = 65534
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
_UNWANTED = ("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo", "lib2to3")  # they open windows


def become_nobody():
    """Gives this process, which was root's, to the user nobody for good; for `first` of a forked command.

    The modules of Python are imported before, because root may have it in a folder that nobody else may read.
    """
    for name in (*sorted(sys.stdlib_module_names), "encodings.utf_8_sig", "http.server"):
        if name not in _UNWANTED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    "".encode("utf-8-sig")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def hide_from_others():
    """Lets this process write for its own user alone."""
    os.umask(0o077)
