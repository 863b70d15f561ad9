"""Find out what is missing on this machine, and how to fix it.

It checks versions, devices and the workspace, and prints the fix of each problem. With a problem, the exit code is 2.

Owns: `doctor`: versions, bytecode, the workspace, devices.
Does not own: whether an experiment works (`check`). TensorFlow is imported in a process of its own, if at all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from official_trainer.cli import flags, target, terminal
from official_trainer.errors import ExitCode, UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GROUP = "Set up this machine"
USAGE = "[--nodevices]"
EXAMPLES = (
    ("official-trainer doctor", "check this machine and this workspace"),
    ("official-trainer doctor --nodevices", "the same without TensorFlow's import, in a second"),
)
NEXT = ("official-trainer init ~/my_workspace", "write a workspace of your own")

_OURS = "official-trainer"
_INDENT = " " * 26
_DEVICES_TIMEOUT_SECONDS = 180
_LIST_DEVICES = """
import json
import tensorflow as tf
devices = [device for kind in ("CPU", "GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
details = [tf.config.experimental.get_device_details(device) for device in devices]
print(json.dumps([(device.device_type, detail.get("device_name", "")) for device, detail in zip(devices, details)]))
"""


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
      name: of the check.
      detail: what it says.
      fix: the command or change that mends it; empty if the check has passed.
    """

    name: str
    detail: str
    fix: str = ""


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `doctor`."""
    parser.group("Checks")
    parser.switch("devices", "skip the devices, which take seconds to find", default=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; the exit code is 0 if all checks have passed."""
    problems = 0
    for finding in _findings(arguments):
        problems += bool(finding.fix)
        label = f"{'mend' if finding.fix else 'ok':<6}{finding.name:<20}"
        terminal.show_line(finding.detail, label, "red" if finding.fix else "green")
        if finding.fix:
            print(f"{_INDENT}{terminal.paint(finding.fix, 'bold')}", flush=True)
    print(f"\n{problems} to mend." if problems else "\nAll is well.")
    return int(ExitCode.CONFIG if problems else ExitCode.DONE)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    try:
        versions = {requirement: installed_version(requirement.name) for requirement in requirements()}
    except ImportError as error:  # a checkout that is not installed, or `packaging` is missing
        checkout = Path(__file__).parents[3]
        what = f"-e {checkout}" if (checkout / "pyproject.toml").is_file() else _OURS
        yield Finding(_OURS, str(error), f"python -m pip install {what}")
        return
    yield from itertools.starmap(check_package, versions.items())
    if None in versions.values():  # what reads experiments and devices may need it
        return
    yield check_bytecode(Path(str(metadata.distribution("tensorflow").locate_file(""))))
    yield check_workspace(target.workspace(arguments))
    if arguments.devices:
        from official_trainer.tracking.console import working

        with working("looking for devices"):
            listed = devices()
        yield check_devices(listed, has_nvidia=os.path.exists("/proc/driver/nvidia/version"))


def requirements() -> list[Requirement]:
    """Returns Python and the packages that this one depends on, with their versions, without those of its extras.

    Raises:
      ImportError: it is not installed, or what reads its requirements is not.
    """
    from packaging.requirements import Requirement

    packages = map(Requirement, metadata.requires(_OURS) or ())
    python = Requirement(f"python{metadata.metadata(_OURS)['Requires-Python']}")
    return [python, *(package for package in packages if not package.marker or package.marker.evaluate({"extra": ""}))]


def installed_version(package: str) -> str | None:
    """Returns the version of a package, or of Python; None if it is not installed."""
    if package == "python":
        return platform.python_version()
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def check_package(requirement: Requirement, version: str | None) -> Finding:
    """Checks whether Python or a package is there in a required version."""
    name, wanted = requirement.name, requirement.specifier
    if version and wanted.contains(version, prereleases=True):
        return Finding(name, version)
    fix = "python3.11 -m venv .venv" if name == "python" else f"python -m pip install '{name}{wanted}'"
    return Finding(name, f"{version or 'not installed'}, needs {wanted}", fix)


def check_bytecode(site: Path) -> Finding:
    """Checks that Python keeps the bytecode of TensorFlow, in a folder of packages; else each start compiles it."""
    module = site / "tensorflow" / "python" / "ops" / "math_ops.py"
    bytecode = Path(importlib.util.cache_from_source(str(module)))
    if bytecode.exists():
        return Finding("bytecode", "that of TensorFlow is kept")
    if sys.dont_write_bytecode:
        why = "PYTHONDONTWRITEBYTECODE is set"
    elif os.access(bytecode.parent if bytecode.parent.exists() else module.parent, os.W_OK):
        return Finding("bytecode", "that of TensorFlow will be kept once it has been imported")
    else:
        why = f"{module.parent} cannot be written"
    detail = f"none of TensorFlow is kept, because {why}: each start compiles its source, for seconds"
    return Finding("bytecode", detail, f"python -m compileall -q -j 0 {site}/tensorflow")


def check_workspace(workspace: Path | None) -> Finding:
    """Checks the workspace, and whether all its experiments can be listed."""
    from official_trainer.tasks import registry

    if workspace is None:
        return Finding("workspace", "no folder upwards of here holds experiments/", "official-trainer init DIR")
    try:
        names, problems = registry.listed(workspace)
    except UserError as error:
        return Finding("workspace", str(workspace), str(error))
    unlisted = "; ".join(problem.message for problem in problems)
    return Finding("workspace", f"{workspace}, experiments: {len(names)}", unlisted)


def devices() -> list[list[str]] | str:
    """Returns the type and the name of TensorFlow's devices, listed in another process; or a text with the error."""
    environ = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _LIST_DEVICES]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_DEVICES_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_DEVICES_TIMEOUT_SECONDS} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return list(json.loads(done.stdout.splitlines()[-1]))


def check_devices(listed: list[list[str]] | str, *, has_nvidia: bool) -> Finding:
    """Checks the devices that TensorFlow finds, and why it does not use an existing GPU.

    Args:
      listed: what `devices` returns.
      has_nvidia: whether this machine has NVIDIA's driver.
    """
    exact = f"=={installed_version('tensorflow')}"
    if isinstance(listed, str):
        fix = f"python -m pip install --force-reinstall tensorflow{exact}"
        return Finding("devices", f"TensorFlow does not start: {listed}", fix)
    types = [device_type for device_type, _ in listed]
    names = ", ".join(sorted({name for _, name in listed if name}))
    detail = ", ".join(f"{types.count(device_type)} {device_type}" for device_type in dict.fromkeys(types))
    if "GPU" in types or not has_nvidia:
        return Finding("devices", f"{detail} ({names})" if names else detail)
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        what = f"{detail}; the GPU is hidden by CUDA_VISIBLE_DEVICES={hidden}"
        return Finding("devices", what, "unset CUDA_VISIBLE_DEVICES")
    what = f"{detail}; there is an NVIDIA GPU that TensorFlow cannot use"
    return Finding("devices", what, f"python -m pip install 'tensorflow[and-cuda]{exact}'")
