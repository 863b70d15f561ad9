"""The manifests of a directory of predictions: what these were made from, which shards are whole, whether all are.

Owns: `predictions.json`, the manifests of several processes that predict together, merging these, and the refusal to
continue predictions that were made in another way.
Does not own: the shards and what is in them (`shards.py`).

Each of several processes writes a hidden manifest of its own, which names its whole shards, so no process waits for
another. The process that finds no shard missing merges them into `predictions.json`, the file that a single process
writes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.errors import ExitCode, UserError
from official_trainer.shown import first_few, shorten

MANIFEST = "predictions.json"

_FORMAT_VERSION = 1
_FLAGS = ("format", "shard_size", "data", "checkpoint", "experiment")
_OF_SHARE = re.compile(r"\.predictions-(\d+)\.json")
_SHARD = re.compile(rf"predictions-(\d{{5,}})\.(?:tfrecord|jsonl|npy|npz)(?:{files.TEMPORARY})?")

_KINDS: Mapping[str, Any] = {
    **{"format": str, "shard_size": int | None, "source": dict, "outputs": dict, "shards": list, "done": bool}
}
_KINDS_OF_SHARD: Mapping[str, Any] = {"name": str, "rows": int, "size_bytes": int, "sha256": str}

Manifest = dict[str, Any]
"""The content of a file: about all predictions, or, with `batch_size` and `end`, about those of one process.

`end` is the number of the first shard without examples; None while its writer has not reached the end of the data.
"""


class PredictionsError(UserError, ValueError):
    """Predictions that cannot be written: because of their directory, their format, or how they were begun."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Which shards a process writes: number `index` and every `count`-th after it, except those that exist already.

    Attributes:
      index: of this process among those that predict.
      count: how many processes predict.
      batch_size: examples in each batch but the last; it determines in which batch a shard begins. 0 for batches of any
        size: then only a single process, which has written the shard before, knows it.
    """

    index: int = 0
    count: int = 1
    batch_size: int = 0

    @property
    def file(self) -> str:
        """The manifest of what the process has written."""
        return MANIFEST if self.count == 1 else f".predictions-{self.index}.json"

    @property
    def lock(self) -> str:
        """The lock that keeps another process from the same share."""
        return "lock" if self.index == 0 else f"lock-{self.index}"

    def has(self, number: int) -> bool:
        """Whether shard number `number` belongs to it."""
        return number % self.count == self.index


ALL = Share()


def begin(format: str, shard_size: int | None, source: Mapping[str, Any], share: Share) -> Manifest:
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
    files.write_text_atomically(files.join(directory, name), manifest.signed(content))


def read_continuable(directory: str, wanted: Manifest, *, is_whole: bool = True) -> dict[str, Manifest]:
    """Returns the manifests of predictions that can be continued, by file; empty if there are none. Changes nothing.

    Args:
      directory: where they are, or will be.
      wanted: a manifest of predictions that are made in the same way; one without a size of shards takes any.
      is_whole: whether its source is complete; else names that are not in it are not compared.

    Raises:
      PredictionsError: the directory holds something else, or predictions that were made in another way.
    """
    manifests = read(directory)
    for earlier in manifests.values():
        before, now = ({"format": m["format"], "shard_size": m["shard_size"], **m["source"]} for m in (earlier, wanted))
        now["shard_size"] = now["shard_size"] or before["shard_size"]
        names = {**now, **before} if is_whole else now
        differing = [name for name in names if now.get(name) != before.get(name)]
        lines, undo = [f"--output={directory} holds predictions that were made with other settings:"], []
        for name in differing:
            pair = before.get(name, "not set"), now.get(name, "not set")
            old, new = (value if isinstance(value, str) else json.dumps(value) for value in pair)
            lines.append(f"  {f'--{name}' if name in _FLAGS else name}: {old} -> {new}")
            if name in _FLAGS:
                undo.append(f"--{name}={shlex.quote(old)}")
            elif "." in name and name in before and not name.startswith("gin "):
                undo.append(f"--set {shlex.quote(f'{name}={old}')}")
        if len(undo) == len(differing):
            lines.append(f"To continue those, use {' '.join(undo)}")
        if differing:
            raise PredictionsError("\n".join([*lines, "To predict from the start, name another --output"]))
    return manifests


def read(directory: str) -> dict[str, Manifest]:
    """Returns the manifests in a directory of predictions that must be continued, by file.

    Others name nothing: their writers failed before their first shards.

    Raises:
      PredictionsError: it cannot be read, or the directory holds something else.
    """
    try:
        names = files.list_dir(directory)
    except files.PathKindError as error:
        raise PredictionsError(f"--output={directory} is not a directory; name another") from error
    ours = [name for name in names if name == MANIFEST or _OF_SHARE.fullmatch(name)]
    others = [name for name in names if not name.startswith((".", f"{MANIFEST}.tmp-"))]
    if others and not ours:
        raise PredictionsError(
            f"--output={directory} holds {first_few(others)}, but no predictions of official-trainer; "
            "name a new or empty directory"
        )
    try:
        manifests = {name: _read_file(files.join(directory, name)) for name in ours}
    except FileNotFoundError as error:
        if files.list_dir(directory) == names:
            what = f"one of {first_few(ours)} is a link to nothing"
            raise PredictionsError(f"--output={directory}: {what}; remove it, or name another --output") from error
        return read(directory)  # another process has merged them meanwhile
    return {name: m for name, m in manifests.items() if m["shards"] or m["done"] or m.get("end") is not None}


def _read_file(path: str) -> Manifest:
    try:
        content = manifest.parse(files.read_text(path), MANIFEST, _FORMAT_VERSION)
        for name, kinds in _KINDS.items():
            if not isinstance(content[name], kinds):
                raise TypeError(f"{name} is {shorten(repr(content[name]))}")
        for shard in content["shards"]:
            if not all(isinstance(shard[name], kinds) for name, kinds in _KINDS_OF_SHARD.items()):
                raise TypeError(f"a shard is {shorten(repr(shard))}")
        return content
    except (ValueError, TypeError, KeyError) as error:
        raise PredictionsError(
            f"{path} cannot be read ({error}); name another --output to predict from the start"
        ) from error


def number_of(name: str) -> int | None:
    """Returns the number of the shard that a file is, or was to be; None for any other file."""
    match = _SHARD.fullmatch(name)
    return None if match is None else int(match[1])


def by_number(shards: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns whole shards by their numbers, in order."""
    numbered = {number: shard for shard in shards if (number := number_of(shard["name"])) is not None}
    return dict(sorted(numbered.items()))


def merge(manifests: Sequence[Manifest]) -> Manifest:
    """Returns what one or more manifests say together; `done` if no shard is missing, whichever process wrote it."""
    shards = by_number([shard for share_manifest in manifests for shard in share_manifest["shards"]])
    outputs: dict[str, Any] = {}
    for share_manifest in manifests:
        add_outputs(outputs, share_manifest["outputs"])
    ends = [
        len(share_manifest["shards"]) if share_manifest["done"] else share_manifest.get("end")
        for share_manifest in manifests
    ]
    end = min((share_end for share_end in ends if share_end is not None), default=None)
    return {
        **manifests[0],
        "outputs": outputs,
        "rows": sum(shard["rows"] for shard in shards.values()),
        "done": bool(end) and shards.keys() >= set(range(end or 0)),
        "shards": [*shards.values()],
        "batch_size": max(share_manifest.get("batch_size", 0) for share_manifest in manifests),
        "end": end,
    }


def add_outputs(described: dict[str, Any], others: Mapping[str, Any]) -> None:
    """Adds descriptions of outputs; a size, or a shape, that is not the same in both becomes null."""
    for name, other in others.items():
        description = described.setdefault(name, dict(other))
        left, right = description["shape"], other["shape"]
        is_alike = left is not None and right is not None and len(left) == len(right)
        description["shape"] = [a if a == b else None for a, b in zip(left, right, strict=True)] if is_alike else None


def is_to_gather(directory: str) -> bool:
    """Whether the manifests of several processes are there, and together with `predictions.json` name all shards."""
    manifests = read(directory)
    return any(name != MANIFEST for name in manifests) and merge([*manifests.values()])["done"]


def gather(directory: str) -> None:
    """Merges the manifests of several processes into `predictions.json`, if they are complete, and removes them.

    Raises:
      PredictionsError: they were not made in the same way.
    """
    manifests = read(directory)
    if not manifests or not (whole := merge([*manifests.values()]))["done"]:
        return
    if MANIFEST not in manifests or not manifests[MANIFEST]["done"]:
        read_continuable(directory, whole)
        del whole["batch_size"], whole["end"]
        files.remove_temporaries(directory, MANIFEST)  # of a process that was killed here
        write(directory, MANIFEST, whole)
    remove_files_of_shares(directory)


def remove_files_of_shares(directory: str) -> None:
    """Removes the manifests of several processes, which `predictions.json` replaces."""
    for name in files.list_dir(directory):
        if _OF_SHARE.fullmatch(name):
            files.remove(files.join(directory, name))


def interrupted(directory: str) -> list[Share]:
    """Returns a share for each manifest that is being written, or was when its process was killed."""
    split_names = [name.partition(".tmp-") for name in files.list_dir(directory)]
    matches = [_OF_SHARE.fullmatch(name) for name, is_temporary, _ in split_names if is_temporary]
    indices = {int(match[1]) for match in matches if match is not None}
    return [Share(index=index, count=max(indices) + 2) for index in sorted(indices)]
