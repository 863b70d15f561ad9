"""Runs the trials of a sweep: draws, starts, continues and prunes them, until enough are complete.

Owns: which trial is next, one process at a time for each trial, and what its end means.
Does not own: drawing (`study.py`), forking (`processes/forked.py`), what is shown (`shown.py`).

Several drivers may work on a sweep. A driver holds the lock of the directory of each trial that it works on. A trial
that Optuna calls running, and whose lock is free, is one whose driver was killed: it is started with the same command,
and its run continues from its newest checkpoint, or finds that it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from official_trainer import files
from official_trainer.distributed import devices
from official_trainer.distributed.cluster import CHIEF, GIVEN_GPUS, given_gpus
from official_trainer.distributed.devices import VISIBLE_GPUS
from official_trainer.errors import ExitCode
from official_trainer.lock import DirectoryLock
from official_trainer.nearest import did_you_mean
from official_trainer.processes import forked
from official_trainer.processes.forked import ForkedProcess
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import End, Restarts, may_run_again
from official_trainer.runs.resume.config_changes import newest_step
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps import results
from official_trainer.sweeps.plan import Plan
from official_trainer.sweeps.settings import Objective, SweepError
from official_trainer.sweeps.shown import Shown
from official_trainer.sweeps.study import Draws, FileLock
from official_trainer.tracking import EVALUATION, record
from official_trainer.tracking.jsonl import numbers_of, read_rows
from official_trainer.tracking.monitored import find_metric

OUTPUT = "output.log"
REASON, STEP, REFUSED, PRUNED_AT = "reason", "step", "refused", "pruned_at"
"""Attributes of a trial: why it ended, at which step, that it never ran, where the pruner ended it."""

MOST_FAILURES = 5
"""So many trials may fail one after the other."""

_MOST_REFUSED = 100
"""So many draws may be refused one after the other."""

_LOOK_SECONDS = 0.5
_ERROR = re.compile(r"  (?! |called from |while )")
"""Begins the line of a report on the user's code that has the error; lines of the code are further to the right."""


@dataclasses.dataclass
class Work:
    """A trial that this driver works on.

    Attributes:
      trial: Optuna's.
      lock: of its directory.
      slot: its number among the trials that train at the same time.
      process: that trains it; None while it waits to be started again.
      restarts: counts how often it was started again.
      reported: the steps whose evaluations the pruner has seen.
      is_pruned: whether the pruner has ended it.
      start_seconds: when a process that waits is started.
      seen_bytes: how long `metrics.jsonl` was at the last look.
    """

    trial: optuna.Trial
    lock: DirectoryLock
    slot: int
    process: ForkedProcess | None = None
    restarts: Restarts = dataclasses.field(default_factory=Restarts)
    reported: set[int] = dataclasses.field(default_factory=set)
    is_pruned: bool = False
    start_seconds: float = -math.inf
    seen_bytes: int = -1


class Driver:
    """Runs trials of one sweep, which other drivers may run too."""

    def __init__(self, plan: Plan, draws: Draws, shown: Shown) -> None:
        """Takes what is done, what draws, and what shows it."""
        self._plan, self._draws, self._shown = plan, draws, shown
        self._study = draws.study
        self._drawing = FileLock(files.join(plan.directory, ".draw.lock"))
        self._environs = environments(plan.config.parallel, os.environ)
        self._locks: dict[int, DirectoryLock] = {}
        self._work: dict[int, Work] = {}
        self._num_before = len(self._trials())  # failures before this command do not end it
        self._is_waiting = False

    def run(self) -> None:
        """Runs trials until enough of them are complete or pruned.

        Raises:
          SweepError: trials fail one after the other, or an evaluation lacks the metric.
          PreemptedError: a signal came; the trials have saved.
        """
        with Signals() as signals, self._saving(signals):
            while self._fill() or self._work:
                self._wait(signals)
                for work in list(self._work.values()):
                    self._look(work)
                if signals.asked is not None:
                    self._save(signals, signals.asked)
                    done = f"{count_done(self._plan, self._trials())} of {self._plan.total} trials are done"
                    raise PreemptedError(f"{done}, the others have saved; the same command continues the sweep")

    # Which trial is next.

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _fill(self) -> bool:
        """Starts trials as long as there is room; returns whether there is more to do, here or elsewhere."""
        while True:
            trials = self._trials()
            refuse_more(trials, since=self._num_before)
            done = count_done(self._plan, trials)
            self._shown.count(done, self._plan.total)
            wants_more = done < self._plan.total
            used = {work.slot for work in self._work.values()}
            free = [slot for slot in range(self._plan.config.parallel) if slot not in used]
            if not wants_more or not free:
                return wants_more
            with self._drawing:
                work = self._next(free[0])
            if work is None:
                if not self._work and not self._is_waiting:
                    self._shown.say("waiting: other processes work on the trials that are left")
                self._is_waiting = not self._work
                return True
            self._begin(work)

    def _next(self, slot: int) -> Work | None:
        """Returns a trial that no driver works on, with the lock of its directory; None if there is none to begin.

        Only one driver at a time is in here, so no two draw at the same time.
        """
        trials = self._trials()
        for frozen in trials:
            is_other = frozen.state == TrialState.RUNNING and frozen.number not in self._work
            if is_other and (lock := self._claimed(frozen.number)) is not None:
                work = Work(self._draws.draw(frozen), lock, slot, reported=set(frozen.intermediate_values))
                work.is_pruned = PRUNED_AT in frozen.user_attrs
                return work
        running = sum(trial.state == TrialState.RUNNING for trial in trials)
        if count_done(self._plan, trials) + running >= self._plan.total:
            return None
        trial = self._draws.draw()
        lock = self._claimed(trial.number)
        if lock is None:
            raise SweepError(f"{self._directory(trial.number)} is in use by another program; end it", ExitCode.RETRY)
        return Work(trial, lock, slot)

    def _claimed(self, number: int) -> DirectoryLock | None:
        """Returns the lock of a running trial's directory, if it is free; on another machine, that shows after a while.

        After this driver has read the trials, that of the trial may have ended it, and given the lock back.
        """
        files.make_dirs(self._directory(number))
        lock = self._locks.setdefault(number, DirectoryLock(self._directory(number)))
        if not lock.try_acquire():
            return None
        if self._trials()[number].state == TrialState.RUNNING:
            return lock
        lock.release()
        return None

    def _directory(self, number: int) -> str:
        return files.join(self._plan.directory, results.folder_of(number))

    def _run_directory(self, work: Work) -> str:
        return files.join(self._plan.directory, results.run_of(work.trial.number))

    # What happens to a trial.

    def _begin(self, work: Work) -> None:
        """Starts a trial, unless its end is clear."""
        self._work[work.trial.number] = work
        if work.is_pruned:
            self._end_pruned(work)
        elif reason := self._plan.refusal(work.trial.params):
            self._end(work, TrialState.PRUNED, reason, facts={REFUSED: True})
        else:
            continues = newest_step(self._run_directory(work)) is not None
            self._shown.start(work.trial.number, work.trial.params, continues=continues)
            self._start(work)

    def _start(self, work: Work) -> None:
        argv = self._plan.experiment.command(
            "train", self._run_directory(work), self._plan.space.overrides(work.trial.params)
        )
        output = files.join(self._directory(work.trial.number), OUTPUT)
        work.process = ForkedProcess(argv, environ={**os.environ, **self._environs[work.slot]}, output=output)

    def _wait(self, signals: Signals) -> None:
        """Waits for the end of a process or a signal, but not for long; then takes what came."""
        running = [work.process for work in self._work.values() if work.process is not None]
        forked.wait(running, signals.fileno(), seconds=_LOOK_SECONDS)
        signals.read()

    def _look(self, work: Work) -> None:
        """Reads new evaluations of a trial, and does what its state asks for."""
        if work.lock.loss is not None:
            self._shown.say(f"trial {work.trial.number} was taken over by another driver")
            self._drop(work)
            return
        if work.process is None:
            if time.monotonic() >= work.start_seconds:
                self._start(work)
            return
        code = work.process.exit_code()
        self._report(work)
        if code is None:
            return
        work.process = None
        if work.is_pruned:
            self._end_pruned(work)
        elif may_run_again(code):
            self._start_again(work, code)
        else:
            self._judge(work, code)

    def _report(self, work: Work) -> None:
        """Has the pruner judge new evaluations, in their order."""
        path = files.join(self._run_directory(work), "metrics.jsonl")
        if work.is_pruned or not files.exists(path) or (size := files.size_bytes(path)) == work.seen_bytes:
            return
        work.seen_bytes = size
        for step, value in evaluations(path, self._plan.objective):
            if step in work.reported or math.isnan(value):
                continue
            work.reported.add(step)
            work.trial.report(value, step)
            self._shown.report(work.trial.number, step, value)
            if self._plan.config.pruner is not None and work.trial.should_prune():
                work.is_pruned = True
                work.trial.set_user_attr(PRUNED_AT, step)
                if work.process is not None:
                    work.process.terminate()
                return

    def _start_again(self, work: Work, code: int) -> None:
        how = _how(work, code)
        seconds = work.restarts.next(newest_step(self._run_directory(work)))
        if isinstance(seconds, str):
            self._end(work, TrialState.FAIL, f"{how}; {seconds}")
            return
        work.start_seconds = time.monotonic() + seconds
        self._shown.say(f"trial {work.trial.number} {how}; it continues in {seconds:g} s")

    def _judge(self, work: Work, code: int) -> None:
        """Ends a trial whose process has ended by itself."""
        run = self._run_directory(work)
        if code == ExitCode.NON_FINITE:
            record.mark_pruned(run)
            self._end(work, TrialState.PRUNED, "the loss is not finite")
        elif code:
            self._end(work, TrialState.FAIL, failure(self._directory(work.trial.number), _how(work, code)))
        elif (record.read_run(run) or {}).get("status") == "running":
            what = "its process ended with exit code 0 in the middle of the run; look for os._exit in your code"
            self._end(work, TrialState.FAIL, what)
        elif (best := counted(files.join(run, "metrics.jsonl"), self._plan.objective)) is None:
            self._end(work, TrialState.PRUNED, f"{self._plan.objective.metric} is NaN in every evaluation")
        else:
            self._end(work, TrialState.COMPLETE, value=best[1], facts={STEP: best[0]})

    def _end_pruned(self, work: Work) -> None:
        """Ends a trial that the pruner has ended, and whose process is gone."""
        record.mark_pruned(self._run_directory(work))
        pruner: Any = self._plan.config.pruner
        self._end(work, TrialState.PRUNED, f"by {pruner if isinstance(pruner, str) else pruner['type']}")

    def _end(
        self,
        work: Work,
        state: TrialState,
        reason: str = "",
        *,
        value: float | None = None,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Tells Optuna how a trial has ended, with why, and further attributes."""
        for name, fact in facts.items():
            work.trial.set_user_attr(name, fact)
        if reason:
            work.trial.set_user_attr(REASON, reason)
        self._study.tell(work.trial.number, value, state=state)
        self._shown.end(self._trials()[work.trial.number])
        self._drop(work)

    def _drop(self, work: Work) -> None:
        del self._work[work.trial.number]
        if work.process is not None:
            work.process.kill()
        work.lock.release()

    # The end of the driver.

    @contextlib.contextmanager
    def _saving(self, signals: Signals) -> Iterator[None]:
        """However the sweep ends, the trials that run save, and no process is left."""
        try:
            yield
        except SweepError:
            self._save(signals, "the sweep ends")
            raise
        finally:
            for work in list(self._work.values()):
                self._drop(work)

    def _save(self, signals: Signals, why: str) -> None:
        """Returns when all trials have saved and ended, or were killed."""
        running = [work.process for work in self._work.values() if work.process is not None]
        if running:
            what = f"{len(running)} trial{'s' if len(running) > 1 else ''} to save"
            self._shown.say(f"{why}: waiting up to {self._plan.grace_seconds:g} s for {what}")
        end = time.monotonic() + self._plan.grace_seconds
        for process in running:
            process.terminate()
        while running := [process for process in running if process.exit_code() is None]:
            forked.wait(running, signals.fileno(), seconds=_LOOK_SECONDS)
            signals.read()
            if signals.insisted or time.monotonic() > end:
                for process in running:
                    process.kill()


def environments(parallel: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns for each trial that trains at the same time the variables by which it sees its GPUs alone.

    Each gets as many as any other; where there are fewer GPUs than trials, several share one.
    """
    gpus = devices.gpus(environ) if parallel > 1 else ()
    if not gpus:
        return [{} for _ in range(parallel)]
    share = max(1, len(gpus) // parallel)
    count = given_gpus(environ)
    given = {GIVEN_GPUS: str(min(count, share))} if count else {}
    firsts = [slot * share % len(gpus) for slot in range(parallel)]
    return [{VISIBLE_GPUS: ",".join(gpus[first : first + share]), **given} for first in firsts]


def count_done(plan: Plan, trials: Sequence[FrozenTrial]) -> int:
    """Returns how many trials count: those that were trained to their end, or pruned."""
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    if plan.is_exhaustive:
        return sum(trial.state.is_finished() for trial in trials)
    return sum(trial.state in ended and REFUSED not in trial.user_attrs for trial in trials)


def refuse_more(trials: Sequence[FrozenTrial], *, since: int) -> None:
    """Returns if a sweep may go on after its failures.

    Args:
      trials: of the sweep.
      since: the first one that this command has begun; failures of earlier ones do not count.

    Raises:
      SweepError: too many trials failed one after the other, or too many draws were refused.
    """
    ended = [trial for trial in trials if trial.state.is_finished()]
    failed = [trial for trial in ended if trial.number >= since][-MOST_FAILURES:]
    refused = ended[-_MOST_REFUSED:]
    if len(failed) == MOST_FAILURES and all(trial.state == TrialState.FAIL for trial in failed):
        raise SweepError(
            f"the last {MOST_FAILURES} trials failed; the last one: {failed[-1].user_attrs.get(REASON)}\nMend the "
            "cause; the same command as before then goes on with other trials",
            ExitCode.FAILED,
        )
    if len(refused) == _MOST_REFUSED and all(REFUSED in trial.user_attrs for trial in refused):
        raise SweepError(
            f"the experiment refuses all of the last {_MOST_REFUSED} draws; the last one: "
            f"{refused[-1].user_attrs.get(REASON)}\nNarrow the space in a new sweep, with another --model_dir"
        )


def evaluations(path: str, objective: Objective) -> Iterator[tuple[int, float]]:
    """Yields the step of each evaluation, and its value of the metric that is compared.

    Args:
      path: of `metrics.jsonl`.
      objective: what is compared.

    Raises:
      SweepError: an evaluation lacks the metric.
    """
    for row in read_rows(path):
        if row["split"] != EVALUATION:
            continue
        numbers = numbers_of(row)
        value = find_metric(numbers, objective.metric)
        if value is None:
            what = f"{objective.metric!r} is compared, and the evaluation produces {', '.join(sorted(numbers))}"
            fix = "Name one of these in a new sweep, with another --model_dir"
            raise SweepError(f"objective: {what}{did_you_mean(objective.metric, numbers)}. {fix}")
        yield row["step"], value


def counted(path: str, objective: Objective) -> tuple[int, float] | None:
    """Returns the evaluation that counts of a trial that is done; None if it is NaN in each; see `evaluations`.

    Raises:
      SweepError: there is none, which would be so for other trials too.
    """
    rows = list(evaluations(path, objective)) if files.exists(path) else []
    if not rows:
        raise SweepError(f"{path} has no evaluation, so the trial cannot be compared; set task.validation_data")
    comparable = [(step, value) for step, value in rows if not math.isnan(value)]
    if not comparable or objective.evaluation == "last":
        return comparable[-1] if comparable else None
    best_of = max if objective.direction == "max" else min
    return best_of(comparable, key=lambda row: row[1])


def failure(trial_dir: str, how: str) -> str:
    """Returns why a trial failed, in one line: by the record of its run, else by the last line that it printed.

    Args:
      trial_dir: directory of the trial.
      how: how its process ended, in words.
    """
    report = str((record.read_run(files.join(trial_dir, results.RUN)) or {}).get("error") or "").splitlines()
    output = files.join(trial_dir, OUTPUT)
    if report:
        error = next((line[2:] for line in report[1:] if _ERROR.match(line)), "")
        return f"{': '.join(filter(None, [report[0].rstrip(':'), error]))}; see {output}"
    printed = files.read_bytes(output).decode(errors="replace").splitlines() if files.exists(output) else []
    last = next((line for line in reversed(printed) if line.startswith("error: ")), printed[-1] if printed else "")
    return f"{how}: {last.removeprefix('error: ')}; see {output}"


def _how(work: Work, code: int) -> str:
    return End(name=f"trial {work.trial.number}", role=CHIEF, code=code).how
