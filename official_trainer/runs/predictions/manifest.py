"""What a directory of predictions says of itself: what they were made from, which shards are whole, whether all are.

Owns: `predictions.json`, the files of processes that share the shards out, putting these together, and the refusal to
go on with predictions that were made in another way.
Does not own: the shards and what is in them (`shards.py`).

Of several processes each writes a hidden file of its own, in which its whole shards are named, so none waits for
another and none can hold another up. Whoever finds that no shard is missing makes `predictions.json` of these files,
the one that a single process writes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, first_few

MANIFEST = "predictions.json"

_FORMAT_VERSION = 1
_OF_SHARE = re.compile(r"\.predictions-\d+\.json")
_SHARD = re.compile(r"predictions-(\d{5,})\.(?:tfrecord|jsonl|npy|npz)(?:\.tmp-\d+)?")

Manifest = dict[str, Any]
"""What a file says: of all predictions, or with `batch_size` and `end` of those of one process.

`end` is the number of a shard from which on there is no example; None while its writer has not met the end.
"""


class PredictionsError(UserError, ValueError):
    """A directory, or outputs, that predictions cannot be written to or made of."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Which shards a process writes: number `index` and every `count`-th from there on, but for those that are there.

    Attributes:
      index: of this process among those that predict.
      count: how many these are.
      batch_size: examples in each batch but the last, which says in which one a shard begins. 0 for batches of any
        size: then only a process alone, which has written the shard before, knows it.
    """

    index: int = 0
    count: int = 1
    batch_size: int = 0

    @property
    def file(self) -> str:
        """Where the process says what it has written."""
        return MANIFEST if self.count == 1 else f".predictions-{self.index}.json"

    @property
    def lock(self) -> str:
        """The lock that keeps another process from the same share."""
        return "lock" if self.index == 0 else f"lock-{self.index}"

    def has(self, number: int) -> bool:
        """Tells whether shard number `number` belongs to it."""
        return number % self.count == self.index


ALL = Share()


def begin(source: Mapping[str, Any], format: str, shard_size: int | None, share: Share) -> Manifest:
    """Returns what is written before the first shard."""
    whole = {
        "format_version": _FORMAT_VERSION,
        "format": format,
        "shard_size": shard_size,
        "source": dict(source),
        "outputs": {},
        "rows": 0,
        "done": False,
        "shards": [],
    }
    return whole if share.count == 1 else {**whole, "batch_size": share.batch_size, "end": None}


def write(directory: str, name: str, content: Manifest) -> None:
    """Writes one of the files, whole or not at all."""
    files.write_text_atomically(files.join(directory, name), json.dumps(content, indent=1) + "\n")


def check(
    directory: str, *, source: Mapping[str, Any], format: str, shard_size: int | None = None, is_whole: bool = True
) -> dict[str, Manifest]:
    """Returns what is said of predictions that can be gone on with, by file; nothing without any. Changes nothing.

    Args:
      directory: where they are, or will be.
      source: what they are made from.
      format: one of `FORMATS`.
      shard_size: rows in a shard; None takes any.
      is_whole: whether `source` is all of it; else names that are not in it are not compared.

    Raises:
      PredictionsError: the directory holds something else, or predictions that were made in another way.
    """
    counting = _saying_something(directory)
    for found in counting.values():
        before = {"format": found["format"], "shard_size": found["shard_size"], **found["source"]}
        wanted = {"format": format, "shard_size": shard_size or found["shard_size"], **source}
        names = {**wanted, **before} if is_whole else wanted
        if differing := [name for name in names if wanted.get(name) != before.get(name)]:
            raise PredictionsError("\n".join(_refusal(directory, differing, before, wanted)))
    return counting


def read(directory: str) -> dict[str, Manifest]:
    """Returns all that is said of the predictions in a directory, by file.

    Raises:
      PredictionsError: it cannot be read, or the directory holds something else.
    """
    try:
        names = files.list_dir(directory)
    except NotADirectoryError as error:
        raise PredictionsError(f"--output={directory} is no directory; name another") from error
    ours = [name for name in names if name == MANIFEST or _OF_SHARE.fullmatch(name)]
    strangers = [name for name in names if not name.startswith((".", f"{MANIFEST}.tmp-"))]
    if strangers and not ours:
        raise PredictionsError(
            f"--output={directory} holds {first_few(strangers)}, but no predictions of this program; "
            "name a new or empty directory"
        )
    try:
        return {name: _read(files.join(directory, name)) for name in ours}
    except FileNotFoundError:
        return read(directory)  # another process has put them together meanwhile


def _read(path: str) -> Manifest:
    try:
        found = json.loads(files.read_text(path))
        if (version := found["format_version"]) > _FORMAT_VERSION:
            raise ValueError(f"its format version is {version}, and this official-trainer reads {_FORMAT_VERSION}")
        return {**found, **{name: found[name] for name in ("format", "shard_size", "source", "shards", "done")}}
    except (ValueError, TypeError, KeyError) as error:
        raise PredictionsError(f"{path} cannot be read ({error}); name another --output to predict anew") from error


def _saying_something(directory: str) -> dict[str, Manifest]:
    """Returns the files that bind those who go on: the writer of any other has failed before its first shard."""
    return {
        name: found
        for name, found in read(directory).items()
        if found["shards"] or found["done"] or found.get("end") is not None
    }


def number_of(name: str) -> int | None:
    """Returns the number of the shard that a file is, or was to be; None for any other file."""
    match = _SHARD.fullmatch(name)
    return None if match is None else int(match[1])


def shards_of(manifests: Mapping[str, Manifest]) -> dict[int, dict[str, Any]]:
    """Returns the whole shards by their numbers."""
    named = [(number_of(shard["name"]), shard) for found in manifests.values() for shard in found["shards"]]
    return {number: shard for number, shard in named if number is not None}


def end_of(manifests: Mapping[str, Manifest]) -> int | None:
    """Returns the number of a shard from which on there is no example, the lowest that is known; None without any."""
    ends = [found.get("end") for found in manifests.values()]
    return min((end for end in ends if end is not None), default=None)


def add_outputs(described: dict[str, Any], others: Mapping[str, Any]) -> None:
    """Adds descriptions of outputs; a size, or a shape, that is not the same in both becomes null."""
    for name, other in others.items():
        known = described.setdefault(name, dict(other))
        known["shape"] = _common_shape(known["shape"], other["shape"])


def is_to_gather(directory: str) -> bool:
    """Tells whether several processes have written all there is, or `predictions.json` says so beside their files."""
    manifests = _saying_something(directory)
    return any(name != MANIFEST for name in manifests) and _is_complete(manifests)


def gather(directory: str) -> None:
    """Makes `predictions.json` of the files of several processes, if they are complete, and removes them.

    Raises:
      PredictionsError: they were not made in the same way.
    """
    manifests = _saying_something(directory)
    if not _is_complete(manifests):
        return
    if not manifests.get(MANIFEST, {"done": False})["done"]:
        first = next(iter(manifests.values()))
        check(directory, **{name: first[name] for name in ("source", "format", "shard_size")})
        whole = begin(first["source"], first["format"], first["shard_size"], ALL)
        for found in manifests.values():
            add_outputs(whole["outputs"], found["outputs"])
        shards = shards_of(manifests)
        whole["shards"] = [shards[number] for number in sorted(shards)]
        whole["rows"], whole["done"] = sum(shard["rows"] for shard in shards.values()), True
        files.remove_temporaries(directory, MANIFEST)  # of one that was killed here
        write(directory, MANIFEST, whole)
    remove_files_of_shares(directory)


def _is_complete(manifests: Mapping[str, Manifest]) -> bool:
    end, shards = end_of(manifests), shards_of(manifests)
    is_done = any(found["done"] for found in manifests.values())
    return is_done or (bool(end) and all(number in shards for number in range(end or 0)))


def remove_files_of_shares(directory: str) -> None:
    """Removes the files of several processes, of which `predictions.json` has all."""
    for name in files.list_dir(directory):
        if _OF_SHARE.fullmatch(name):
            files.remove(files.join(directory, name))


_FLAGS = ("format", "shard_size", "data", "checkpoint", "experiment")


def _refusal(
    directory: str, differing: Sequence[str], before: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[str]:
    yield f"--output={directory} holds predictions that were made in another way, and one directory has one kind"
    undo = []
    for name in differing:
        old, new = (_shown(values[name]) if name in values else "not set" for values in (before, wanted))
        yield f"  {f'--{name}' if name in _FLAGS else name}: {old} -> {new}"
        if name in _FLAGS:
            undo.append(f"--{name}={shlex.quote(old)}")
        elif "." in name and name in before and not name.startswith("gin "):
            undo.append(f"--set {shlex.quote(f'{name}={old}')}")
    if len(undo) == len(differing):
        yield f"To go on with those, give {' '.join(undo)}"
    yield "To predict anew, name another --output"


def _common_shape(left: list[int | None] | None, right: list[int | None] | None) -> list[int | None] | None:
    if left is None or right is None or len(left) != len(right):
        return None
    return [a if a == b else None for a, b in zip(left, right, strict=True)]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
