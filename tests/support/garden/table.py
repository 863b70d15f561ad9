"""What each of Model Garden's experiments does here, tried one by one; writes docs/project/model_garden.md.

    python -m tests.support.garden.table [--only=PATTERN …] [--cache=DIR] [--again] [--jobs=N]

What is tried is in `tried.py`, what makes an experiment small in `small.py`. The page is written after each experiment:
the command can be stopped at any time, and goes on with the experiments whose cells are not all filled. `--again` tries
the others once more.
"""

import argparse
import concurrent.futures
import fnmatch
import functools
import os
import re
import shutil
import sys
import threading
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
_writing = threading.Lock()


def try_one(name, folder):
    """Tries the columns of an experiment in their order, as far as it goes, and writes its row into the page."""
    place = folder / "runs" / name.replace("/", "+")
    place.mkdir(parents=True, exist_ok=True)
    data = place / "tiny_data"
    if not data.is_symlink():
        data.symlink_to(folder / "tiny_data", target_is_directory=True)
    trial = Trial(name, SMALL.get(name), NEEDED.get(name, ()), place)
    cells, whys, stopped = [], [], ""
    for column, function in COLUMNS.items():
        found, why = "–", ""
        if trial.small is None and column not in WITHOUT_DATA:
            why = NO_DATA if column == "checks" else ""
        elif stopped not in ("shows", "trains"):
            try:
                found = function(trial)
            except FailedError as error:
                why = str(error)
        cells.append(found)
        whys += [f"{column}: {re.sub(r'[|<>`]', '', why)}"] if why else []
        if column not in WITHOUT_DATA or column == "shows":
            stopped = stopped or (column if found == "–" else "")
        print(f"{name:45} {column:12} {found:8} {trial.cpu_seconds:6.1f} s  {why}", file=sys.stderr, flush=True)
    shutil.rmtree(place)
    small, notes = SMALL.get(name), []
    if small is not None:
        overlay = [f"{small.overlay}.yaml"] if small.overlay else []
        notes.append("with " + " ".join(f"`{each}`" for each in (*overlay, *small.sets)))
    if name in NEEDED:
        notes.append("at its real size with " + " ".join(f"`{each}`" for each in NEEDED[name]))
    with _writing:
        write(rows() | {name: f"| `{name}` | {' | '.join(cells)} | {'; '.join([*notes, *whys])} |"})


def rows():
    """Returns the lines of the page's table by the names of experiments."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `(.+?)` \|.*", table, re.MULTILINE)}


def _cells(row):
    return [cell.strip() for cell in row.split("|")[2 : 2 + len(COLUMNS)]]


def write(found):
    """Puts these lines into the page."""
    cells = [_cells(row) for row in found.values()]
    counts = [f"{column} {sum(line[n] not in ('–', '') for line in cells)}" for n, column in enumerate(COLUMNS)]
    missing = sum(not cell for line in cells for cell in line)
    said = f"Of {len(found)} experiments: {', '.join(counts)}. {missing} cells are empty: not tried yet."
    table = "\n".join([HEAD, "|---" * (2 + len(COLUMNS)) + "|", *(found[name] for name in sorted(found))])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{said}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


def _write_data(folder, kinds):
    place = folder / "tiny_data"
    for kind in kinds:
        if not (place / kind / "complete").exists():
            Trial("data", None, (), folder).call(functools.partial(_data, str(place), kind))
            (place / kind / "complete").touch()


def _data(folder, kind):
    from tests.support.garden import data

    data.write(folder, [kind])


def main(argv):
    from official_trainer.garden import index

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "official-trainer", "garden_table")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="experiments, such as 'bert/*'; repeatable")
    parser.add_argument("--cache", type=Path, default=home, metavar="DIR", help="data and runs (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="also what is in the page")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default: %(default)s)")
    arguments = parser.parse_args(argv)
    known = set() if arguments.again else {name for name, row in rows().items() if all(_cells(row))}
    patterns = arguments.only or ["*"]
    found = [name for each in patterns for name in index.entries() if fnmatch.fnmatchcase(name, each)]
    names = [name for name in dict.fromkeys(found) if name not in known]  # in the order of the patterns
    folder = arguments.cache.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    forked._context.set_forkserver_preload(list(PRELOADED))
    forked.start_server()
    _write_data(folder, sorted({SMALL[name].data for name in names if name in SMALL} - {""}))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for each in concurrent.futures.as_completed([pool.submit(try_one, name, folder) for name in names]):
            each.result()


if __name__ == "__main__":
    main(sys.argv[1:])
