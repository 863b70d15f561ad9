"""What is read of a sweep's directory by reports, tables and the words of `sweep`; it needs Optuna, but no TensorFlow.

Owns: `summary`, all that a report draws of a sweep; where the run of a trial is; opening the study of a sweep that may
still run.
Does not own: writing a study (`driver.py`), tables (`shown.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer import files
from official_trainer.sweeps.settings import SweepError

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}

RUN = "run"
"""The run directory in the folder of a trial."""


def folder_of(number: int) -> str:
    """Returns the folder of a trial in the directory of its sweep."""
    return f"trials/{number}"


def run_of(number: int) -> str:
    """Returns the run directory of a trial in the directory of its sweep."""
    return f"{folder_of(number)}/{RUN}"


def is_sweep(directory: str) -> bool:
    """Returns whether a folder is the directory of a sweep."""
    return not files.is_url(directory) and files.exists(files.join(directory, files.SWEEP_FILE))


def summary(directory: str) -> dict[str, Any]:
    """Returns a sweep as it stands.

    Returns:
      `metric`: what is compared; `direction`: `max` or `min`; `counts`: the number of trials by their state; `best`:
      the number of the best trial, None without one; `importance`: the share of each field in a trial being among the
      best, None if too few trials tell; `trials`: the number, state, value, drawn fields and run of each.

    Raises:
      SweepError: no sweep is there, it cannot be read, or Optuna is not installed.
    """
    described = identity(directory)
    opened_study = opened(directory)
    from official_trainer.sweeps import study

    trials = []
    for trial in opened_study.get_trials(deepcopy=False):
        run = run_of(trial.number)
        facts = {"number": trial.number, "state": STATES[trial.state.name], "value": trial.value}
        is_there = files.exists(files.join(directory, run, files.RUN_FILE))
        trials.append(facts | {"params": trial.params, "run": run if is_there else None})
    objective = described["sweep"]["objective"]
    states = [trial["state"] for trial in trials]
    return {
        "metric": objective["metric"],
        "direction": objective["direction"],
        "counts": {state: states.count(state) for state in STATES.values() if state in states},
        "best": best(opened_study),
        "importance": study.importance(opened_study),
        "trials": trials,
    }


def identity(directory: str) -> dict[str, Any]:
    """Returns the content of `sweep.json`.

    Raises:
      SweepError: no sweep is there, or the file cannot be read.
    """
    path = files.join(directory, files.SWEEP_FILE)
    try:
        content = files.parse_json(files.read_bytes(path))
        if not {"objective", "space"} <= content["sweep"].keys():
            raise ValueError("it lacks what a sweep has")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SweepError(f"{directory} holds no sweep (there is no {path})") from error
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        why = files.reason_of(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SweepError(f"{path} cannot be read ({why}); put a good copy back") from error
    return content


def opened(directory: str) -> Any:
    """Returns the study of a sweep, an `optuna.Study`.

    Raises:
      SweepError: the study cannot be read, or Optuna is not installed.
    """
    try:
        from official_trainer.sweeps import study
    except ModuleNotFoundError as error:
        raise SweepError(f"{directory} is read with Optuna: pip install 'official-trainer[sweep]'") from error
    return study.load(directory)


def best(study: Any) -> int | None:
    """Returns the number of the best trial; None if none is complete."""
    is_complete = any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
    return study.best_trial.number if is_complete else None
