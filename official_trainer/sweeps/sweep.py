"""A sweep as a whole: its directory, and that it stays the same sweep.

Owns: `sweep.json`, which says what the sweep is; the study and the fork server of a driver.
Does not own: running trials (`driver.py`), what is read of a sweep (`results.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import optuna

from official_trainer import files
from official_trainer.processes import forked
from official_trainer.shown import first_few
from official_trainer.sweeps import rehearsal, results, study
from official_trainer.sweeps.driver import Driver
from official_trainer.sweeps.plan import Plan
from official_trainer.sweeps.settings import SweepError
from official_trainer.sweeps.shown import Shown
from official_trainer.sweeps.study import Draws, FileLock
from official_trainer.tracking import leaves
from official_trainer.tracking.record import check_name


def run(plan: Plan, shown: Shown) -> optuna.Study:
    """Runs a sweep, or continues it; returns its study.

    Args:
      plan: what it does.
      shown: shows it; it is closed at the end.

    Raises:
      SweepError: the directory holds something else or another sweep, or the sweep cannot go on.
      PreemptedError: a signal came; the trials have saved.
    """
    check_name(plan.directory)
    if files.is_url(plan.directory):
        raise SweepError(f"--model_dir={plan.directory} is a URL; the directory of a sweep is one that machines share")
    path = files.join(plan.directory, files.SWEEP_FILE)
    if not files.exists(path) and files.exists(plan.directory):
        ours = (rehearsal.FOLDER, rehearsal.OUTPUT)
        others = [name for name in files.list_dir(plan.directory) if not name.startswith(".") and name not in ours]
        if others:
            what = f"--model_dir={plan.directory} holds {first_few(others)}, but no sweep"
            raise SweepError(f"{what}; name a new directory")
    files.make_dirs(plan.directory)
    try:
        forked.preload()
        with FileLock(files.join(plan.directory, ".draw.lock")):
            if not files.exists(path):
                shown.say("trying one step and one evaluation")
                folder = files.join(plan.directory, rehearsal.FOLDER)
                rehearsal.rehearse(
                    [*plan.experiment.command("check", folder, ()), f"--metric={plan.objective.metric}"], plan.directory
                )
            _describe(plan, path)
            created = study.create(study.storage_of(plan.directory), plan.objective)
        Driver(plan, Draws(created, plan.space, plan.config), shown).run()
        return created
    finally:
        shown.close()


def _describe(plan: Plan, path: str) -> None:
    """Writes down what the sweep is, or refuses another one."""
    if files.exists(path):
        _refuse_changes(plan.directory, results.identity(plan.directory), plan.identity)
    else:
        files.write_text_atomically(path, json.dumps(plan.identity, indent=2) + "\n")


def _refuse_changes(directory: str, before: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    for name, word in (("experiment", "experiment"), ("sweep", "description"), ("config", "config"), ("gin", "gin")):
        old, new = before.get(name), identity.get(name)
        if old == new:
            continue
        what = f"{old}, not {new}"
        if isinstance(old, dict):
            old_values, new_values = (
                {".".join(path): value for path, value in leaves(values or {})} for values in (old, new)
            )
            changed = [
                key for key in dict.fromkeys([*old_values, *new_values]) if old_values.get(key) != new_values.get(key)
            ]
            words = [f"{key} was {_word(old_values.get(key))}, is {_word(new_values.get(key))}" for key in changed]
            what = first_few(words)
        raise SweepError(
            f"--model_dir={directory} holds a sweep with another {word}: {what}. Its trials could not be compared; "
            "set it as it was, or name another --model_dir"
        )


def _word(value: Any) -> str:
    return "not set" if value in (None, "", {}) else str(value)
