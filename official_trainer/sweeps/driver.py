"""Runs the trials of a sweep: starts, continues, prunes and records them, until enough are complete.

Owns: one process at a time for each trial, forked from one that has imported TensorFlow; what its end means.
Does not own: drawing and pruning (`study.py`), records (`trial.py`), the starter (`processes/children.py`).

A trial without an end on record is started with the same command, whatever happened to it: its run continues from its
newest checkpoint, or finds that it is done. Each evaluation is read from `metrics.jsonl`, and the pruner asked about
it, in their order, also when the trial has gone on meanwhile, so its answers do not depend on time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sched
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.config import Problem, lines
from official_trainer.distributed.cluster import CHIEF
from official_trainer.errors import ExitCode
from official_trainer.processes.children import Process, Processes, Starter, preloaded
from official_trainer.processes.job import Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.starter import Slot
from official_trainer.processes.verdict import End, Restarts, may_run_again
from official_trainer.runs.resume.config_changes import newest_step
from official_trainer.stopping import PreemptedError
from official_trainer.sweeps import ranking, rehearsal, tensorboard
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.claims import SETTLE_SECONDS, ClaimLostError, Claims
from official_trainer.sweeps.course import Course, drawn
from official_trainer.sweeps.failures import Failure, failure_of, refuse_more, unfinished
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.ranking import Evaluation
from official_trainer.sweeps.requests import STOP, StopRequest
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.slots import Slots
from official_trainer.sweeps.space import Value
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial, describe
from official_trainer.tracking import record
from official_trainer.tracking.jsonl import read_rows

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 2.0
"""How often a driver looks at the trials of others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep does.

    Attributes:
      directory: of the sweep.
      config: the file of the sweep.
      study: draws and prunes.
      objective: what trials are compared by.
      identity: what may not change while the sweep lasts; `trials` and `parallel` may.
      command: returns the command of a trial, a module and its arguments, for its run directory and its values.
      check: returns the command that tries a trial with values without training it; empty for none.
      refusal: returns why the experiment's config refuses values; None if it takes them.
      course: which trials there are.
      grace_seconds: how long a trial may save after a signal.
      joins: whether drivers on other machines may work on the same sweep.
    """

    directory: str
    config: SweepConfig
    study: Study
    objective: Objective
    identity: Mapping[str, Any]
    command: Callable[[str, Mapping[str, Value]], Sequence[str]]
    check: Callable[[Mapping[str, Value]], Sequence[str]]
    refusal: Callable[[Mapping[str, Value]], Problem | None]
    course: Course
    grace_seconds: float
    joins: bool = False


class Driver:
    """Runs trials of one sweep, which other drivers may run too; each trial is claimed."""

    def __init__(self, plan: Plan, observer: Observer, slots: Slots, found: Mapping[int, Trial]) -> None:
        """Takes what is done, what shows it, the devices of trials, and those that are on record."""
        self._plan, self._study, self._observer, self._slots = plan, plan.study, observer, slots
        self._trials = dict(found)
        self._running: dict[int, Process] = {}
        self._evaluations: dict[int, list[Evaluation]] = {}
        self._seen_bytes: dict[int, int] = {}  # of the metrics of trials, so that each look does not read all of them
        self._timers = sched.scheduler()
        self._claims = Claims(plan.directory, settle_seconds=SETTLE_SECONDS if plan.joins else 0.0)
        self._look_seconds = -math.inf  # when to read the records again
        self._is_waiting = False

    def run(self) -> dict[int, Trial]:
        """Runs trials until enough of them are complete or pruned; returns all.

        Raises:
          SweepError: trials fail one after the other, or the evaluation lacks the metric.
          PreemptedError: a signal came; the trials have saved.
        """
        self._observer.know(self._trials)
        self._claims.clean_up(number for number, each in self._trials.items() if each.state is not None)
        if not self._wants_more():
            return self._trials
        for line in self._slots.lines():
            self._observer.say(line)
        with contextlib.ExitStack() as held:
            held.enter_context(self._claims)
            request = StopRequest(self._plan.directory)
            signals, starter = held.enter_context(Signals()), held.enter_context(Starter(preload=preloaded()))
            processes = held.enter_context(Processes(starter, signals))
            held.enter_context(self._saving(processes, signals))
            is_left = self._fill(processes, signals)
            while is_left or self._running:
                found = processes.wait(_POLL_SECONDS)
                self._timers.run(blocking=False)
                self._observer.look()
                for number, process in list(self._running.items()):
                    self._while_claimed(process, processes, functools.partial(self._watch, number, processes))
                if found is not None and found[1] is not None:
                    self._ended(found[0], found[1], processes, was_asked=signals.asked is not None)
                signals.read()
                if signals.asked is None and request.came():
                    signals.asked = STOP
                if signals.asked is not None:
                    self._stop(processes, signals)
                    break
                is_left = self._fill(processes, signals)
        return self._trials

    # Which trials are this process's.

    def _while_claimed(self, process: Process, processes: Processes, act: Callable[[], None]) -> None:
        """Does something to a trial by its process, which is killed if another driver has taken the trial over."""
        number = process.member.index
        if self._running.get(number) is not process:
            return
        try:
            self._claims.check(number)
            act()
        except ClaimLostError as lost:
            self._observer.say(f"{lost}; it is not trained here any more")
            del self._running[number]
            processes.kill(process)
            process.lines.end()
            self._claims.release(number)

    def _ended(self, process: Process, code: int, processes: Processes, *, was_asked: bool) -> None:
        number = process.member.index
        end = functools.partial(self._on_end, process, code, processes, was_asked=was_asked)
        self._while_claimed(process, processes, end)
        if number not in self._running:
            self._claims.release(number)
            self._claims.clean_up([number])  # of a process that was killed as it saved
        self._look_seconds = -math.inf  # at once

    # How many.

    def _wants_more(self) -> bool:
        is_asked_again = any(each.retried for each in self._trials.values())
        return is_asked_again or self._plan.course.done(self._trials) < self._plan.course.total

    def _fill(self, processes: Processes, signals: Signals) -> bool:
        """Starts trials as long as there is room; returns whether the sweep is not done, here or elsewhere.

        The first trial that the experiment takes is tried before it is recorded, and is the only one until then.
        """
        if time.monotonic() < self._look_seconds:
            return self._wants_more()
        self._trials = trials.read_all(self._plan.directory, self._trials)
        self._observer.know(self._trials)
        while self._wants_more():
            # Those of trials that run or start again soon, and of processes that were killed just now, are busy.
            busy = [each.slot for group in (self._running, processes.running) for each in group.values()]
            if (slot := self._slots.free(busy)) is None:
                break
            refuse_more(self._plan.directory, self._trials.values())
            course = self._plan.course
            wanted = course.wanted(self._trials)
            if is_untried := all(each.state == "pruned" and not each.reports for each in self._trials.values()):
                wanted = min(wanted, course.done(self._trials) + 1)
            number = self._claims.next(self._trials, wanted, course.counts)
            if number is None:
                break
            trial = trials.read(self._plan.directory, number)
            if trial is None:
                draw = functools.partial(course.draw, number, self._trials)
                prunes = self._plan.config.on_refusal == "prune" or self._study.most is not None
                trial = drawn(number, draw, self._plan.refusal, prunes=prunes)
                if trial.state is not None:
                    self._observer.end(trial, describe(trial, self._plan.objective.metric))
                elif is_untried and (command := self._plan.check(trial.values)):
                    self._observer.say("trying one step and one evaluation")
                    rehearsal.rehearse(command, self._plan.directory, processes, signals, slot)
                self._record(trial)
            self._trials[number] = trial  # it may have changed: another driver may have had the claim before
            if trial.state is None:
                self._start(trial, slot, processes)
            else:
                self._claims.release(number)
        is_waiting = not self._running and self._wants_more()
        if is_waiting and not self._is_waiting:
            self._observer.say("waiting: other processes work on the trials that are left")
        self._is_waiting = is_waiting
        self._look_seconds = time.monotonic() + _LOOK_SECONDS
        return self._wants_more()

    def _record(self, trial: Trial) -> None:
        self._claims.check(trial.number, now=True)
        if trial.state is not None:  # before the record: a driver that is killed here does it again
            tensorboard.end(self._plan.directory, trial, self._plan.config.space, self._plan.objective)
        trials.write(self._plan.directory, trial)
        self._trials[trial.number] = trial

    def _start(self, trial: Trial, slot: Slot, processes: Processes) -> None:
        place = trials.directory(self._plan.directory, trial.number)
        course = self._plan.course
        if title := course.title(trial):
            self._observer.say(title)
        check = functools.partial(self._claims.check, trial.number, now=True)
        tensorboard.begin(self._plan.directory, trial, self._plan.config.space)
        is_new = course.begin(trial, self._trials, check)
        _, until_step = course.span(trial)
        command = [*self._plan.command(files.join(place, trials.RUN), trial.values)]
        command += [] if until_step is None else [f"--until_step={until_step}"]
        command += [] if trial.parent is None else ["--allow_config_change"]
        kept = os.devnull if files.is_url(place) else files.join(place, trials.OUTPUT)  # a bucket cannot append
        output = open(kept, "ab", buffering=0)  # noqa: SIM115 - its lines close it
        member = Member(role=CHIEF, index=trial.number, argv=tuple(command), environ={})
        lines = Lines(lambda lines: None, output)
        process = Process(member, lines, Restarts(), slot=slot)
        self._running[trial.number] = process
        self._evaluations[trial.number], self._seen_bytes[trial.number] = [], 0
        self._observer.start(
            trial,
            continues=not is_new and newest_step(trials.run_directory(self._plan.directory, trial.number)) is not None,
        )
        processes.start(process)

    # What happens to a trial.

    def _watch(self, number: int, processes: Processes) -> None:
        """Reads new evaluations, and ends the trial if one of them prunes it."""
        trial, found = self._trials[number], self._evaluations[number]
        path = files.join(trials.run_directory(self._plan.directory, trial.number), "metrics.jsonl")
        if trial.state is not None or not files.exists(path):
            return
        if (num_bytes := files.size_bytes(path)) == self._seen_bytes[number]:
            return
        self._seen_bytes[number] = num_bytes
        since, _ = self._plan.course.span(trial)
        for row in read_rows(path):
            new = ranking.evaluation_in(row, self._plan.objective)
            if new is None or new.step <= (found[-1].step if found else since):
                continue
            found.append(new)
            self._observer.report(trial, *new)
            if self._study.prunes(trial, [(each.step, each.results[0]) for each in found], self._trials):
                self._end(trial, state="pruned", step=new.step, reason=f"by {self._plan.config.pruner}")
                processes.terminate(self._running[number])
                return

    def _on_end(self, process: Process, code: int, processes: Processes, *, was_asked: bool) -> None:
        number = process.member.index
        self._watch(number, processes)  # the last rows, before its end counts
        trial = self._trials[number]
        if was_asked or trial.state is not None:
            del self._running[number]
        elif may_run_again(code):
            self._again(trial, process, code, processes)
            return
        else:
            del self._running[number]
            self._judge(trial, process, code)
        if self._trials[number].state == "pruned":  # it never goes back to an earlier step
            place = trials.run_directory(self._plan.directory, number)
            record.mark_pruned(place)
            _keep_best(place)
        process.lines.end()

    def _again(self, trial: Trial, process: Process, code: int, processes: Processes) -> None:
        seconds = process.restarts.next(newest_step(trials.run_directory(self._plan.directory, trial.number)))
        how = _how(process, code)
        if isinstance(seconds, str):
            del self._running[trial.number]
            process.lines.end()
            self._end(trial, state="failed", reason=f"{how}; {seconds}")
            return
        self._observer.wait(trial, how, seconds)
        start = functools.partial(processes.start, process)
        self._timers.enter(seconds, 0, lambda: self._while_claimed(process, processes, start))

    def _judge(self, trial: Trial, process: Process, code: int) -> None:
        """Records the end of a trial that ended by itself."""
        _, until_step = self._plan.course.span(trial)
        if code == ExitCode.NON_FINITE:
            self._end(trial, state="pruned", reason="the loss is not finite")
        elif code:
            place = trials.directory(self._plan.directory, trial.number)
            failure = failure_of(place, _how(process, code), code, process.lines.last)
            self._end(trial, failure, state="failed", reason=failure.reason, cause=failure.cause)
        elif why := unfinished(trials.run_directory(self._plan.directory, trial.number)):
            self._end(trial, state="failed", reason=why)
        elif (
            until_step is not None
            and (step := newest_step(trials.run_directory(self._plan.directory, trial.number))) != until_step
        ):
            self._end(trial, state="failed", reason=f"its training ended at step {step}, not at {until_step}")
        else:
            objective = self._plan.objective
            found = ranking.counted(trial.number, self._evaluations[trial.number], objective)
            if isinstance(found, str):
                self._end(trial, state="pruned", reason=found)
                return
            value, *others = found.results
            named = dict(zip(objective.others, others, strict=True))
            self._end(trial, state="complete", step=found.step, value=value, others=named)

    def _end(self, trial: Trial, failure: Failure | None = None, **result: object) -> None:
        found = [(each.step, each.results[0]) for each in self._evaluations[trial.number]]
        reports = tuple(each for each in found if not math.isnan(each[1]))
        ended = dataclasses.replace(trial, reports=reports, retried=False, **result)  # type: ignore[arg-type]
        self._record(ended)
        self._observer.end(ended, describe(ended, self._plan.objective.metric), failure)

    def _stop(self, processes: Processes, signals: Signals) -> None:
        """Has all trials save, and ends; as an error, unless `sweep stop` has asked for it."""
        self._save(processes, signals, str(signals.asked))
        done = f"{self._plan.course.done(self._trials)} of {self._plan.course.total} trials are done"
        end = f"{done}, the others have saved; the same command continues the sweep"
        if signals.asked != STOP:
            raise PreemptedError(end)
        self._observer.say(f"stopped by `official-trainer {STOP}`: {end}")

    @contextlib.contextmanager
    def _saving(self, processes: Processes, signals: Signals) -> Iterator[None]:
        """If the sweep cannot go on, the trials that run save before it ends."""
        try:
            yield
        except SweepError:
            with contextlib.suppress(SweepError):  # which has the same reason, in another trial
                self._save(processes, signals, "the sweep ends")
            raise

    def _save(self, processes: Processes, signals: Signals, why: str) -> None:
        """Returns when all trials have saved and ended, or were killed."""
        if processes.running:
            count = f"{len(processes.running)} trial{'s' if len(processes.running) > 1 else ''} to save"
            self._observer.say(f"{why}: waiting up to {self._plan.grace_seconds:g} s for {count}")
        processes.terminate()
        for waiting in self._timers.queue:  # what is to be continued stays as it is
            self._timers.cancel(waiting)
        self._timers.enter(self._plan.grace_seconds, 0, processes.kill)
        while processes.running:
            found = processes.wait(_POLL_SECONDS)
            self._observer.look()
            if found is not None and found[1] is not None:
                self._ended(found[0], found[1], processes, was_asked=True)
            signals.read()
            if signals.insisted:
                processes.kill()
            self._timers.run(blocking=False)


def _keep_best(model_dir: str) -> None:
    """Deletes the best checkpoints of a run that only count when it goes back."""
    path = files.join(model_dir, files.PARAMS_FILE)
    texts = lines.lines(files.read_text(path)) if files.exists(path) else {}  # it may have been ended before it began
    names = ("export_subdir", "eval_metric", "metric_comp", "max_to_keep")
    subdir, metric, comp, most = (lines.value(texts.get(f"trainer.best_checkpoint_{name}", "null")) for name in names)
    if metric:
        BestCheckpoint(files.join(model_dir, subdir), metric=metric, comp=comp, max_to_keep=most).tidy()


def _how(process: Process, code: int) -> str:
    return End(name=process.member.name, role=CHIEF, code=code).how
