"""How much each drawn field had to do with a trial being among the best.

Owns: asking Optuna's PED-ANOVA, which takes conditional fields as they are; when there are too few trials to say.
Does not own: what is done with the answer. Imports Optuna when it is asked.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.replay import distribution
from official_trainer.sweeps.trial import Trial

LEAST_TRIALS = 10
"""With fewer complete trials, chance says more than a field."""

_BEST_TRIALS, _BEST_SHARE = 5, 0.1  # PED-ANOVA compares so many of the best, or this share of all, with the others


def importances(
    dimensions: Iterable[Dimension], complete: Sequence[Trial], directions: Iterable[str]
) -> tuple[dict[str, float], str]:
    """Returns the share of each field, which add up to 1, the largest first; and, if there are none, why.

    Args:
      dimensions: what is drawn.
      complete: the trials that are complete.
      directions: of the metrics that are compared, `max` or `min`.
    """
    if len(complete) < LEAST_TRIALS:
        return {}, f"{len(complete)} complete trials are too few; {LEAST_TRIALS} are needed"
    try:
        import optuna
    except ImportError:
        return {}, "they need Optuna: pip install 'official-trainer[sweep]'"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # As if each number could be drawn: the order of the values is what matters.
    kinds = {each.path: distribution(optuna, dataclasses.replace(each, step=None)) for each in dimensions}
    words: Any = [{"max": "maximize", "min": "minimize"}[each] for each in directions]
    study = optuna.create_study(directions=words, storage=optuna.storages.InMemoryStorage())
    share = max(_BEST_SHARE, _BEST_TRIALS / len(complete))
    paths = sorted({path for trial in complete for path in trial.values})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a branch had few trials
        try:
            for trial in complete:
                own = {path: kinds[path] for path in trial.values}
                results = list(trial.results)
                study.add_trial(optuna.trial.create_trial(values=results, params=dict(trial.values), distributions=own))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
            found = evaluator.evaluate(study, params=paths)
        except (KeyError, ValueError) as error:  # of a record that was changed by hand
            return {}, f"Optuna refuses a trial: {error}"
    total = sum(found.values())
    if not total > 0:
        return {}, "no field tells the best trials from the others"
    return dict(sorted(((path, value / total) for path, value in found.items()), key=lambda each: -each[1])), ""
