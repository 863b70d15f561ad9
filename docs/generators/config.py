"""The pages `docs/reference/config.md` and `docs/reference/config/*.md`, from the schema.

Owns: which section is on which page, and the layout of the tables.
Does not own: types, defaults and meanings; they come from the classes and their docstrings.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from official_trainer.config import fields
from official_trainer.config.components import ActionConfig, Component, TrackerConfig
from official_trainer.config.declaration import Config, spelling
from official_trainer.config.decode import class_default
from official_trainer.config.multitask import MultiEvalExperimentConfig, MultiTaskExperimentConfig, TaskRoutine
from official_trainer.config.schema import ExperimentConfig, SourceConfig
from official_trainer.config.text import flow
from official_trainer.config.when import ExponentialWhen, When
from official_trainer.sources.mixture import PartConfig

_OVERVIEW = """\
# Configuration fields

Every field with its type, default and meaning, generated from the config classes by `python docs/generate.py`. How
values are set is in [Configuration](../guides/config.md); `official-trainer show EXPERIMENT --explain PATH` prints one
field.
"""

_SEVERAL = """\
A `MultiTaskExperimentConfig` has these sections instead of `task`, and these fields in addition to the other ones of
`trainer`. A `MultiEvalExperimentConfig` has `eval_tasks`. See [several tasks](../../guides/several_tasks.md)."""

_SOURCES = "A source is a field of a data section, or a part of a mixture; see [Sources](../../guides/sources.md)."

_WHEN = "`when` says at which steps an action is called; see [`when`](#traineractionswhen) below."


@dataclass(frozen=True)
class Entry:
    """A section of the configuration.

    Attributes:
      title: its paths, or the type of a component.
      cls: its class.
      only: the fields to list; None for all.
    """

    title: str
    cls: type[Config]
    only: Sequence[str] | None = None


def pages() -> dict[str, str]:
    """Returns the text of each page by its path in `docs/reference`."""
    entries = _entries()
    overview = [_OVERVIEW]
    texts = {}
    for name, (title, intro) in _PAGES.items():
        blocks = [f"# {title}", *([intro] if intro else []), *(_block(entry) for entry in entries[name])]
        texts[f"config/{name}.md"] = "\n\n".join(blocks) + "\n"
        overview += ["\n".join(_contents(name, title, entries[name]))]
    overview.append("\n".join(["```{toctree}", ":hidden:", *(f"config/{name}" for name in _PAGES), "```"]))
    return {"config.md": "\n\n".join(block.strip() for block in overview) + "\n", **texts}


_PAGES = {
    "task": ("Task and data", ""),
    "sources": ("Types of `source`", _SOURCES),
    "trainer": ("Trainer", ""),
    "optimizers": ("Optimizers", ""),
    "learning_rates": ("Learning rates and warm-up", ""),
    "runtime": ("Runtime", ""),
    "actions": ("Types of `trainer.actions`", _WHEN),
    "trackers": ("Types of `trainer.trackers`", ""),
    "several_tasks": ("Several tasks", _SEVERAL),
}
"""Name, title and first paragraph of each page."""

_PLACES = {
    "trainer.optimizer_config.learning_rate": "learning_rates",
    "trainer.optimizer_config.warmup": "learning_rates",
    "trainer.optimizer_config": "optimizers",
    "trainer": "trainer",
    "task.train_data.source": "sources",
    "task": "task",
    "runtime": "runtime",
}
"""The page of each section, by the first of these paths that it starts with."""


def _entries() -> dict[str, list[Entry]]:
    """Returns the sections on each page."""
    paths_of: dict[type[Config], list[str]] = {}
    for path, cls in sections(ExperimentConfig):
        paths_of.setdefault(cls, []).append(path)
    found: dict[str, list[Entry]] = {name: [] for name in _PAGES}
    for cls, paths in paths_of.items():
        if cls is not ExperimentConfig:
            page = next(page for start, page in _PLACES.items() if paths[0].startswith(start))
            found[page].append(Entry(", ".join(f"`{path}`" for path in paths), cls))
    found["actions"] = [*_family(ActionConfig), *_family_base(ActionConfig, "trainer.actions")]
    found["actions"] += [Entry("`trainer.actions[…].when`", When)]
    found["actions"] += [Entry("`trainer.actions[…].when.exponential`", ExponentialWhen)]
    found["trackers"] = [*_family(TrackerConfig), *_family_base(TrackerConfig, "trainer.trackers")]
    found["sources"] = [*_family(SourceConfig), Entry("`parts[…]` of `mixture`", PartConfig), *found["sources"]]
    found["several_tasks"] = list(several())
    return found


def sections(cls: type[Config], path: str = "") -> Iterator[tuple[str, type[Config]]]:
    """Yields path and class of a section and of all sections in it."""
    yield path, cls
    for name, tp in fields.hints(cls).items():
        for arm in fields.arms(tp):
            if fields.is_section_type(arm) and fields.hints(arm):
                yield from sections(arm, fields.join(path, name))


def several() -> Iterator[Entry]:
    """Yields the sections that only experiments with several tasks have, with those of their fields."""
    yield Entry("`eval_tasks`", MultiEvalExperimentConfig, ["eval_tasks"])
    known = {path for path, _ in sections(ExperimentConfig)}
    for path, cls in sections(MultiTaskExperimentConfig):
        if path == "trainer":
            usual = fields.hints(fields.hints(ExperimentConfig)[path])
            yield Entry(f"`{path}`", cls, sorted(fields.hints(cls).keys() - usual))
        elif path not in known or (path.startswith("task") and not path.startswith("task.model")):
            yield Entry(f"`{path}`", cls)
    yield Entry("`task.task_routines[…]`, `eval_tasks[…]`", TaskRoutine)


def _family(root: type[Component]) -> Iterator[Entry]:
    """Yields each type of a family of components, with the fields that others lack or set to another default."""
    for name in sorted(name for name, module in root.names().items() if module.startswith("official_trainer.")):
        cls = root.named(name)
        own = [field for field in fields.hints(cls) if field not in fields.hints(root)]
        changed = [field for field in fields.hints(root) if getattr(cls, field, None) != getattr(root, field)]
        yield Entry(f"`{name}`", cls, [*own, *changed])


def _family_base(root: type[Component], path: str) -> Iterator[Entry]:
    yield Entry(f"All types of `{path}`", root)


def _contents(page: str, title: str, entries: Sequence[Entry]) -> Iterator[str]:
    """Yields the lines of the overview about one page."""
    yield f"## {title}"
    yield ""
    yield "| section | what it is |"
    yield "|---|---|"
    for entry in entries:
        yield f"| [{entry.title}](config/{page}.md#{anchor(entry.title)}) | {_cell(fields.summary(entry.cls))} |"


def anchor(title: str) -> str:
    """Returns the anchor that GitHub and the site give to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _block(entry: Entry) -> str:
    return "\n".join(_lines(entry))


def _lines(entry: Entry) -> Iterator[str]:
    cls = entry.cls
    yield f"## {entry.title}"
    yield ""
    yield fields.summary(cls)
    names = [name for name in fields.hints(cls) if entry.only is None or name in entry.only]
    if not names:
        return
    yield ""
    yield "| field | type, default, meaning |"
    yield "|---|---|"
    default, docs = class_default(cls), fields.docs(cls)
    for name in names:
        tp, shown = fields.hints(cls)[name], getattr(default, name, getattr(cls, name, None))
        has_table = fields.is_section(shown) and not shown.IS_WHOLE
        chooses = cls in (ActionConfig, SourceConfig, TrackerConfig) and name == "type"
        text = "" if name in fields.required(cls) or has_table or chooses else f"; default `{flow(shown)}`"
        yield f"| `{spelling(name)}` | *{_described(tp)}{text}*<br>{_cell(docs.get(name, ''))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _described(tp: Any) -> str:
    """Returns a type with its range; of a choice, its words."""
    allowed, kind = ", ".join(_allowed(tp)), _type(tp)
    if not allowed:
        return kind
    return allowed + kind.removeprefix("choice") if kind.startswith("choice") else f"{kind}, {allowed}"


def _allowed(tp: Any) -> Iterator[str]:
    """Yields the ranges and the choices of a type in words."""
    for arm in fields.arms(tp):
        bare, ranges = fields.strip(arm)
        yield from (limit.allowed for limit in ranges)
        if typing.get_origin(bare) is Literal:
            yield from (f"`{arg if isinstance(arg, str) else fields.show(arg)}`" for arg in typing.get_args(bare))


def _type(tp: Any) -> str:
    """Returns a type in a word or two."""
    bare, _ = fields.strip(tp)
    if fields.is_union(bare):
        return " or ".join(dict.fromkeys(_type(arm) for arm in fields.arms(bare)))
    if typing.get_origin(bare) is Literal:
        return "choice"
    if fields.is_section_type(bare):
        return "section"
    return fields.describe(bare).removeprefix("an ").removeprefix("a ")
