"""The manifest of a checkpoint: the file written last, whose presence means that the checkpoint is whole.

Owns: the format of `ckpt-N.manifest.json`, the names of a checkpoint's files, and whether files still match it. A
manifest holds a checksum of itself (`sha256`), so that its content can be trusted.
Does not own: TensorFlow's own files, or which checkpoint is written, kept or restored (`store.py`).

A checkpoint that Model Garden's driver wrote (`garden.py`) counts without a manifest: TensorFlow's checksums of its
index and its values tell whether it is whole.

TensorFlow keeps a checksum of every value in the index, and compares it whenever the value is read. The manifest has
the index's own checksum, so all values are covered without reading gigabytes back after every save.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.checkpoints import garden
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf

FORMAT_VERSION = 1

_NAME = re.compile(
    r"ckpt-(?P<step>0|[1-9]\d*)"
    r"(?P<part>\.index|\.data-\d{5}-of-\d{5}|\.manifest\.json|\.saving|_temp"
    rf"|\.(?:manifest\.json|saving){files.TEMPORARY})"
)


class CheckpointError(UserError, ValueError):
    """A checkpoint, or a directory of checkpoints, that cannot be used."""

    exit_code = ExitCode.CONFIG


class UnreadableManifestError(ValueError):
    """A manifest that is not there, cut off or altered; its checkpoint does not count as committed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a manifest says about the run: a restart compares it with what is so then.

    Attributes:
      experiment: the registered name; empty for a store that belongs to no run.
      config: the config, as `config.dump` writes it; None if it is not known.
      gin: bindings of gin, values by name.
      commit: of the code that a job was given; None if the code was that of a workspace.
      data: how the training data is divided (`runs/resume/data_layout.py`); None before it is built.
      validation_sources: the facts of the sources that evaluations read by number.
      last_row: `step`, `split` and `time` of the row that was written last to `metrics.jsonl`; None for none.
    """

    experiment: str = ""
    config: str | None = None
    gin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    commit: str | None = None
    data: Mapping[str, Any] | None = None
    validation_sources: Sequence[Mapping[str, Any]] = ()
    last_row: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one checkpoint holds.

    Attributes:
      step: global step.
      created: when it was committed, ISO 8601 in UTC.
      files: name → `{"size_bytes": …, "sha256": …}`; data files, whose values have checksums in the index, have no
        `sha256`. Of a checkpoint of Model Garden there are none.
      versions: of Python, TensorFlow, Keras and this package.
      run: about the run; much the same for all its checkpoints.
      extra: state of the caller at this step, JSON. A run's loop saves that of the actions (`Schedule.state`) and of
        recoveries (`Recovery.state`); a keeper of checkpoints (`kept.py`) saves the results of the evaluation, `logs`.
    """

    step: int
    created: str
    files: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    run: RunFacts
    extra: Mapping[str, Any]

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        return signed({"format_version": FORMAT_VERSION, **dataclasses.asdict(self)})


def name(step: int) -> str:
    """Returns the name of a manifest file."""
    return f"ckpt-{step}.manifest.json"


def saving_mark(step: int) -> str:
    """Returns the name of the file that exists during a save."""
    return f"ckpt-{step}.saving"


def prefix(directory: str, step: int) -> str:
    """Returns the path of a checkpoint as TensorFlow takes it: without suffix."""
    return files.join(directory, f"ckpt-{step}")


def find(directory: str, step: int) -> str:
    """Returns the path of a checkpoint that is there: `ckpt-STEP`, or the best one of Model Garden of this step."""
    ours = prefix(directory, step)
    return ours if files.exists(f"{ours}.index") else garden.prefix_of(directory, step) or ours


def files_by_step(directory: str) -> dict[int, dict[str, str]]:
    """Returns `{step: {file name: which part of a checkpoint it is}}` for files named as this package names them."""
    by_step: dict[int, dict[str, str]] = {}
    for file_name in files.list_dir(directory):
        if match := _NAME.fullmatch(file_name):
            by_step.setdefault(int(match["step"]), {})[file_name] = match["part"]
    return by_step


def digest(directory: str, step: int) -> str:
    """Returns a checksum that another checkpoint in the place of this one does not have."""
    theirs = garden.prefix_of(directory, step)
    return files.sha256(files.join(directory, name(step)) if theirs is None else f"{theirs}.index")


def state(part_of: Mapping[str, str]) -> Literal["committed", "dead save", "unmarked"]:
    """Returns what the names of the files of one step say.

    A manifest commits; without one, the mark of a save shows that it died. Files without either are another tool's, or
    damage.
    """
    parts = set(part_of.values())
    if ".manifest.json" in parts:
        return "committed"
    if ".saving" in parts or all(part.startswith(".saving") for part in parts):
        return "dead save"
    return "unmarked"


def parse(text: str, name: str, newest_version: int) -> dict[str, Any]:
    """Returns the values of the manifest `name`, of a checkpoint or of predictions, in a format that the caller reads.

    Raises:
      CheckpointError: only a later version of this package reads it.
      UnreadableManifestError: it does not match its own checksum.
      KeyError, TypeError, ValueError: it is cut off, or no manifest.
    """
    values = dict(files.parse_json(text))
    if values.pop("sha256", None) != _checksum(values):
        raise UnreadableManifestError(f"{files.base_name(name)} does not match its own checksum")
    if (version := values["format_version"]) > newest_version:
        raise CheckpointError(
            f"{name}: format version is {version}, but this official-trainer reads up to {newest_version}. Upgrade "
            "official-trainer to use it"
        )
    return values


def signed(values: Mapping[str, Any]) -> str:
    """Returns the text of a manifest with a checksum of itself, which `parse` compares."""
    return json.dumps({**values, "sha256": _checksum(values)}, indent=1) + "\n"


def read(directory: str, step: int) -> Manifest:
    """Returns the manifest of `step`; for a checkpoint of Model Garden, which has none, one that knows only the step.

    Raises:
      UnreadableManifestError: it is missing or damaged.
      CheckpointError: it is in a format that only a later version of this package reads, or may not be read.
      OSError: the disk or the file server fails; the manifest may be whole.
    """
    path = files.join(directory, name(step))
    try:
        values = parse(files.read_text(path), path, FORMAT_VERSION)
        del values["format_version"]
        manifest = Manifest(**{**values, "run": RunFacts(**values["run"])})
        if manifest.step != step or not manifest.files:
            raise UnreadableManifestError(f"{name(step)} is the manifest of step {manifest.step}, or names no files")
        if not isinstance(manifest.extra, dict):
            raise TypeError("extra")
        for expected in manifest.files.values():
            if not isinstance(expected["size_bytes"], int) or not isinstance(expected.get("sha256", ""), str):
                raise TypeError("files")
        return manifest
    except FileNotFoundError as error:
        if garden.prefix_of(directory, step) is not None:
            return Manifest(step=step, created="", files={}, versions={}, run=RunFacts(), extra={})
        raise UnreadableManifestError(f"{name(step)} is missing") from error
    except PermissionError as error:
        raise _not_allowed(path, error) from error
    except (CheckpointError, UnreadableManifestError):
        raise
    except (files.PathKindError, NotADirectoryError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableManifestError(f"{name(step)} cannot be read ({type(error).__name__}: {error})") from error


def committed_steps(directory: str) -> tuple[int, ...]:
    """Returns the steps in `directory` whose manifest can be read, or which Model Garden saved, rising."""
    return tuple(step for step in sorted(files_by_step(directory)) if is_committed(directory, step))


def is_committed(directory: str, step: int) -> bool:
    """Whether `step` is one of `committed_steps`."""
    try:
        read(directory, step)
    except UnreadableManifestError:
        return False
    return True


def saved_steps(directory: str) -> tuple[int, ...]:
    """Returns the steps of which there are files, whole or damaged, rising; without those of saves that died."""
    return tuple(step for step, part_of in sorted(files_by_step(directory).items()) if state(part_of) != "dead save")


def newest_whole(directory: str, *, checksums: bool = True) -> tuple[int | None, dict[int, str]]:
    """Returns the newest step that is whole, None for none, and what is wrong with each newer one."""
    damaged: dict[int, str] = {}
    for step in reversed(saved_steps(directory)):
        if (problem := damage(directory, step, checksums=checksums)) is None:
            return step, damaged
        damaged[step] = problem
    return None, damaged


def gardens_steps(directory: str) -> Collection[int]:
    """Returns the steps whose files are Model Garden's: without marks of ours, where its driver has saved.

    A damaged one does not say so itself.
    """
    unmarked = {step: part_of for step, part_of in files_by_step(directory).items() if state(part_of) == "unmarked"}
    return unmarked.keys() if any(garden.wrote(prefix(directory, step)) for step in unmarked) else ()


def damage(directory: str, step: int, *, checksums: bool = True) -> str | None:
    """Returns what is wrong with the checkpoint of `step`, or None if it is whole. Sizes are always compared."""
    try:
        described = read(directory, step).files
    except UnreadableManifestError as error:
        return str(error)
    problem = _first_problem(directory, described, checksums=checksums)
    if problem or not described:
        theirs = garden.prefix_of(directory, step)  # also in the place of one of ours
        if theirs is not None:
            return damage_of_values(theirs) if checksums else garden.lacking_data(theirs)
    return problem or (_damaged_value(prefix(directory, step)) if checksums else None)


def _first_problem(directory: str, described: Mapping[str, Mapping[str, Any]], *, checksums: bool) -> str | None:
    for file_name, expected in described.items():
        path = files.join(directory, file_name)
        if not files.exists(path):
            return f"{file_name} is missing"
        if not files.is_file(path):
            return f"{file_name} is not a file"
        if (size_bytes := files.size_bytes(path)) != expected["size_bytes"]:
            return f"{file_name} has {size_bytes} bytes, not {expected['size_bytes']}"
        try:
            matches = not (checksums and "sha256" in expected) or files.sha256(path) == expected["sha256"]
        except PermissionError as error:
            raise _not_allowed(path, error) from error
        if not matches:
            return f"{file_name} does not match its checksum"
    return None


def write(directory: str, manifest: Manifest) -> None:
    """Commits a checkpoint whose other files are on disk already."""
    files.write_text_atomically(files.join(directory, name(manifest.step)), manifest.to_json())


def describe(directory: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Returns the size of each file, and the index's checksum, waiting until they are on the disk."""
    described: dict[str, dict[str, Any]] = {}
    for file_name in names:
        path = files.join(directory, file_name)
        files.sync(path)
        described[file_name] = {"size_bytes": files.size_bytes(path)}
        if file_name.endswith(".index"):
            described[file_name]["sha256"] = files.sha256(path)
    files.sync(directory)
    return described


def damage_of_values(checkpoint_prefix: str) -> str | None:
    """Returns what is wrong with a checkpoint that has no manifest, or None if it is whole. Reads every value."""
    return garden.lacking_data(checkpoint_prefix) or _damaged_value(checkpoint_prefix)


def _damaged_value(checkpoint_prefix: str) -> str | None:
    """Reads every value, which TensorFlow compares with its checksum; returns what is wrong with the first bad one."""
    key = ""
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(checkpoint_prefix)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except tf.errors.PermissionDeniedError as error:
        raise _not_allowed(checkpoint_prefix, error) from error
    except (tf.errors.OpError, ValueError, IndexError) as error:
        if (fault := files.as_storage_error(error, checkpoint_prefix)) is not None:
            raise fault from error
        return f"the data does not match its checksum at {key or 'its start'}"
    return None


def _not_allowed(path: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read by this user, so it is unknown whether the checkpoint is whole. "
        f"{files.as_denied(error) or 'Give this user the permission to read it'}, or move the files of this checkpoint "
        "away to use an older one."
    )


def _checksum(values: Mapping[str, Any]) -> str:
    """Returns the checksum of a manifest's values, not of its text, whose layout may change."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
