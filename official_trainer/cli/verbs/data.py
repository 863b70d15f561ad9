"""Show the data of an experiment: count, fields, examples, speed.

It reads some of each data section, without a model, and leaves nothing behind. Its speed is what the steps can get at
most. With --scan it reads all of it, lists each example that cannot be read, and ends with 3 if there is one. `show`
prints how a source is configured, and opens no file.

Owns: `data`: which sections, and how they are printed.
Does not own: reading them (`runs/seen_data.py`).
"""

from __future__ import annotations

import argparse
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
    found = target.from_flags(arguments)
    from official_trainer.runs import seen_data

    task, job = found.resolved.config.task, target.job_of(found, arguments, "eval")
    names = _sections(task, arguments.split)
    if arguments.scan:
        return _scan(seen_data.scan(job, names, terminal.show))
    for seen in seen_data.look(job, names):
        terminal.show("\n".join([*_lines(seen, getattr(task, seen.section.partition(".")[2])), ""]))
    return 0


def _scan(counts: Iterator[tuple[str, int]]) -> int:
    """Prints how many examples of each section cannot be read; returns the exit code."""
    code = 0
    for section, count in counts:
        code = ExitCode.DATA if count else code
        terminal.show(f"{section}: {counted(count, 'example')} cannot be read" if count else f"{section}: is whole")
    return code


def _sections(task: Any, split: str | None) -> list[str]:
    """Returns the sections to show: both, without validation data that is as its class has it beside other data."""
    there = {name: section for name in _SPLITS if (section := getattr(task, name, None)) is not None}
    own = [name for name, section in there.items() if section != type(section)()]
    return [split] if split else own if own == ["train_data"] else list(there) or ["train_data"]


def _lines(seen: SeenData, section: Any) -> Iterator[str]:
    count = "an unknown number of examples" if seen.examples is None else f"{seen.examples:,} examples"
    source = getattr(section, "source", None)
    kind = f" from {source.type}" if source is not None else ""
    yield terminal.paint(f"{seen.section}: {count}{kind}, in batches of {section.global_batch_size}", "bold")
    rows = []
    for place, fields in seen.fields.items():
        rows.append((f"  in the {place}", "dtype", "shape", "first examples"))
        for path, dtype, shape, values in fields:
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
    texts = [f"{each:.4g}" if isinstance(each, float) else str(each) for each in numbers]
    return " to ".join(texts) if is_many else f"[{', '.join(texts)}]" if array.ndim else texts[0]
