"""What this package changes in other packages' modules: what docs/design/patches.md lists, and nothing else.

Seen is what is written into an imported module or into what `load` returns, and `setattr`. A change that goes another
way has to be listed by hand; `test_private_names.py` sees private attributes.
"""

import ast
import re

from tests import ROOT
from tests.support.source import ENGINE, PATHS, nodes_of

PAGE = ROOT / "docs" / "design" / "patches.md"
ROW = re.compile(r"^\| `([^`|]+\.py)` \| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)
SET_ON_OWN_OBJECTS = {
    "cli/parser.py": "the flags of a command",
    "cli/target.py": "the flags of a command",
    "lazy.py": "a deferred module, which becomes the real one",
    "program/checkpoint.py": "a checkpoint that this module makes",
    "program/program.py": "the model of the user's Program, by its own `__setattr__`",
    "tasks/vocabularies.py": "layers of the model that is exported",
}
"""Modules that call `setattr` on what a run has made itself."""


METHODS = ("append", "clear", "extend", "insert", "pop", "setdefault", "update")


def root_of(node):
    """Returns the first name of an expression such as `a.b["c"].d` or `a("b").c`."""
    while not isinstance(node, ast.Name):
        node = getattr(node, "func", None) or getattr(node, "value", None)
        if not isinstance(node, ast.expr):
            return ""
    return node.id


def changes(nodes):
    """Yields (expression, whether it is a call of setattr) for what is changed outside of the module's own objects."""
    modules = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("official_trainer"):
            modules |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "official_trainer.lazy":
            modules |= {alias.asname or alias.name for alias in node.names if alias.name in ("tf", "keras")}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield f"{node.func.id}({ast.unparse(node.args[0])}, …)", True
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            written = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            written = node
        else:
            continue
        if root_of(written) in {"load", *modules} and not ast.unparse(written).startswith("os.environ"):
            yield ast.unparse(written), False


def test_the_page_lists_what_is_changed_outside_of_this_package():
    """Each with its reason, in one place; what is changed no more is not listed."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    listed = {(module, changed) for module, cell, _ in rows for changed in re.findall("`([^`]+)`", cell)}
    assert all(len(reason.split()) >= 4 for _, _, reason in rows)
    stale = [
        (module, changed)
        for module, changed in listed
        if changed.partition(", …")[0] not in (ENGINE / module).read_text(encoding="utf-8").replace('"', "'")
    ]
    assert stale == []
    unlisted = []
    for path in PATHS:
        module = path.relative_to(ENGINE).as_posix()
        for changed, is_setattr in changes(nodes_of(path)):
            if (module, changed) not in listed and not (is_setattr and module in SET_ON_OWN_OBJECTS):
                unlisted.append((module, changed))
    assert unlisted == []


def test_a_change_is_seen():
    """The test above can fail."""
    for source, changed in {
        "import inspect\ninspect.signature = len": "inspect.signature",
        "import os.path\ndel os.path.join": "os.path.join",
        "from os import path as where\nwhere.sep: str = ':'": "where.sep",
        "import builtins\nbuiltins.__dict__['open'] = len": "builtins.__dict__['open']",
        "import sys\nsys.meta_path.insert(0, None)": "sys.meta_path.insert",
        "from official_trainer.lazy import tf\ntf.data.Dataset.map = len": "tf.data.Dataset.map",
        "from official_trainer.lazy import load\nload('numpy').random = 1": "load('numpy').random",
        "def change(owner, name): setattr(owner, name, 1)": "setattr(owner, …)",
    }.items():
        assert [text for text, _ in changes([*ast.walk(ast.parse(source))])] == [changed], source
    for source in (
        "import os\nos.environ['X'] = '1'\nos.environ.update(Y='2')",
        "from official_trainer import files\nfiles.x = 1",
        "class A:\n    def __init__(self): self._x = 1",
    ):
        assert not [*changes([*ast.walk(ast.parse(source))])], source
