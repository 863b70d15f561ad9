"""What a sweep leaves for people and reports: its trials as they stand, and which are the best.

Owns: reading the directory of a sweep, also one that is damaged or that still changes; `results.json`, all that a
report draws, also how much each drawn field had to do with a trial being among the best.
Does not own: records (`trial.py`), the order of trials (`ranking.py`), tables (`sweeps/table.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.config import ConfigError
from official_trainer.sweeps import population, ranking
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.observer import name_of, names_of
from official_trainer.sweeps.settings import Objective, PopulationConfig
from official_trainer.sweeps.space import Space, read_free
from official_trainer.sweeps.study import distribution
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.tracking.jsonl import encode, read_rows
from official_trainer.tracking.record import ModelDirError, read_run

LEAST_TRIALS = 10
"""With fewer complete trials, chance says more than a field."""

_BEST_TRIALS, _BEST_SHARE = 5, 0.1  # PED-ANOVA compares so many of the best, or this share of all, with the others

SWEEP, RESULTS = files.SWEEP_FILE, "results.json"
State = Literal["complete", "pruned", "failed", "not done", "unreadable"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A trial as it stands.

    Attributes:
      trial: its record; if that cannot be read, one with its number and the reason only.
      state: how it ended; or that it is not done, or that its record cannot be read.
      results: a number for each metric: of a complete trial those that are compared, of another that is not done those
        of its last evaluation, of a pruned one that of the first metric; may be empty.
      step: of these numbers; of a pruned trial the last one.
      steps: that it has trained; None if its run is not known.
      end_step: the last step of its plan; None if its run is not known.
      seconds: wall time of its run; None if that is not known.
      cores: on which its process ran, the last one; None if that is not known.
    """

    trial: Trial
    state: State
    results: tuple[float, ...] = ()
    step: int | None = None
    steps: int | None = None
    end_step: int | None = None
    seconds: float | None = None
    cores: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """A sweep as it stands.

    Attributes:
      directory: of the sweep.
      experiment: its name.
      objective: what trials are compared by.
      space: what is drawn, without conditions.
      names: path of each drawn field → what it is called in a table.
      population: whose generations the trials are; None for trials that are independent of each other.
      results: the trials, by number.
    """

    directory: str
    experiment: str
    objective: Objective
    space: Space
    names: Mapping[str, str]
    population: PopulationConfig | None
    results: tuple[Result, ...]

    @property
    def complete(self) -> list[Trial]:
        """The complete trials, by number."""
        return [each.trial for each in self.results if each.state == "complete"]

    @property
    def best(self) -> list[Trial]:
        """The best trial, if there is one; with several metrics all that no other one beats, the best first."""
        return ranking.best(self.complete, self.objective)

    @property
    def ranked(self) -> list[Result]:
        """The best trials, then the other complete ones by their results, then the others by number."""
        order = [each.number for each in [*self.best, *ranking.ranked(self.complete, self.objective)]]
        by_number = {each.trial.number: each for each in self.results}
        order += by_number
        return [by_number[number] for number in dict.fromkeys(order)]

    def again(self, trial: Trial) -> list[str]:
        """Returns the lines of a file that trains a trial again, given the other flags of the sweep.

        It is a config with the values that were drawn; for a trial of a population a shell script, as these have
        changed.
        """
        if self.population is None:
            return [f"{path}: {text}" for path, text in self.space.texts(trial.values)]
        line = population.lineage({each.trial.number: each.trial for each in self.results}, trial)
        return population.script(self.experiment, self.space, line, self.population)

    def get(self, number: int) -> Result:
        """Returns a trial.

        Raises:
          SweepError: there is none with this number.
        """
        found = next((each for each in self.results if each.trial.number == number), None)
        if found is None:
            known = [each.trial.number for each in self.results]
            there = f"it has trials {known[0]} to {known[-1]}" if known else "it has none yet"
            raise SweepError(f"{self.directory} has no trial {number}; {there}")
        return found


def read(directory: str, *, with_runs: bool = False) -> Results:
    """Reads a sweep.

    Args:
      directory: of the sweep.
      with_runs: whether the records of all runs are read too, and not only those of trials that are not done.

    Raises:
      SweepError: no sweep is there, or `sweep.json` cannot be read.
    """
    identity = read_identity(directory)
    try:
        described = identity["sweep"]
        objective, members, written = Objective(**described["objective"]), described["population"], described["space"]
        names, space = names_of(written), read_free(written, lambda keys: None)
        experiment, members = str(identity["experiment"]), PopulationConfig(**members) if members else None
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise unreadable(directory, what) from error
    return Results(
        directory=directory,
        experiment=experiment,
        objective=objective,
        space=space,
        names=names,
        population=members,
        results=tuple(_results(directory, objective, with_runs)),
    )


def read_identity(directory: str) -> dict[str, Any]:
    """Returns the content of `sweep.json`.

    Raises:
      SweepError: no sweep is there, or the file cannot be read.
    """
    path = files.join(directory, SWEEP)
    try:
        found = files.parse_json(files.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SweepError(f"{directory} holds no sweep (there is no {path})") from error
    except (OSError, ValueError) as error:
        raise unreadable(directory, files.reason_of(error) if isinstance(error, OSError) else str(error)) from error
    if not isinstance(found, dict):
        raise unreadable(directory, "it holds no JSON object")
    return found


def unreadable(directory: str, why: str) -> SweepError:
    """Returns the error that `sweep.json` cannot be read."""
    path = files.join(directory, SWEEP)
    return SweepError(f"{path} cannot be read ({why}); put a good copy back")


def _results(directory: str, objective: Objective, with_runs: bool) -> Iterator[Result]:
    try:
        numbers = trials.numbers(directory)
    except OSError as error:
        raise SweepError(f"{directory} cannot be read: {files.reason_of(error)}") from error
    for number in numbers:
        try:
            trial = trials.read(directory, number)
        except (SweepError, OSError) as error:
            why = f"{trials.RECORD}: {files.reason_of(error)}" if isinstance(error, OSError) else str(error)
            yield Result(trial=Trial(number=number, values={}, reason=why), state="unreadable")
            continue
        if trial is None:
            continue
        step, compared = trial.step, trial.results or tuple(value for _, value in trial.reports[-1:])
        run_dir, run = trials.run_directory(directory, number), {}
        if trial.state is None:
            with contextlib.suppress(OSError, SweepError):  # as far as they can be read
                for row in read_rows(files.join(run_dir, "metrics.jsonl")):
                    step, compared = ranking.evaluation_in(row, objective) or (step, compared)
        if with_runs or trial.state is None:
            with contextlib.suppress(ModelDirError, OSError):
                run = dict(read_run(run_dir) or {})
        steps, account = run.get("steps") or {}, (run.get("time") or {}).get("total") or {}
        yield Result(
            trial=trial,
            state=trial.state or "not done",
            results=compared,
            step=step,
            steps=steps.get("current"),
            end_step=steps.get("end"),
            seconds=account.get("wall_seconds"),
            cores=run.get("cores"),
        )


# What a report draws.


def as_json(found: Results) -> dict[str, Any]:
    """Returns all that a report draws, as `docs/reference/files.md` describes it; `found` has to have its runs."""
    directions, names = found.objective.directions, found.names
    shares, reason = importances(found.space.dimensions, found.complete, directions.values())
    spent = sum(each.steps or each.step or 0 for each in found.results)
    pruned = [each for each in found.results if each.state == "pruned"]
    saved = sum(max(0, (each.end_step or 0) - (each.steps or each.step or 0)) for each in pruned)
    sign, so_far = 1 if found.objective.direction == "max" else -1, list[Trial]()
    for each in () if found.objective.others else found.complete:
        if not so_far or sign * each.results[0] > sign * so_far[-1].results[0]:
            so_far.append(each)
    return {
        "experiment": found.experiment,
        "metrics": directions,
        "evaluation": found.objective.evaluation,
        "dimensions": [
            {
                **{name: getattr(each, name) for name in ("path", "kind", "low", "high", "step")},
                "name": name_of(each.path, names),
                "choices": list(each.choices),
            }
            for each in found.space.dimensions
        ],
        "trials": [
            {
                "number": each.trial.number,
                "values": dict(each.trial.values),
                "state": each.state,
                "results": {name: encode(number) for name, number in zip(directions, each.results, strict=False)},
                "step": each.step,
                "reason": each.trial.reason,
                "reports": [[step, encode(value)] for step, value in each.trial.reports],
                "steps": each.steps,
                "end_step": each.end_step,
                "seconds": each.seconds,
                "parent": each.trial.parent,
                "run": f"trials/{each.trial.number}/{trials.RUN}",
            }
            for each in found.results
        ],
        "best": [each.number for each in found.best],
        "best_so_far": [[each.number, encode(each.results[0])] for each in so_far],
        "importances": shares,
        "importances_missing": reason,
        "steps": {"spent": spent, "without_pruning": spent + saved},
    }


def write(directory: str) -> tuple[Results, dict[str, Any]]:
    """Writes `results.json`; returns the sweep, and what the file holds.

    Raises:
      SweepError: no sweep is there, or `sweep.json` cannot be read.
      OSError: the file cannot be written.
    """
    found = read(directory, with_runs=True)
    content = as_json(found)
    text = json.dumps(content, indent=2, allow_nan=False)
    files.write_text_atomically(files.join(directory, RESULTS), f"{text}\n")
    return found, content


def importances(
    dimensions: Iterable[Dimension], complete: Sequence[Trial], directions: Iterable[str]
) -> tuple[dict[str, float], str]:
    """Returns the share of each field, which add up to 1, the largest first; and, if there are none, why.

    They are those of Optuna's PED-ANOVA, which takes conditional fields as they are.

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
