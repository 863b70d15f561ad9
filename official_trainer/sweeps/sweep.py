"""A sweep as a whole: its directory, and that it stays the same sweep.

Owns: writing `sweep.json`, the lock.
Does not own: running trials (`driver.py`), what the sweep leaves (`results.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.distributed import devices
from official_trainer.distributed.devices import Devices
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.shown import first_few
from official_trainer.sweeps import results, storage
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.driver import Driver, Plan
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.results import SWEEP
from official_trainer.sweeps.slots import Share, Slots
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.tracking.record import check_name

_LOCK_SECONDS = 0.2


def run(plan: Plan, observer: Observer) -> dict[int, Trial]:
    """Runs a sweep, or continues it; returns its trials.

    Args:
      plan: what it does.
      observer: shows it; it is closed at the end.

    Raises:
      SweepError: the directory holds something else or another sweep, or the sweep cannot go on.
      LockedError: another process runs it.
      PreemptedError: a signal came; the trials have saved.
    """
    check_name(plan.directory)
    path = files.join(plan.directory, SWEEP)
    if not files.exists(path) and files.exists(plan.directory):
        others = [name for name in files.list_dir(plan.directory) if not name.startswith((".", SWEEP))]
        if others:
            what = f"--model_dir={plan.directory} holds {first_few(others)}, but no sweep"
            raise SweepError(f"{what}; name a new directory")
    files.make_dirs(plan.directory)
    with contextlib.ExitStack() as stack:
        if not plan.joins:
            lock = DirectoryLock(plan.directory)
            try:
                stack.enter_context(lock)
            except LockedError as error:
                raise LockedError(f"{error} With --join, this one works on the same sweep beside it.") from error
        found = trials.read_all(plan.directory)
        there = devices.found(os.environ)
        sweep_id, share = _describe(plan, there, has_trials=bool(found))
        plan.study.check(found.values())
        if url := plan.config.storage:
            observer = storage.observed(url, plan.directory, sweep_id, plan.study, observer, found)
        stack.enter_context(contextlib.closing(observer))
        try:
            slots = Slots(there, share, plan.config.parallel, os.environ)
            return Driver(plan, observer, slots, found).run()
        finally:
            with contextlib.suppress(OSError, SweepError):  # the trials are on record, and `sweep show` writes it again
                results.write(plan.directory)


def _describe(plan: Plan, there: Devices, *, has_trials: bool) -> tuple[str, Share]:
    """Writes down what the sweep is, or refuses another one.

    Returns its id, by which a database knows it, and how many devices a trial gets, which the first process decides.

    Several drivers may start at the same time.
    """
    path, identity = files.join(plan.directory, SWEEP), plan.identity
    lock = DirectoryLock(plan.directory, name="description")
    while not lock.try_acquire():
        time.sleep(_LOCK_SECONDS)
    try:
        # Of a process that was killed. One that writes its results just now does so in vain, which it takes.
        files.remove_temporaries(plan.directory, SWEEP, results.RESULTS)
        if files.exists(path) and (plan.joins or has_trials):
            _refuse_changes(plan.directory, identity)
            identity = results.read_identity(plan.directory)
        sweep_id = str(identity.get("id") or (uuid.uuid4().hex if plan.config.storage else ""))
        share = Share.of(there, plan.config.parallel)
        if "devices" in identity:
            try:
                share = Share(**identity["devices"])
            except TypeError as error:
                raise results.unreadable(plan.directory, f"devices: {error}") from error
        described = {**identity, "devices": dataclasses.asdict(share)} | ({"id": sweep_id} if sweep_id else {})
        if not files.exists(path) or results.read_identity(plan.directory) != described:
            files.write_text_atomically(path, json.dumps(described, indent=2) + "\n")
    finally:
        lock.release()
    return sweep_id, share


def _refuse_changes(directory: str, identity: Mapping[str, Any]) -> None:
    before = results.read_identity(directory)
    for name, kind in (("experiment", "experiment"), ("sweep", "description"), ("config", "config"), ("gin", "gin")):
        old, new = before.get(name), identity.get(name)
        if old == new:
            continue
        what = f"{old}, not {new}"
        if isinstance(old, dict):
            new = new or {}
            changed = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
            what = first_few([f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed])
        raise SweepError(
            f"--model_dir={directory} holds a sweep with another {kind}: {what}. Its trials could not be compared; "
            "set it as it was, or name another --model_dir"
        )
