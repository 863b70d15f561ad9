"""An exported model, printed: its contract, and what was measured of its files.

Owns: the lines of `show EXPORT`. Does not own: the contract (`contract.py`), measuring (`writing.py`).
"""

from __future__ import annotations

import json
from typing import Any

from official_trainer import files
from official_trainer.formats import contract as contracts
from official_trainer.formats.kinds import kind_of


def as_text(path: str) -> str:
    """Returns lines for a terminal: the contract of a file, and of a folder the formats in it, too.

    Raises:
      FormatError: it has no contract.
    """
    lines = [contracts.text_of(contracts.read(path))]
    if formats := _record(path).get("formats"):
        lines += ["formats:", *(f"  {name}: {measured(row)}" for name, row in formats.items())]
    return "\n".join(lines)


def as_json(path: str) -> str:
    """Returns the same as JSON."""
    return json.dumps({"contract": contracts.read(path), "formats": _record(path).get("formats", {})}, indent=2)


def measured(row: dict[str, Any]) -> str:
    """Returns in one line what `export.json` says of a format."""
    if why := row.get("not_compared"):
        return f"not compared: {why}"
    which = row.get("limit_of")
    apart = max((each[which] for each in row["difference"].values()), default=0.0)
    said = f"differs by {apart:.1e} ({which}, {row['limit']:g} is allowed)" if which else "every value, bit by bit"
    if on := row.get("compared_on"):
        said += f" on {on}"
    if row.get("small_tensors") == 0 and which == "mean":
        said += "; nothing was quantised"
    if latency := row.get("latency_ms"):
        said += "; " + ", ".join(f"{each} ms for {size}" for size, each in latency.items())
    if metrics := row.get("metrics"):
        said += "; " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    return f"{row['bytes']:,} bytes, {said}" if "bytes" in row else said


def _record(path: str) -> dict[str, Any]:
    place = files.join(path, "export.json")
    return files.read_json(place) if kind_of(path) == "saved_model" and files.exists(place) else {}
