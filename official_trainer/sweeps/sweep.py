"""A sweep as a whole: its directory, that it stays the same sweep, its table.

Owns: `sweep.json`, the lock, what `show` and `best` read.
Does not own: running trials (`driver.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.errors import first_few
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.sweeps import population, ranking
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.driver import Driver, Plan, describe
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.settings import Objective, PopulationConfig
from official_trainer.sweeps.space import read_free
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial, show
from official_trainer.tracking.record import check_name

_FILE = "sweep.json"
_LOCK_SECONDS = 0.2


def run(plan: Plan, study: Study, identity: Mapping[str, Any], observer: Observer) -> dict[int, Trial]:
    """Runs a sweep, or continues it; returns its trials.

    Args:
      plan: what it does.
      study: draws and prunes.
      identity: see `identity_of`.
      observer: shows it; it is closed at the end.

    Raises:
      SweepError: the directory holds something else or another sweep, or the sweep cannot go on.
      LockedError: another process runs it.
      PreemptedError: a signal came; the trials have saved.
    """
    check_name(plan.directory)
    path = files.join(plan.directory, _FILE)
    if not files.exists(path) and files.exists(plan.directory):
        others = [name for name in files.list_dir(plan.directory) if not name.startswith((".", _FILE))]
        if others:
            what = f"--model_dir={plan.directory} holds {first_few(others)}, but no sweep"
            raise SweepError(f"{what}; name a new directory")
    files.make_dirs(plan.directory)
    with contextlib.ExitStack() as stack:
        if not plan.joins:
            stack.push(_only_driver(plan.directory))
        _describe(plan, identity)
        study.check(trials.read_all(plan.directory).values())
        stack.enter_context(contextlib.closing(observer))
        return Driver(plan, study, observer).run()


def _only_driver(directory: str) -> DirectoryLock:
    """Returns the lock that a driver holds unless it has joined others."""
    lock = DirectoryLock(directory)
    try:
        lock.acquire()
    except LockedError as error:
        raise LockedError(f"{error} With --join, this one works on the same sweep beside it.") from error
    return lock


def _describe(plan: Plan, identity: Mapping[str, Any]) -> None:
    """Writes down what the sweep is, or refuses another one; several drivers may start at the same time."""
    path = files.join(plan.directory, _FILE)
    lock = DirectoryLock(plan.directory, name="description")
    while not lock.try_acquire():
        time.sleep(_LOCK_SECONDS)
    try:
        files.remove_temporaries(plan.directory, _FILE)  # of a process that was killed
        if files.exists(path) and (plan.joins or trials.read_all(plan.directory)):
            _refuse_changes(plan.directory, identity)
        else:  # also after a mistake that was found before the first trial
            files.write_text_atomically(path, json.dumps(identity, indent=2) + "\n")
    finally:
        lock.release()


def identity_of(name: str, recorded: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns what may not change while a sweep lasts; `trials` and `parallel` may.

    Args:
      name: of the experiment, or of the function.
      recorded: what else is known of it.
      plan: of the sweep.
    """
    sweep, objective = plan.config.as_dict(), plan.objective
    fixed = ("space", "on_refusal", "sampler", "sampler_options", "pruner", "pruner_options", "population", "seed")
    decided = dataclasses.asdict(objective)
    found = {
        "experiment": name,
        "sweep": {name: sweep[name] for name in fixed} | {"objective": decided},
        **recorded,
    }
    return dict(json.loads(json.dumps(found)))


def _refuse_changes(directory: str, identity: Mapping[str, Any]) -> None:
    before = _read(directory)
    for name, kind in (("experiment", "experiment"), ("sweep", "description"), ("config", "config"), ("gin", "gin")):
        old, new = before.get(name), identity.get(name)
        if old == new:
            continue
        what = f"{old}, not {new}"
        if isinstance(old, dict):
            new = new or {}
            changed = [key for key in [*old, *(new.keys() - old.keys())] if old.get(key) != new.get(key)]
            what = first_few([f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed])
        raise SweepError(
            f"--model_dir={directory} holds a sweep with another {kind}: {what}. Its trials could not be compared; "
            "set it as it was, or name another --model_dir"
        )


def _read(directory: str) -> dict[str, Any]:
    path = files.join(directory, _FILE)
    if not files.exists(path):
        raise SweepError(f"{directory} holds no sweep (there is no {path})")
    try:
        found: dict[str, Any] = files.parse_json(files.read_bytes(path))
        described = found["sweep"]
        Objective(**described["objective"])
        PopulationConfig(**(described["population"] or {}))
        read_free(described["space"], lambda keys: None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SweepError(f"{path} cannot be read ({what}); put a good copy back") from error
    return found


def again(directory: str, trial: Trial) -> list[str]:
    """Returns the lines of a file that trains a trial again, given the other flags of the sweep.

    It is a config with the values that were drawn; for a trial of a population a shell script, as these have changed.

    Raises:
      SweepError: no sweep is there, or a record cannot be read.
    """
    identity = _read(directory)
    space = read_free(identity["sweep"]["space"], lambda keys: None)
    if (written := identity["sweep"]["population"]) is None:
        return [f"{path}: {text}" for path, text in space.texts(trial.values)]
    line = population.lineage(trials.read_all(directory), trial)
    return population.script(identity["experiment"], space, line, PopulationConfig(**written))


def table(directory: str) -> list[list[str]]:
    """Returns a row of cells for each trial, after a row of titles.

    Raises:
      SweepError: no sweep is there, or a record cannot be read.
    """
    found, best = trials.read_all(directory), [each.number for each in best_of(directory)]
    objective = _objective(directory)
    mark = " (front)" if objective.others else " (best)"
    paths = list(dict.fromkeys(path for each in found.values() for path in each.values))
    size = (_read(directory)["sweep"]["population"] or {}).get("size")
    line = ["generation", "from"] if size else []
    rows = [["trial", *line, *(path.rpartition(".")[2] for path in paths), "result"]]
    for each in found.values():
        result = describe(each, objective.metric) if each.state else "not done"
        values = (show(each.values[path]) if path in each.values else "-" for path in paths)
        line = [] if not size else [str(each.number // size + 1), "-" if each.parent is None else str(each.parent)]
        rows.append([str(each.number), *line, *values, result.partition("\n")[0] + mark * (each.number in best)])
    return rows


def best_of(directory: str) -> list[Trial]:
    """Returns the best trial, if there is one; with several metrics all that no other one beats.

    Raises:
      SweepError: no sweep is there, or a record cannot be read.
    """
    return ranking.best(trials.read_all(directory).values(), _objective(directory))


def _objective(directory: str) -> Objective:
    return Objective(**_read(directory)["sweep"]["objective"])
