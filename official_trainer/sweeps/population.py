"""Population-based training: members that train side by side, and the worst of which go on from the best ones' weights.

The method is that of Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, with
truncation selection: after each generation, a member among the worst continues the checkpoint of one among the best
(exploit), with the values of that one changed a little or drawn anew (explore). All others continue their own.

Owns: which trial continues which, with which values; when weights are removed.
Does not own: whether a run can continue with other values (`continuable.py`), copying one (`copied_run.py`).

Trial `generation x size + member` is one member in one generation, and begins as a copy of its parent's run. A
generation begins when the one before has ended, so that all of this is a function of the sweep's seed and of results,
however many trials ran at the same time, in whichever processes, killed or not.
"""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Callable, Mapping, Sequence

from official_trainer.sweeps import copied_run, ranking
from official_trainer.sweeps.course import Course
from official_trainer.sweeps.distributions import INTEGERS, LOGARITHMIC, Dimension, Value
from official_trainer.sweeps.settings import Objective, PopulationConfig, SweepConfig
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial, run_directory
from official_trainer.tracking.record import ModelDirError


class Population(Course):
    """The trials of a population, generation by generation.

    Args:
      study: draws at random.
      space: what is drawn.
      objective: what members are compared by.
      config: the file of the sweep, as `continuable.settled` returns it.
      directory: of the sweep.
    """

    def __init__(
        self,
        study: Study,
        space: Space,
        objective: Objective,
        *,
        config: SweepConfig,
        directory: str,
    ) -> None:
        super().__init__(study)
        assert config.population is not None and config.population.interval is not None
        self._space, self._objective, self._config = space, objective, config.population
        self._directory, self._seed, self._interval = directory, config.seed, config.population.interval
        self._generations = study.trials // config.population.size

    def counts(self, trial: Trial) -> bool:
        return trial.state is not None  # also one that has failed: its place is taken in the next generation

    def wanted(self, trials: Mapping[int, Trial]) -> int:
        size = self._config.size
        for end in range(size, self.total, size):
            if any(number not in trials or trials[number].state is None for number in range(end - size, end)):
                return end
        return self.total

    def title(self, trial: Trial) -> str:
        generation, member = divmod(trial.number, self._config.size)
        return "" if member else f"generation {generation + 1} of {self._generations}"

    # Which continues which, and with which values.

    def parent(self, number: int, trials: Mapping[int, Trial]) -> int | None:
        """Returns the trial of the generation before that a trial continues; None in the first one.

        Raises:
          SweepError: no trial of the generation before has a result.
        """
        size = self._config.size
        generation = number // size
        if generation == 0:
            return None
        found = [trials[each] for each in range((generation - 1) * size, generation * size)]
        ranked = ranking.ranked(found, self._objective)
        ranked += [each for each in found if each not in ranked]
        good = [each for each in ranked if each.state == "complete"]
        if not good:
            raise SweepError(
                f"all trials of generation {generation} of {self._generations} failed or were pruned, so there are no "
                f"weights to go on from; the first one: {ranked[0].reason}\nDraw from a narrower space in a new sweep, "
                "with another --model_dir. Or mend the cause: after `official-trainer sweep retry "
                f"{self._directory} {' '.join(str(each.number) for each in ranked)}`, they run again"
            )
        count = max(1, int(self._config.replaced * size)) if self._config.replaced else 0
        own = number - size
        kept = {each.number for each in ranked[: len(ranked) - count]}
        if trials[own].state == "complete" and own in kept:
            return own
        return self._random(number, "parent").choice(good[: max(1, count)]).number

    def draw(self, number: int, trials: Mapping[int, Trial], attempt: int = 0) -> Trial:
        parent = self.parent(number, trials)
        before = trials[parent].values if parent is not None else {}
        if parent is not None and parent == number - self._config.size:
            return Trial(number=number, values=dict(before), attempt=attempt, parent=parent)
        anew, chance = self._study.chooser(number, {}, attempt), self._random(number, f"values/{attempt}")

        def choose(each: Dimension) -> Value:
            is_redrawn, factor = chance.random() < self._config.redrawn, chance.choice(self._config.factors)
            return anew(each) if is_redrawn or each.path not in before else moved(each, before[each.path], factor)

        return Trial(number=number, values=self._space.draw(choose), attempt=attempt, parent=parent)

    def _random(self, number: int, what: str) -> random.Random:
        digest = hashlib.sha256(f"{self._seed}/{number}/{what}".encode()).digest()
        return random.Random(int.from_bytes(digest, "big"))

    # Runs.

    def begin(self, trial: Trial, trials: Mapping[int, Trial], check: Callable[[], None]) -> bool:
        # Neither this generation nor the one before needs the weights of earlier ones, but those of the best.
        size = self._config.size
        past = [trials[number] for number in range(max(0, (trial.number // size - 1) * size))]
        best, first = ranking.best(past, self._objective), max(0, len(past) - size)
        for each in (*ranking.best(past[:first], self._objective), *past[first:]):
            if each not in best:
                copied_run.remove_weights(run_directory(self._directory, each.number))
        if trial.parent is None:
            return False
        source, target = (
            run_directory(self._directory, trial.parent),
            run_directory(self._directory, trial.number),
        )
        try:
            return copied_run.copy(source, target, step=self.span(trial)[0], check=check)
        except ModelDirError as error:
            raise SweepError(
                f"trial {trial.number} cannot continue trial {trial.parent}: {error}. Put it back, or begin a new "
                "sweep with another --model_dir"
            ) from error

    def span(self, trial: Trial) -> tuple[int, int | None]:
        since = trial.number // self._config.size * self._interval
        return since, since + self._interval


def moved(each: Dimension, value: Value, factor: float) -> Value:
    """Returns a value near another one, inside the bounds.

    Args:
      each: what is drawn.
      value: of the trial that is continued.
      factor: see `PopulationConfig.factors`.
    """
    if each.kind == "choice":
        index = each.choices.index(str(value)) + (factor > 1) - (factor < 1)
        return each.choices[min(max(index, 0), len(each.choices) - 1)]
    number = float(value)
    target = number * factor if each.kind in LOGARITHMIC else number + (factor - 1) * (each.high - each.low)
    if each.step is None:
        return min(max(target, each.low), each.high)
    before, index = (round((at - each.low) / each.step) for at in (number, target))
    if index == before:
        index += (factor > 1) - (factor < 1)
    index = min(max(index, 0), round((each.high - each.low) / each.step))
    found = each.low + index * each.step
    return int(found) if each.kind in INTEGERS else found


def lineage(found: Mapping[int, Trial], trial: Trial) -> list[Trial]:
    """Returns the trials whose runs a trial has continued, the first one first, itself last."""
    line = [trial]
    while (parent := line[0].parent) is not None:
        line.insert(0, found[parent])
    return line


def script(experiment: str, space: Space, line: Sequence[Trial], config: PopulationConfig) -> list[str]:
    """Returns the lines of a shell script that trains a trial of a population again, given the flags of the sweep.

    Args:
      experiment: registered name.
      space: what was drawn.
      line: see `lineage`.
      config: of the population, with its interval.
    """
    lines = [
        "# to train it again, with the flags of the sweep that set values: sh FILE --model_dir=DIR FLAGS",
        "set -e",
    ]
    for each, following in zip(line, [*line[1:], None], strict=True):
        if following is not None and following.values == each.values:
            continue  # it goes on with the same values
        until_step = (each.number // config.size + 1) * (config.interval or 0)
        sets = (shlex.quote(f"--set={text}") for text in space.overrides(each.values))
        words = f'official-trainer train {shlex.quote(experiment)} "$@" --until_step={until_step} --allow_config_change'
        lines.append(" ".join([words, *sets]))
    return lines
