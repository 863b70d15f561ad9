"""What a run goes on with after a restore, beside what its checkpoint says: before the first update, at each resume.

Owns: the facts of the next step that a manifest keeps (its batch, learning rate, random numbers), their comparison and
that of the tensors with the state that goes on, `resumes.json`, and how it is shown. Does not own: what of a change is
refused (`config_changes.py`, `data_layout.py`), how tensors are compared (`checkpoints/live.py`).

The facts of a checkpoint are those of the process that saved it, which would have gone on with them. A resume takes
them anew: from the optimizer that was restored, and from the data as built, at the batch with which they begin.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.checkpoints import manifest, restore
from official_trainer.lazy import tf
from official_trainer.shown import counted
from official_trainer.tasks import optimization
from official_trainer.tracking.jsonl import encode

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer

FILE = "resumes.json"
"""In a run directory: `resumes`, the oldest first."""

KEY = "next_step"
"""Where a manifest's metadata holds the facts of the step after it; checkpoints of earlier versions hold none."""

_KEPT_RESUMES = 200
_LISTED_TENSORS = 50
_MOST_SHOWN = 20
_SHOWN = {"step", "checkpoint", "equal", "tensors", "differing"}
_MOST_EXAMPLES = 1024  # of a batch: the numbers of these tell the order of the rest; their content is not read


def facts(trainer: Trainer, first_batch: int | None = None) -> dict[str, Any]:
    """Returns the facts of the next step: nested, as JSON takes them.

    `first_batch` is the number of its batch; None stands for the one that follows from the steps that were run.
    """
    iterator, step = trainer.train_iterator, int(trainer.global_step.numpy())
    epoch, *_ = iterator.position.values()
    context, params = iterator.builder.context, iterator.builder.params
    batch: dict[str, Any] = {"number": iterator.position.start_step(step) if first_batch is None else first_batch}
    batch |= {"epoch": epoch, "size": getattr(params, "global_batch_size", None)}
    if iterator.dataset is None and context is not None and context.numbers_at is not None and batch["size"]:
        first, count = batch["number"] * batch["size"], min(batch["size"], _MOST_EXAMPLES)
        numbers = context.numbers_at(tf.range(first, first + count, dtype=tf.int64)).numpy()
        batch["examples"] = hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()[:16]
    optimizer = trainer.optimizer
    rates = {} if optimizer is None else optimization.learning_rates(optimizer, trainer.global_step)
    return {
        "batch": batch,
        "learning_rate": {name: encode(float(rate)) for name, rate in rates.items()},
        "random": {"seed": trainer.config.runtime.seed, "step": step},
    }


def compare(model_dir: str, trainer: Trainer, step: int, first_batch: int | None = None) -> dict[str, Any]:
    """Compares what a trainer goes on with at `step`, and the checkpoint of this step; changes nothing.

    `first_batch` is the number of the batch with which the data begins, as it was built; None if that is not known.

    Raises:
      CheckpointError, OSError, ValueError: the checkpoint cannot be read.
    """
    began = time.perf_counter()
    now = facts(trainer, first_batch)
    saved = manifest.read(model_dir, step).metadata.get(KEY, {})
    equal, differing = list[str](), list[dict[str, Any]]()
    for part, values in now.items():
        known = saved.get(part, {})
        for name in [each for each in values if each in known]:  # a fact that one side lacks says nothing
            what = part if name == part else f"{part}.{name}"
            equal += [what] if values[name] == known[name] else []
            differing += [{"what": what, "saved": known[name], "now": values[name]}] if what not in equal else []
    entry: dict[str, Any] = {"step": step, "checkpoint": f"ckpt-{step}", "equal": sorted(equal), "tensors": None}
    if trainer.context.workers is None:  # parameter servers would send all that they hold
        tensors = trainer.checkpoint_state.compare_with(manifest.find(model_dir, step))
        parts = dict(collections.Counter(map(_part_of, tensors.equal)))
        counts = {"differing": len(tensors.differing), "lacking": len(tensors.lacking)}
        entry["tensors"] = {"equal": parts, **counts}
        for saved_as, paths in (("other values", tensors.differing), ("not there as it is now", tensors.lacking)):
            differing += [{"what": path, "saved": saved_as} for path in paths[:_LISTED_TENSORS]]
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry |= {"differing": differing, "facts": {"saved": saved, "now": now}, "time": when}
    return entry | {"seconds": round(time.perf_counter() - began, 4)}


def _part_of(path: str) -> str:
    """Returns which part of the state a tensor belongs to; some slots hang on the weights of the model."""
    if restore.AVERAGE in path:
        return "average"
    return "optimizer" if "/.OPTIMIZER_SLOT/" in path else path.partition("/")[0]


def add(model_dir: str, entry: Mapping[str, Any]) -> None:
    """Adds a resume to the file, which keeps the newest ones."""
    kept = [*read(model_dir), dict(entry)][-_KEPT_RESUMES:]
    text = json.dumps({"resumes": kept}, indent=1, allow_nan=False) + "\n"
    files.write_text_atomically(files.join(model_dir, FILE), text, durable=False)


def read(model_dir: str) -> list[dict[str, Any]]:
    """Returns the resumes of a run; none if the file is not there, or was changed."""
    try:
        found = files.read_json(files.join(model_dir, FILE)).get("resumes")
    except (OSError, files.UnreadableFileError):
        return []
    rows = found if isinstance(found, list) else []
    return [each for each in rows if isinstance(each, dict) and each.keys() >= _SHOWN]


def in_lines(resumes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields lines for each resume: the step, the checkpoint, what is equal, what differs; several have a line each."""
    for each in resumes:
        differs = {str(found["what"]): found for found in each["differing"]}
        equal = set(map(_fact, each["equal"])) - set(map(_fact, differs))
        same = [words for part, words in _WORDS.items() if part in equal]
        counts = {} if each["tensors"] is None else each["tensors"]["equal"]
        same += [_WORDS.get(part) or f"{counted(count, 'tensor')} of {part}" for part, count in counts.items()]
        changes = [
            f"{what} {found['saved']} -> {found['now']}" if "now" in found else f"{what} ({found['saved']})"
            for what, found in differs.items()
        ]
        said = f"differs: {changes[0]}" if len(changes) == 1 else "these differ:" if changes else "nothing differs"
        yield f"step {each['step']} from {each['checkpoint']}: equal: {', '.join(same) or 'nothing'}; {said}"
        if len(changes) > 1:
            yield from (f"  {change}" for change in changes[:_MOST_SHOWN])
        if len(changes) > _MOST_SHOWN:
            yield f"  and {len(changes) - _MOST_SHOWN} more, in --json"


def _fact(name: str) -> str:
    return name if name in _WORDS else name.partition(".")[0]


_WORDS = {
    **{"batch": "number of the next batch", "batch.examples": "numbers of the next examples"},
    **{"learning_rate": "learning rate", "random": "random numbers"},
    **{"global_step": "step", "training": "position in the data"},
}
