"""What `.ci/contents.py` says of an sdist and a wheel that lack a file of the package, or hold another."""

import subprocess
import sys
import tarfile
import zipfile

from tests import ROOT

PACKAGE = {"official_trainer/__init__.py", "official_trainer/py.typed", "official_trainer/template/launch/job.yaml"}
OF_SDIST = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
EGG_INFO = {"PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt"}
DIST_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
SDIST = PACKAGE | OF_SDIST | {f"official_trainer.egg-info/{name}" for name in EGG_INFO}
WHEEL = PACKAGE | {f"official_trainer-0.1.0.dist-info/{name}" for name in DIST_INFO}


def checked(folder, sdist, wheel):
    """Returns how the script ends on a package with a folder behind a link, as the template's is."""
    source = folder / "source"
    for name in ("official_trainer/__init__.py", "official_trainer/py.typed", "launch/job.yaml", "tests/test_a.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    (source / "official_trainer/template").mkdir()
    (source / "official_trainer/template/launch").symlink_to(source / "launch")
    with tarfile.open(folder / "official_trainer-0.1.0.tar.gz", "w:gz") as archive:
        for name in sdist:
            archive.add(source / "launch/job.yaml", f"official_trainer-0.1.0/{name}")
    with zipfile.ZipFile(folder / "official_trainer-0.1.0-py3-none-any.whl", "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    paths = [source, folder / "official_trainer-0.1.0.tar.gz", folder / "official_trainer-0.1.0-py3-none-any.whl"]
    command = [sys.executable, ROOT / ".ci/contents.py", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_package_and_nothing_else(tmp_path):
    assert checked(tmp_path, SDIST, WHEEL) == (0, ["sdist and wheel hold the 3 files of official_trainer"])


def test_what_is_missing_and_what_is_too_much(tmp_path):
    sdist = SDIST - {"LICENSE"} | {"runs/digits/run.json"}
    wheel = WHEEL - {"official_trainer/py.typed"} | {"tests/test_a.py"}
    assert checked(tmp_path, sdist, wheel) == (
        1,
        [
            "official_trainer-0.1.0.tar.gz lacks LICENSE",
            "official_trainer-0.1.0.tar.gz holds runs/digits/run.json",
            "official_trainer-0.1.0-py3-none-any.whl lacks official_trainer/py.typed",
            "official_trainer-0.1.0-py3-none-any.whl holds tests/test_a.py",
        ],
    )
