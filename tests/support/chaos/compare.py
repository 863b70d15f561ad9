"""What a broken run and an unbroken one must have in common: everything but times, bit by bit.

Reads files only: checkpoints, the log of example ids, metrics.jsonl, event files, the export, run.json.
"""

import collections
import json
from pathlib import Path

import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from official_trainer.checkpoints.manifest import committed_steps, read
from tests.support.runs import bits, rows


def differences(broken, unbroken):
    """Returns what differs, as `{kind: first few differences}`; empty if the broken run lost nothing."""
    broken, unbroken = Path(broken), Path(unbroken)
    unequal = {"variables": _variables(broken, unbroken), "rows": _rows(broken, unbroken)}
    for kind, read_all in {"ids": ids, "events": _points, "saved": _saved, "record": _recorded}.items():
        unequal[kind] = _unequal(read_all(broken), read_all(unbroken))
    return {kind: sorted(items)[:5] for kind, items in unequal.items() if items}


def id_lines(model_dir):
    """Returns (process, step, what the replicas saw) for each line of the log of ids, in its order."""
    path = Path(f"{model_dir}.ids")
    lines = [line.split(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(process), int(step), seen) for process, step, seen in lines]


def ids(model_dir):
    """Returns everything that was ever seen at each step: one set of numbers for each replica, if all agree."""
    seen = collections.defaultdict(set)
    for _, step, what in id_lines(model_dir):
        seen[step].add(what)
    return seen


def _unequal(left, right):
    return [f"{key}: {_short(left.get(key))} != {_short(right.get(key))}" for key in left.keys() | right.keys()
            if left.get(key) != right.get(key)]  # fmt: skip


def _short(value):
    return f"{value!r:.80}"


def _variables(broken, unbroken):
    steps = committed_steps(str(broken)), committed_steps(str(unbroken))
    if not steps[0] or steps[0][-1] != steps[1][-1]:
        return [f"steps {steps[0]} != {steps[1]}"]
    return _unequal(*(bits(model_dir / f"ckpt-{steps[0][-1]}") for model_dir in (broken, unbroken)))


def _rows(broken, unbroken):
    listed = [rows(model_dir) for model_dir in (broken, unbroken)]
    keys = [[(row["step"], row["split"]) for row in found] for found in listed]
    if keys[0] != keys[1]:
        return [f"rows {keys[0]} != {keys[1]}"]
    return _unequal(*(dict(zip(keys[0], found, strict=True)) for found in listed))


def _points(model_dir):
    """Returns all values of each (folder, tag, step)."""
    points = collections.defaultdict(list)
    for path in sorted(model_dir.rglob("*.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag.startswith("time/"):  # no two runs take the same
                    continue
                place = str(path.parent.relative_to(model_dir)), value.tag, event.step
                if value.metadata.plugin_data.plugin_name == "text":
                    points[place] = ["text"]  # config and command, in which settings differ
                else:
                    array = tf.make_ndarray(value.tensor)
                    text = array.dtype.kind == "O"  # a picture, of which an array holds an address
                    points[place].append(b"|".join(array.flat) if text else array.tobytes())
    return points


def _saved(model_dir):
    """Returns what lies in folders: the bits of checkpoints and exports, what is said of them, an export's files."""
    held = {str(path.relative_to(model_dir)): "" for path in model_dir.glob("export/**/*") if path.is_file()}
    for path in [*model_dir.glob("best/info.json"), *model_dir.glob("export/**/export.json")]:
        held[str(path.relative_to(model_dir))] = path.read_text()
    for step in committed_steps(str(model_dir / "best")):
        held[f"record of best/ckpt-{step}"] = read(str(model_dir / "best"), step).extra
    for index in model_dir.glob("*/**/*.index"):
        place = index.relative_to(model_dir)
        held |= {f"{place} {name}": value for name, value in bits(index.with_suffix("")).items()}
    return held


def _recorded(model_dir):
    """Returns what `run.json` and `status.json` say, but for what is not the same twice."""
    found = {
        f"{name} {field}": value
        for name in ("run.json", "status.json")
        for field, value in json.loads((model_dir / name).read_text()).items()
        if field not in NEVER_THE_SAME
    }
    del found["run.json steps"]["start"]  # where the last process began
    return found


NEVER_THE_SAME = (
    *("run_id", "restarts", "pid", "host"),
    *("started", "restarted", "finished", "updated", "time", "last_saved"),
    *("argv", "config_digest"),  # in which settings differ
    "git_revision",  # which is known if git answers in time
)
"""Fields that say which run it is, when, and how it was started."""
