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
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.errors import ExitCode

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GROUP = "Set up this machine"
USAGE = "[--nodevices] [--warm] [--json]"
EXAMPLES = (
    ("official-trainer doctor", "check this machine and this workspace"),
    ("official-trainer doctor --nodevices", "the same without TensorFlow's import, in a second"),
)
NEXT = ("official-trainer init ~/my_workspace", "write a workspace of your own")

PYTHONS = (3, 11), (3, 13)
"""The oldest and the newest that pyproject.toml allows; with another one nothing is installed that could say it."""
_OURS = "official-trainer"
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
    try:
        wanted = requirements()
    except ImportError as error:  # a checkout that is not installed, or `packaging` is missing
        yield not_installed(str(error), Path(__file__).parents[3])
        return
    versions = {requirement.name: _installed(requirement.name) for requirement in wanted}
    for requirement in wanted:
        yield check_package(requirement, versions[requirement.name])
    yield check_orbit(_folder("orbit") is not None, versions["tf-models-official"])
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
        has_nvidia = os.path.exists("/proc/driver/nvidia/version")
        yield check_devices(found, versions["tensorflow"], has_nvidia=has_nvidia, environ=os.environ)
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
    oldest, newest = PYTHONS
    if oldest <= version[:2] <= newest:
        return Finding("python", True, found)
    return Finding("python", False, f"{found}, needs {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}", fix)


def requirements() -> list[Requirement]:
    """Returns the packages that this one depends on, with their versions, without those of its extras.

    Raises:
      ImportError: it is not installed, or what reads its requirements is not.
    """
    from importlib import metadata

    from packaging.requirements import Requirement

    requirements = map(Requirement, metadata.requires(_OURS) or ())
    return [needed for needed in requirements if needed.marker is None or needed.marker.evaluate({"extra": ""})]


def not_installed(why: str, checkout: Path) -> Finding:
    """Says that this package is not installed, as Python says it, and how a checkout of it is."""
    what = f"-e {checkout}" if (checkout / "pyproject.toml").is_file() else _OURS
    return Finding(_OURS, False, why, f"python -m pip install {what}")


def check_package(requirement: Requirement, version: str | None) -> Finding:
    """Checks whether a package is installed in a required version."""
    name, wanted = requirement.name, requirement.specifier
    if version and wanted.contains(version, prereleases=True):
        return Finding(name, True, version)
    return Finding(
        name, False, f"{version or 'not installed'}, needs {wanted}", f"python -m pip install '{name}{wanted}'"
    )


def check_orbit(importable: bool, version: str | None) -> Finding:
    """Checks whether orbit, which is part of tf-models-official of this version, can be imported."""
    if importable:
        return Finding("orbit", True, "part of tf-models-official")
    exact = f"=={version}" if version else ""
    fix = f"python -m pip install --force-reinstall --no-deps tf-models-official{exact}"
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


def check_devices(
    report: Mapping[str, Any] | str, version: str | None, *, has_nvidia: bool, environ: Mapping[str, str]
) -> Finding:
    """Checks the devices that TensorFlow finds, and why it does not use an existing GPU.

    Args:
      report: the devices that TensorFlow lists, or its error.
      version: of TensorFlow.
      has_nvidia: whether this machine has NVIDIA's driver.
      environ: the environment, which can hide devices.
    """
    if isinstance(report, str):
        fix = f"python -m pip install --force-reinstall tensorflow=={version}"
        return Finding("devices", False, f"TensorFlow does not start: {report}", fix)
    counts = ", ".join(f"{count} {kind}" for kind, count in report["counts"].items() if count)
    names = f" ({', '.join(sorted(set(report['names'])))})" if report["names"] else ""
    if report["counts"]["GPU"] or not has_nvidia:
        return Finding("devices", True, counts + names)
    if "CUDA_VISIBLE_DEVICES" in environ:
        hidden = f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}"
        return Finding("devices", False, f"{counts}; the GPU is hidden by {hidden}", "unset CUDA_VISIBLE_DEVICES")
    fix = f"python -m pip install 'tensorflow[and-cuda]=={version}'"
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
