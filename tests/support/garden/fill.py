"""Tries the cells of docs/project/model_garden.csv that are empty, and writes a row as soon as a cell of it was tried.

    python -m tests.support.garden.fill [PATTERN…] [--again] [--only=COLUMN]…

It can be killed at any time, and goes on with the cells that are empty then; two may run, on different rows. What is
tried is in `tried.py`, what makes an experiment small in `small.py`; of one that is not there, only `shows` and `model`
are tried. A cell is what was seen, or "no": then `seen` has what was printed instead, in brackets why. Behind
a "no" in `shows` or `trains` nothing is tried, and all is "no".
"""

import argparse
import csv
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

TABLE = ROOT / "docs" / "project" / "model_garden.csv"
_LONGEST = 250


def rows():
    """Returns the cells of each experiment by its name, the last one with what was seen."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row.pop("experiment"): row for row in csv.DictReader(file)}


def fill(name, folder, only=()):
    """Tries the empty cells of an experiment in their order, of all columns or only of some; writes each."""
    small = SMALL.get(name)
    trial = Trial(name, small, NEEDED.get(name, ()), folder)
    if small and small.data:
        data.write(folder / "tiny_data", [small.data])
    row = rows()[name]
    reasons = dict(re.findall(rf"({'|'.join(COLUMNS)}): (.*?)(?=; (?:{'|'.join(COLUMNS)}): |$)", row["seen"]))
    for number, (column, function) in enumerate(COLUMNS.items()):
        stopped = any(row[before] == "no" for before in list(COLUMNS)[:number] if before in ENDS)
        can_be_tried = small is not None or column in WITHOUT_DATA or stopped
        if row[column] or not can_be_tried or column not in (only or COLUMNS):
            continue
        reasons.pop(column, None)
        row[column] = "no"
        if not stopped:
            try:
                row[column] = function(trial)
            except FailedError as error:
                reasons[column] = re.sub(r"[|<>`]|\s+", " ", str(error))[:_LONGEST].strip()
                if (name, column) in EXPLAINED:
                    reasons[column] += f" ({EXPLAINED[name, column]})"
        print(f"{name:40} {column:12} {row[column]:6} {reasons.get(column, '')}", flush=True)
        row["seen"] = "; ".join(f"{key}: {reasons[key]}" for key in COLUMNS if key in reasons)
        _write(name, row)


def _write(name, row):
    """Puts a row into the table, beside what others write."""
    with open(__file__) as lock:  # another one may be filling other rows
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = {**rows(), name: row}
        written = TABLE.with_suffix(".new")
        with written.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["experiment", *COLUMNS, "seen"], lineterminator="\n")
            writer.writeheader()
            writer.writerows({"experiment": experiment, **cells} for experiment, cells in table.items())
        written.replace(TABLE)


def main(argv):
    from official_trainer.garden import index

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "patterns", nargs="*", default=["*"], metavar="PATTERN", help="of experiments, such as 'bert/*'"
    )
    parser.add_argument("--again", action="store_true", help="tries filled cells too")
    parser.add_argument("--only", action="append", choices=COLUMNS, help="a column to try; may be given again")
    arguments = parser.parse_args(argv)
    names = [name for pattern in arguments.patterns for name in index.entries() if fnmatch.fnmatchcase(name, pattern)]
    table = rows()
    for name in dict.fromkeys(names):  # in the order of the patterns
        if arguments.again:
            _write(name, {**table[name], **dict.fromkeys(arguments.only or table[name], "")})
        with tempfile.TemporaryDirectory(prefix="garden") as folder:
            fill(name, Path(folder), arguments.only)


if __name__ == "__main__":
    main(sys.argv[1:])
