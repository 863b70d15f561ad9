"""The page `docs/reference/config.md`, from the schema.

To write it: `python -m official_trainer.config.reference > docs/reference/config.md`.

Owns: the wording around the tables.
Does not own: types, defaults and meanings; they come from the classes and their docstrings.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.config import fields, values
from official_trainer.config.components import ActionConfig, Component, TrackerConfig
from official_trainer.config.declaration import Config, spelling
from official_trainer.config.multitask import MultiEvalExperimentConfig, MultiTaskExperimentConfig, TaskRoutine
from official_trainer.config.schema import ExperimentConfig
from official_trainer.config.text import flow
from official_trainer.config.when import ExponentialWhen, When

_HEAD = """\
# Configuration

Generated from the schema by `python -m official_trainer.config.reference`; a test checks that it is current.

## Where values come from

Later ones win. A flag that is not given sets nothing.

1. the defaults of the classes below
2. the experiment's factory (`experiments/*.py`)
3. files named by `base:` at the top of a configuration file: one or a list, relative to that file, depth first
4. `--config_file` in order
5. dedicated flags, such as `--tpu`
6. `--params_override` in order
7. `--set` in order

Sections merge field by field. Every other value is replaced whole, lists and free mappings too. In a file, `!append`
before a list or mapping adds to what is there, `!remove` before a list takes items out, and `!replace` before a section
starts it from its class defaults. `a.b: 1` is the same as `b: 1` inside `a`. Fields that start with `x-` at the top of
a file are ignored, for anchors.

`official-trainer show EXPERIMENT --explain PATH` prints what a field means and what set it.

## Overrides

`--params_override` takes items, a YAML mapping (`{…}` or several lines), or a file (`*.yaml`, `*.yml`, `*.json`), and
may be repeated. `--set` takes one item whose value is the rest of the argument.

| item | meaning |
|---|---|
| `trainer.train_steps=500` | sets a field |
| `trainer.optimizer_config.optimizer=adam` | selects a branch, short for `optimizer.type=adam` |
| `task.model.filters=[16, 32]` | sets a list |
| `task.model.filters+=64` | appends to a list; `+={…}` adds to a mapping |
| `task.model.filters[0]=8` | sets one item; `[-1]` is the last |
| `~task.model.filters[0]` | removes one item |
| `~trainer.train_steps` | restores the value of the experiment |
| `trainer.optimizer_config:={learning_rate: constant}` | replaces a section: class defaults, then these fields |

Items are separated by `,`, `;` or a new line. Values with commas, brackets or `=` inside need no quotes
(`input_path=/a/b,/c/d`, `tfds_split=train[:90%]`), because a separator counts only before the next `path=`.

## What a value may look like

The type of the field decides, never the form of the text.

| type | accepts | refuses |
|---|---|---|
| integer | `500`, `1_000`, `1e3`, `0x10`, `0o17`, `0b11` | `1.5`, `010`, `10k`, `'10'` |
| number | the same, `1e-4`, `.5`, `1.5e6`, `inf`, `nan` | `1e400`, `'1'` |
| true or false | `true false yes no on off`, any case | `1`, `0`, `'true'` |
| text | anything, as written: `off`, `1e-4`, `no` | `null` without quotes |
| choice | one of its words | everything else |
| or null | `null`, `~`, nothing, `None` | |

## Fields
"""


def main() -> None:
    """Prints the page."""
    print(page(), end="")


def page() -> str:
    """Returns the page."""
    places: dict[type[Config], list[str]] = {}
    for path, cls in _sections(ExperimentConfig, ""):
        places.setdefault(cls, []).append(path)
    blocks = ["\n".join(_section(cls, paths)) for cls, paths in places.items() if cls is not ExperimentConfig]
    several = ["\n".join(_section(cls, [path], only)) for path, cls, only in _of_several()]
    families = ["\n\n".join(_family(root, path)) for root, path in _FAMILIES.items()]
    return "\n\n".join([_HEAD.rstrip(), *blocks, _SEVERAL, *several, *families]) + "\n"


_SEVERAL = """\
## Several tasks

A `MultiTaskExperimentConfig` has these instead of `task`, and in addition to the other fields of `trainer`; a
`MultiEvalExperimentConfig` has `eval_tasks`: [several tasks](../guides/several_tasks.md)."""


def _of_several() -> Iterator[tuple[str, type[Config], list[str] | None]]:
    """Yields the sections that only experiments with several tasks have, and which of their fields."""
    yield "eval_tasks", MultiEvalExperimentConfig, ["eval_tasks"]
    known = {path for path, _ in _sections(ExperimentConfig, "")}
    for path, cls in _sections(MultiTaskExperimentConfig, ""):
        if path.startswith("task") and not path.startswith("task.model"):
            yield path, cls, None
        elif path == "trainer":
            yield path, cls, sorted(fields.hints(cls).keys() - fields.hints(fields.hints(ExperimentConfig)[path]))
        elif path not in known:
            yield path, cls, None
    yield "task.task_routines[…], eval_tasks[…]", TaskRoutine, None


_FAMILIES = {ActionConfig: "trainer.actions", TrackerConfig: "trainer.trackers"}


def _family(root: type[Component], path: str) -> Iterator[str]:
    """Yields the fields that all types of a family of components have, and then each type."""
    yield f"## Types of `{path}`"
    yield "\n".join(_section(root, [f"{path}[…]"]))
    if root is ActionConfig:
        yield "\n".join(_section(When, [f"{path}[…].when"]))
        yield "\n".join(_section(ExponentialWhen, [f"{path}[…].when.exponential"]))
    for name in sorted(name for name, module in root.names().items() if module.startswith("official_trainer.")):
        cls = root.named(name)
        own = [field for field in fields.hints(cls) if field not in fields.hints(root)]
        changed = [field for field in fields.hints(root) if getattr(cls, field, None) != getattr(root, field)]
        yield "\n".join(_section(cls, [f"type: {name}"], only=[*own, *changed]))


def _sections(cls: type[Config], path: str) -> Iterator[tuple[str, type[Config]]]:
    yield path, cls
    for name, tp in fields.hints(cls).items():
        for arm in fields.arms(tp):
            if fields.is_section_type(arm) and fields.hints(arm):
                yield from _sections(arm, fields.join(path, name))


def _section(cls: type[Config], paths: list[str], only: list[str] | None = None) -> Iterator[str]:
    yield f"### {', '.join(f'`{path}`' for path in paths)}"
    yield ""
    yield fields.summary(cls)
    yield ""
    names = [name for name in fields.hints(cls) if only is None or name in only]
    if not names:
        return
    yield "| field | type | default | allowed | meaning |"
    yield "|---|---|---|---|---|"
    default, docs = values.class_default(cls), fields.docs(cls)
    for name in names:
        tp, shown = fields.hints(cls)[name], getattr(default, name, getattr(cls, name, None))
        has_table = fields.is_section(shown) and not shown.IS_WHOLE
        text = "" if name in fields.required(cls) or has_table else f"`{flow(shown)}`"
        meaning = docs.get(name, "").replace("|", "\\|")
        yield f"| `{spelling(name)}` | {_type(tp)} | {text} | {', '.join(fields.allowed(tp, '`'))} | {meaning} |"


def _type(tp: Any) -> str:
    """Returns a type in a word or two; ranges and choices stand in another column."""
    bare, _ = fields.strip(tp)
    if fields.is_union(bare):
        return " or ".join(dict.fromkeys(_type(arm) for arm in fields.arms(bare)))
    if typing.get_origin(bare) is Literal:
        return "choice"
    if fields.is_section_type(bare):
        return "section"
    return fields.describe(bare).removeprefix("an ").removeprefix("a ")


if __name__ == "__main__":
    main()
