"""Run directories of every kind that a folder of runs may hold: for each a function that makes one.

`KINDS` has them by name; `make_all` puts one of each into a folder. They are written by the functions that runs write
with, as far as there are such functions, and then damaged. The time is `NOW` for all of them.
"""

import functools
import json
import math
import os
from pathlib import Path

from official_trainer.config.text import one_line
from official_trainer.files import PARAMS_FILE
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.record import RunRecord, mark_pruned
from official_trainer.tracking.tensorboard import TensorBoardTracker

NOW = 1_790_000_000
HOUR = 3600
RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"
PARAMS = """\
# experiment: {experiment}
task:
  model:
    type: mlp
    mlp:
      hidden: [8]  # experiment
runtime:
  seed: {seed}  # --set
trainer:
  train_steps: 40  # experiment
  best_checkpoint_eval_metric: accuracy  # experiment
  best_checkpoint_metric_comp: higher
  optimizer_config:
    optimizer:
      type: {optimizer}  # --set
      {optimizer}:
        epsilon: 1.0e-07
    learning_rate:
      type: constant
      constant:
        learning_rate: {rate}  # configs/rate.yaml:3
"""
GARDENS = """\
trainer:
  best_checkpoint_eval_metric: accuracy
  best_checkpoint_export_subdir: best_ckpt
  best_checkpoint_metric_comp: higher
  train_steps: 40
"""
TIME = {
    "restarts": 0,
    "wall_seconds": 100.0,
    "seconds": {"start": 10.0, "steps": 80.0, "evaluation": 5.0, "save": 5.0},
    "steps": 40,
    "examples": 2560,
}


def accuracy(seed, step):
    """What the runs reach: rising, a little different for each seed."""
    return round(0.5 + 0.4 * (1 - math.exp(-step / 15)) + 0.001 * seed, 6)


def write_run(folder, *, code=0, step=40, seed=1, experiment="digits", error=None, optimizer="adam", rate=0.001):
    """Writes a run up to `step`; until its end with an exit code, unless `code` is None."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    params = PARAMS.format(experiment=one_line(experiment), seed=seed, optimizer=optimizer, rate=rate)
    (folder / PARAMS_FILE).write_text(params)
    times = iter([NOW - 3 * HOUR, *[NOW - HOUR] * 1000])
    launch = {"experiment": experiment, "mode": "train_and_eval", "argv": [], "config_digest": "0"}
    record = RunRecord(str(folder), launch, clock=lambda: next(times))
    record.start()
    record.note(devices=["/device:CPU:0"], input={"replicas": 1, "pipelines": 1}, git_revision="1" * 40)
    record.set_span(0, 40)
    write_rows(folder, step, seed=seed)
    record.phase("train", step)
    evaluated = step // 10 * 10
    if evaluated:
        record.set_best("accuracy", accuracy(seed, evaluated), evaluated)
    if code is not None:
        record.note(time={"attempts": [TIME], "total": TIME})
        final = {"accuracy": accuracy(seed, evaluated), "validation_loss": 0.5} if evaluated else None
        record.finish(code, final if code == 0 else None, error=error)
    return folder


def write_rows(folder, until, *, seed=1, since=0):
    """Appends the rows of steps after `since`: training every 5 steps, evaluations every 10."""
    clock = iter(range(NOW - 3 * HOUR + since, NOW))
    rows = JsonlTracker(str(folder / "metrics.jsonl"), clock=lambda: float(next(clock)))
    for step in range(since + 5, until + 1, 5):
        rows.log("train", step, {"training_loss": 2.0 / step, "learning_rate": 0.001})
        rows.log("time", step, {"examples_per_second": 1000.0 + seed, "wall_seconds": 1.0})
        if step % 10 == 0:
            rows.log("validation", step, {"accuracy": accuracy(seed, step), "validation_loss": 3.0 / step})
    rows.close()


def append(folder, *lines):
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("\n".join(lines))


def change(folder, name="run.json", **values):
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **values}))


STATES = {
    "done": {},
    "stopped": {"code": 143, "step": 20},
    "failed": {"code": 1, "step": 20, "error": "ValueError: the label 11 is no class\nof the model"},
    "stalled": {"code": 5, "step": 20, "error": "no step for 600 s"},
}
"""Runs that are whole, by how they ended."""


def running(folder):
    write_run(folder, code=None, step=20)
    (folder / ".lock.json").write_text("{}")
    os.utime(folder / ".lock.json", (NOW - 5, NOW - 5))


def lost(folder):
    write_run(folder, code=None, step=20)
    change(folder, "status.json", host="elsewhere")


def pruned(folder):
    write_run(folder, code=143, step=20)
    mark_pruned(str(folder))


def not_finite(folder):
    write_run(folder, code=4, step=20, error="the loss is NaN at step 25")
    append(folder, '{"step": 25, "split": "train", "time": 1, "training_loss": "NaN", "learning_rate": "Infinity"}', "")


def restarted(folder):
    """It was killed after step 30, went on from step 20, and what it had recorded in between is still there."""
    write_run(folder, step=30, seed=7)
    write_rows(folder.parent / folder.name, 40, since=20)


def with_evaluator(folder):
    """A process beside it evaluates its checkpoints."""
    write_run(folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "continuous_eval").mkdir()
    for place, is_its in (("continuous_eval", True), ("", False)):
        text = "".join(line for line in lines if ('"validation"' in line) == is_its)
        (folder / place / "metrics.jsonl").write_text(text)


def by_a_rule(folder):
    """Several numbers together decide which checkpoint is the best."""
    write_run(folder)
    change(folder, best={"metric": "reading", "value": {"right": 0.9, "sure_of_wrong": 0.1}, "step": 30})


# Files that are damaged, or not there.

FILES = {
    "without_metrics": {"metrics.jsonl": None},
    "empty_metrics": {"metrics.jsonl": b""},
    "half_a_record": {"run.json": b'{"run_id": "a", "experiment": '},
    "without_config": {PARAMS_FILE: None},
    "damaged_config": {PARAMS_FILE: b"# experiment: digits\ntrainer:\n  \xff\xfe: [1\n train_steps: {\n"},
}
"""Runs of which a file holds something else, or is not there."""

OTHERS = {"checkpoints_alone": "ckpt-7.index", "no_run": "notes.md", "empty": None}
"""Folders with a single file, or none."""


def with_files(folder, contents):
    """A run that is done, with other contents of files; None for a file that is not there."""
    write_run(folder)
    for name, content in contents.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)


def with_one_file(folder, name):
    folder.mkdir()
    if name is not None:
        (folder / name).touch()


def changed_record(folder):
    write_run(folder)
    change(folder, steps=3, best=[1], time={"total": "x"}, started=4, final_metrics="x", versions=[], input=2)


def damaged_rows(folder):
    write_run(folder)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    lines[2:2] = [b"\x00\xff\xfe", b"[]", b'{"step": "5", "split": "train"}', b"[" * 5000]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def unreadable_metrics(folder):
    write_run(folder)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()


def numbers_out_of_range(folder):
    """Steps, times and counts that no run has, some too large for a float."""
    write_run(folder)
    seconds = {"steps": math.inf, "input": -1e308, "start": 10**400, "save": 5.0}
    total = {"seconds": seconds, "examples": 10**400, "steps": -1, "restarts": "x", "wall_seconds": math.inf}
    best, steps = {"metric": "accuracy", "value": 0.5, "step": 10**400}, {"start": 0, "current": 10**30, "end": -1}
    change(folder, git_revision=[math.nan], restarts=math.inf, versions={"python": math.nan, "keras": [1]})
    change(folder, steps=steps, time={"attempts": [{"verdict": 5}], "total": total}, best=best)
    row = '{"step": %d, "split": "validation", "time": %d, "accuracy": %s}'
    append(folder, row % (-3, 5, 1), row % (10**400, 5, 1), row % (50, 10**400, 10**400), row % (60, -1, 1e308), "")


def damaged_checkpoint(folder):
    write_run(folder)
    (folder / "ckpt-40.manifest.json").write_text("{")
    (folder / "ckpt-40.index").touch()


def damaged_events(folder):
    garden(folder)
    for path in folder.rglob("*.tfevents.*"):
        path.write_bytes(path.read_bytes()[:-5] + b"\x01" * 40)


# What is not a run of ours alone.


def garden(folder):
    """A run of Model Garden's driver."""
    (folder / "best_ckpt").mkdir(parents=True)
    (folder / PARAMS_FILE).write_text(GARDENS)
    for name in ("ckpt-40.index", "best_ckpt/best_ckpt-3.index"):
        (folder / name).touch()
    (folder / "best_ckpt" / "info.json").write_text('{"accuracy": 0.75, "best_ckpt_global_step": 30.0}')
    board = TensorBoardTracker(str(folder), describes=None)
    for step in range(10, 50, 10):
        board.log("train", step, {"training_loss": 2.0 / step})
        board.log("validation", step, {"accuracy": accuracy(1, step)})
    board.close()


def sweep(folder):
    """The runs of two complete trials, of one that was pruned and of one that failed."""
    for number, make in enumerate((write_run, write_run, pruned, KINDS["failed"])):
        make(folder / "trials" / str(number) / "run")


def nested(folder):
    write_run(folder / "group" / "one")
    write_run(folder / "group" / "two", seed=2)


KINDS = {
    **{name: functools.partial(write_run, **options) for name, options in STATES.items()},
    **{name: functools.partial(with_files, contents=contents) for name, contents in FILES.items()},
    **{name: functools.partial(with_one_file, name=file) for name, file in OTHERS.items()},
    **{
        make.__name__: make
        for make in (
            *(running, lost, pruned, not_finite, restarted, with_evaluator, by_a_rule, damaged_rows, changed_record),
            *(unreadable_metrics, numbers_out_of_range, damaged_checkpoint, damaged_events, garden, sweep, nested),
        )
    },
}
HOSTILE = {
    "<script>alert('x')<": functools.partial(write_run, experiment="<img src=x>"),
    "\x1b[31mred & \\textbf{x} | `_` 100 %": functools.partial(write_run, experiment="\x1b[2J"),
}
"""Names that a page, a terminal or a table would obey."""

SUMMARY = {
    "metric": "accuracy",
    "direction": "max",
    "counts": {"complete": 2, "pruned": 1, "failed": 1},
    "best": 1,
    "importance": {RATE: 0.75, "runtime.seed": 0.25},
    "trials": [
        {"number": number, "state": state, "value": value, "params": {RATE: 0.01}, "run": f"trials/{number}/run"}
        for number, (state, value) in enumerate(
            [("complete", 0.5), ("complete", 0.75), ("pruned", 0.25), ("failed", None)]
        )
    ],
}
"""What `sweeps.results.summary` says of the runs of `sweep`."""


def stand_in_for_sweeps(monkeypatch, directory, **changes):
    """Has `sweeps.results` say `SUMMARY`, with changes, of a directory, so that tests of pages need no study."""
    from official_trainer.sweeps import results

    monkeypatch.setattr(results, "is_sweep", lambda path: path == str(directory), raising=False)
    monkeypatch.setattr(results, "summary", lambda path: SUMMARY | changes, raising=False)


def refuse_to_list(monkeypatch, name):
    """Has folders of this name be refused as they are to a user without permission; root may list all."""
    scandir = os.scandir

    def without_permission(path):
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", without_permission)


def make_all(folder):
    """Puts one of each kind into a folder, and those with hostile names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in {**KINDS, **HOSTILE}.items():
        make(folder / name)
    return folder
