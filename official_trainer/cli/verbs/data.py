"""Show the data of an experiment: count, fields, examples, speed.

It reads some of each data section, without a model, and leaves nothing behind. Its speed is what the steps can get at
most. With --scan it reads all of it, lists each example that cannot be read, and ends with 3 if there is one. `show`
prints how a source is configured, and opens no file.

Owns: `data`: which sections, and how they are printed.
Does not own: reading them (`runs/seen_data.py`).
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.errors import ExitCode
from official_trainer.shown import counted, shorten

if TYPE_CHECKING:
    from official_trainer.runs.seen_data import SeenData

GROUP = "Find settings, and compare runs"
IN_WORKSPACE = True
USAGE = "EXPERIMENT [--split=train_data|validation_data] [--scan] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer data digits_cnn", "the training and the validation data of an experiment"),
    ("official-trainer data digits_cnn --config_file=configs/digits_cnn.yaml", "with the values of a file"),
    ("official-trainer data digits_cnn --scan", "every example that cannot be read"),
)
NEXT = ("official-trainer check digits_cnn", "try a step on the data")

_SPLITS = ("train_data", "validation_data")
_TYPES = {"object": "text", "string": "text"}


def add_flags(parser: flags.Parser) -> None:
    """Declares the experiment with its configuration, and which data is shown."""
    flags.add_run_flags(parser, has_directory=False)
    parser.group("Data")
    help = f"{' or '.join(_SPLITS)} (default: both, unless nothing sets the latter and something the former)"
    parser.value("split", "SECTION", help, choices=_SPLITS)
    parser.switch("scan", "read every example, and list those that cannot be read")


def run(arguments: argparse.Namespace) -> int:
    """Prints each section as it was read."""
    job = target.from_flags(arguments, "eval")
    from official_trainer.runs import seen_data

    task = job.config.task
    names = _sections(task, arguments.split)
    code = 0
    if arguments.scan:
        for path, count in seen_data.read(job, names, functools.partial(seen_data.scan, report=terminal.show)):
            code = ExitCode.DATA if count else code
            terminal.show(f"{path}: {counted(count, 'example')} cannot be read" if count else f"{path}: is whole")
    else:
        for seen in seen_data.read(job, names, seen_data.look):
            terminal.show("\n".join([*_lines(seen, getattr(task, seen.section.partition(".")[2])), ""]))
    return code


def _sections(task: Any, split: str | None) -> list[str]:
    """Returns the sections to show: both, without validation data that is as its class has it beside other data."""
    sections = {name: section for name in _SPLITS if (section := getattr(task, name, None)) is not None}
    changed = [name for name, section in sections.items() if section != type(section)()]
    return [split] if split else changed if changed == ["train_data"] else list(sections) or ["train_data"]


def _lines(seen: SeenData, section: Any) -> Iterator[str]:
    count = "an unknown number of examples" if seen.examples is None else f"{seen.examples:,} examples"
    source = getattr(section, "source", None)
    origin = f" from {source.type}" if source is not None else ""
    yield terminal.paint(f"{seen.section}: {count}{origin}, in batches of {section.global_batch_size}", "bold")
    rows = [("  field", "dtype", "shape", "first examples")]
    for path, dtype, shape, values in seen.fields:
        name = "(example)" if path == "it" else shorten(path, 30)
        sizes = "×".join("?" if size is None else str(size) for size in shape) or "-"
        rows.append((f"  {name}", _TYPES.get(dtype, dtype), sizes, ", ".join(map(_value, values))))
    yield from terminal.table((), rows, fit=terminal.table_width())
    yield f"  reading: {seen.speed:,.0f} examples/s, without a model"


def _value(value: Any) -> str:
    """Returns a value of a field on one line; of many numbers their range."""
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        is_one = not array.ndim
        return f"'{shorten(array.item().decode(errors='replace'), 24)}'" if is_one else f"{array.size} values"
    is_many = array.size > 4
    numbers = [array.min().item(), array.max().item()] if is_many else array.ravel().tolist()
    texts = [f"{number:.4g}" if isinstance(number, float) else str(number) for number in numbers]
    return " to ".join(texts) if is_many else f"[{', '.join(texts)}]" if array.ndim else texts[0]
