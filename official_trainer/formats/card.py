"""The model card of an export, `model_card.md`: what the run and its files say of the model, and the author's words.

Owns: its parts, and the place for the author's words, which later exports keep. Does not own: what was measured
(`writing.py`), records of runs (`runs/recorded.py`), that all of an export appears at once (`tasks/export.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config import lines
from official_trainer.formats import contract as contracts
from official_trainer.formats import shown
from official_trainer.formats.kinds import QUANTISED, FormatError
from official_trainer.runs import bad_records
from official_trainer.runs.recorded import RecordedRun
from official_trainer.shown import first_few, without_secrets
from official_trainer.tasks import export
from official_trainer.tracking.git_state import DIRTY

BEGIN, END = "<!-- the author's words begin here -->", "<!-- the author's words end here -->"
_TO_WRITE = "What the model is for, what it must not be used for, and who answers questions: write it here."


def words_for(directory: str) -> str:
    """Returns the author's words for an export: of the one that it replaces, or else of the newest version beside it.

    Raises:
      FormatError: a card has no place for them any more, so that they cannot be told from the rest.
    """
    parent = os.path.dirname(directory.rstrip("/")) or "."
    for folder in (directory, *reversed(export.numbered(parent))):
        path = files.join(folder, export.CARD)
        if not files.exists(path):
            continue
        _, begin, rest = files.read_text(path).partition(BEGIN)
        words, end, _ = rest.partition(END)
        if not (begin and end):
            what = f"a new export keeps what stands between {BEGIN!r} and {END!r}"
            raise FormatError(f"{path}: {what}, and one of these lines is missing; put it back, or move the file away")
        return words.strip()
    return _TO_WRITE


def text(words: str, run: RecordedRun, record: Mapping[str, Any]) -> str:
    """Returns a card.

    Args:
      words: the author's.
      run: from which the model is.
      record: the content of `export.json`.
    """
    parts = {
        "Data": _fields(run, is_data=True),
        "Config": [*_fields(run, is_data=False), "", "Fields that are not here have the default of their class."],
        "Metrics": _metrics(record),
        "Inputs and outputs": ["```text", contracts.text_of(record["contract"]), "```"],
        "Versions": _versions(run),
        "Limits": [f"- {line}" for line in _limits(run, record)],
    }
    found = [f"# {run.experiment}, step {record['step']}", "", BEGIN, words, END]
    for title, body in parts.items():
        found += ["", f"## {title}", "", *body]
    return without_secrets("\n".join(found) + "\n")


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *rows]
    return [
        f"| {' | '.join(str(cell).replace('|', '&#124;').replace(chr(10), ' ') for cell in row)} |" for row in cells
    ]


def _fields(run: RecordedRun, *, is_data: bool) -> list[str]:
    set_by = {path: (lines.value(text), lines.comment(text)) for path, text in run.config.items()}
    rows = [
        (path, value, origin)
        for path, (value, origin) in set_by.items()
        if origin and path.startswith(("task.train_data.", "task.validation_data.")) == is_data
    ]
    return _table(("field", "value", "set by"), rows)


def _metrics(record: Mapping[str, Any]) -> list[str]:
    evaluated = [(name, f"{value:.6g}", "the evaluation of the run") for name, value in record["metrics"].items()]
    on = f"the model, on {record['examples']} examples"
    evaluated += [(name, f"{value:.6g}", on) for name, value in record["model_metrics"].items()]
    measured = [(name, shown.measured(row)) for name, row in record["formats"].items()]
    return [*_table(("metric", "value", "of"), evaluated), "", *_table(("format", "measured"), measured)]


def _versions(run: RecordedRun) -> list[str]:
    rows = [*run.record.get("versions", {}).items(), ("code (git)", run.record.get("git_revision") or "not known")]
    rows += [("run", run.record.get("run_id", "")), ("started", run.record.get("started", ""))]
    return _table(("what", "version"), rows)


def _limits(run: RecordedRun, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"Files were compared with the model on {record['examples']} examples of validation data, and on no others."
    ranges = [f"`{row['name']}` from {row['range'][0]:g} to {row['range'][1]:g}" for row in _ranged(record)]
    if ranges:
        yield f"Inputs in these data: {first_few(ranges)}. Others were not tried."
    if lossy := [name for name in record["formats"] if name in QUANTISED]:
        yield f"Less precise than the model, within the limit above: {', '.join(lossy)}."
    if not record["metrics"]:
        yield "This step was not evaluated by the run."
    if str(run.record.get("git_revision")).endswith(DIRTY):
        yield f"The code had changes that no commit has; `{files.CODE_FILE}` of the run directory holds them."
    yield from (f"{each[:1].upper()}{each[1:]}." for each in bad_records.said(run.record))


def _ranged(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in record["contract"]["inputs"] if "range" in row]
