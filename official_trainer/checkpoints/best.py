"""The best checkpoints: the evaluated weights with the best values of one metric, kept across restarts.

Owns: that the record of a best value never exists without its checkpoint: the record is the checkpoint's manifest.
`info.json` repeats that of the very best for Model Garden's tools.
Does not own: evaluating (`engine/evaluation.py`), the format of checkpoints (`directory.py`), the ranking
(`retention.py`).

A better one is committed before a worse one is deleted, so whenever this process dies, the best are there and rank as
before. A better evaluation of the same step is written to a folder of its own and then takes the old one's place.
A run that goes on from an earlier step than its last evaluation finds best checkpoints of later steps. They stay, but
do not count before the run has reached them again; and those that were the best at a step to which the run may go back
stay until it cannot any more. So its numbers are those of a run that was never interrupted.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from official_trainer import files
from official_trainer.checkpoints import garden, manifest
from official_trainer.checkpoints.directory import (
    POINTER,
    REPLACEMENT,
    CheckpointDirectory,
    finish_replacement,
    pointer_text,
)
from official_trainer.checkpoints.manifest import RunFacts
from official_trainer.checkpoints.retention import Candidate, Retention
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import DIRECTIONS, Rule, Value, find_value, is_nan, numbers

_logger = logging.getLogger(__name__)


class BestCheckpoint:
    """Keeps the best checkpoints in a store of their own; Model Garden's exporter contract.

    What is saved is the model as it was evaluated, with averaged weights if there are any, and the global step.

    Attributes:
      directory: where the best checkpoints are.
      metric: name of the metric that decides.
      policy: which of them are kept.
    """

    def __init__(
        self,
        directory: str,
        *,
        metric: str,
        comp: str,
        max_to_keep: int = 1,
        run: RunFacts | None = None,
    ) -> None:
        """Reads the records of an earlier process; changes nothing.

        Args:
          directory: where the best checkpoints are kept.
          metric: name of the metric; `a|b` names `b` inside `a`.
          comp: `higher` or `lower`.
          max_to_keep: how many are kept.
          run: about the run, for the manifests.
        """
        assert max_to_keep >= 1, max_to_keep
        self.directory, self.metric = str(directory), metric
        self.policy = Retention(monitor=metric, direction=DIRECTIONS[comp], max_to_keep=max_to_keep)
        self._run = run
        self._on_new_best: Callable[[int, Mapping[str, Any]], None] | None = None
        self._returns_to: Callable[[], Collection[int]] = tuple
        self._was_nan = False  # the value of the last evaluation of this process
        self._reached: int | None = None  # the step of the last evaluation of this process; None before the first
        self._records = self._read_records()
        replacements = files.join(directory, REPLACEMENT)
        for step in manifest.committed_steps(replacements):  # some of its files may be in their place already
            self._records[step] = manifest.read(replacements, step).extra

    @property
    def steps(self) -> tuple[int, ...]:
        """The global steps of the best checkpoints, the very best first."""
        return tuple(candidate.step for candidate in self.policy.kept(self._found()))

    @property
    def step(self) -> int | None:
        """The global step of the very best checkpoint."""
        return next(iter(self.steps), None)

    @property
    def named_step(self) -> int | None:
        """The global step of the very best checkpoint by a rule that is not known here, as it was named last."""
        by_rule = [
            s for s, r in self._records.items() if r.get("metric") == self.metric and isinstance(r["value"], dict)
        ]
        path = files.join(self.directory, garden.INFO)
        named = files.read_json(path).get(garden.BEST_STEP) if by_rule and files.exists(path) else None
        return int(named) if named in by_rule else max(by_rule, default=None)

    @property
    def best(self) -> tuple[str, int] | None:
        """The directory and the step of the very best checkpoint."""
        return None if self.step is None else (self.directory, self.step)

    @property
    def value(self) -> Value | None:
        """The best value so far."""
        return None if self.step is None else self._records[self.step]["value"]

    @property
    def lacks(self) -> str:
        """Why there is no best checkpoint after the evaluations of this process; empty if there is one."""
        is_missing = self._was_nan and self.step is None
        return f"no best checkpoint was kept: {self.metric} was NaN in every evaluation" if is_missing else ""

    @property
    def best_ckpt_logs(self) -> dict[str, Any] | None:
        """The evaluation's results at the very best checkpoint."""
        return None if self.step is None else self._records[self.step]["logs"]

    def observe(
        self,
        on_new_best: Callable[[int, Mapping[str, Any]], None] | None,
        returns_to: Callable[[], Collection[int]] = tuple,
        rule: Rule | None = None,
    ) -> None:
        """Takes functions of the run.

        Args:
          on_new_best: called with the step and the logs of each new very best checkpoint, after it is committed, while
            the evaluated weights are still in the model; again if a process died before the call.
          returns_to: returns the steps to which the run may go back.
          rule: which of two evaluations is better, by the numbers inside `metric`; None if a number decides.
        """
        if rule is not None:
            self.policy = dataclasses.replace(self.policy, direction=rule)
        self._on_new_best, self._returns_to = on_new_best, returns_to

    def maybe_export_checkpoint(self, checkpoint: tf.train.Checkpoint, eval_logs: Any, global_step: int) -> bool:
        """Saves the model if `eval_logs` are among the best; returns whether they are."""
        self._read()
        self._reached = global_step = int(global_step)  # Model Garden's Trainer has NumPy's
        logs = numbers(eval_logs)
        new = _candidate(global_step, find_value(logs, self.metric, self.policy.direction))
        self._note_nan(new)
        candidates = self._found()
        is_among_best = self.policy.takes(new, candidates)
        if is_among_best and new not in candidates:  # it is there if a process died after the save
            evaluated = tf.train.Checkpoint(global_step=checkpoint.global_step, model=checkpoint.model)
            record = {"metric": self.metric, "value": new.value, "logs": logs}
            store = CheckpointStore(self.directory, evaluated, max_to_keep=None, run=self._run)
            store.save(global_step, record, overwrite=True)
        self.tidy()
        if is_among_best and self._on_new_best is not None and global_step == self.step:
            self._on_new_best(global_step, logs)
        return is_among_best

    def _note_nan(self, new: Candidate) -> None:
        """Warns of a value that is NaN, once until there is a number again."""
        was_nan, self._was_nan = self._was_nan, new.value is not None and is_nan(new.value)
        if self._was_nan and not was_nan:
            _logger.warning(
                "%s is NaN at step %s, so this checkpoint cannot be the best by trainer.best_checkpoint_eval_metric; "
                "the metric divides by zero, or the model's outputs are not finite",
                self.metric,
                new.name,
            )

    def tidy(self) -> None:
        """Deletes what is not among the best any more, and will not be, and names the very best one.

        For the start of a run: a lowered `max_to_keep` holds at once, and what a process that died left is done.
        """
        self._read()
        if self.step is None:
            return
        files.remove_temporaries(self.directory, garden.INFO)
        _write_if_changed(files.join(self.directory, garden.INFO), garden.info(self.step, self.best_ckpt_logs or {}))
        directory, candidates = CheckpointDirectory(self.directory), self._found()
        # The best of now, and of those times to which the run may go back.
        times = [candidates, *([one for one in candidates if one.step <= step] for step in self._returns_to())]
        needed = {one.step for candidates_then in times for one in self.policy.kept(candidates_then)}
        for step in manifest.parts(self.directory).keys() - needed:
            if self._has_reached(step):
                directory.delete(step)
        directory.tidy()
        if not any(map(self._is_ours, self.steps)):
            return
        # TensorFlow's pointer names the newest; a tool that follows it into this directory wants the best.
        best_first = [files.base_name(manifest.find(self.directory, step)) for step in self.steps]
        _write_if_changed(files.join(self.directory, POINTER), pointer_text(best_first[0], reversed(best_first)))

    def drop_after(self, step: int) -> tuple[int, ...]:
        """Deletes the best checkpoints of later steps, which a run that was rolled back never reached; returns them."""
        finish_replacement(self.directory)
        later = tuple(later_step for later_step in sorted(manifest.parts(self.directory)) if later_step > step)
        for later_step in later:
            CheckpointDirectory(self.directory).delete(later_step)
        self.tidy()
        if self.step is None and garden.best(self.directory) is None:
            for name in (garden.INFO, POINTER):
                files.remove(files.join(self.directory, name))
        return later

    def _read(self) -> None:
        finish_replacement(self.directory)
        self._records = self._read_records()

    def _read_records(self) -> dict[int, Any]:
        """Returns step → record of ours, and of the best checkpoint of Model Garden, chosen by the same metric."""
        records = read_records(self.directory)
        if (theirs := garden.best(self.directory)) is not None and theirs[1] not in records:
            _, step, logs = theirs
            if (value := find_value(logs, self.metric, self.policy.direction)) is not None:
                records[step] = {"metric": self.metric, "value": value, "logs": logs}
        return records

    def _is_ours(self, step: int) -> bool:
        return files.exists(files.join(self.directory, manifest.name(step)))

    def _found(self) -> list[Candidate]:
        """Returns what is saved; records of another metric, of NaN and of steps yet to be reached do not count.

        That of Model Garden counts at any step, as it does there.
        """
        return [
            _candidate(step, record["value"])
            for step, record in self._records.items()
            if self._counts(record) and (self._has_reached(step) or not self._is_ours(step))
        ]

    def _counts(self, record: Mapping[str, Any]) -> bool:
        if record.get("metric") != self.metric or is_nan(record["value"]):
            return False
        return isinstance(record["value"], Mapping) == callable(self.policy.direction)

    def _has_reached(self, step: int) -> bool:
        return self._reached is None or step <= self._reached


def _candidate(step: int, value: Value | None) -> Candidate:
    return Candidate(name=str(step), step=step, value=value)


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
