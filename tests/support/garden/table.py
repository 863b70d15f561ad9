"""What each of Model Garden's experiments does here, tried one by one; writes docs/project/model_garden.md.

    python -m tests.support.garden.table [--only=PATTERN …] [--columns=NAME,…] [--cache=DIR] [--again] [--jobs=N]

What is tried is in `tried.py`, what makes an experiment small in `small.py`. Each result is a line of `results.jsonl`
in the cache folder, written as soon as it is known: the command can be stopped at any time, and goes on where it was.
`--again` tries what is known already once more. The page gets the rows of all experiments that are in the cache; the
others stay.
"""

import argparse
import concurrent.futures
import fnmatch
import functools
import json
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

from tests import ROOT
from tests.support import forked
from tests.support.garden.small import NEEDED, SMALL
from tests.support.garden.tried import COLUMNS, FailedError, Trial

PAGE = ROOT / "docs/project/model_garden.md"
BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"
HEAD = f"| experiment | {' | '.join(COLUMNS)} | with what, and what was seen |"
WITHOUT_DATA = ("shows", "model")
NO_DATA = "no tiny data of its kind"
PRELOADED = ("tests.support.preload", "official.core.train_lib", "official.common.registry_imports")


class Results:
    """The results of a cache folder: `{(experiment, column): line}`, each line with `found`, `why`, `cpu_seconds`."""

    def __init__(self, folder):
        self._path = folder / "results.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.lines = {(line["experiment"], line["column"]): line for line in map(json.loads, lines)}
        self._lock = threading.Lock()

    def add(self, experiment, column, found, why, cpu_seconds):
        line = {"experiment": experiment, "column": column, "found": found, "why": why, "cpu_seconds": cpu_seconds}
        with self._lock, self._path.open("a") as file:
            self.lines[experiment, column] = line
            file.write(json.dumps(line) + "\n")
        print(f"{experiment:45} {column:12} {found:8} {cpu_seconds:6.1f} s  {why}", file=sys.stderr, flush=True)

    def found(self, experiment, column):
        return self.lines.get((experiment, column), {}).get("found", "")


def try_one(name, columns, folder, results, again):
    """Tries the columns of an experiment in their order, as far as it goes."""
    place = folder / "runs" / name.replace("/", "+")
    place.mkdir(parents=True, exist_ok=True)
    data = place / "tiny_data"
    if not data.is_symlink():
        data.symlink_to(folder / "tiny_data", target_is_directory=True)
    trial = Trial(name, SMALL.get(name), NEEDED.get(name, ()), place)
    stopped = ""
    for column, function in COLUMNS.items():
        is_known = (name, column) in results.lines and not again
        if column in columns and not is_known:
            _try_column(trial, column, function, results, stopped)
        if column not in WITHOUT_DATA or column == "shows":
            stopped = stopped or (column if results.found(name, column) == "–" else "")
    shutil.rmtree(place)


def _try_column(trial, column, function, results, stopped):
    if stopped in ("shows", "trains"):
        results.add(trial.experiment, column, "–", "", 0.0)
        return
    if trial.small is None and column not in WITHOUT_DATA:
        results.add(trial.experiment, column, "–", NO_DATA if column == "checks" else "", 0.0)
        return
    before = trial.cpu_seconds
    try:
        found, why = function(trial), ""
    except FailedError as error:
        found, why = "–", str(error)
    results.add(trial.experiment, column, found, why, round(trial.cpu_seconds - before, 1))


def row(name, results):
    """Returns a line of the table."""
    cells = [results.found(name, column) for column in COLUMNS]
    notes = []
    small = SMALL.get(name)
    if small is not None:
        overlay = [f"{small.overlay}.yaml"] if small.overlay else []
        notes.append("with " + " ".join(f"`{each}`" for each in (*overlay, *small.sets)))
    if name in NEEDED:
        notes.append("at its real size with " + " ".join(f"`{each}`" for each in NEEDED[name]))
    whys = [(column, results.lines.get((name, column), {}).get("why", "")) for column in COLUMNS]
    notes += [f"{column}: {re.sub(r'[|<>`]', '', why)}" for column, why in whys if why]
    return f"| `{name}` | {' | '.join(cells)} | {'; '.join(notes)} |"


def write(results):
    """Puts the results into the page, over older ones of the same experiments."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {match[1]: match[0] for match in re.finditer(r"\| `(.+?)` \|.*", old)} if HEAD in old else {}
    rows |= {name: row(name, results) for name in {experiment for experiment, _ in results.lines}}
    table = "\n".join([HEAD, "|---" * (2 + len(COLUMNS)) + "|", *(rows[name] for name in sorted(rows))])
    cells = [[cell.strip() for cell in line.split("|")[2:]] for line in rows.values()]
    counts = [f"{column} {sum(line[n] not in ('–', '') for line in cells)}" for n, column in enumerate(COLUMNS)]
    seconds = sum(line["cpu_seconds"] for line in results.lines.values())
    missing = sum(not cell for line in cells for cell in line[: len(COLUMNS)])
    said = (
        f"Of {len(rows)} experiments: {', '.join(counts)}. {missing} cells are empty: not tried yet. The others took "
        f"{seconds / 60:.0f} minutes of a core, on a machine with {os.cpu_count()} cores and {_memory_gib():.0f} GiB."
    )
    PAGE.write_text(f"{before}{BEGIN}\n\n{said}\n\n{table}\n\n{END}{after}")


def _memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _write_data(folder, kinds):
    place = folder / "tiny_data"
    missing = [kind for kind in kinds if not (place / kind / "complete").exists()]
    trial = Trial("data", None, (), folder)
    for kind in missing:
        trial.call(functools.partial(_data, str(place), kind))
        (place / kind / "complete").touch()


def _data(folder, kind):
    from tests.support.garden import data

    data.write(folder, [kind])


def main(argv):
    from official_trainer.garden import index

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "official-trainer", "garden_table")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="experiments, such as 'bert/*'; repeatable")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="some of the columns (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=home, metavar="DIR", help="the results (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="also what is in the cache")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default: %(default)s)")
    arguments = parser.parse_args(argv)
    patterns, columns = arguments.only or ["*"], arguments.columns.split(",")
    if unknown := set(columns) - set(COLUMNS):
        parser.error(f"no column is called {', '.join(sorted(unknown))}; there are {', '.join(COLUMNS)}")
    found = [name for each in patterns for name in index.entries() if fnmatch.fnmatchcase(name, each)]
    names = list(dict.fromkeys(found))  # in the order of the patterns
    folder = arguments.cache.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    forked._context.set_forkserver_preload(list(PRELOADED))
    forked.start_server()
    _write_data(folder, sorted({SMALL[name].data for name in names if name in SMALL} - {""}))
    results, began = Results(folder), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        tries = [pool.submit(try_one, name, columns, folder, results, arguments.again) for name in names]
        for each in concurrent.futures.as_completed(tries):
            each.result()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    write(results)


if __name__ == "__main__":
    main(sys.argv[1:])
