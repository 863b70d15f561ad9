"""A report of a step whose loss is not finite: its batch, and statistics of every tensor.

Owns: the files `non_finite/step-N/{report.json, batch.npz}` of a run directory. Does not own: finding the step
(`recovery.py`).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from official_trainer import files
from official_trainer.lazy import tf
from official_trainer.tracking.jsonl import encode

_logger = logging.getLogger(__name__)

DIRECTORY = "non_finite"


class Diagnosis:
    """Examines a failed step with the trainer."""

    def __init__(self, model_dir: str, trainer: Any) -> None:
        self._directory = files.join(model_dir, DIRECTORY)
        self._trainer = trainer

    def first_bad_batch(self, good_step: int, failed_step: int) -> int | None:
        """Returns the first step after `good_step`, up to `failed_step`, whose batch has a value that is not finite."""
        batches = self._trainer.train_iterator.batches(good_step)
        for step, batch in zip(range(good_step + 1, failed_step + 1), batches, strict=False):
            described = _describe(dict(_leaves(list(self._parts(batch)))))
            if any(tensor.get("not_finite") for tensor in described.values()):
                return step
        return None

    def write(self, step: int, *, is_culprit: bool) -> str:
        """Writes a report and returns the directory it is in.

        Args:
          step: the step that failed, or at which the failure was found.
          is_culprit: whether it is known that the batch of this step fails. Then the batch is saved, and, if the
            trainer is in the state just before it, run once more to get its gradients, without an update.
        """
        directory = files.join(self._directory, f"step-{step}")
        files.make_dirs(directory)
        weights = {variable.name: variable for variable in self._trainer.model.variables}
        report: dict[str, Any] = {"step": step, "weights": _describe(weights)}
        if is_culprit:
            parts = self._parts(next(self._trainer.train_iterator.batches(step - 1)))
            tensors = {f"replica_{i}/{name}": value for i, part in enumerate(parts) for name, value in _leaves(part)}
            _write_batch(files.join(directory, "batch.npz"), tensors)
            report["batch"] = _describe(tensors)
            if int(self._trainer.global_step.numpy()) == step - 1:
                report |= self._run_again(parts[0])
        files.write_text_atomically(files.join(directory, "report.json"), json.dumps(report, indent=1) + "\n")
        return directory

    def _parts(self, batch: Any) -> tuple[Any, ...]:
        return self._trainer.strategy.experimental_local_results(batch)

    def _run_again(self, batch: Any) -> dict[str, Any]:
        """Runs the task's step on a batch, eagerly, without an update, as with one replica."""
        recorder = _Recorder(self._trainer.optimizer)
        try:
            logs = self._trainer.task.train_step(batch, model=self._trainer.model, optimizer=recorder, metrics=[])
        except Exception as error:  # a task's step may raise anything: the report continues without this part
            return {"not_run_again": f"{type(error).__name__}: {error}"}
        return {"logs": _describe(dict(_leaves(logs))), "gradients": _describe(recorder.gradients)}


class _Recorder:
    """Replaces the optimizer in a step that must change nothing: keeps the gradients that the step passes to it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.gradients: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> None:
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                self.gradients[variable.name] = tf.convert_to_tensor(gradient)


def _leaves(structure: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested tensors with a path each: `0/image`."""
    if isinstance(structure, Mapping):
        items: Any = structure.items()
    elif isinstance(structure, tuple | list):
        items = enumerate(structure)
    else:
        yield prefix or "value", structure
        return
    for name, value in items:
        yield from _leaves(value, f"{prefix}/{name}" if prefix else str(name))


def _write_batch(path: str, tensors: Mapping[str, Any]) -> None:
    arrays: dict[str, Any] = {name.replace("/", "."): _as_array(value) for name, value in tensors.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    files.write_bytes_atomically(path, buffer.getvalue(), durable=False)


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "to_tensor"):  # ragged
        value = value.to_tensor()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return np.asarray(tf.convert_to_tensor(value))


def _describe(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns shape, dtype, how many values are not finite, and the range of those that are, for each tensor."""
    described: dict[str, dict[str, Any]] = {}
    for name, value in tensors.items():
        array = _as_array(value)
        described[name] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
            continue
        array = array.astype(np.float64)
        finite = array[np.isfinite(array)]
        described[name]["not_finite"] = int(array.size - finite.size)
        if finite.size:
            described[name] |= {"min": encode(float(finite.min())), "max": encode(float(finite.max()))}
            described[name]["mean_absolute"] = encode(float(np.abs(finite).mean()))
    return described
