"""`doctor`: every line of its report, and that each problem comes with what mends it."""

import json
import py_compile
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from official_trainer import cli
from official_trainer.cli.verbs import doctor
from tests import ROOT

CPU = {"counts": {"CPU": 1, "GPU": 0, "TPU": 0}, "names": [], "cuda": True}
GPUS = {"counts": {"CPU": 1, "GPU": 2, "TPU": 0}, "names": ["H200", "H200"], "cuda": True}


RICH, PYYAML, LOADER = map(Requirement, ("rich>=13.7,<16", "pyyaml>=6.0.1,<7", "lazy-loader>=0.6,<1"))
VERSIONS = {"pyyaml": "6.0.1", "lazy-loader": "0.6", "tf-models-official": "2.20.0"}


def test_requirements_are_those_of_the_project():
    """Without those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, newest = doctor.PYTHONS
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    found = {requirement.name for requirement in doctor.requirements()}
    assert {"tensorflow", "pyyaml", "rich"} <= found and not {"optuna", "wandb", "pytest"} & found


def test_it_runs_where_nothing_is_installed():
    """In a checkout, with Python alone: the command that installs everything is named."""
    command = [sys.executable, "-S", "-m", "official_trainer", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"python -m pip install -e {ROOT}\n" in done.stdout
    assert doctor.not_installed("", ROOT / "docs").fix == "python -m pip install official-trainer"


@pytest.mark.parametrize(
    ("version", "ok"), [((3, 10, 9), False), ((3, 11, 0), True), ((3, 13, 4), True), ((3, 14, 0), False)]
)
def test_python(version, ok):
    finding = doctor.check_python(version)
    assert finding.ok is ok
    assert ok or finding.fix == "install Python 3.11, then: python3.11 -m venv .venv"


@pytest.mark.parametrize(
    ("requirement", "version", "ok"),
    [
        ("tensorflow==2.20.*", "2.20.0", True),
        ("tensorflow==2.20.*", "2.20.1rc1", True),
        ("tensorflow==2.20.*", "2.2.0", False),
        ("tensorflow==2.20.*", "2.21.0", False),
        ("rich>=13.7,<16", "15.0.0", True),
        ("rich>=13.7,<16", "13.6.9", False),
        ("rich>=13.7,<16", "16.0", False),
        ("pyyaml>=6.0.1,<7", "6.0.1", True),
        ("pyyaml>=6.0.1,<7", None, False),
    ],
)
def test_packages(requirement, version, ok):
    wanted = Requirement(requirement)
    finding = doctor.check_package(wanted, version)
    assert finding.ok is ok
    if not ok:
        assert finding.fix == f"python -m pip install '{wanted}'"
        assert (version or "not installed") in finding.detail


def test_orbit():
    assert doctor.check_orbit(True, "2.20.0").ok
    fix = "python -m pip install --force-reinstall --no-deps tf-models-official"
    assert doctor.check_orbit(False, "2.20.0").fix == f"{fix}==2.20.0"
    assert doctor.check_orbit(False, None).fix == fix


@pytest.mark.parametrize(
    ("environ", "ok"), [({}, True), ({"TF_USE_LEGACY_KERAS": "1"}, True), ({"TF_USE_LEGACY_KERAS": "0"}, False)]
)
def test_keras(environ, ok):
    finding = doctor.check_keras(environ)
    assert finding.ok is ok
    assert ok or finding.fix == "unset TF_USE_LEGACY_KERAS"


@pytest.mark.parametrize(
    ("is_kept", "writes", "ok", "said"),
    [
        (True, False, True, "that of TensorFlow is kept"),
        (False, True, True, "that of TensorFlow will be kept once it has been imported"),
        (False, False, False, "PYTHONDONTWRITEBYTECODE is set: each start compiles its source, for seconds"),
    ],
)
def test_bytecode(is_kept, writes, ok, said, tmp_path):
    module = tmp_path / "tensorflow" / "python" / "ops" / "math_ops.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    if is_kept:
        py_compile.compile(str(module))
    finding = doctor.check_bytecode(tmp_path / "tensorflow", writes=writes)
    assert finding.ok is ok
    assert said in finding.detail
    assert ok or finding.fix == f"python -m compileall -q -j 0 {tmp_path}"


def test_bytecode_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """A folder of the system, for example; root may write everywhere, so the answer is given here."""
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    finding = doctor.check_bytecode(tmp_path, writes=True)
    assert (finding.ok, f"{tmp_path}/python/ops cannot be written" in finding.detail) == (False, True)


def test_devices():
    finding = doctor.check_devices(GPUS, "2.20.0", has_nvidia=True, environ={})
    assert (finding.ok, finding.detail) == (True, "1 CPU, 2 GPU (H200)")
    assert doctor.check_devices(CPU, "2.20.0", has_nvidia=False, environ={}).ok


def test_a_gpu_that_is_not_used():
    finding = doctor.check_devices(CPU, "2.20.0", has_nvidia=True, environ={})
    assert (finding.ok, finding.fix) == (False, "python -m pip install 'tensorflow[and-cuda]==2.20.0'")
    finding = doctor.check_devices(CPU, "2.20.0", has_nvidia=True, environ={"CUDA_VISIBLE_DEVICES": "-1"})
    assert (finding.ok, finding.fix) == (False, "unset CUDA_VISIBLE_DEVICES")
    assert "hidden by CUDA_VISIBLE_DEVICES=-1" in finding.detail


def test_tensorflow_that_does_not_start():
    finding = doctor.check_devices("ImportError: no libcuda", "2.20.0", has_nvidia=False, environ={})
    assert not finding.ok
    assert "ImportError: no libcuda" in finding.detail
    assert finding.fix == "python -m pip install --force-reinstall tensorflow==2.20.0"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ImportError('no libcuda')", "ImportError: no libcuda"),
        ("raise SystemExit(9)", "exit code 9"),
        ("print('noise'); print('{}')", {}),
    ],
)
def test_devices_are_asked_for_in_a_process_of_its_own(program, said, monkeypatch):
    monkeypatch.setattr(doctor, "_LIST_DEVICES", program)
    assert doctor.devices() == said


def test_devices_that_never_answer(monkeypatch):
    monkeypatch.setattr(doctor, "_LIST_DEVICES", "import threading; threading.Event().wait()")
    monkeypatch.setattr(doctor, "_DEVICES_TIMEOUT_SECONDS", 0.01)
    assert doctor.devices() == "no answer within 0.01 s"


def test_workspace(tmp_path):
    finding = doctor.check_workspace(None)
    assert (finding.ok, finding.fix) == (False, "official-trainer init DIR")
    cli.main(["init", str(tmp_path / "ws")])
    finding = doctor.check_workspace(tmp_path / "ws")
    assert (finding.ok, finding.detail) == (True, f"{tmp_path / 'ws'}, experiments: 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@register_config_factory('x'\ndef", "a.py:1: its experiments are not listed"),
        ("@register_config_factory('x')\ndef f(): ...\n", "experiment 'x' is registered twice"),
    ],
)
def test_workspace_that_cannot_be_read(text, said, tmp_path):
    (tmp_path / "experiments").mkdir()
    for name in ("a", "b"):
        (tmp_path / "experiments" / f"{name}.py").write_text(text)
    finding = doctor.check_workspace(tmp_path)
    assert (finding.ok, said in finding.fix) == (False, True)


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine on which all is well, in a workspace."""
    cli.main(["init", str(tmp_path / "ws")])
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setattr(doctor, "devices", lambda: CPU)
    monkeypatch.setattr(doctor.os.path, "exists", lambda path: False)
    monkeypatch.setattr(doctor.sys, "version_info", (3, 11, 7))
    monkeypatch.setattr(doctor, "_installed", {**VERSIONS, "rich": "15.0.0"}.get)
    garden = Requirement("tf-models-official")
    monkeypatch.setattr(doctor, "requirements", lambda: [RICH, PYYAML, LOADER, garden])
    monkeypatch.setattr(doctor, "_folder", {"orbit": tmp_path}.get)


def test_all_is_well(healthy, capsys):
    capsys.readouterr()
    assert cli.main(["doctor", "--nodevices"]) == 0
    out = capsys.readouterr().out
    assert "ok    rich                15.0.0\n" in out
    assert out.endswith("\nAll is well.\n")


def test_a_problem_is_shown_with_its_fix(healthy, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_installed", {**VERSIONS, "rich": "12.0"}.get)
    assert cli.main(["doctor", "--nodevices"]) == 2
    out = capsys.readouterr().out
    assert "mend  rich                12.0, needs <16,>=13.7\n" in out
    assert "                          python -m pip install 'rich<16,>=13.7'\n" in out
    assert out.endswith("\n1 to mend.\n")


def test_json(healthy, monkeypatch, capsys):
    capsys.readouterr()
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {"name": "rich", "ok": True, "detail": "15.0.0", "fix": ""} in report["findings"]
    assert "devices" not in {finding["name"] for finding in report["findings"]}  # no TensorFlow, nothing to ask
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    assert cli.main(["doctor", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_versions_are_those_of_this_environment():
    assert doctor.check_package(PYYAML, doctor._installed("pyyaml")).ok
    assert doctor._installed("no-such-package-anywhere") is None
    assert doctor._folder("yaml").name == "yaml"
    assert doctor._folder("no_such_module_anywhere") is None
