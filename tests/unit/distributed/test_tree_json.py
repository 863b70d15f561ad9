"""What processes of a run send each other: values and nothing else."""

import ast
import enum
import math
import pickle

import numpy as np
import pytest

from official_trainer.distributed.tree_json import TreeError, UnsendableError, from_json, to_json
from tests.support.source import ENGINE, tree_of


class Code(enum.IntEnum):
    RETRY = 75


def arrays():
    yield np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2]  # not contiguous
    yield np.zeros((0, 3), np.int64)
    yield np.float64(0.1)
    yield np.bool_(True)
    yield np.array(b"text", object)
    yield np.array([[b"a", b"\xff\0"]], object)
    yield np.array(["ä", "bcd"])


@pytest.mark.parametrize("value", list(arrays()), ids=repr)
def test_arrays_arrive_with_class_dtype_and_shape(value):
    """T16."""
    found = from_json(to_json(value))
    assert type(found) is type(value)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(found, value)
    assert not isinstance(found, np.ndarray) or found.flags.writeable


def test_plain_values_arrive_as_they_are():
    """T16: floats to the last bit; tuples are no lists, because a tuple has a value for each replica."""
    value = (
        None,
        [True, 2**70, -0.0, 0.1 + 0.2, math.inf, "ä\ud800\n", b"\0\n[", ()],
        {"a": (1, [2, (3,)]), 4: {}, ("b", 5): [b"", b"x"]},
    )
    assert repr(from_json(to_json(value))) == repr(value)
    assert math.isnan(from_json(to_json(math.nan)))
    assert type(from_json(to_json(Code.RETRY))) is int


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
    yield b"[" * 200_000


@pytest.mark.parametrize("message", list(hostile()), ids=lambda message: repr(message[:24]))
def test_what_is_no_tree_is_refused_and_a_pickle_is_not_loaded(message):
    """T16: nothing proves who has sent it."""
    for text in (message, b'{"format":"official-trainer tree, version 1","tree":%s}' % message):
        with pytest.raises(TreeError, match=r"the text is no tree that trees.to_json has made"):
            from_json(text)
    assert not _loaded


def test_a_pickle_that_is_loaded_would_be_noticed():
    """The test above can fail."""
    pickle.loads(pickle.dumps(_Loadable()))
    assert _loaded.pop()


def test_what_cannot_be_sent_is_refused_with_its_place():
    """T16: by the process that would send it, and before it sends anything."""
    with pytest.raises(UnsendableError, match=r"^\['boxes'\]\['x'\]: a value of class .* cannot be sent to the other"):
        to_json({"boxes": {"x": np.zeros(2, [("y", "f4")])}})


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
