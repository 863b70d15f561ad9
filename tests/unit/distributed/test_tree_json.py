"""What processes of a run send each other: values and nothing else."""

import ast
import pickle

import pytest

from official_trainer.distributed.tree_json import TreeError, from_json
from tests.support.source import ENGINE, tree_of

_loaded = []


def _load():
    _loaded.append(1)


class _Loadable:
    """Tells that it was unpickled."""

    def __reduce__(self):
        return _load, ()


def hostile():
    yield pickle.dumps(_Loadable())
    yield pickle.dumps({"a": 1}, protocol=0)
    yield b""
    yield b"["
    yield b"\xff\xfe"
    yield b'["no such form", 1]'
    yield b'["array", "O", [1]]'
    yield b'["array", "float32", [3], "YWJj"]'
    yield b'["array", "float32", [3], "no base64"]'
    yield b'["array", "float32", [-1, 4611686018427387904], "YWJj"]'
    yield b'["dict", [["list"], 1]]'
    yield b'["bytes", "?"]'
    yield b'["array", "U500000000", [2], "a", "b"]'
    yield b'["eval", "exit()"]'
    yield b"[" * 200_000


def test_what_is_no_tree_is_refused_and_a_pickle_is_not_loaded():
    """T16: nothing proves who has sent it."""
    for message in hostile():
        for text in (message, b'{"format":"official-trainer tree, version 1","tree":%s}' % message):
            with pytest.raises(TreeError, match=r"the text is no tree that trees.to_json has made"):
                from_json(text)
    assert not _loaded


def test_a_pickle_that_is_loaded_would_be_noticed():
    """The test above can fail."""
    pickle.loads(pickle.dumps(_Loadable()))
    assert _loaded.pop()


_LOADERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
_OVER_A_PIPE = {"inputs/reader.py", "processes/forked.py"}
"""These pickle by `multiprocessing`, over socket pairs that only a process and the one that it started have."""

_FROM_OWN_FOLDER = {"formats/clean_process.py"}
"""Pickles in a temporary folder that only this user can open, between a process and the one that it has started."""


def test_no_module_imports_what_loads_objects_from_bytes():
    """T16: neither for the network nor for files that others can write."""
    found = {}
    for path in ENGINE.rglob("*.py"):
        tree = tree_of(path)
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found[str(path.relative_to(ENGINE))] = {name.partition(".")[0] for name in names}
    assert {path for path, names in found.items() if names & _LOADERS} <= _FROM_OWN_FOLDER
    assert {path for path, names in found.items() if "multiprocessing" in names} == _OVER_A_PIPE
