"""Commands that answer without TensorFlow, from start to exit, beside a Python that imports or reads the same.

For the tables of 500 runs, `python -m benchmarks.commands FOLDER` is what one writes instead: a script that reads the
same files and prints a table with pandas.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import harness, many_runs, processes
from benchmarks.harness import Promise

BARE, SCRIPT = "a Python that imports yaml and rich.console", "a script that prints the runs with pandas"
LIST, SHOW, ERROR = "list", "show", "a configuration error"
HELP = "--help"
RUNS, COMPARE, REPORT = "runs", "compare", "report"
ANSWER, TABLE = "a command (s)", "500 runs with 200 rows of metrics (s)"

ROUNDS = 15
PROMISES = (
    Promise(ANSWER, LIST, BARE, 2.0),
    Promise(ANSWER, SHOW, BARE, 3.0),
    Promise(ANSWER, HELP, BARE, 3.0),
    Promise(ANSWER, ERROR, BARE, 3.0),
    Promise(TABLE, RUNS, SCRIPT, 0.5),
    Promise(TABLE, COMPARE, SCRIPT, 1.0),
    Promise(TABLE, REPORT, SCRIPT, 2.0),
)
NUM_RUNS, NUM_SUMMARIES = 500, 200


def seconds(measurement: str, *words: str, exit_code: int = 0) -> dict[str, float]:
    return {measurement: processes.run(words, exit_code=exit_code).seconds}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    module = ("-m", "official_trainer")
    wrong = ("train", "--experiment=digits_cnn", "--set", "trainer.train_stepz=100")
    answers = {
        BARE: functools.partial(seconds, ANSWER, "-c", "import yaml, rich.console"),
        LIST: functools.partial(seconds, ANSWER, *module, "list"),
        SHOW: functools.partial(seconds, ANSWER, *module, "show", "digits_cnn"),
        HELP: functools.partial(seconds, ANSWER, *module, "--help"),
        ERROR: functools.partial(seconds, ANSWER, *module, *wrong, exit_code=2),
    }
    with tempfile.TemporaryDirectory() as folder:
        many_runs.write(Path(folder, "runs"), 20 if quick else NUM_RUNS, NUM_SUMMARIES)
        tables = {
            SCRIPT: functools.partial(seconds, TABLE, "-m", "benchmarks.commands", f"{folder}/runs"),
            RUNS: functools.partial(seconds, TABLE, *module, "runs", f"{folder}/runs"),
            COMPARE: functools.partial(seconds, TABLE, *module, "compare", f"{folder}/runs"),
            REPORT: functools.partial(
                seconds, TABLE, *module, "report", f"{folder}/runs", f"--output={folder}/report.html"
            ),
        }
        harness.in_turns({**answers, **tables}, 1)  # reads all files once
        return harness.in_turns({**answers, **tables}, num_rounds)


def print_runs(folder: str) -> None:
    """Prints each run with its config, its record and the last row of its metrics."""
    import pandas
    import yaml

    rows = []
    for path in sorted(Path(folder).iterdir()):
        record = json.loads((path / "run.json").read_text())
        params = yaml.load((path / "params.yaml").read_text(), yaml.CSafeLoader)
        metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        rows.append({**record, **params, **metrics[-1], "name": path.name})
    print(pandas.json_normalize(rows).to_string())


if __name__ == "__main__":
    print_runs(sys.argv[1])
