"""The best checkpoints: the evaluated weights with the best values of one metric, kept across restarts.

Owns: which of them count while a run repeats steps, and the files that repeat the records for other tools: `info.json`
for Model Garden's, TensorFlow's pointer for the others.
Does not own: evaluating (`engine/evaluation.py`), saving and deleting them (`kept.py`), the ranking (`retention.py`).

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
from official_trainer.checkpoints.directory import POINTER, CheckpointDirectory, finish_replacement, pointer_text
from official_trainer.checkpoints.kept import KeptCheckpoints, has_value
from official_trainer.checkpoints.manifest import RunFacts
from official_trainer.checkpoints.retention import Candidate, Retention
from official_trainer.lazy import tf
from official_trainer.tracking.monitored import DIRECTIONS, Rule, find_value, is_nan, numbers

_logger = logging.getLogger(__name__)


class BestCheckpoint(KeptCheckpoints):
    """Keeps the best checkpoints in one folder, as `ckpt-STEP`; Model Garden's exporter contract.

    What is saved is the model as it was evaluated, with averaged weights if there are any, and the global step.

    Size: the methods of a set of checkpoints, and what Model Garden's Trainer and the run's records ask.

    Attributes:
      metric: name of the metric that decides.
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
        self.metric = metric
        self._on_new_best: Callable[[int, Mapping[str, Any]], None] | None = None
        self._returns_to: Callable[[], Collection[int]] = tuple
        self._was_nan = False  # the value of the last evaluation of this process
        self._reached: int | None = None  # the step of the last evaluation of this process; None before the first
        policy = Retention(monitor=metric, direction=DIRECTIONS[comp], max_to_keep=max_to_keep)
        super().__init__(directory, policy, run=run)

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The best checkpoints of the steps that the run has reached, the very best first."""
        return tuple(filter(has_value, self.policy.kept(self._reached_ones())))

    @property
    def step(self) -> int | None:
        """The global step of the very best checkpoint."""
        return self.kept[0].step if self.kept else None

    @property
    def named_step(self) -> int | None:
        """The global step of the very best checkpoint by a rule that is not known here, as it was named last."""
        by_rule = [one.step for one in self._candidates if find_value(one.logs, self.metric, lambda *_: False)]
        path = files.join(self.directory, garden.INFO)
        named = files.read_json(path).get(garden.BEST_STEP) if by_rule and files.exists(path) else None
        return int(named) if named in by_rule else max(by_rule, default=None)

    @property
    def best_ckpt_logs(self) -> Mapping[str, Any] | None:
        """The evaluation's results at the very best checkpoint."""
        return self.kept[0].logs if self.kept else None

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
            self._candidates = self._read()
        self._on_new_best, self._returns_to = on_new_best, returns_to

    def maybe_export_checkpoint(self, checkpoint: tf.train.Checkpoint, eval_logs: Any, global_step: int) -> bool:
        """Saves the model if `eval_logs` are among the best; returns whether they are."""
        self._candidates = self._read()  # one may have been deleted by hand
        self._reached = step = int(global_step)  # Model Garden's Trainer has NumPy's
        new = self.candidate(f"ckpt-{step}", step, numbers(eval_logs))
        self._note_nan(new)
        is_among_best = self.takes(new)
        if is_among_best:
            self.save(new, tf.train.Checkpoint(global_step=checkpoint.global_step, model=checkpoint.model))
        else:
            self._delete_others(self._folders())
        if is_among_best and self._on_new_best is not None and step == self.step:
            self._on_new_best(step, new.logs)
        return is_among_best

    def drop_after(self, step: int) -> tuple[int, ...]:
        """Deletes the best checkpoints of later steps, which a run that was rolled back never reached; returns them."""
        finish_replacement(self.directory)
        later = tuple(later_step for later_step in sorted(manifest.files_by_step(self.directory)) if later_step > step)
        for later_step in later:
            CheckpointDirectory(self.directory).delete(later_step)
        self.tidy()
        if self.step is None and garden.best(self.directory) is None:
            for name in (garden.INFO, POINTER):
                files.remove(files.join(self.directory, name))
        return later

    def _note_nan(self, new: Candidate) -> None:
        """Warns of a value that is NaN, once until there is a number again."""
        was_nan, self._was_nan = self._was_nan, new.value is not None and is_nan(new.value)
        if self._was_nan and not was_nan:
            _logger.warning(
                "%s is NaN at step %s, so this checkpoint cannot be the best by trainer.best_checkpoint_eval_metric; "
                "the metric divides by zero, or the model's outputs are not finite",
                self.metric,
                new.step,
            )

    def _read(self) -> list[Candidate]:
        """Returns what is there, with what Model Garden's driver has left."""
        candidates = super()._read()
        if (theirs := garden.best(self.directory)) is not None:
            prefix, step, logs = theirs
            if all(one.step != step for one in candidates):
                candidates.append(self.candidate(files.base_name(prefix), step, logs))
        return candidates

    # What counts while steps are repeated.

    def _is_ahead(self, candidate: Candidate) -> bool:
        """Whether the run has yet to reach the step of a checkpoint; that of Model Garden counts at any, as there."""
        return _is_ours(candidate) and self._reached is not None and candidate.step > self._reached

    def _reached_ones(self) -> list[Candidate]:
        return [one for one in self._candidates if not self._is_ahead(one)]

    def _needed(self) -> list[Candidate]:
        if self.step is None:  # they are of another metric, until there is one of this
            return self._candidates
        reached = self._reached_ones()
        # The best of now, and of those times to which the run may go back.
        times = [reached, *([one for one in reached if one.step <= step] for step in self._returns_to())]
        steps = {one.step for candidates in times for one in self.policy.kept(candidates) if has_value(one)}
        return [one for one in self._candidates if one.step in steps or self._is_ahead(one)]

    def _keep_only(self, folder: str, steps: Collection[int]) -> None:
        """Deletes the other checkpoints, and names the very best one, unless there is none."""
        if (best_ones := self.kept) == ():
            return
        files.remove_temporaries(folder, garden.INFO)
        _write_if_changed(files.join(folder, garden.INFO), garden.info(best_ones[0].step, best_ones[0].logs))
        super()._keep_only(folder, steps)
        if any(map(_is_ours, best_ones)):
            # TensorFlow's pointer names the newest; a tool that follows it into this directory wants the best.
            names = [one.name for one in best_ones]
            _write_if_changed(files.join(folder, POINTER), pointer_text(names[0], reversed(names)))


def _is_ours(candidate: Candidate) -> bool:
    return candidate.name == f"ckpt-{candidate.step}"


def _write_if_changed(path: str, text: str) -> None:
    if not files.exists(path) or files.read_bytes(path) != text.encode():
        files.write_text_atomically(path, text, durable=False)
