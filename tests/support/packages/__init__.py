"""Packages of users, for tests that import or install them, and how one is written.

`own` registers with this project, and has an entry point.
"""

import contextlib
import sys
import tempfile
import textwrap

from official_trainer import lazy
from official_trainer.tasks import registry
from tests import ROOT

OWN = ROOT / "tests/support/packages/own"


def write(folder, **files):
    """Writes Python files; `a__b` is `a/b.py`, and folders get an `__init__.py`."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        for parent in path.relative_to(folder).parents:
            if parent.parts and parent.parts[0] != "experiments":
                (folder / parent / "__init__.py").touch()
    return folder


def registering(name, steps=1, computed=False):
    """Returns the source of a module that registers an experiment, under a literal or a computed name."""
    return (
        "from official_trainer import register_config_factory\n"
        "from official_trainer.config import ExperimentConfig, TrainerConfig\n\n\n"
        "def make():\n"
        f'    """The experiment {name}."""\n'
        f"    return ExperimentConfig(trainer=TrainerConfig(train_steps={steps}))\n\n\n"
        f"register_config_factory({f'str({name!r})' if computed else repr(name)})(make)\n"
    )


def entry_point(folder, module, name="mine", group="experiments", package=None):
    """Writes what pip would for an installed package, called as its entry point `name`, which names `module`."""
    package = package or name
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[official_trainer.{group}]\n{name} = {module}\n")


@contextlib.contextmanager
def as_it_was(monkeypatch):
    """Leaves the registry, the Keras in use, `sys.path` and `sys.modules` as they were before the block."""
    for table in ("_factories", "_tasks"):
        monkeypatch.setattr(registry, table, {})
    monkeypatch.setattr(lazy, "_users_of_3", set())
    path, modules = list(sys.path), set(sys.modules)
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "experiments"}
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or file.startswith((tempfile.gettempdir(), str(OWN))):
            del sys.modules[name]
    sys.modules.update(own)
