"""Targets of installed packages: found by their entry points, run like ours, and said where they are wrong."""

import sys

import pytest

from official_trainer import cli
from official_trainer.launch import targets
from tests.support.packages import entry_point

LAB = """
from official_trainer.launch.targets.slurm import Slurm


class Lab(Slurm):
    name = "lab"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes an installed package whose entry point names a module with this text."""

    def install(text, package="lab_engines", name="lab"):
        folder = tmp_path / package
        entry_point(folder, f"{package}_module", name, "launch_targets", package)
        (folder / f"{package}_module.py").write_text(text)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)

    return install


def test_a_target_of_an_installed_package(package, capsys):
    """T27: `launch` has it in its help and in what it says of others, and runs it."""
    package(LAB)
    assert cli.main(["launch", "--help"]) == 0
    assert "one of local, kubernetes, lab, slurm, tpu" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["launch", "lab", "--help"]) == 0
    assert "Fields of a profile, launch/lab.yaml" in capsys.readouterr().out
    assert cli.main(["launch", "lba"]) == 2
    assert ", not lba; did you mean lab?\n" in capsys.readouterr().err
    assert targets.get("lab").name == "lab"


def test_a_target_that_cannot_be_used(package, capsys):
    """N7: a class of another name, two packages; a target of this package is never replaced."""
    package(LAB.replace('"lab"', '"other"'))
    package("import no_such_module", "third", "slurm")
    assert targets.get("slurm").name == "slurm"
    assert cli.main(["launch", "lab", "digits_cnn"]) == 2
    said = 'error: the launch target lab: lab_engines_module must define a subclass of Target with name = "lab"\n'
    assert capsys.readouterr().err == said
    package(LAB, "others")
    assert cli.main(["launch", "lab", "digits_cnn"]) == 2
    assert "the launch target lab is in two packages, lab_engines and others: pip uninstall " in capsys.readouterr().err
