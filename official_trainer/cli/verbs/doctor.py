"""Find out what is missing on this machine, and how to fix it.

It checks versions, devices and the workspace, and prints the fix of each problem. With a problem, the exit code is 2.

Owns: `doctor`: versions, the choice of Keras, the workspace, devices, Model Garden's experiments read in advance.
Does not own: whether an experiment works (`check`). TensorFlow is imported in a process of its own, if at all.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import operator
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from official_trainer.cli import flags, target, terminal
from official_trainer.errors import ExitCode

USAGE = "[--nodevices] [--warm] [--json]"
EXAMPLES = (
    ("official-trainer doctor", "check this machine and this workspace"),
    ("official-trainer doctor --nodevices", "the same without TensorFlow's import, in a second"),
)
NEXT = ("official-trainer init ~/my_workspace", "write a workspace of your own")

PYTHON = ">=3.11,<3.14"
REQUIREMENTS = (
    "tensorflow>=2.20,<2.23",
    "keras>=3.15,<4",
    "tf-keras>=2.20,<2.23",
    "tf-models-official==2.20.*",
    "gin-config>=0.5,<0.6",
    "google-crc32c>=1.6,<2",
    "importlib-resources>=6,<8",
    "lazy-loader>=0.6,<1",
    "matplotlib>=3.9,<4",
    "pandas>=2.2,<4",
    "pyyaml>=6.0.1,<7",
    "rich>=13.7,<16",
    "scikit-learn>=1.5,<2",
    "setuptools>=78.1.1,<80.9",
    "tabulate>=0.9,<1",
    "tensorboard>=2.20,<2.23",
)
"""The dependencies of pyproject.toml, repeated here because a checkout may not be installed."""

_COMPARE = {
    "==": lambda version, bound: version[: len(bound)] == bound,
    ">=": operator.ge,
    "<": operator.lt,
}
_DEVICES_TIMEOUT_SECONDS = 180
_LIST_DEVICES = """
import json
import tensorflow as tf
found = tf.config.list_physical_devices()
details = [tf.config.experimental.get_device_details(device) for device in found if device.device_type == "GPU"]
print(json.dumps({
    "counts": {kind: sum(device.device_type == kind for device in found) for kind in ("CPU", "GPU", "TPU")},
    "names": [detail.get("device_name", "GPU") for detail in details],
    "cuda": tf.test.is_built_with_cuda(),
}))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      name: of the check.
      ok: whether it has passed.
      detail: what was found.
      fix: the command or change that fixes it; shown if the check has not passed.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `doctor`."""
    parser.group("Checks")
    parser.switch("devices", "skip the devices, which take seconds to find", default=True)
    parser.switch("warm", "read all experiments of Model Garden once, so that later commands answer at once")
    parser.output_group()
    parser.switch("json", "print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; the exit code is 0 if all checks have passed."""
    findings = []
    for finding in _findings(arguments):
        findings.append(dataclasses.replace(finding, fix="") if finding.ok else finding)
        if not arguments.json:
            mark = "ok  " if finding.ok else "mend"
            line = terminal.hanging(f"{mark}  {finding.name:<20}", finding.detail)
            print(line.replace(mark, terminal.paint(mark, "green" if finding.ok else "red"), 1), flush=True)
            if not finding.ok:
                print(f"      {'':<20}{terminal.paint(finding.fix, 'bold')}", flush=True)
    problems = sum(not finding.ok for finding in findings)
    if arguments.json:
        import json

        print(json.dumps({"ok": not problems, "findings": [dataclasses.asdict(finding) for finding in findings]}))
    else:
        print("\nAll is well." if not problems else f"\n{problems} to mend.")
    return int(ExitCode.CONFIG if problems else ExitCode.DONE)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    python = check_python(sys.version_info[:3])
    yield python
    versions = {name: _installed(name) for name in map(_name, REQUIREMENTS)}
    for requirement in REQUIREMENTS:
        yield check_package(requirement, versions[_name(requirement)])
    yield check_orbit(_folder("orbit") is not None)
    yield check_keras(os.environ)
    if (tensorflow := _folder("tensorflow")) is not None:
        yield check_bytecode(tensorflow, writes=not sys.dont_write_bytecode)
    # Without these, nothing that reads experiments can be imported.
    if python.ok and versions["lazy-loader"] and versions["pyyaml"]:
        yield check_workspace(target.workspace(arguments))
    if arguments.devices and versions.get("tensorflow"):
        with contextlib.ExitStack() as held:
            if versions["rich"] and not arguments.json:  # on a terminal, as it takes as long as TensorFlow's import
                from official_trainer.tracking.console import working

                held.enter_context(working("looking for devices"))
            found = devices()
        yield check_devices(found, has_nvidia=os.path.exists("/proc/driver/nvidia/version"), environ=os.environ)
    if arguments.warm:
        yield read_garden()


def read_garden() -> Finding:
    """Reads all experiments of Model Garden; that some cannot be imported is no problem here."""
    from official_trainer.config import ConfigError
    from official_trainer.garden import index

    num_read = 0
    for name in index.entries():
        with contextlib.suppress(ConfigError):
            index.description(name)
            num_read += 1
    num_listed = len(index.entries())
    read = "all read" if num_read == num_listed else f"{num_read} read; `show` says why another cannot be"
    return Finding("Model Garden", True, f"{num_listed} experiments, {read}")


def check_python(version: tuple[int, ...]) -> Finding:
    """Checks whether TensorFlow and this package support this Python."""
    found, fix = ".".join(map(str, version)), "install Python 3.11, then: python3.11 -m venv .venv"
    is_fit = _satisfies(found, PYTHON)
    return Finding("python", is_fit, found if is_fit else f"{found}, needs {PYTHON}", fix)


def check_package(requirement: str, version: str | None) -> Finding:
    """Checks whether a package is installed in a required version."""
    name = _name(requirement)
    wanted, fix = requirement.removeprefix(name), f"python -m pip install '{requirement}'"
    if version and _satisfies(version, wanted):
        return Finding(name, True, version)
    return Finding(name, False, f"{version or 'not installed'}, needs {wanted}", fix)


def check_orbit(importable: bool) -> Finding:
    """Checks whether orbit, which is part of tf-models-official, can be imported."""
    if importable:
        return Finding("orbit", True, "part of tf-models-official")
    fix = f"python -m pip install --force-reinstall --no-deps '{_requirement('tf-models-official')}'"
    return Finding("orbit", False, "missing, though it is part of tf-models-official", fix)


def check_keras(environ: Mapping[str, str]) -> Finding:
    """Checks that the environment leaves what `tf.keras` is to the experiment: Model Garden's models need Keras 2."""
    value = environ.get("TF_USE_LEGACY_KERAS")
    if value is None:
        return Finding("TF_USE_LEGACY_KERAS", True, "unset; a run sets it for the Keras of its experiment")
    if value in ("1", "true", "True"):
        return Finding("TF_USE_LEGACY_KERAS", True, value)
    return Finding(
        "TF_USE_LEGACY_KERAS",
        False,
        f"{value!r} makes tf.keras Keras 3 in all experiments",
        "unset TF_USE_LEGACY_KERAS",
    )


def check_bytecode(tensorflow: Path, *, writes: bool) -> Finding:
    """Checks that processes need not compile the source of TensorFlow anew, which takes each of them seconds.

    Args:
      tensorflow: its folder.
      writes: whether Python keeps the bytecode of what it compiles.
    """
    module = tensorflow / "python" / "ops" / "math_ops.py"
    kept = Path(importlib.util.cache_from_source(str(module)))
    if kept.exists():
        return Finding("bytecode", True, "that of TensorFlow is kept")
    if not writes:
        why = "PYTHONDONTWRITEBYTECODE is set"
    elif not os.access(kept.parent if kept.parent.exists() else module.parent, os.W_OK):
        why = f"{module.parent} cannot be written"
    else:
        return Finding("bytecode", True, "that of TensorFlow will be kept once it has been imported")
    detail = f"none of TensorFlow is kept, because {why}: each start compiles its source, for seconds"
    return Finding("bytecode", False, detail, f"python -m compileall -q -j 0 {tensorflow.parent}")


def check_workspace(workspace: Path | None) -> Finding:
    """Checks the workspace, and whether all its experiments can be listed."""
    from official_trainer import config
    from official_trainer.tasks import registry

    if workspace is None:
        return Finding("workspace", False, "no folder upwards of here holds experiments/", "official-trainer init DIR")
    try:
        names, problems = registry.listed(workspace)
    except config.ConfigError as error:
        names, problems = {}, [*error.problems]
    unlisted = [problem.message for problem in problems]
    detail = f"{workspace}, experiments: {len(names)}"
    return Finding("workspace", not unlisted, detail, "; ".join(unlisted))


def check_devices(report: Mapping[str, Any] | str, *, has_nvidia: bool, environ: Mapping[str, str]) -> Finding:
    """Checks the devices that TensorFlow finds, and why it does not use an existing GPU.

    Args:
      report: the devices that TensorFlow lists, or its error.
      has_nvidia: whether this machine has NVIDIA's driver.
      environ: the environment, which can hide devices.
    """
    if isinstance(report, str):
        fix = f"python -m pip install --force-reinstall '{_requirement('tensorflow')}'"
        return Finding("devices", False, f"TensorFlow does not start: {report}", fix)
    counts = ", ".join(f"{count} {kind}" for kind, count in report["counts"].items() if count)
    names = f" ({', '.join(sorted(set(report['names'])))})" if report["names"] else ""
    if report["counts"]["GPU"] or not has_nvidia:
        return Finding("devices", True, counts + names)
    if "CUDA_VISIBLE_DEVICES" in environ:
        hidden = f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}"
        return Finding("devices", False, f"{counts}; the GPU is hidden by {hidden}", "unset CUDA_VISIBLE_DEVICES")
    fix = f"python -m pip install '{_requirement('tensorflow').replace('tensorflow', 'tensorflow[and-cuda]')}'"
    return Finding("devices", False, f"{counts}; there is an NVIDIA GPU that TensorFlow cannot use", fix)


def devices() -> Mapping[str, Any] | str:
    """Returns TensorFlow's devices, listed in another process; or a text with the error."""
    import json
    import subprocess

    environ = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _LIST_DEVICES]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_DEVICES_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_DEVICES_TIMEOUT_SECONDS} s"
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _installed(name: str) -> str | None:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _folder(package: str) -> Path | None:
    """Returns the folder of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _name(requirement: str) -> str:
    return re.split(r"[=<>]", requirement)[0]


def _requirement(name: str) -> str:
    return next(requirement for requirement in REQUIREMENTS if _name(requirement) == name)


def _satisfies(version: str, wanted: str) -> bool:
    """Returns whether `version` is in a range of `==1.2.*`, `>=1.2` and `<3`, separated by commas."""
    parts = re.findall(r"(==|>=|<)([0-9.]+)", wanted)
    return all(_COMPARE[sign](_numbers(version), _numbers(bound)) for sign, bound in parts)


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version starts with: `2.20.1rc1` is (2, 20, 1)."""
    return tuple(int(number) for number in re.split(r"[^0-9.]", version)[0].strip(".").split("."))
