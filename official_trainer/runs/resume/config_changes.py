"""The config that a run continues with: what has changed since its checkpoint, what of that is refused, its files.

The code counts too, where both were given as a commit.

Owns: the refusal and the notice of changes; `params.yaml` and its history, `config.MODE.gin` and
`operative_config.MODE.gin` (Model Garden's name), their checksums. Does not own: what a change of a field means, which
stands at the field (`config/schema.py`), comparing configs (`config/compare.py`), binding
(`garden/gin_bindings.py`), whether the checkpoint's variables fit (`checkpoints/restore.py`), at which point of a run a
file is written (`runs/train.py`, `runs/evaluate.py`).

A checkpoint's manifest holds the config it was saved with, so a run that is killed between accepting a change and the
next checkpoint still sees that change when it starts again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.manifest import RunFacts
from official_trainer.config import (
    Config,
    ConfigError,
    ExperimentConfig,
    MultiEvalExperimentConfig,
    MultiTaskExperimentConfig,
    Problem,
    Resolved,
    fields,
    learning_rate,
)
from official_trainer.config.compare import Difference, changes
from official_trainer.config.declaration import ChangeKind
from official_trainer.config.reading import plain
from official_trainer.files import PARAMS_FILE
from official_trainer.garden.gin_bindings import PARAMS_FLAG, Bindings, load_gin
from official_trainer.runs.resume import garden_run
from official_trainer.shown import first_few, shorten
from official_trainer.tracking import git_state

_logger = logging.getLogger(__name__)

_SCHEMAS = (ExperimentConfig, MultiTaskExperimentConfig, MultiEvalExperimentConfig)


def kind_of(path: str) -> ChangeKind:
    """Returns what a change of the field at `path` means, as the engine's sections declare it.

    A safe section has only safe fields. Otherwise the innermost declaration counts; a field without one is guarded, as
    those of a task are.
    """
    sections: list[Any] = [*_SCHEMAS]
    kind = ChangeKind.GUARDED
    for key in fields.parse_path(path):
        if isinstance(key, int):
            continue
        name = fields.field_name(key)
        sections = [section for section in sections if name in fields.hints(section)]
        kind = next((kinds[name] for section in sections if name in (kinds := fields.change_kinds(section))), kind)
        if kind == ChangeKind.SAFE:
            return kind
        sections = [inner for section in sections for inner in _sections_of(fields.hints(section)[name])]
    return kind


def is_safe(path: str) -> bool:
    """Whether a change of the field at `path` leaves the weights of each step as they are."""
    return kind_of(path) == ChangeKind.SAFE


def _sections_of(tp: Any) -> Iterator[type[Config]]:
    """Yields the classes of the sections that a field of type `tp` may hold, or the items of its list."""
    for arm in fields.arms(tp):
        items = fields.item_types(arm, 1) if fields.is_list(arm) else [arm]
        yield from filter(fields.is_section_type, items or [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change(Difference):
    """Another value than the checkpoint was saved with, and what that means for the run.

    Attributes:
      kind: what it means.
      of: whose value: a field of the `config`; a `gin` binding, as text, `Ellipsis` if it is not bound; or the commit
        of the `code`.
      files: of the code, those that differ; empty if git does not say.
    """

    kind: ChangeKind
    of: Literal["config", "gin", "code"] = "config"
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        is_field, nothing = self.of == "config", "not bound" if self.of == "gin" else "nothing"
        before, after = (
            nothing if value is Ellipsis else shorten(configuration.flow(value) if is_field else value)
            for value in (self.before, self.after)
        )
        if is_field and self.after is Ellipsis:
            return f"{self.path}: {before} -> removed; there is no such field any more"
        name = f"gin {self.path}" if self.of == "gin" else self.path
        where = f"; changed: {first_few(self.files)}" if self.files else ""
        return f"{name}: {before} -> {after}{where}" + (f" ({self.origin.brief})" if self.origin else "")


_HEADINGS: Mapping[ChangeKind, str] = {
    ChangeKind.GUARDED: "Changes what the run computes from here on",
    ChangeKind.VARIABLES: "May change which weights there are, and which are trained. Those that are trained only from "
    "here on begin with new slots of the optimizer; if one is new or has another shape, name it in "
    "trainer.restore_allow_mismatch",
    ChangeKind.SAFE: "Safe",
}


class ConfigChangeError(ConfigError):
    """A run that would continue with another config without `--allow_config_change`.

    Attributes:
      changes: all of them, safe ones too.
      fruitless: why nothing would be learned with the new values, beside the changes.
    """

    def __init__(self, model_dir: str, step: int, changes: Sequence[Change], fruitless: Sequence[Problem] = ()) -> None:
        self.changes, self.fruitless = tuple(changes), tuple(fruitless)
        self._model_dir, self._step = model_dir, step
        super().__init__(Problem("has changed", c.path, origin=c.origin) for c in changes if c.kind != ChangeKind.SAFE)

    def __str__(self) -> str:
        is_code = all(change.of == "code" for change in self.changes if change.kind != ChangeKind.SAFE)
        what = f"the {'code' if is_code else 'config'} is not the one that ckpt-{self._step} was saved with"
        lines = [f"--model_dir={self._model_dir}: {what}"]
        for kind, heading in _HEADINGS.items():
            if listed := [change for change in self.changes if change.kind == kind]:
                lines += [f"{heading}:", *(f"  {change}" for change in listed)]
        if self.fruitless:
            lines += ["Nothing would be learned from here on:", *(f"  {problem.message}" for problem in self.fruitless)]
        lines.append(f"To continue with the new {'code' if is_code else 'values'}, add --allow_config_change")
        flags, unsafe = {"config": "--set", "gin": PARAMS_FLAG}, [c for c in self.changes if c.kind != ChangeKind.SAFE]
        undo = [f"{flags[change.of]} {shlex.quote(text)}" for change in unsafe for text in change.undo]
        ways = [" ".join(["add", *undo])] if undo else []
        new_bindings = [change.path for change in unsafe if change.of == "gin" and change.before is Ellipsis]
        ways += [f"leave out the binding of {name}" for name in new_bindings]  # for which there is no flag
        if any(change.of == "code" for change in unsafe):
            ways += ["submit the job from the commit before: `git stash` or `git checkout` brings it back"]
        if ways:
            lines.append(f"To continue with the old ones, {'; '.join(ways)}")
        start = shlex.quote(f"task.init_checkpoint={self._model_dir}")
        lines.append(f"To start a new run, name another --model_dir; --set {start} gives it the weights of this one")
        return "\n".join(lines)


def accepted_changes(
    model_dir: str,
    resolved: Resolved,
    bindings: Bindings | None = None,
    commit: str | None = None,
    *,
    allow_config_change: bool,
    step: int | None = None,
) -> tuple[Change, ...]:
    """Returns what has changed since the checkpoint that the run in `model_dir` continues from; nothing for a new run.

    Args:
      model_dir: the run directory.
      resolved: the config in force.
      bindings: those of gin; they are not compared before they are in force.
      commit: of the code that a job was given; without one, code is not compared.
      allow_config_change: whether changes that are not safe are accepted.
      step: of the checkpoint; None if it is not restored yet.

    Raises:
      ConfigChangeError: changes are not safe, and not allowed.
      ConfigError: it is unknown what has changed, which is not allowed either; or the learning rate is 0 from here on.
    """
    step = newest_step(model_dir) if step is None else step
    if step is None:
        return ()
    facts = manifest.read(model_dir, step).run
    changes: tuple[Change, ...] = (*gin_changes(facts, bindings), *_code_changes(facts, commit))
    try:
        if facts.config is not None or garden.prefix_of(model_dir, step) is None:
            changes += changes_since(saved_config(model_dir, step), resolved)
        elif (before := garden_run.params(model_dir)) is not None:
            differing = changes_since(before, resolved)
            changes += tuple(change for change in differing if garden_run.is_compared(change.path))
    except ConfigError as error:
        if not allow_config_change:
            raise
        _logger.warning("continuing without knowing what has changed: %s", error)
        return changes
    problems = list(filter(None, [no_step_left(resolved, step, changes)]))
    rate = learning_rate.finding(resolved, step) if changes else None
    problems += [rate.problem] if rate is not None and rate.is_fatal else []
    if not allow_config_change and any(change.kind != ChangeKind.SAFE for change in changes):
        raise ConfigChangeError(model_dir, step, changes, problems)
    if rate is not None and rate.is_fatal:  # no more than a warning: such a run may have been at a rate of 0 before
        _logger.warning("%s", rate.problem.message)
    return changes


def no_step_left(resolved: Resolved, step: int, changes: Sequence[Change]) -> Problem | None:
    """Returns that a run is at its last step, where values have changed that only a further step would use."""
    trainer, path = resolved.config.trainer, "trainer.train_steps"
    is_other = any(change.of == "config" and change.kind != ChangeKind.SAFE for change in changes)
    if not is_other or trainer.train_epochs is not None or not 0 < trainer.train_steps <= step:
        return None
    what = f"is {trainer.train_steps}, and this run is at step {step}: no step is left that would use the new values"
    return Problem(what, path, fix=f"set it above {step}", origin=resolved.origin(path))


def changes_since(before: Mapping[str, Any], resolved: Resolved) -> tuple[Change, ...]:
    """Returns the fields that differ, by path.

    Args:
      before: a config as plain data: nested dicts, lists and scalars.
      resolved: the config in force.
    """
    return tuple(Change(**vars(difference), kind=kind_of(difference.path)) for difference in changes(before, resolved))


def gin_changes(facts: RunFacts, bindings: Bindings | None) -> tuple[Change, ...]:
    """Returns the gin bindings that differ from those of a checkpoint, by name; none before they are in force.

    Args:
      facts: of the checkpoint's manifest.
      bindings: those of this process.
    """
    saved = facts.gin
    if bindings is not None and bindings.bound is None:
        return ()
    bound = {} if bindings is None or bindings.bound is None else bindings.bound
    changes = []
    kind = ChangeKind.VARIABLES  # the effect of a function's argument is unknown
    for name in sorted(saved.keys() | bound.keys()):
        before, after = saved.get(name, Ellipsis), bound.get(name, Ellipsis)
        if before != after:
            undo = () if before is Ellipsis else (f"{name} = {before}",)
            changes.append(Change(path=name, before=before, after=after, undo=undo, kind=kind, of="gin"))
    return tuple(changes)


def check_code(model_dir: str, commit: str, *, allow_config_change: bool) -> None:
    """Refuses code that is not that of the newest checkpoint.

    Raises:
      ConfigChangeError: it is another one, and that is not allowed.
    """
    step = None if allow_config_change else newest_step(model_dir)
    if step is not None and (changes := _code_changes(manifest.read(model_dir, step).run, commit)):
        raise ConfigChangeError(model_dir, step, changes)


def _code_changes(facts: RunFacts, commit: str | None) -> tuple[Change, ...]:
    """Returns that the code differs from that of a checkpoint, if both are known."""
    before = facts.commit
    if commit is None or not before or before == commit:
        return ()
    names = git_state.ask(os.curdir, "diff", "--name-only", "--relative", before, commit, "--")
    if names == "":  # another commit with the same files
        return ()
    files_changed = tuple((names or "").splitlines())
    return (Change(path="code", before=before, after=commit, kind=ChangeKind.GUARDED, of="code", files=files_changed),)


def saved_config(model_dir: str, step: int) -> Mapping[str, Any]:
    """Returns the config that a checkpoint was saved with.

    Raises:
      ConfigError: the checkpoint does not say it.
    """
    text = manifest.read(model_dir, step).run.config
    config = None if text is None else parse(text)
    if not isinstance(config, dict):
        path = files.join(model_dir, manifest.name(step))
        what = f"{path} holds no configuration, so it is unknown what has changed since this checkpoint was saved"
        fix = "continue without the check with --allow_config_change, or name another --model_dir"
        raise ConfigError([Problem(what, fix=fix)])
    return config


def parse(text: str) -> Any:
    """Returns a config that was written down as plain data.

    Raises:
      ConfigError: it cannot be read, or is larger than a config may be.
    """
    return plain(text, PARAMS_FILE)


def notice(changes: Sequence[Change], step: int) -> str:
    """Returns the notice about changes that were accepted by a run that continues from `step`."""
    lines = [f"{c}" if c.kind == ChangeKind.SAFE else f"{c}, by --allow_config_change" for c in changes]
    return "\n  ".join([f"config changed since step {step}:", *lines])


def newest_step(model_dir: str) -> int | None:
    """Returns the checkpoint that will be restored, as far as is known without reading all of it."""
    return manifest.newest_whole(model_dir, checksums=False)[0]


# The files.


def write_params(model_dir: str, resolved: Resolved, *, is_shared: bool = False) -> None:
    """Writes `params.yaml`; what an earlier start with another config wrote there is kept as `params.<n>.yaml`.

    Args:
      model_dir: the run directory.
      resolved: the config in force.
      is_shared: whether the calling program writes there too; a file of its own stays as it is.
    """
    path = files.join(model_dir, PARAMS_FILE)
    content = configuration.dump(resolved, origins=True, shared=True).encode()
    before = files.read_bytes(path) if files.exists(path) else content
    if before != content:
        if is_shared and not before.startswith(garden_run.HEADER):
            return
        kept = (files.join(model_dir, f"params.{number}.yaml") for number in itertools.count(1))
        files.write_bytes_atomically(next(kept_path for kept_path in kept if not files.exists(kept_path)), before)
    files.write_bytes_atomically(path, content)


def gin_names(mode: str) -> tuple[str, str]:
    """Returns the names of both files of gin: what is bound, which can be given to `--gin_file`, and what was used."""
    return f"config.{mode}.gin", f"operative_config.{mode}.gin"


class OperativeConfig:
    """Writes both files of one process; without bindings it writes none.

    The files of an earlier start stay until this one has begun to train, because it may still be refused.
    """

    def __init__(self, model_dir: str, mode: str, bindings: Bindings | None) -> None:
        self._has_bindings = bindings is not None
        self._bound_path, self._path = (files.join(model_dir, name) for name in gin_names(mode))
        self._has_replaced = False
        self._written: dict[str, str] = {}

    def begin(self) -> None:
        """Writes what is bound, in a run directory without these files."""
        if self._has_bindings and not files.exists(self._bound_path):
            self.replace()

    def replace(self) -> None:
        """Replaces the files of an earlier start by what is bound now."""
        if self._has_bindings:
            self._has_replaced = True
            self._write(self._bound_path, load_gin().config_str())
        elif files.exists(self._bound_path):  # Model Garden writes the other one alone
            for path in (self._bound_path, self._path):
                files.remove(path)

    def save(self) -> dict[str, str] | None:
        """Writes what gin has used so far, if that has changed, and returns the SHA-256 checksums of both files.

        Returns:
          `{"config_sha256": …, "operative_config_sha256": …}`; None without bindings.
        """
        if not self._has_replaced:
            return None
        self._write(self._path, load_gin().operative_config_str())
        paths = {"config_sha256": self._bound_path, "operative_config_sha256": self._path}
        return {name: self._written[path] for name, path in paths.items()}

    def _write(self, path: str, text: str) -> None:
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if self._written.get(path) != checksum:
            files.write_text_atomically(path, text)
            self._written[path] = checksum
