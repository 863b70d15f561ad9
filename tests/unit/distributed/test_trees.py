"""Trees of values: their paths, and files that hold them exactly. What is TensorFlow's is in the integration tests."""

import json
import math

import numpy as np
import pytest

from official_trainer.distributed import trees
from official_trainer.distributed.peers import Peers
from official_trainer.distributed.replicas import ReplicaIntegrityError
from official_trainer.distributed.tree_json import TreeError, UnsendableError
from official_trainer.distributed.trees import AloneError
from official_trainer.errors import ExitCode


def test_paths_have_the_structure_of_the_tree():
    """B15: keys and indices, joined; a value that is the whole tree has none."""
    tree = {"a": {"b": 1, 3: [None, ("x", {})]}, "c": np.zeros(2)}
    assert trees.paths(tree) == {"a": {"b": "a/b", 3: ["a/3/0", ("a/3/1/0", {})]}, "c": "c"}
    assert trees.paths(5) == ""


TREE = {
    "not finite": (math.nan, math.inf, -math.inf, -0.0, 0.1 + 0.2),
    "large": [2**63 - 1, -(2**70), True, None],
    "text": {"ä\ud800\n": b"\0\xff", ("a", 1): "b"},
    "int64": np.array([[2**62 + 1, -1]], np.int64),
    "float16": np.array([np.nan, -np.inf, 1e-7], np.float16),
    "bits": np.array([0x7FC00001, 0xFFC12345, 1], np.uint32).view(np.float32),  # NaNs with payloads, a denormal
    "scalars": [np.float32(0.1), np.int8(-3), np.bool_(False)],
    "shapes": [np.zeros((0, 3)), np.array(7, np.uint16), np.arange(8.0).reshape(2, 2, 2)[:, ::-1]],
    "words": [np.array(["ä", "bcd"]), np.array(b"text", object), np.array([[b"a", b"\xff\0"]], object)],
    "empty": [{}, [], ()],
}


def same(left, right):
    """Whether classes, dtypes, shapes and all bits of two trees are equal."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray) and left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    if isinstance(left, np.ndarray | np.generic):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    return repr(left) == repr(right)


def test_a_tree_comes_back_from_json_bit_by_bit(tmp_path):
    """B15: strict JSON, which other programs read too; through a text and through a file."""
    text = trees.to_json(TREE)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = trees.from_json(text)
    assert same(found, TREE)
    assert found["int64"].flags.writeable
    assert type(trees.from_json(trees.to_json(ExitCode.RETRY))) is int
    trees.write(tmp_path / "tree.json", TREE)
    assert same(trees.read(tmp_path / "tree.json"), TREE)
    trees.write(tmp_path / "tree.json", {"other": 1})
    assert trees.read(tmp_path / "tree.json") == {"other": 1}


def test_what_tells_trees_apart_can_fail():
    """Of the test above."""
    assert not same(TREE, {**TREE, "int64": TREE["int64"].astype(np.int32)})
    assert not same([(1,)], [[1]])
    assert not same(np.float32("nan"), np.uint32(0xFFC12345).view(np.float32))


def test_a_text_that_holds_no_tree_is_refused(tmp_path):
    """B15: by the name of the file; which texts these are is in `test_tree_json.py`."""
    path = tmp_path / "tree.json"
    path.write_text('{"tree": 1}')
    with pytest.raises(TreeError, match=f"^{path}: the text is no tree that trees.to_json has made: "):
        trees.read(path)


def test_what_no_file_holds_is_refused_with_its_place():
    """B15: when it is written."""
    with pytest.raises(UnsendableError, match=r"^\['a'\]\[1\]: a value of class .* nor written to a file"):
        trees.to_json({"a": {1: np.zeros(2, [("y", "f4")])}})
    endless = []
    endless.append(endless)
    with pytest.raises(TreeError, match="nested too deeply, or contains itself"):
        trees.to_json(endless)


# Several processes.


class Answers(Peers):
    """Stands for two processes, of which the other one has `other` in place of what this one sends."""

    count = 2

    def __init__(self, *others):
        self._others = list(others)

    def exchange(self, value):
        other = self._others.pop(0)
        return [value, value if other is None else other]


def test_what_only_the_chief_calls_is_refused(monkeypatch):
    """B15: it would wait for ever; the message says where to call it."""
    peers = Answers()
    peers.is_reached = lambda: False
    monkeypatch.setattr(trees, "own_peers", lambda: peers)
    said = r"trees.{} is called by the chief alone.*official_trainer.distributed.collective"
    with pytest.raises(AloneError, match=said.format("gather")):
        trees.gather({"a": 1})
    with pytest.raises(AloneError, match=said.format("assert_replica_integrity")):
        trees.assert_replica_integrity({"a": 1})


def test_processes_with_other_values_or_other_trees_are_told_apart(monkeypatch):
    """B15: of each value that is not one of a replica, each process has one."""
    tree = {"a": np.array([1.0, 2.0]), "b": [3]}
    monkeypatch.setattr(trees, "own_peers", lambda: Answers(None, None))
    trees.assert_replica_integrity(tree)
    monkeypatch.setattr(trees, "own_peers", lambda: Answers(["a", "c"]))
    with pytest.raises(TreeError, match="worker 0 and worker 1 hold trees of other structures: they differ in b/0"):
        trees.assert_replica_integrity(tree)
    other = [None, [["?"], ["?"]], [("", np.array([1.0, 2.5]))], [("", np.array(3))]]
    monkeypatch.setattr(trees, "own_peers", lambda: Answers(*other))
    with pytest.raises(
        ReplicaIntegrityError, match=r"^replicas hold different values of a: replicas 0, 1 differ by up"
    ):
        trees.assert_replica_integrity(tree)
    monkeypatch.setattr(trees, "own_peers", lambda: Answers(*other))
    trees.assert_replica_integrity(tree, absolute_tolerance=0.5)
