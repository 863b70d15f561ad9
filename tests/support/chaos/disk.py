"""A disk that fails, or a process that is killed, at the n-th change below a directory: `disk.c`, built and preloaded.

The fork server of `tests/support/forked.py` has it, so each child can call `arm`; without a compiler none can.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

_COMPILERS = ("cc", "gcc", "clang")
_LIBRARY = "disk.so"


@functools.cache
def _build():
    """Returns the folder of the library, or why there is none. It is built once for a process of pytest."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return f"none of {', '.join(_COMPILERS)} is there"
    folder = tempfile.TemporaryDirectory(prefix="disk")
    source = Path(__file__).with_name("disk.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", f"{folder.name}/{_LIBRARY}", source, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    return folder if done.returncode == 0 else done.stderr


def is_there():
    """Whether the library could be built."""
    return not isinstance(_build(), str)


def require():
    """Skips a test where the library could not be built."""
    import pytest  # not in the fork server

    if not is_there():
        missing = f"no change on disk goes wrong, because disk.c could not be built: {_build()}"
        warnings.warn(missing, stacklevel=2)
        pytest.skip(missing)


@contextlib.contextmanager
def preloaded():
    """Processes that are started in the block have the library, and so have their forks."""
    if not is_there():
        yield
        return
    os.environ["LD_PRELOAD"] = f"{_build().name}/{_LIBRARY}"
    try:
        yield
    finally:
        os.environ.pop("LD_PRELOAD", None)  # another thread may have been here


def arm(folder, number=0, fault=0, *, lasts=False, log=None, only=""):
    """Called in a child: lets change `number` (from 1) below `folder` go wrong; 0 is none.

    Args:
      folder: its real path.
      number: of the change. Each write is two of them, so that half of it may be done.
      fault: an error number, or a negated signal.
      lasts: whether later changes end with the error too. Removals are never refused with ENOSPC.
      log: a file outside of `folder`, for the name of each change.
      only: part of the names of the changes that count, such as `rename to best/`.
    """
    assert os.path.realpath(folder) == str(folder), folder
    record = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    names = os.fsencode(folder), os.fsencode(only)
    ctypes.CDLL(None).disk_arm(names[0], ctypes.c_long(number), int(fault), int(lasts), record, names[1])
