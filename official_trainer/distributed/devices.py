"""The cores and GPUs that a process may use, found without TensorFlow.

Owns: counting them, as the kernel and CUDA show them to a process that starts now.
Does not own: which of them a process gets (`sweeps/driver.py`), what TensorFlow does with them (`engine/process.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA shows a process some of the GPUs."""

_LIST = ("nvidia-smi", "-L")
_LIST_SECONDS = 60.0  # its first call loads the driver
_NODE = re.compile(r"nvidia\d+")


def cores() -> tuple[int, ...]:
    """Returns the numbers of the cores on which this process may run; none where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def gpus(environ: Mapping[str, str], folder: str = "/dev") -> tuple[str, ...]:
    """Returns the GPUs that CUDA shows to a process, as `CUDA_VISIBLE_DEVICES` names them.

    Args:
      environ: of the process.
      folder: where the system keeps its devices.
    """
    try:
        done = subprocess.run(
            _LIST, env=dict(environ), capture_output=True, text=True, timeout=_LIST_SECONDS, check=False
        )
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        count = sum(line.startswith("GPU ") for line in lines)  # without those that a container or a scheduler hides
    except (OSError, subprocess.TimeoutExpired):  # a container may have GPUs without this program
        count = sum(_NODE.fullmatch(name) is not None for name in os.listdir(folder))
    listed = environ.get(VISIBLE_GPUS)
    if listed is None or not count:
        return tuple(map(str, range(count)))
    names: list[str] = []
    for name in map(str.strip, listed.split(",")):
        is_number = name.isascii() and name.isdecimal() and int(name) < count
        if not is_number and not name.startswith(("GPU-", "MIG-")):
            break  # CUDA ignores what follows
        names.append(name)
    return tuple(names)
