"""What this package changes in other packages' modules: what docs/design/patches.md lists, and nothing else."""

import re

import pytest

from tests import ROOT
from tests.support.patches import patches
from tests.support.source import ENGINE, PATHS

PAGE = ROOT / "docs" / "design" / "patches.md"
ROW = re.compile(r"^\| `([^`|]+\.py)` \| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)


def test_the_page_lists_what_is_changed_outside_of_this_package():
    """Each with its reason, in one place; what is changed no more is not listed."""
    found = {(path.relative_to(ENGINE).as_posix(), each) for path in PATHS for each in patches(path.read_text("utf-8"))}
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    listed = [(module, each) for module, changed, _ in rows for each in re.findall("`([^`]+)`", changed)]
    assert len(listed) == len(set(listed)), "listed twice"
    assert found - set(listed) == set(), "not listed"
    assert set(listed) - found == set(), "listed, and changed no more"
    assert all(len(reason.split()) >= 4 for _, _, reason in rows)


IN_A_FUNCTION = "import os\ndef change(thing, name):\n    setattr(thing, name, 1)\n"


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("import inspect\ninspect.signature = len", "inspect.signature"),
        ("import os.path\ndel os.path.join", "os.path.join"),
        ("from os import path as where\nwhere.sep: str = ':'", "where.sep"),
        ("import random\nwith open('x') as random.seed: pass", "random.seed"),
        ("import random\nfor random.seed in (): pass", "random.seed"),
        ("import typing\nname = '_type_check'\nsetattr(typing, name, len)", "setattr(typing, …)"),
        ("import builtins\nbuiltins.__dict__['open'] = len", "builtins.__dict__['open']"),
        ("import builtins\nvars(builtins)['open'] = len", "vars(builtins)['open']"),
        ("import builtins\nvars(builtins).update(open=len)", "vars(builtins).update"),
        ("import sys\nsys.modules['json'] = None", "sys.modules['json']"),
        ("import sys\nsys.meta_path.insert(0, None)", "sys.meta_path.insert"),
        ("from os import _Environ\ntype.__setattr__(_Environ, 'get', len)", "__setattr__(_Environ, …)"),
        ("from unittest import mock\nmock.patch('os.remove', len).start()", "mock.patch('os.remove', len)"),
        ("from unittest.mock import patch\npatch.object(int, 'x')", "patch.object(int, 'x')"),
        ("from official_trainer.lazy import tf\ntf.data.Dataset.map = len", "tf.data.Dataset.map"),
        ("from official_trainer.lazy import load\nload('numpy').random = 1", "load('numpy').random"),
        ("import importlib\nof = importlib.import_module('os')\nother = of\nother.sep = 1", "other.sep"),
        ("import os, json\nfor each in (os, json): each.x = 1", "each.x"),
        ("import os\nALL = ((os, 'x'),)\nfor each, name in ALL: setattr(each, name, 1)", "setattr(each, …)"),
        (
            "class A:\n    def f(self):\n        for owner, name in self._all: setattr(owner, name, 1)",
            "setattr(owner, …)",
        ),
        (f"{IN_A_FUNCTION}change(os, 'x')", "setattr(thing, …)"),
        (f"{IN_A_FUNCTION}change(name='x', thing=os)", "setattr(thing, …)"),
        ("import io\nclass A:\n    def f(self, x): x.y = 1\n    def g(self): self.f(io)", "x.y"),
        ("def f(optimizer): type(optimizer).step = 1", "type(optimizer).step"),
        ("def f(model): model.__class__.call = 1", "model.__class__.call"),
    ],
)
def test_every_spelling_is_found(source, changed):
    assert changed in patches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import argparse\nparser = argparse.ArgumentParser()\nparser.prog = 'x'",
        "import os\nos.environ['X'] = '1'\nos.environ.update(Y='2')",
        "from official_trainer import files\nfiles.x = 1",
        "class A:\n    def __init__(self): self.x = 1",
        f"{IN_A_FUNCTION}change(object(), 'x')",
        "import os\nnames = [os.sep]\nnames.append('x')",
    ],
)
def test_what_is_ones_own_is_not_meant(source):
    assert patches(source) == set()
