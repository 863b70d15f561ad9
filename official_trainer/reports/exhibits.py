"""What runs left besides numbers: pictures and texts of their evaluations, checkpoints, exports, and other tools.

Owns: which of these a report shows, and as what. Does not own: reading them (`reports/opened.py`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.reports.gathered import Ranked
from official_trainer.reports.recorded_events import Shown
from official_trainer.shown import first_few, without_secrets

MOST_PICTURES = 12
"""Most pictures of one run on a page; of each name the newest is shown."""

_ALL_BYTES = 3 << 20  # of pictures and texts of a page
_LONGEST_TEXT, _MOST_ROWS = 20_000, 200
_ABOUT_RUN = ("config", "environment", "parameters")
"""Texts at step 0 that describe a run for TensorBoard; the page has them in other places."""

_PICTURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_RULE = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")  # below the headings of a table
_WEB = re.compile(r"https?://[^\s/?#]+", re.IGNORECASE)


def media(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the newest images, texts and tables of some runs as JSON takes them, and what was left out.

    Those of the newest step are first, so that they are the last to be left out.

    Args:
      runs: those of the report.
      chosen: the places of those whose images are shown.
      folder: that all runs are below.
    """
    shown: list[dict[str, Any]] = []
    histograms: dict[str, None] = {}
    left_out = spent = 0
    for place in chosen:
        newest: dict[tuple[str, str, int], Shown] = {}
        for each in runs[place].run.shown():
            if each.kind == "histogram":
                histograms[f"{each.split}: {each.name}"] = None
            elif each.step or each.kind != "text" or each.name not in _ABOUT_RUN:
                place_in_batch = 0  # images of one name and step are a batch
                while (old := newest.get((each.split, each.name, place_in_batch))) and old.step == each.step:
                    place_in_batch += 1
                newest[each.split, each.name, place_in_batch] = each
        pictures = 0
        for each in sorted(newest.values(), key=lambda each: -each.step):
            found = _exhibit(each)
            size, is_picture = len(each.content), each.kind == "image"
            if found is None or spent + size > _ALL_BYTES or (is_picture and pictures >= MOST_PICTURES):
                left_out += 1
                continue
            spent += size
            pictures += is_picture
            shown.append({"run": place, "step": each.step, "name": f"{each.split}: {each.name}", **found})
    about = ["The newest of each name."] if shown else []
    if len(chosen) < len(runs) and (shown or histograms):
        about.append("Those of the runs that were highlighted at first.")
    if left_out:
        about.append(f"{left_out} more are left out, to keep this page small.")
    if histograms:
        about.append(f"Histograms are not drawn here: {first_few([*histograms])}.")
    if left_out or histograms:
        about.append(f"TensorBoard shows them: {_tensorboard(runs, folder)}")
    return shown, " ".join(about)


def _tensorboard(runs: Sequence[Ranked], folder: str) -> str:
    """Returns the command that shows runs in TensorBoard."""
    return f"tensorboard --logdir={shlex.quote(runs[0].run.directory if len(runs) == 1 else folder)}"


def _exhibit(each: Shown) -> dict[str, Any] | None:
    """Returns the content of an image or a text for the page; None for one that a browser cannot show."""
    if each.kind == "image":
        kind = next((kind for mark, kind in _PICTURES.items() if each.content.startswith(mark)), None)
        if kind is None:
            return None
        width, height = struct.unpack(">II", each.content[16:24]) if kind == "png" else (None, None)
        source = f"data:image/{kind};base64,{base64.b64encode(each.content).decode()}"
        return {"kind": "image", "source": source, "width": width, "height": height}
    text = each.content.decode("utf-8", "replace")
    lines = text.strip().splitlines()
    if len(lines) > 1 and all(line[:1] == line[-1:] == "|" for line in lines) and _RULE.fullmatch(lines[1]):
        cells = [  # as `tracking.Table` writes them
            [cell.strip().replace("<br>", "\n").replace("&#124;", "|") for cell in line[1:-1].split("|")]
            for line in (lines[0], *lines[2:])
        ]
        if all(len(row) == len(cells[0]) for row in cells):
            return {"kind": "table", "columns": cells[0], "rows": cells[1 : _MOST_ROWS + 1]}
    cut = f"{text[:_LONGEST_TEXT]}…" if len(text) > _LONGEST_TEXT else text
    return {"kind": "text", "text": cut}


def saved(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> dict[str, Any]:
    """Returns checkpoints and exports, and the formats of these."""
    about = f"Paths are below {folder}." if runs else ""
    held = checkpoints(runs, chosen, folder)
    return {"checkpoints": held, "checkpoints_about": about, "formats": formats(runs, chosen)}


def checkpoints(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> list[dict[str, Any]]:
    """Returns the newest, the best and the named checkpoints of some runs, and their exports; as JSON takes them."""
    rows: list[dict[str, Any]] = []
    for place in chosen:
        run = runs[place].run
        held = run.checkpoints
        continued = [each for each in held if each.kind == "latest"]
        for each in [*continued[-1:], *(each for each in held if each.kind != "latest")]:
            is_best = each.kind == "best" and each.step == runs[place].best_step
            kind = f"checkpoint: {each.kind}, {each.note}" if each.note else f"checkpoint: {each.kind}"
            numbers = {"value": runs[place].best if is_best else None, "size_bytes": each.size_bytes or None}
            rows.append({"run": place, "kind": kind, "step": each.step, **numbers, "path": each.prefix})
        for exported in run.exports:
            inside = [os.path.join(above, name) for above, _, names in os.walk(exported.path) for name in names]
            try:
                size = sum(map(os.path.getsize, inside))
            except OSError:
                size = None
            kind, numbers = "export (SavedModel)", {"value": None, "size_bytes": size}
            rows.append({"run": place, "kind": kind, "step": exported.step, **numbers, "path": exported.path})
    return [{**row, "path": os.path.relpath(row["path"], folder)} for row in rows]


def formats(runs: Sequence[Ranked], chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Returns what was measured of the formats in exports, as JSON takes it; a row that cannot be read is left out."""
    rows: list[dict[str, Any]] = []
    exports = [(place, each) for place in chosen for each in runs[place].run.exports]
    for place, exported in exports:
        for name, held in exported.formats.items():
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                which = held.get("limit_of")
                apart = max((each[which] for each in held["difference"].values()), default=0.0) if which else None
                row = {"run": place, "step": exported.step, "format": name, "size_bytes": held.get("bytes")}
                row |= {"difference": apart, "limit": held.get("limit") if which else None, "limit_of": which}
                rows.append(row)
    return rows


def links(runs: Sequence[Ranked], chosen: Sequence[int], folder: str) -> list[dict[str, Any]]:
    """Returns where else the numbers of runs are: a command that shows them, or an address; as JSON takes them."""
    found: list[dict[str, Any]] = []
    if any(_has(each, "train") or _has(each, "validation") for each in runs):
        found.append({"run": None, "tool": "TensorBoard", "command": _tensorboard(runs, folder), "url": ""})
    for place in chosen:
        each, config = runs[place], runs[place].run.config
        if _has(each, "mlflow.json"):
            uris = [config[path] for path in config if re.fullmatch(r"trainer\.trackers\[.*\.tracking_uri", path)]
            uri = _address(uris[-1] if uris else None)
            store = (uris and uris[-1]) or f"sqlite:///{os.path.abspath(files.join(each.run.directory, 'mlflow.db'))}"
            command = f"mlflow ui --backend-store-uri {shlex.quote(without_secrets(str(store)))}"
            found.append({"run": place, "tool": "MLflow", "command": "" if uri else command, "url": uri})
        if _has(each, "wandb.json"):
            held: Mapping[str, Any] = {}
            with contextlib.suppress(OSError, files.UnreadableFileError):
                held = files.read_json(files.join(each.run.directory, "wandb.json"))
            url = _address(held.get("url"))  # none of a run that was offline
            command = f"wandb sync {shlex.quote(files.join(each.run.directory, 'wandb'))}/offline-run-*"
            found.append({"run": place, "tool": "Weights & Biases", "command": "" if url else command, "url": url})
    return found


def _has(each: Ranked, name: str) -> bool:
    return os.path.exists(files.join(each.run.directory, name))


def _address(value: Any) -> str:
    """Returns an address of the web that has no name or password in it; empty for anything else."""
    return value if isinstance(value, str) and _WEB.match(value) and "@" not in value else ""
