"""Show the data of an experiment: how much there is, its schema, a few examples, what reading costs.

It reads some of each data section, without a model, and leaves nothing behind. Its speed is what the steps can get at
most. `show` prints how a source is configured, and opens no file.

Owns: `data`: which sections, and how they are printed.
Does not own: reading them (`runs/seen_data.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.shown import shorten

if TYPE_CHECKING:
    from official_trainer.runs.seen_data import Field, SeenData

USAGE = "EXPERIMENT [--split=train_data|validation_data] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer data digits_cnn", "the training and the validation data of an experiment"),
    ("official-trainer data digits_cnn --split=train_data", "one of the two"),
    ("official-trainer data digits_cnn --config_file=configs/digits_cnn.yaml", "with the values of a file"),
)
NEXT = ("official-trainer check digits_cnn", "try a step on the data")

_SPLITS = ("train_data", "validation_data")
_TEXT, _FEW = 24, 4


def add_flags(parser: flags.Parser) -> None:
    """Declares the experiment with its configuration, and which data is shown."""
    flags.add_run_flags(parser, has_directory=False)
    parser.group("Data")
    help = f"{' or '.join(_SPLITS)} (default: both, unless nothing sets the latter and something the former)"
    parser.value("split", "SECTION", help, choices=_SPLITS)


def run(arguments: argparse.Namespace) -> int:
    """Prints each section as it was read."""
    found = target.from_flags(arguments)
    from official_trainer.runs import run as engine

    job = target.job_of(found, arguments, "eval")
    for seen in engine.look_at_data(job, [arguments.split] if arguments.split else _sections(found.resolved.config)):
        terminal.show("\n".join(_lines(seen, getattr(found.resolved.config.task, seen.section.partition(".")[2]))))
    return 0


def _sections(config: Any) -> list[str]:
    """Returns the sections to show: without one that is as its class has it, beside one that is not."""
    there = {name: section for name in _SPLITS if (section := getattr(config.task, name, None)) is not None}
    own = [name for name, section in there.items() if section != type(section)()]
    return list(there) if own != ["train_data"] else own


def _lines(seen: SeenData, section: Any) -> list[str]:
    source = getattr(getattr(section, "source", None), "type", "")
    count = "an unknown number of examples" if seen.examples is None else f"{seen.examples:,} examples"
    head = f"{seen.section}: {count}{f' from {source}' if source else ''}, in batches of {section.global_batch_size}"
    rows = [
        row for what, fields in (("source", seen.in_source), ("batch", seen.in_batch)) for row in _table(what, fields)
    ]
    lines = [terminal.paint(head, "bold"), *terminal.columns(rows, fit=terminal.table_width())]
    speed = f"{seen.examples_per_second:,.0f} examples/s"
    lines.append(terminal.hanging("  reading: ", f"{speed}, without a model"))
    if seen.parts:
        parts = ", ".join(f"{name} {rate:,.0f}" for name, rate in seen.parts.items())
        slow = f"slowest: {seen.slowest or 'making batches of them'}"
        lines.append(terminal.hanging("  of it:   ", f"{parts} examples/s of one thread; {slow}"))
    if seen.num_bad:
        lines.append(f"  left out: {seen.num_bad:,} of those that were read, which cannot be read")
    return [*lines, ""]


def _table(what: str, fields: Sequence[Field]) -> list[tuple[str, str, str, str]]:
    head = [(f"  in the {what}", "dtype", "shape", "first examples")] if fields else []
    names = {"object": "text", "string": "text"}
    return head + [
        (
            f"  {'(example)' if field.path == 'it' else shorten(field.path, 30)}",
            names.get(field.dtype, field.dtype),
            "×".join("?" if size is None else str(size) for size in field.shape) or "-",
            ", ".join(map(_value, field.values)),
        )
        for field in fields
    ]


def _value(value: Any) -> str:
    """Returns a value of a field on one line; of many numbers their range."""
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind in "OS" and not array.ndim:
        text = array.item()
        try:
            return f"'{shorten(text.decode(), _TEXT)}'"
        except UnicodeDecodeError:
            return f"{len(text):,} bytes"
    if array.dtype.kind == "O" or array.size > _FEW:
        if array.dtype.kind not in "biuf":
            return f"{array.size} values"
        return f"{_value(array.min())} to {_value(array.max())}"
    if array.ndim:
        return f"[{', '.join(map(_value, array.ravel()))}]"
    return f"{array.item():.4g}" if array.dtype.kind == "f" else str(array.item())
