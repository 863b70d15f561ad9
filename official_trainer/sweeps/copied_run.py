"""A run that begins as a copy of another one, and continues it with another config.

Owns: what of a run directory is copied, in which order; removing the weights of a run that nothing continues any more.
Does not own: which run continues which (`population.py`), continuing (`runs/train.py`).

The copy has all that a run continues with: the newest checkpoint, the best ones, `metrics.jsonl`, TensorBoard's files.
`run.json` is written last, on file systems without rename too: a directory without it is no run, and `train` refuses
it. So a process may die anywhere. The files of a checkpoint are never changed, so the copy only gives them a second
name where the file system can.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.directory import POINTER, QUARANTINE, CheckpointDirectory, pointer_text
from official_trainer.files import RUN_FILE
from official_trainer.tracking.record import ModelDirError, read_run

_LEFT_OUT = (QUARANTINE, "export", "continuous_eval")
_UNCHANGED = (".index", ".data")  # parts of a checkpoint


def copy(source: str, target: str, *, step: int, check: Callable[[], None] = lambda: None) -> bool:
    """Makes a run directory that continues another run; returns False if it was there already.

    Args:
      source: a run directory in which nothing runs.
      target: the new one; what a process that died has left there is removed.
      step: the step of the checkpoint from which the new run goes on.
      check: called before the copy counts; raises if this process may not make it any more.

    Raises:
      ModelDirError: there is no whole checkpoint of this step.
    """
    if files.exists(files.join(target, RUN_FILE)):
        return False
    problem = manifest.damage(source, step, checksums=False)
    record = read_run(source)
    if problem is not None or record is None:
        what = problem or f"there is no {RUN_FILE}"
        raise ModelDirError(f"{source} cannot be continued from its checkpoint of step {step}: {what}")
    files.remove(target)
    _copy_folder(source, target, step)
    files.write_text_atomically(files.join(target, POINTER), pointer_text(f"ckpt-{step}", [f"ckpt-{step}"]))
    check()
    own = record | {"run_id": uuid.uuid4().hex, "restarts": 0}
    files.write_text_atomically(files.join(target, RUN_FILE), json.dumps(own, indent=2) + "\n")
    return True


def remove_weights(model_dir: str) -> None:
    """Removes all checkpoints and exports of a run; what it has recorded stays."""
    for name in files.list_dir(model_dir):
        path = files.join(model_dir, name)
        if name == "export" or (files.is_dir(path) and manifest.parts(path)):
            files.remove(path)
    directory = CheckpointDirectory(model_dir)
    for step in manifest.parts(model_dir):
        directory.remove_files(step)
    files.remove(files.join(model_dir, POINTER))


def _copy_folder(source: str, target: str, step: int | None = None) -> None:
    """Copies a folder with what is in it; of checkpoints each with its manifest last.

    Args:
      source: the folder.
      target: its copy.
      step: of a run directory, the only checkpoint that is copied; then what is of this very run or of its process
        (a lock, its status, its name in a tracking service) is not.
    """
    files.make_dirs(target)
    parts = {name: (step, part) for step, found in manifest.parts(source).items() for name, part in found.items()}
    for name in sorted(files.list_dir(source), key=lambda name: parts.get(name, (0, ""))[1] == ".manifest.json"):
        path, new = files.join(source, name), files.join(target, name)
        is_own = name.startswith(".") or name.endswith(".json") or ".tmp-" in name
        if files.is_dir(path):
            if name not in _LEFT_OUT:
                _copy_folder(path, new)
        elif name in parts:
            at, part = parts[name]
            if step in (None, at) and not manifest.is_leftover(part):
                (files.link_or_copy if part.startswith(_UNCHANGED) else files.copy)(path, new)
        elif step is None or not is_own:
            files.copy(path, new)
