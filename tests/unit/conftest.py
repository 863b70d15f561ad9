"""Unit tests need no TensorFlow: importing it fails, also where another tier has imported it in the same process."""

import importlib.abc
import importlib.machinery
import sys

import pytest

from tests.support.cli.fixtures import engine, restored, run_dir, workspace  # noqa: F401  for the verbs, in all packages

HEAVY = ("tensorflow", "tf_keras", "keras", "orbit", "official")


class _Refusal(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds heavy packages, as they are installed, and refuses to import them."""

    def find_spec(self, fullname, path, target=None):
        if fullname not in HEAVY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        spec.loader = self
        return spec

    def exec_module(self, module):
        raise ImportError(f"a unit test imports {module.__name__}; a test that needs it belongs to tests/integration")


def refuse(patch):
    for name in HEAVY:
        patch.delitem(sys.modules, name, raising=False)
    patch.setattr(sys, "meta_path", [_Refusal(), *sys.meta_path])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch)
        return (yield)


@pytest.fixture(autouse=True)
def _no_tensorflow(monkeypatch):
    refuse(monkeypatch)
