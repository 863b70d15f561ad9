"""`doctor`: every line of its report, and what mends a problem."""

import py_compile
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from official_trainer import cli
from official_trainer.cli.verbs import doctor
from tests import ROOT

CPU = [["CPU", ""]]
GPUS = [["CPU", ""], ["GPU", "H200"], ["GPU", "H200"]]
VERSIONS = {"python": "3.11.7", "rich": "15.0.0", "tensorflow": "2.20.0"}


def test_requirements_are_those_of_the_project():
    """Without those of the extras; Python comes first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, *packages = doctor.requirements()
    assert python == Requirement(f"python{project['requires-python']}")
    names = {requirement.name for requirement in packages}
    assert {"tensorflow", "pyyaml", "rich"} <= names and not {"optuna", "wandb", "pytest"} & names


def test_it_runs_where_nothing_is_installed():
    """In a checkout, with Python alone: the command that installs everything is named."""
    command = [sys.executable, "-S", "-m", "official_trainer", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"python -m pip install -e {ROOT}\n" in done.stdout


def test_packages():
    for requirement, version, ok in (
        ("tensorflow==2.20.*", "2.20.1rc1", True),
        ("tensorflow==2.20.*", "2.2.0", False),
        ("rich>=13.7,<16", "16.0", False),
        ("pyyaml>=6.0.1,<7", "6.0.1", True),
        ("pyyaml>=6.0.1,<7", None, False),
        ("python>=3.11,<3.14", "3.13.4", True),
        ("python>=3.11,<3.14", "3.10.9", False),
    ):
        wanted = Requirement(requirement)
        finding = doctor.check_package(wanted, version)
        fix = "python3.11 -m venv .venv" if wanted.name == "python" else f"python -m pip install '{wanted}'"
        assert finding.fix == ("" if ok else fix)
        assert ok or (version or "not installed") in finding.detail


@pytest.mark.parametrize(
    ("is_kept", "ignores", "writable", "said"),
    [
        (True, False, True, "that of TensorFlow is kept"),
        (False, False, True, "that of TensorFlow will be kept once it has been imported"),
        (False, True, True, "PYTHONDONTWRITEBYTECODE is set: each start compiles its source, for seconds"),
        (False, False, False, "tensorflow/python/ops cannot be written"),
    ],
)
def test_bytecode(is_kept, ignores, writable, said, tmp_path, monkeypatch):
    """Root may write everywhere, so the system's answer is given here."""
    module = tmp_path / "tensorflow" / "python" / "ops" / "math_ops.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.setattr(sys, "dont_write_bytecode", ignores)
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: writable)
    if is_kept:
        py_compile.compile(str(module))
    finding = doctor.check_bytecode(tmp_path)
    assert said in finding.detail
    is_well = is_kept or (writable and not ignores)
    assert finding.fix == ("" if is_well else f"python -m compileall -q -j 0 {tmp_path}/tensorflow")


def test_devices(monkeypatch):
    """Also why a GPU is not used, and of a TensorFlow that does not start."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "installed_version", VERSIONS.get)
    assert doctor.check_devices(GPUS, has_nvidia=True) == ("devices", "1 CPU, 2 GPU (H200)", "")
    assert doctor.check_devices(CPU, has_nvidia=False) == ("devices", "1 CPU", "")
    fix = "python -m pip install 'tensorflow[and-cuda]==2.20.0'"
    assert doctor.check_devices(CPU, has_nvidia=True).fix == fix
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    _, detail, fix = doctor.check_devices(CPU, has_nvidia=True)
    assert "hidden by CUDA_VISIBLE_DEVICES=-1" in detail and fix == "unset CUDA_VISIBLE_DEVICES"
    _, detail, fix = doctor.check_devices("ImportError: no libcuda", has_nvidia=False)
    assert "ImportError: no libcuda" in detail
    assert fix == "python -m pip install --force-reinstall tensorflow==2.20.0"


def test_devices_are_asked_for_in_a_process_of_its_own(monkeypatch):
    for program, said in (
        ("raise ImportError('no libcuda')", "ImportError: no libcuda"),
        ("raise SystemExit(9)", "exit code 9"),
        ("print('noise'); print('[]')", []),
    ):
        monkeypatch.setattr(doctor, "_LIST_DEVICES", program)
        assert doctor.devices() == said
    monkeypatch.setattr(doctor, "_LIST_DEVICES", "import threading; threading.Event().wait()")
    monkeypatch.setattr(doctor, "_DEVICES_TIMEOUT_SECONDS", 0.01)
    assert doctor.devices() == "no answer within 0.01 s"


def test_workspace(tmp_path):
    assert doctor.check_workspace(None).fix == "official-trainer init DIR"
    cli.main(["init", str(tmp_path / "ws")])
    workspace = tmp_path / "ws"
    assert doctor.check_workspace(workspace) == ("workspace", f"{workspace}, experiments: 1", "")
    (workspace / "experiments" / "a.py").write_text("@register_config_factory('x'\ndef")
    assert "a.py:1: its experiments are not listed" in doctor.check_workspace(workspace).fix


@pytest.fixture
def healthy(monkeypatch, tmp_path, capsys):
    """A machine on which all is well, in a workspace."""
    cli.main(["init", str(tmp_path / "ws")])
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setattr(doctor, "devices", lambda: CPU)
    monkeypatch.setattr(doctor.os.path, "exists", lambda path: False)
    monkeypatch.setattr(doctor, "installed_version", VERSIONS.get)
    monkeypatch.setattr(doctor, "check_bytecode", lambda site: doctor.Finding("bytecode", "kept"))
    wanted = [Requirement(text) for text in ("python>=3.11,<3.14", "rich>=13.7,<16", "tensorflow>=2.20,<2.23")]
    monkeypatch.setattr(doctor, "requirements", lambda: wanted)


def test_all_is_well(healthy, capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "ok    devices             1 CPU\n" in out
    assert "ok    rich                15.0.0\n" in out
    assert out.endswith("\nAll is well.\n")


@pytest.mark.parametrize(("version", "said"), [("12.0", "12.0"), (None, "not installed")])
def test_a_problem_is_shown_with_its_fix(version, said, healthy, monkeypatch, capsys):
    """Without a package, what needs it is not tried."""
    monkeypatch.setattr(doctor, "installed_version", {**VERSIONS, "rich": version}.get)
    assert cli.main(["doctor", "--nodevices"]) == 2
    out = capsys.readouterr().out
    assert f"mend  rich                {said}, needs <16,>=13.7\n" in out
    assert "                          python -m pip install 'rich<16,>=13.7'\n" in out
    assert ("ok    workspace " in out) is (version is not None)
    assert out.endswith("\n1 to mend.\n")


def test_versions_are_those_of_this_environment():
    python, *_ = doctor.requirements()
    assert not doctor.check_package(python, doctor.installed_version("python")).fix
    assert doctor.installed_version("pyyaml") and doctor.installed_version("no-such-package-anywhere") is None
