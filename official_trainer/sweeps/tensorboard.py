"""A sweep in TensorBoard's HParams tab: a row for each trial, with what was drawn for it, its results and its status.

Owns: TensorBoard's files of that row, in `trials/N/result`.
Does not own: the curves of a trial, which its run writes without a row of its own (`tracking/tensorboard.py`).

TensorBoard makes the columns from the rows, so a folder with several sweeps and runs has a table of all of them. What
is measured in the folder of a row, and below, becomes a column: the row has a folder of its own, else each curve of
each run would be one. A file is written once and never changed, so a TensorBoard that is open finds what is new.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.lazy import load
from official_trainer.sweeps import distributions
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.observer import fields_of, names_of
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.space import Value
from official_trainer.sweeps.trial import Trial, show
from official_trainer.tracking.tensorboard import as_hparam, session_end

_BEGIN, _END = "events.out.tfevents.0000000000.begin", "events.out.tfevents.0000000001.end"
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def begin(directory: str, trial: Trial, space: Mapping[str, Any]) -> None:
    """Writes what was drawn for a trial, unless that is written.

    Args:
      directory: of the sweep.
      trial: its record.
      space: field → its distribution, as it is written.
    """
    folder = files.join(trials.directory(directory, trial.number), trials.RESULT)
    files.make_dirs(folder)
    files.remove_temporaries(folder, _BEGIN, _END)  # of a process that was killed
    if files.exists(path := files.join(folder, _BEGIN)):
        return
    names = names_of(space)
    drawn = fields_of(trial.values, names)
    values = {names.get(path, path): _as_hparam(path, value, space) for path, value in drawn.items()}
    summary = load("tensorboard.plugins.hparams.summary_v2")
    row = summary.hparams_pb(values, trial_id="", start_time_secs=time.time())  # it is called as its folder
    _write(path, [(0, row)])


def end(directory: str, trial: Trial, space: Mapping[str, Any], objective: Objective) -> None:
    """Writes how a trial has ended: its results, or of one that is not complete the last value before its end.

    Args:
      directory: of the sweep.
      trial: its record.
      space: field → its distribution, as it is written.
      objective: what trials are compared by.
    """
    begin(directory, trial, space)
    scalar = load("tensorboard.plugins.scalar.summary_v2")
    step, results = trial.step or 0, trial.results
    if not results and trial.reports:
        step, results = trial.reports[-1][0], trial.reports[-1][1:]
    named = zip(objective.directions, results, strict=False)
    measured = [(step, scalar.scalar_pb(metric, value)) for metric, value in named if math.isfinite(value)]
    path = files.join(trials.directory(directory, trial.number), trials.RESULT, _END)
    _write(path, [*measured, (0, session_end(is_success=trial.state == "complete"))])


def _as_hparam(path: str, value: Value | Sequence[Value], space: Mapping[str, Any]) -> Value:
    """Returns a value that TensorBoard takes: a number of a range, or among others, as one, to be drawn as such."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else show(value)
    found = distributions.read(path, space[path]) if path in space else []
    choices = (found[0].choices if found else ()) or (value,)
    if all(map(_INTEGER.fullmatch, choices)):
        return str(as_hparam(int(value)))
    return float(value) if all(map(_NUMBER.fullmatch, choices)) else value


def _write(path: str, summaries: Sequence[tuple[int, Any]]) -> None:
    """Writes summaries, each with its step, as a file of events."""
    events, content = load("tensorboard.compat.proto.event_pb2"), io.BytesIO()
    records = load("tensorboard.summary.writer.record_writer").RecordWriter(content)
    now = time.time()
    records.write(events.Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
    for step, summary in summaries:
        records.write(events.Event(wall_time=now, step=step, summary=summary).SerializeToString())
    files.write_bytes_atomically(path, content.getvalue(), durable=False)
