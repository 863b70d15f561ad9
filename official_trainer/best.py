"""The best checkpoint: the evaluated weights with the best value of one metric, kept across restarts.

Owns: what "better" means, and that the record of a best value never exists without its checkpoint: the record is the
checkpoint's manifest. `info.json` repeats it for Model Garden's tools.
Does not own: evaluating (`evaluation.py`), the format of checkpoints (`checkpoints.py`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer import files, manifest
from official_trainer.checkpoints import CheckpointStore
from official_trainer.lazy import tf
from official_trainer.metrics import find_metric

_logger = logging.getLogger(__name__)

REPLACEMENT = "replacement"
"""Folder for a checkpoint of a step that has one already, until it takes that one's place."""


class BestCheckpoint:
    """Keeps the best checkpoint in its own store; Model Garden's exporter contract.

    What is saved is the model as it was evaluated, with averaged weights if there are any, and the global step.

    Attributes:
      on_new_best: called with the step and the logs after a new best checkpoint is committed, while the evaluated
        weights are still in the model.
    """

    def __init__(
        self,
        directory: str,
        *,
        metric: str,
        comp: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads the record of an earlier process.

        Args:
          directory: where the best checkpoint is kept.
          metric: name of the metric; `a|b` names `b` inside `a`.
          comp: `higher` or `lower`.
          metadata: about the run, for the manifest.
        """
        assert comp in ("higher", "lower"), comp
        self._directory = directory
        self._metric = metric
        self._comp = comp
        self._metadata = dict(metadata or {})
        self.on_new_best: Callable[[int, Mapping[str, Any]], None] | None = None
        self._beside = files.join(directory, REPLACEMENT)
        self._records = _read_records(directory)
        for step in manifest.committed_steps(self._beside):  # some of its files may be in their place already
            self._records[step] = manifest.read(self._beside, step).extra

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self._metric

    @property
    def step(self) -> int | None:
        """The global step of the best checkpoint."""
        candidates = [step for step, record in self._records.items() if record.get("metric") == self._metric]
        key = (
            (lambda s: self._records[s]["value"]) if self._comp == "higher" else (lambda s: -self._records[s]["value"])
        )
        return max(candidates, key=key, default=None)

    @property
    def value(self) -> float | None:
        """The best value so far."""
        return None if self.step is None else self._records[self.step]["value"]

    @property
    def best_ckpt_logs(self) -> dict[str, Any] | None:
        """The evaluation's results at the best checkpoint."""
        return None if self.step is None else self._records[self.step]["logs"]

    def maybe_export_checkpoint(self, checkpoint: tf.train.Checkpoint, eval_logs: Any, global_step: int) -> bool:
        """Saves the model if `eval_logs` are better than all before; returns whether it did."""
        evaluated = tf.train.Checkpoint(global_step=checkpoint.global_step, model=checkpoint.model)
        store = CheckpointStore(self._directory, evaluated, max_to_keep=1, metadata=self._metadata)
        self._finish_replacement()
        self._records = _read_records(self._directory)
        logs = _as_numbers(eval_logs)
        value = find_metric(logs, self._metric)
        is_better = value is not None and self._is_better(value)
        if is_better:
            self._save(store, global_step, {"metric": self._metric, "value": value, "logs": logs})
        if self.step is not None:
            self._agree_on_best(store)
        # A process that died after it saved left out what follows; the next one gets here with the same result.
        is_known = value is not None and (global_step, value) == (self.step, self.value)
        if is_known and self.on_new_best is not None:
            self.on_new_best(global_step, logs)
        return is_better

    def _save(self, store: CheckpointStore, step: int, record: dict[str, Any]) -> None:
        if step in store.steps():  # never without a checkpoint while another one takes its place
            beside = CheckpointStore(self._beside, store.checkpoint, max_to_keep=1, metadata=self._metadata)
            beside.save(step, extra=record)
            self._finish_replacement()
        else:
            store.save(step, extra=record)
        self._records = {step: record}

    def _agree_on_best(self, store: CheckpointStore) -> None:
        """Leaves the best checkpoint alone and has `info.json` tell of it, whatever a process that died left."""
        assert self.step is not None
        for other in manifest.parts(self._directory).keys() - {self.step}:  # higher ones too, from before a rollback
            store.delete(other)
        store.tidy()
        info = {**(self.best_ckpt_logs or {}), "best_ckpt_global_step": float(self.step)}
        path = files.join(self._directory, "info.json")
        files.remove_temporaries(path)
        files.write_text_atomically(path, json.dumps(info, indent=4) + "\n", durable=False)

    def _finish_replacement(self) -> None:
        """Puts what was written beside in its place, also if that was cut off before; removes it if it is not whole."""
        for step in manifest.committed_steps(self._beside):
            mark = manifest.name(step)
            files.remove(files.join(self._directory, mark))
            for name in sorted(manifest.parts(self._beside)[step], key=lambda name: name == mark):
                target = files.join(self._directory, name)
                files.remove(target)
                files.rename(files.join(self._beside, name), target)
        files.remove(self._beside)

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        return value > self.value if self._comp == "higher" else value < self.value


def _read_records(directory: str) -> dict[int, Any]:
    records = {}
    for step in manifest.committed_steps(directory):
        if damage := manifest.damage(directory, step, checksums=False):
            _logger.warning("%s is damaged: %s; its record does not count", manifest.prefix(directory, step), damage)
        else:
            records[step] = manifest.read(directory, step).extra
    return records


def _as_numbers(logs: Any) -> Any:
    """Returns nested logs with plain floats; what is not a scalar is left out."""
    if isinstance(logs, Mapping):
        return {k: v for k, v in ((k, _as_numbers(v)) for k, v in logs.items()) if v is not None}
    value = logs.numpy() if hasattr(logs, "numpy") else logs
    return float(value) if getattr(value, "ndim", 0) == 0 else None
