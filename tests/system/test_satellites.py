"""The package without its satellites: what remains works, and says what to install for what is gone."""

import os
import shutil
import subprocess
import sys

import pytest

from official_trainer import files
from tests import ROOT
from tests.support.cases import cases
from tests.support.reports import kinds

VERBS = {
    "formats": (),
    "launch": ("launch", "job"),
    "program": (),
    "reports": ("compare", "find-lr", "report"),
    "sources": (),
    "sweeps": ("sweep",),
}
"""The satellites, each with its verbs."""

CORE = sorted(
    folder.name
    for folder in (ROOT / "official_trainer").iterdir()
    if (folder / "__init__.py").exists() and folder.name not in VERBS
)


# The package is installed from ROOT, and what installs it so would find there what the copy lacks.
NOT_FROM_ROOT = 'import sys; sys.meta_path[:] = [each for each in sys.meta_path if "ditable" not in str(each)]'


def without(satellites, folder):
    """Copies what the unit tests of the core need, but for `satellites`; returns where it is."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("official_trainer", "tests/support", "tests/unit", "tests/data", "experiments", "configs", "launch"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / name, folder / name)
    for name in satellites:
        shutil.rmtree(folder / "official_trainer" / name)
        shutil.rmtree(folder / "tests" / "unit" / name, ignore_errors=True)
    (folder / "sitecustomize.py").write_text(NOT_FROM_ROOT)
    return folder


def run(folder, *words):
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("satellite", sorted(VERBS))
def test_a_satellite_is_taken_away(tmp_path, satellite):
    """N7: the overview has the verbs that are there; one that is not says what installs it."""
    folder = without([satellite], tmp_path / "copy")
    overview = run(folder, "-m", "official_trainer", "--help")
    assert overview.returncode == 0, overview.stderr
    listed = {line.split()[0] for line in overview.stdout.splitlines() if line.startswith("  ") and line.split()}
    assert {"train", "list", "show"} <= listed
    for name, verbs in VERBS.items():
        assert listed.issuperset(verbs) if name != satellite else listed.isdisjoint(verbs), name
    for verb in VERBS[satellite]:
        refused = run(folder, "-m", "official_trainer", verb)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == (
            f"error: the verb {verb} of official-trainer cannot be imported: ModuleNotFoundError: No module named "
            f"'official_trainer.{satellite}'. Install it again: pip install --force-reinstall official-trainer\n"
        )


def test_a_flag_of_the_core_that_a_satellite_carries_out(tmp_path):
    """N7: says what installs it."""
    folder = without(["reports"], tmp_path / "copy")
    refused = run(folder, "-m", "official_trainer", "train", "digits_mlp", "--overfit_batches=2")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --overfit_batches of official-trainer cannot be imported: ")


@pytest.mark.parametrize("packages", cases([" ".join(CORE), "cli"], "cli"))
def test_the_core_alone_passes_its_unit_tests(tmp_path, packages):
    """N7: without all satellites; those that name one in a string, and in full, all packages."""
    folder = without(VERBS, tmp_path / "copy")
    tests = [f"tests/unit/{name}" for name in packages.split() if (folder / "tests" / "unit" / name).is_dir()]
    done = run(folder, "-m", "pytest", *tests, "-n2", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-4000:]


def test_tables_and_pages_without_sweeps(tmp_path):
    """N7: reports read the records of sweeps where these are installed; without them, runs are runs."""
    kinds.sweep(tmp_path / "sweep")
    (tmp_path / "sweep" / files.SWEEP_FILE).write_text("{}")  # by which a sweep is known
    folder = without(["sweeps"], tmp_path / "copy")
    runs = [str(path) for path in sorted(tmp_path.glob("sweep/**/run.json"))]
    assert len(runs) == 4
    compared = run(folder, "-m", "official_trainer", "compare", str(tmp_path / "sweep"))
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("accuracy") >= 1
    page = run(folder, "-m", "official_trainer", "report", str(tmp_path / "sweep"), f"--output={tmp_path}/page.html")
    assert page.returncode == 0, page.stderr
    assert "accuracy" in (tmp_path / "page.html").read_text(encoding="utf-8")
