"""Tries the cells of docs/project/model_garden.md that are empty, and writes each as soon as it is known.

    python -m tests.support.garden.fill [PATTERN…] [--again] [--only=COLUMN]…

It can be killed at any time, and goes on with the cells that are empty then; two may run, on different rows. What is
tried is in `tried.py`, what makes an experiment small in `small.py`; of one that is not there, only `shows` and `model`
are tried.
"""

import argparse
import fcntl
import fnmatch
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

from tests import ROOT
from tests.support.garden import data
from tests.support.garden.small import EXPLAINED, NEEDED, SMALL
from tests.support.garden.tried import COLUMNS, ENDS, WITHOUT_DATA, FailedError, Trial

PAGE = ROOT / "docs" / "project" / "model_garden.md"
_ROW = re.compile(r"^\| `(.+?)` \| (.*) \|$", re.M)
_COUNT = re.compile(r"^Tried: \d+ of \d+ cells, in ([\d.]+) minutes of a core\.$", re.M)
_LONGEST = 250


def rows(page):
    """Returns the cells of each experiment by its name, the last one with what was seen."""
    found = {}
    for name, line in _ROW.findall(page):
        *cells, seen = (cell.strip() for cell in line.split(" | "))
        found[name] = dict(zip((*COLUMNS, "seen"), (*cells, seen), strict=True))
    return found


def fill(name, folder, only=()):
    """Tries the empty cells of an experiment in their order, of all columns or only of some; writes each."""
    small = SMALL.get(name)
    trial = Trial(name, small, NEEDED.get(name, ()), folder)
    if small and small.data:
        data.write(folder / "tiny_data", [small.data])
    row = rows(PAGE.read_text())[name]
    reasons = dict(re.findall(rf"({'|'.join(COLUMNS)}): (.*?)(?=; (?:{'|'.join(COLUMNS)}): |$)", row["seen"]))
    for number, (column, function) in enumerate(COLUMNS.items()):
        stopped = any(row[each] == "–" for each in list(COLUMNS)[:number] if each in ENDS)
        can_be_tried = small is not None or column in WITHOUT_DATA or stopped
        if row[column] or not can_be_tried or column not in (only or COLUMNS):
            continue
        reasons.pop(column, None)
        before, row[column] = trial.cpu_seconds, "–"
        if not stopped:
            try:
                row[column] = function(trial)
            except FailedError as error:
                reasons[column] = re.sub(r"[|<>`]|\s+", " ", str(error))[:_LONGEST].strip()
                if (name, column) in EXPLAINED:
                    reasons[column] += f" ({EXPLAINED[name, column]})"
        seconds = trial.cpu_seconds - before
        print(f"{name:40} {column:12} {row[column]:6} {seconds:6.1f} s {reasons.get(column, '')}", flush=True)
        row["seen"] = "; ".join([*_settings(name), *(f"{key}: {reasons[key]}" for key in COLUMNS if key in reasons)])
        _write(name, row, seconds)


def _settings(name):
    if (small := SMALL.get(name)) is not None:
        words = [*([f"{small.overlay}.yaml"] if small.overlay else []), *small.sets]
        words += [f"--mode={small.mode}"] if small.mode else []
        if words:
            yield "with " + " ".join(f"`{each}`" for each in words)
    if name in NEEDED:
        yield "at its real size with " + " ".join(f"`{each}`" for each in NEEDED[name])


def _write(name, row, seconds):
    """Puts a row into the page, and what it says about all rows."""
    with open(__file__) as lock:  # another one may be filling other rows
        fcntl.flock(lock, fcntl.LOCK_EX)
        _rewrite(name, row, seconds)


def _rewrite(name, row, seconds):
    page = PAGE.read_text()
    line = f"| `{name}` | {' | '.join(row.values())} |"
    page = _ROW.sub(lambda match: line if match[1] == name else match[0], page)
    cells = [each[column] for each in rows(page).values() for column in COLUMNS]
    said = f"Tried: {sum(map(bool, cells))} of {len(cells)} cells, in {{:.1f}} minutes of a core."
    page = _COUNT.sub(lambda match: said.format(float(match[1]) + seconds / 60), page)
    written = PAGE.with_suffix(".new")
    written.write_text(page)
    written.replace(PAGE)


def main(argv):
    from official_trainer.garden import index

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "patterns", nargs="*", default=["*"], metavar="PATTERN", help="of experiments, such as 'bert/*'"
    )
    parser.add_argument("--again", action="store_true", help="tries filled cells too")
    parser.add_argument("--only", action="append", choices=COLUMNS, help="a column to try; may be given again")
    arguments = parser.parse_args(argv)
    names = [name for each in arguments.patterns for name in index.entries() if fnmatch.fnmatchcase(name, each)]
    found = rows(PAGE.read_text())
    for name in dict.fromkeys(names):  # in the order of the patterns
        if arguments.again:
            _write(name, {**found[name], **dict.fromkeys(arguments.only or found[name], "")}, 0)
        with tempfile.TemporaryDirectory(prefix="garden") as folder:
            fill(name, Path(folder), arguments.only)


if __name__ == "__main__":
    main(sys.argv[1:])
