"""The best checkpoints: the evaluated weights with the best values of one metric, kept across restarts.

Owns: that the record of a best value never exists without its checkpoint: the record is the checkpoint's manifest.
`info.json` repeats that of the very best for Model Garden's tools.
Does not own: evaluating (`engine/evaluation.py`), the format of checkpoints (`store.py`), the ranking (`retention.py`).

A better one is committed before a worse one is deleted, so whenever this dies, the best are there and rank as before. A
better evaluation of the same step is written beside and then takes the old one's place.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.retention import ranked
from official_trainer.checkpoints.store import POINTER, CheckpointStore
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import find_metric

_logger = logging.getLogger(__name__)

REPLACEMENT = "replacement"
"""Folder for a checkpoint of a step that has one already, until it takes that one's place."""


class BestCheckpoint:
    """Keeps the best checkpoints in a store of their own; Model Garden's exporter contract.

    What is saved is the model as it was evaluated, with averaged weights if there are any, and the global step.

    Attributes:
      on_new_best: called with the step and the logs after a new very best checkpoint is committed, while the evaluated
        weights are still in the model; again if it may not have been, because the process died.
    """

    def __init__(
        self,
        directory: str,
        *,
        metric: str,
        comp: str,
        max_to_keep: int = 1,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads the records of an earlier process; changes nothing.

        Args:
          directory: where the best checkpoints are kept.
          metric: name of the metric; `a|b` names `b` inside `a`.
          comp: `higher` or `lower`.
          max_to_keep: how many are kept.
          metadata: about the run, for the manifests.
        """
        assert comp in ("higher", "lower"), comp
        assert max_to_keep >= 1, max_to_keep
        self._directory = directory
        self._metric = metric
        self._comp = comp
        self._max_to_keep = max_to_keep
        self._metadata = dict(metadata or {})
        self.on_new_best: Callable[[int, Mapping[str, Any]], None] | None = None
        self._records = read_records(directory)
        beside = files.join(directory, REPLACEMENT)
        for step in manifest.committed_steps(beside):  # some of its files may be in their place already
            self._records[step] = manifest.read(beside, step).extra

    @property
    def directory(self) -> str:
        """Where the best checkpoints are."""
        return self._directory

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self._metric

    @property
    def comp(self) -> str:
        """Whether the `higher` or the `lower` value is better."""
        return self._comp

    @property
    def steps(self) -> tuple[int, ...]:
        """The global steps of the best checkpoints, the very best first."""
        return self._best_of(self._values())

    @property
    def step(self) -> int | None:
        """The global step of the very best checkpoint."""
        return next(iter(self.steps), None)

    @property
    def value(self) -> float | None:
        """The best value so far."""
        return None if self.step is None else self._records[self.step]["value"]

    @property
    def best_ckpt_logs(self) -> dict[str, Any] | None:
        """The evaluation's results at the very best checkpoint."""
        return None if self.step is None else self._records[self.step]["logs"]

    def maybe_export_checkpoint(self, checkpoint: tf.train.Checkpoint, eval_logs: Any, global_step: int) -> bool:
        """Saves the model if `eval_logs` are among the best; returns whether they are."""
        self._finish_replacement()
        global_step = int(global_step)  # Model Garden's Trainer has NumPy's
        logs = _as_numbers(eval_logs)
        value = find_metric(logs, self._metric)
        is_among_best = value is not None and self._is_among_best(global_step, value)
        if is_among_best and value != self._values().get(global_step):  # equal if a process died after the save
            evaluated = tf.train.Checkpoint(global_step=checkpoint.global_step, model=checkpoint.model)
            self._save(evaluated, global_step, {"metric": self._metric, "value": value, "logs": logs})
        self.tidy()
        if is_among_best and self.on_new_best is not None and global_step == self.step:
            self.on_new_best(global_step, logs)
        return is_among_best

    def tidy(self) -> None:
        """Deletes what is not among the best any more and names the very best one.

        For the start of a run: a lowered `max_to_keep` holds at once, and what a process that died left is done.
        """
        self._finish_replacement()
        if self.step is None:
            return
        files.remove_temporaries(self._directory, _INFO)
        info = {**(self.best_ckpt_logs or {}), "best_ckpt_global_step": float(self.step)}
        _write_if_changed(files.join(self._directory, _INFO), json.dumps(info, indent=4) + "\n")
        store = self._store(tf.train.Checkpoint())
        for step in manifest.parts(self._directory).keys() - set(self.steps):
            store.delete(step)
            self._records.pop(step, None)
        store.tidy()
        # TensorFlow's pointer names the newest; whoever follows it into this directory wants the best.
        pointer = f'model_checkpoint_path: "ckpt-{self.step}"\n'
        pointer += "".join(f'all_model_checkpoint_paths: "ckpt-{step}"\n' for step in reversed(self.steps))
        _write_if_changed(files.join(self._directory, POINTER), pointer)

    def drop_after(self, step: int) -> tuple[int, ...]:
        """Deletes the best checkpoints of later steps, which a run that was rolled back never came to; returns them."""
        self._finish_replacement()
        later = tuple(found for found in sorted(manifest.parts(self._directory)) if found > step)
        store = self._store(tf.train.Checkpoint())
        for found in later:
            store.delete(found)
            self._records.pop(found, None)
        if self.step is None:
            for name in (_INFO, POINTER):
                files.remove(files.join(self._directory, name))
        self.tidy()
        return later

    def _save(self, evaluated: tf.train.Checkpoint, step: int, record: dict[str, Any]) -> None:
        save(self._directory, evaluated, step, record, metadata=self._metadata)
        self._records[step] = record

    def _finish_replacement(self) -> None:
        finish_replacement(self._directory)
        self._records = read_records(self._directory)

    def _store(self, checkpoint: tf.train.Checkpoint) -> CheckpointStore:
        return CheckpointStore(self._directory, checkpoint, max_to_keep=None, metadata=self._metadata)

    def _values(self) -> dict[int, float]:
        """Returns step → value of what is saved; records of another metric do not count."""
        return {step: record["value"] for step, record in self._records.items() if record.get("metric") == self._metric}

    def _best_of(self, values: Mapping[int, float]) -> tuple[int, ...]:
        return tuple(ranked(values, self._comp)[: self._max_to_keep])

    def _is_among_best(self, step: int, value: float) -> bool:
        saved = self._values()
        if step in saved and value != _better(saved[step], value, self._comp):
            return False  # one step has one checkpoint, the better
        return step in self._best_of({**saved, step: value})


_INFO = "info.json"


def _better(left: float, right: float, comp: str) -> float:
    values = {0: left, 1: right}
    return values[ranked(values, comp)[0]]


def save(
    directory: str,
    checkpoint: tf.train.Checkpoint,
    step: int,
    record: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
) -> None:
    """Saves a checkpoint whose manifest holds `record`; one of the same step is replaced once the new one is whole."""
    store = CheckpointStore(directory, checkpoint, max_to_keep=None, metadata=metadata)
    if step in store.steps():  # never without a checkpoint while another one takes its place
        beside = CheckpointStore(files.join(directory, REPLACEMENT), checkpoint, max_to_keep=1, metadata=metadata)
        beside.save(step, extra=record)
        finish_replacement(directory)
    else:
        store.save(step, extra=record)


def finish_replacement(directory: str) -> None:
    """Puts what was written beside in its place, also if that was cut off before; removes it if it is not whole."""
    beside = files.join(directory, REPLACEMENT)
    for step in manifest.committed_steps(beside):
        mark = manifest.name(step)
        files.remove(files.join(directory, mark))
        for name in sorted(manifest.parts(beside)[step], key=lambda name: name == mark):
            target = files.join(directory, name)
            files.remove(target)
            files.rename(files.join(beside, name), target)
    files.remove(beside)


def read_records(directory: str) -> dict[int, Any]:
    """Returns step → record of the checkpoints that are whole."""
    records = {}
    for step in manifest.committed_steps(directory):
        if damage := manifest.damage(directory, step, checksums=False):
            _logger.warning("%s is damaged: %s; its record does not count", manifest.prefix(directory, step), damage)
        else:
            records[step] = manifest.read(directory, step).extra
    return records


def _write_if_changed(path: str, text: str) -> None:
    if not files.exists(path) or files.read_bytes(path) != text.encode():
        files.write_text_atomically(path, text, durable=False)


def _as_numbers(logs: Any) -> Any:
    """Returns nested logs with plain floats; what is not a scalar is left out."""
    if isinstance(logs, Mapping):
        return {k: v for k, v in ((k, _as_numbers(v)) for k, v in logs.items()) if v is not None}
    value = logs.numpy() if hasattr(logs, "numpy") else logs
    return float(value) if getattr(value, "ndim", 0) == 0 else None
