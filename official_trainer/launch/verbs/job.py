"""Manage the jobs that `launch TARGET --submit` has submitted.

Each action runs the scheduler's own command, such as squeue or kubectl.

Owns: `job`, on the records that `launch TARGET --submit` has written to launches/.
Does not own: the commands of the schedulers (`launch/`), submitting (`launch/submit.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import signal
from typing import Any

from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode
from official_trainer.launch import launches, schedulers, submit
from official_trainer.launch.launches import Record
from official_trainer.launch.schedulers import SchedulerError
from official_trainer.launch.target import GONE, Host, Phase, Target
from official_trainer.nearest import did_you_mean
from official_trainer.processes.signals import Signals
from official_trainer.shown import first_few
from official_trainer.tracking import code_files

USAGE = "ACTION [NAME] [--follow]"
EXAMPLES = (
    ("official-trainer job list", "the jobs that were submitted from this workspace, and their states"),
    ("official-trainer job status digits-cnn-1a2b3c4d", "the state of one; the beginning of its name is enough"),
    ("official-trainer job logs digits-cnn-1a2b3c4d --follow", "its output, until Ctrl-C"),
    ("official-trainer job watch digits-cnn-1a2b3c4d", "its state at each change, until it has ended"),
    ("official-trainer job cancel digits-cnn-1a2b3c4d", "end it"),
    ("official-trainer job resume digits-cnn-1a2b3c4d", "submit it again; it continues from its checkpoint"),
    ("official-trainer job supervise digits-cnn-1a2b3c4d", "replace a Cloud TPU slice that is taken away"),
)
NEXT = ("official-trainer eval --model_dir=runs/digits", "evaluate the run")

_INTERRUPTED = 130
_LIST_SECONDS = 10.0  # for each scheduler, all at the same time
_POLL_SECONDS = 30.0
_FAILURES_IN_A_ROW = 20  # ten minutes without an answer
_CODES = {"completed": ExitCode.DONE, "succeeded": ExitCode.DONE, "cancelled": ExitCode.PREEMPTED}


def add_flags(parser: flags.Parser) -> None:
    """Declares the action and the job."""
    parser.group("Action and job")
    actions = ("list", *_ACTIONS)
    parser.positional("action", "ACTION", f"one of {', '.join(actions)}", choices=actions)
    parser.positional("name", "NAME", "name of the job, or its beginning; see `job list`")
    parser.output_group()
    parser.switch("follow", "`job logs`: continue until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Runs the action with the scheduler's own commands, and returns the exit code of the last one.

    Raises:
      UsageError: the action or the job does not exist.
      SchedulerError: the scheduler's program is missing, or fails.
    """
    known = (*_ACTIONS, "list")
    if arguments.action not in known:
        near = did_you_mean(arguments.action, known) if arguments.action else ""
        wrong = f"'{arguments.action}' is no action of job" if arguments.action else "job needs an action"
        raise UsageError(f"{wrong}; actions: {', '.join(known)}{near}")
    if arguments.follow and arguments.action != "logs":
        raise UsageError(f"--follow would have no effect with `job {arguments.action}`; leave it out")
    root = submit.root(arguments)
    records, unreadable = launches.read_all(root)
    for problem in unreadable:
        terminal.report_error(problem, "warning", "yellow")
    if arguments.action == "list":
        if arguments.name:
            raise UsageError(f"job list takes no name, not {arguments.name}; use `job status {arguments.name}`")
        return _list(records, root)
    record = _find(arguments.name, records)
    folder = submit.folder_of(arguments, record.name)
    scheduler = launches.target_of(record)
    if arguments.follow:
        return _logs(folder, scheduler, record, follow=True)
    return _ACTIONS[arguments.action](folder, scheduler, record)


def _find(name: str | None, records: list[Record]) -> Record:
    names = [record.name for record in records]
    if not name:
        raise UsageError(f"which job? {', '.join(names) or 'none was submitted from this workspace'}")
    found = [record for record in records if record.name == name]
    if found := found or [record for record in records if record.name.startswith(name)]:
        if len(found) == 1:
            return found[0]
        raise UsageError(
            f"{name} is the beginning of several names: {', '.join(record.name for record in found)}; give a longer one"
        )
    there = f"jobs: {', '.join(names)}" if names else "none was submitted from this workspace"
    raise UsageError(f"no such job: {name}{did_you_mean(name, names)}\n{there}")


def _list(records: list[Record], root: str) -> int:
    if not records:
        how = "`official-trainer launch TARGET --submit -- --experiment=NAME` submits one"
        terminal.report_error(f"no job was submitted from {root}; {how}", "note", "dim")
        return int(ExitCode.DONE)
    states = schedulers.states_of(records, root, _LIST_SECONDS)
    rows = [("name", "target", "id", "state", "submitted (UTC)", "run directory")]
    reasons: dict[str, list[str]] = {}
    for record, state in zip(records, states, strict=True):
        is_known = state.phase is not Phase.UNKNOWN
        word = state.text if is_known else state.phase.value
        rows.append((record.name, record.target, record.id, word, record.submitted_at, record.model_dir))
        if not is_known:
            reasons.setdefault(state.text, []).append(record.name)
    terminal.show("\n".join(terminal.columns(rows, fit=terminal.width())))
    for reason, names in reasons.items():
        terminal.report_error(f"the state of {first_few(names)} is unknown: {reason}", "note", "dim")
    return int(ExitCode.DONE)


def _status(folder: str, target: Target[Any], record: Record) -> int:
    print(f"{record.name}: {record.target} {record.id}, submitted {record.submitted_at}, in {record.model_dir}")
    code = schedulers.run(target, target.status(record.id), folder).returncode
    if code:
        what = f"{record.target} has no status to show; the run's own is in {record.model_dir}"
        terminal.report_error(what, "note", "dim")
    elif (argv := target.ask_why(record.id)) is not None:
        asked = schedulers.run_detached(target, argv, folder, schedulers.ANSWER_SECONDS)
        for reason in target.reasons(record.id, asked.stdout) if not asked.returncode else ():  # it may be forbidden
            print(reason)
    return code


def _watch(folder: str, target: Target[Any], record: Record) -> int:
    """Prints the state of a job at each change; returns 0, 1 or 143 as it ended, 75 if that is not known."""
    if target.is_supervised:
        how = f"`official-trainer job supervise {record.name}` knows, and ends with its exit code"
        raise UsageError(f"{record.name}: {record.target} does not know whether training has ended; {how}")
    failures, last = 0, None
    with Signals() as signals:
        while True:
            state = schedulers.state_of(folder, target, record)
            is_unknown = state.phase is Phase.UNKNOWN
            if state != last:
                _say(f"unknown: {state.text}" if is_unknown else state.text)
            failures, last = failures + 1 if is_unknown else 0, state
            if state.phase is Phase.ENDED or failures == _FAILURES_IN_A_ROW:
                break
            if signals.wait(_POLL_SECONDS):
                return _INTERRUPTED
    if state is GONE or is_unknown:
        why = "no longer has the job" if state is GONE else f"has not answered {failures} times in a row"
        how = f"it is not known how it ended; the run's own status is in {record.model_dir}"
        terminal.report_error(f"{record.name}: {record.target} {why}, so {how}")
        return int(ExitCode.RETRY)
    return int(_CODES.get(state.text, ExitCode.FAILED))


def _logs(folder: str, target: Target[Any], record: Record, *, follow: bool = False) -> int:
    names = target.log_files()
    if names and not follow and not any(os.path.exists(os.path.join(folder, name)) for name in names):
        how = f"`official-trainer job status {record.name}` shows its state"
        terminal.report_error(f"{record.name} has printed nothing yet; {how}", "note", "dim")
        return int(ExitCode.DONE)
    missing = [] if follow else [name for name in names if not os.path.exists(os.path.join(folder, name))]
    argv = tuple(word for word in target.logs(record.id, follow=follow) if word not in missing)
    try:
        code = schedulers.run(target, argv, folder).returncode
    except KeyboardInterrupt:  # the usual way to leave; the program has got the signal too
        return _INTERRUPTED
    return _INTERRUPTED if code == -signal.SIGINT else code  # the program may end before this process gets the signal


def _cancel(folder: str, target: Target[Any], record: Record) -> int:
    """Ends a job that has not ended; of a supervised one, deletes what is left, which costs money also afterwards."""
    state = schedulers.state_of(folder, target, record)
    if state is GONE:
        print(f"{record.target} no longer has {record.name}, so it has ended; nothing was cancelled")
        return int(ExitCode.DONE)
    if state.phase is Phase.ENDED and not target.is_supervised:
        print(f"{record.name} has ended already ({state.text}); nothing was cancelled")
        return int(ExitCode.DONE)
    commands = target.cancel(record.id)
    failed = [argv for argv in commands if schedulers.run(target, argv, folder).returncode]  # all, also after a failure
    if failed:
        raise SchedulerError(f"{record.name}: {schedulers.shown(failed[0])} failed; its error is above")
    if state.phase is Phase.UNKNOWN:  # a job that may cost money is ended all the same
        what = f"{schedulers.shown(commands[-1])} has succeeded, but {record.target} did not say whether it still ran"
        terminal.report_error(f"{record.name}: {what}: {state.text}", "note", "dim")
    else:  # one that Slurm is still completing may have ended by itself
        print(f"{record.name} was {'deleted' if target.is_supervised else 'cancelled'}; it was {state.text} before")
    print(f"`official-trainer job resume {record.name}` continues from its checkpoint")
    return int(ExitCode.DONE)


def _resume(folder: str, target: Target[Any], record: Record) -> int:
    with launches.alone(folder):
        submit.refuse_unless_ended(folder, target, launches.read(folder) or record, "so there is nothing to resume")
        if record.code:
            code = code_files.at(record.code)
            changed = [] if code is None else code.changed(code.as_it_is().sums)
            if code is None or changed:
                what = f"where {first_few(changed)} changed" if changed else "which is gone"
                fix = f"submit the job again: {shlex.join(record.argv)}"
                raise UsageError(f"{record.name} runs the code in {record.code}, {what}; {fix}")
        commands = target.resume(record.id, record.submit)
        again = schedulers.start(folder, target, commands, dataclasses.replace(record, submitted_at=launches.now()))
    submit.report_submitted(again, folder, target)
    return int(ExitCode.DONE)


def _supervise(folder: str, target: Target[Any], record: Record) -> int:
    if not target.is_supervised:
        raise UsageError(f"{record.name}: {record.target} itself restarts a job; `job supervise` is not needed")
    with Signals() as signals:
        run = functools.partial(schedulers.run_detached, target, folder=folder)
        ask = functools.partial(run, seconds=schedulers.ANSWER_SECONDS)
        host = Host(run=run, ask=ask, say=_say, wait=signals.wait)
        outcome = target.supervise(record.id, record.submit, record.model_dir, host)
    if outcome.note:
        terminal.report_error(outcome.note, "stopped" if outcome.was_asked else "error")
    return outcome.code


def _say(text: str) -> None:
    terminal.show(f"{launches.now()} {text}")


_ACTIONS = {
    "status": _status,
    "watch": _watch,
    "logs": _logs,
    "cancel": _cancel,
    "resume": _resume,
    "supervise": _supervise,
}
