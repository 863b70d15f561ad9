"""The list of examples that a run has left out, `bad_records.jsonl`.

Owns: the file, and how many of each data section it lists. Does not own: which examples these are
(`inputs/bad_records.py`), when it is written (`observer.py`).

It is written before a checkpoint is, and replaced as a whole: a run that is killed in between finds the same examples
again, and no line is lost, cut or double. Only the chief writes it, for all processes.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.files import BAD_RECORDS_FILE
from official_trainer.inputs.bad_records import BadRecord


def read(model_dir: str) -> list[BadRecord]:
    """Returns what is listed; nothing if there is no list.

    Raises:
      UnreadableFileError: the file was changed.
    """
    path = files.join(model_dir, BAD_RECORDS_FILE)
    if not files.exists(path):
        return []
    records = []
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        try:
            records.append(BadRecord(**files.parse_json(line)))
        except (ValueError, TypeError) as error:
            what = f"{path}:{number} cannot be read ({error}). Put a good copy back, or remove it."
            raise files.UnreadableFileError(what) from error
    return records


def write(model_dir: str, records: Iterable[BadRecord]) -> None:
    """Replaces the list."""
    lines = [json.dumps(dataclasses.asdict(record), ensure_ascii=False) for record in records]
    files.write_text_atomically(files.join(model_dir, BAD_RECORDS_FILE), "\n".join([*lines, ""]))


def counts(records: Sequence[BadRecord]) -> Mapping[str, int]:
    """Returns how many examples of each data section are listed, for `run.json`."""
    return dict(collections.Counter(record.section for record in records))


def said(run: Mapping[str, Any]) -> list[str]:
    """Returns what the content of a `run.json` says of them, a text for each data section."""
    known = found.items() if isinstance(found := run.get("bad_records"), dict) else ()
    return [f"bad examples of {section} that are left out: {count}" for section, count in known]
