"""`sweep`: a sweep of an experiment as a function of Python.

Owns: its arguments. Does not own: what a sweep does (`plan.py`, `sweep.py`).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer.config import Resolved
from official_trainer.sweeps.settings import SweepConfig, SweepError
from official_trainer.tasks import registry

if TYPE_CHECKING:
    import optuna


def sweep(
    experiment: str, space: Mapping[str, Any], *, model_dir: str, config_file: str = "", **settings: Any
) -> optuna.Study:
    """Trains an experiment many times with values drawn from a space, as the verb `sweep` does.

    Called again, it continues. Call it in a script below `if __name__ == "__main__":`, which each trial imports.

    Args:
      experiment: its registered name.
      space: field → its distribution, as in the file of a sweep.
      model_dir: the directory of the sweep.
      config_file: a file with changes of the experiment; empty for none.
      settings: the other fields of the file of a sweep, such as `trials=20` or `objective={"metric": "loss"}`.

    Returns:
      Optuna's study, with `best_trial`, `best_trials` and `trials_dataframe()`.

    Raises:
      ConfigError: the space, the settings or the experiment have a problem.
      SweepError: the sweep cannot go on.
      PreemptedError: a signal came; the trials have saved.
    """
    from official_trainer.sweeps import plan, shown, sweep

    if inspect.stack()[1].frame.f_globals["__name__"] == "__mp_main__":  # as multiprocessing calls it in a trial
        raise SweepError('a trial imports this script: write `if __name__ == "__main__":` above the call of sweep')
    base = registry.get_config(experiment, registry.find_workspace())
    config_files = [config_file] if config_file else []

    def resolve(sets: Sequence[str]) -> Resolved:
        return configuration.resolve(base, experiment=experiment, config_files=config_files, sets=sets)

    def words(verb: str, directory: str, sets: Sequence[str]) -> list[str]:
        flags = [f"--config_file={file}" for file in config_files] + [f"--set={override}" for override in sets]
        return [experiment, f"--model_dir={directory}", *flags]

    overrides = configuration.flow({"space": dict(space), **settings})
    resolved = configuration.resolve(SweepConfig(), params_overrides=[overrides])
    directory = os.path.expanduser(os.fspath(model_dir))
    swept = plan.Experiment(name=experiment, directory=directory, resolve=resolve, words=words)
    planned = plan.planned(swept, resolved)
    return sweep.run(planned, shown.Shown(planned.config.space, planned.objective))
