"""Comparing live variables with a checkpoint, so that what was not restored, or was changed since, is seen.

Owns: which variables hold other bits than the checkpoint that they were restored from. Does not own: pairing them
(`matching.py`), checksums (`bundle.py`), which variables a run compares (`engine/checkpoint_state.py`).

The checkpoint's side is the checksum that its index has had since the save, and that its manifest covers: no value is
read again, so that comparing costs a pass over the live values, at the speed of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from official_trainer import files
from official_trainer.checkpoints import bundle
from official_trainer.checkpoints.matching import Matching
from official_trainer.lazy import tf


class Compared(NamedTuple):
    """The paths of variables with the same bits, with others, and of those that only one side has in that shape."""

    equal: Sequence[str]
    differing: Sequence[str]
    lacking: Sequence[str]


def compare(checkpoint: tf.train.Checkpoint, prefix: str, is_wanted: Callable[[str, Any], bool]) -> Compared:
    """Compares the variables below `checkpoint` for which `is_wanted(path, variable)` holds with files.

    `variable` is None for what only the files hold. Variables that are stored in slices are left out.
    """
    matching = Matching(prefix, tf.train.TrackableView.children(checkpoint))
    report = matching.report()
    stored = bundle.stored_checksums(files.read_bytes(f"{prefix}.index"))
    equal, differing = list[str](), list[str]()
    for spec, (live, key) in zip(report.restored, matching.pairs, strict=True):
        if key in stored and isinstance(live, tf.Variable) and is_wanted(spec.key, live):
            same = bundle.checksum_of(live.read_value()) == stored[key]  # which is not copied, where it is in memory
            (equal if same else differing).append(spec.key)
    others = [*report.missing, *report.extra, *(mismatch.live for mismatch in report.wrong_shape)]
    lacking = [spec.key for spec in others if is_wanted(spec.key, None)]
    return Compared(equal, differing, lacking)
