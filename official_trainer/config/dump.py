"""Configurations as text: YAML that every reader reads in the same way, and a digest.

Owns: writing whole configurations; `flat`; `digest`.
Does not own: writing single values (`text.py`), reading any of it back (`layers.py`).

Reading a dump onto the same experiment gives an equal configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.declaration import Config
from official_trainer.config.decode import class_default, normalised
from official_trainer.config.errors import Origin, source_lines
from official_trainer.config.provenance import Resolved
from official_trainer.config.reading import MARK
from official_trainer.config.text import flow, is_block, leaves, one_line, quoted, written_items
from official_trainer.config.written import comment as comment_of
from official_trainer.shown import shorten

NAMED = "# experiment: "
"""Begins the first line of a dump with origins; the name follows."""
_LONGEST_COMMENT = 100
Comment = Callable[[str], str]


def dump(config: Config | Resolved, *, origins: bool = False, shared: bool = False) -> str:
    """Returns a configuration as YAML, with the selected branch of each one-of.

    Args:
      config: a configuration, or what `resolve` returned.
      origins: whether the first line names the experiment, and each value that is not a class default has a comment
        with its origin; needs the result of `resolve`.
      shared: whether an experiment of Model Garden is written so that Model Garden can read it: what it does not take
        is a comment to it, which our reader reads (`reading.MARK`).

    Example:
      >>> from official_trainer.config import ExportConfig, dump, resolve
      >>> print(dump(ExportConfig(max_to_keep=3)), end="")
      at_end: true
      checkpoint: latest
      best: false
      max_to_keep: 3
      formats: []
      max_difference: 0.02
      >>> print(dump(resolve(ExportConfig(), sets=["best=true"]), origins=True), end="")
      at_end: true
      checkpoint: latest
      best: true  # --set
      max_to_keep: 1
      formats: []
      max_difference: 0.02
    """
    resolved = config if isinstance(config, Resolved) else None
    assert resolved is not None or not origins, "only a Resolved has origins"

    def comment(path: str) -> str:
        if resolved is None or not origins:
            return ""
        origin, reference = resolved.trail.origin(path), resolved.trail.references.get(path)
        inner = one_line(shorten(origin.brief, _LONGEST_COMMENT)) if origin.by_user else ""
        if reference is not None:
            return f"  # = {one_line(reference.shown)}" + (f" of {inner}" if inner else "")
        return "" if origin.kind == "default" else f"  # {inner or 'experiment'}"

    named = resolved is not None and origins and resolved.experiment
    head = [f"{NAMED}{one_line(named)}"] if named else []
    root = config.config if isinstance(config, Resolved) else _plain(config)
    return "".join(f"{line}\n" for line in [*head, *_lines(root, "", comment, shared)])


def recorded(origin: Origin) -> str | None:
    """Returns what set a value of a `params.yaml` when it was written, as its comment says; None for another file."""
    lines = source_lines(origin.text)
    if not lines[0].startswith(NAMED):
        return None
    return comment_of(lines[origin.line - 1] if 0 < origin.line <= len(lines) else "") or "class default"


def flat(config: Config) -> dict[str, Any]:
    """Returns every value by its path, in the form of trackers' parameters: scalars, and lists as one line of YAML.

    Example:
      >>> from official_trainer.config import TaskConfig, flat
      >>> values = flat(TaskConfig(init_checkpoint_allow_missing=("head/*",)))
      >>> values["init_checkpoint_allow_missing"], values["train_data.global_batch_size"]
      ("['head/*']", 32)
    """
    values = ((path, value) for path, value in leaves(config) if value != {} and not fields.is_section(value))
    return {path: flow(value) if isinstance(value, tuple) else value for path, value in values}


def digest(config: Config) -> str:
    """Returns 12 hexadecimal digits that are equal for configurations that mean the same."""
    plain = normalised(config)[0].as_dict()
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _lines(value: Any, path: str, comment: Comment, shared: bool) -> Iterator[str]:
    """Yields a section or mapping in block style, not indented, each value with its comment."""
    for key, part in written_items(value):
        inner, part = fields.join(path, key), _plain(part)
        is_only_ours = shared and fields.is_section(value) and value.is_only_ours(key)
        if is_only_ours and key in value.OURS and getattr(class_default(type(value)), key) == part:
            continue
        mark = MARK if is_only_ours else ""
        if not is_block(part):
            yield f"{mark}{quoted(key)}: {flow(part)}{comment(inner)}"
            continue
        is_list = isinstance(part, tuple)
        yield f"{mark}{quoted(key)}:{comment(inner) if is_list else ''}"
        yield from (f"{mark}  {line}" for line in (_items if is_list else _lines)(part, inner, comment, shared))


def _items(items: tuple[Any, ...], path: str, comment: Comment, shared: bool) -> Iterator[str]:
    for i, item in enumerate(items):
        inner = fields.join(path, i)
        if isinstance(item, tuple) or not is_block(item):
            yield f"- {flow(item)}{comment(inner)}"
            continue
        for number, line in enumerate(_lines(item, inner, comment, shared)):
            yield f"{'  ' if number else '- '}{line}"


def _plain(value: Any) -> Any:
    """Returns a section of Model Garden's own as a mapping, and all else as it is."""
    return value if fields.is_section(value) or not hasattr(value, "as_dict") else value.as_dict()
