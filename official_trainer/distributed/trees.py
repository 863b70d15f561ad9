"""Trees of values: over all processes, over all replicas, and in files.

Owns: the path of each value, gathering, the check of replicas, and the files. Does not own: the form of values in
messages and files (`tree_json.py`), comparing replicas (`replicas.py`), variables of models (`tasks/variables.py`).

A tree is mappings, lists and tuples inside each other; everything else is a value: an array, a tensor, a variable, a
number, text, None.

Example:
  >>> import os, tempfile
  >>> import numpy as np
  >>> from official_trainer import trees
  >>> path = os.path.join(tempfile.mkdtemp(), "statistics.json")
  >>> trees.write(path, {"mean": np.array([0.5, 1.5], np.float16), "count": 3})
  >>> trees.read(path)
  {'mean': array([0.5, 1.5], dtype=float16), 'count': 3}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import files
from official_trainer.distributed.multi_worker import own_peers
from official_trainer.distributed.peers import Peers
from official_trainer.distributed.replicas import ReplicaIntegrityError, Tolerance, find_difference
from official_trainer.distributed.tree_json import TreeError, without_variable
from official_trainer.distributed.tree_json import from_json as from_json
from official_trainer.distributed.tree_json import to_json as to_json
from official_trainer.errors import UserError


class AloneError(UserError, RuntimeError):
    """A function that all processes have to call was called by the chief alone."""


def paths(tree: Any) -> Any:
    """Returns a tree of the same structure with the path of each value: its keys and indices, joined by `/`.

    Args:
      tree: any; the path of a value that is the whole tree is empty.

    Example:
      >>> from official_trainer import trees
      >>> trees.paths({"dense": {"kernel": 1.0, "bias": 2.0}, "steps": (3, 4)})
      {'dense': {'kernel': 'dense/kernel', 'bias': 'dense/bias'}, 'steps': ('steps/0', 'steps/1')}
    """
    return _mapped(lambda path, _: path, tree)


def gather(tree: Any) -> list[Any]:
    """Returns the trees of all processes that train together, in their order; the chief's is the first.

    All processes call it at the same time: in a method of a `Trainer` that is marked `collective`, in what an
    evaluation calls (`Task.aggregate_logs`, `Task.reduce_aggregated_logs`), or in a program of your own. A single
    process gets its own tree. Each process receives all trees, so they should be small.

    Args:
      tree: variables, which come back as arrays, tensors, arrays, numbers and text. It may differ by process.

    Raises:
      AloneError: an action, or other code that only the chief runs, calls it.
      UnsendableError: a value is of another class.
      PeerLostError: a process has died.

    Example:
      >>> from official_trainer import trees
      >>> trees.gather({"examples": 128, "host": "a"})
      [{'examples': 128, 'host': 'a'}]
    """
    return _reached("gather").exchange(_mapped(lambda _, value: without_variable(value), tree))


def assert_replica_integrity(tree: Any, *, absolute_tolerance: float = 0.0, relative_tolerance: float = 0.0) -> None:
    """Returns if all replicas, of all processes, hold the same values.

    All processes call it, as they call `gather`. The action `replica_integrity` does the same for all that a run
    trains.

    Args:
      tree: variables, values of replicas (as `strategy.run` returns them), tensors, arrays or numbers. Of what is no
        value of replicas each process has one.
      absolute_tolerance: differences up to this are none.
      relative_tolerance: nor are those up to this share of the first replica's value.

    Raises:
      ReplicaIntegrityError: names the path, the replicas and the largest difference.
      TreeError: the trees of the processes have different paths.
      AloneError: code that only the chief runs calls it.

    Example:
      >>> from official_trainer import trees
      >>> from official_trainer.lazy import tf
      >>> trees.assert_replica_integrity({"kernel": tf.Variable([1.0, 2.0])})
    """
    peers, named = _reached("assert_replica_integrity"), list[tuple[str, Any]]()
    _mapped(lambda path, value: named.append((path, value)), tree)
    first, *others = peers.exchange([path for path, _ in named])
    for number, other in enumerate(others, 1):
        if other != first:
            path = next((path for path in (*first, *other) if (path in first) != (path in other)), "the order")
            raise TreeError(f"worker 0 and worker {number} hold trees of other structures: they differ in {path}")
    tolerance = Tolerance(absolute=absolute_tolerance, relative=relative_tolerance)
    if (difference := find_difference(named, tolerance, peers)) is not None:
        path, said = difference
        raise ReplicaIntegrityError(f"replicas hold different values of {path or 'the value'}: {said}")


def write(path: str, tree: Any) -> None:
    """Writes `to_json` of a tree to a file; readers see the old content or the new, never a part of it.

    Args:
      path: local path or URL; only one process may write to it.
      tree: as in `to_json`.

    Example:
      >>> from official_trainer import trees
      >>> from official_trainer.lazy import tf
      >>> trees.write("weights.json", {"kernel": tf.Variable([0.5, 1.5], dtype=tf.bfloat16)})
      >>> str(trees.read("weights.json")["kernel"].dtype)
      'bfloat16'
    """
    files.write_text_atomically(str(path), to_json(tree) + "\n")


def read(path: str) -> Any:
    """Returns the tree of a file that `write` has written.

    Raises:
      FileNotFoundError: there is no such file.
      TreeError: it holds something else.

    Example:
      >>> from official_trainer import trees
      >>> trees.write("best.json", {"step": 300, "accuracy": 0.75})
      >>> trees.read("best.json")
      {'step': 300, 'accuracy': 0.75}
    """
    try:
        return from_json(files.read_bytes(str(path)))
    except TreeError as error:
        raise TreeError(f"{path}: {error}") from error


def _mapped(function: Callable[[str, Any], Any], tree: Any, path: str = "") -> Any:
    """Returns a tree of the same structure, with `function(path, value)` for each value."""
    prefix = f"{path}/" if path else ""
    if isinstance(tree, Mapping):
        return {key: _mapped(function, value, f"{prefix}{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        items = [_mapped(function, value, f"{prefix}{index}") for index, value in enumerate(tree)]
        return items if isinstance(tree, list) else tuple(items)
    return function(path, tree)


def _reached(function: str) -> Peers:
    """Returns the processes that train together, if all of them call `function` now."""
    peers = own_peers()
    if not peers.is_reached():
        raise AloneError(
            f"trees.{function} is called by the chief alone, as an action is, and would wait for the other processes "
            "for ever. Call it where all processes are: in a method of the Trainer that is marked with "
            "official_trainer.distributed.collective, which the action then calls, or in Task.reduce_aggregated_logs"
        )
    return peers
