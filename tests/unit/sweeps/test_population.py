"""The trials of a population: which continues which, with which values, and what is removed."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import resolve
from official_trainer.sweeps import population
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.population import Population, moved
from official_trainer.sweeps.settings import Objective, PopulationConfig, SweepConfig
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial

RATE = Dimension("rate", "log", 1e-4, 1e-1)
UNITS = Dimension("units", "int", 2, 8, 2)
SHARE = Dimension("share", "float", -1.0, 1.0)
EIGHTHS = Dimension("eighths", "float", 0.0, 1.0, 0.125)
POWER = Dimension("power", "logint", 1, 100, 1)
KIND = Dimension("kind", "choice", choices=("a", "b", "c"))
SPACE = Space(
    (RATE, UNITS, SHARE, EIGHTHS, POWER, KIND, dataclasses.replace(RATE, path="of_a", needs=(("kind", ("a",)),)))
)
SIZE, GENERATIONS = 4, 5


def made(direction="max", directory="", **changes):
    config = SweepConfig(
        space={"rate": "log(1e-4, 1e-1)"},
        population=PopulationConfig(size=SIZE, interval=10, **changes),
        sampler="RandomSampler",
        trials=SIZE * GENERATIONS,
    )
    objective = Objective("accuracy", direction, "best")
    return Population(Study(SPACE, resolve(config), objective), SPACE, objective, config=config, directory=directory)


def grown(course, results, count=SIZE * GENERATIONS):
    """Returns the records of a population; `results` has the value of a trial, or the state of one without."""
    trials = {}
    for number in range(count):
        result = results(number)
        end = {"state": result} if isinstance(result, str) else {"state": "complete", "value": result}
        trials[number] = dataclasses.replace(course.draw(number, trials), **end)
    return trials


def test_the_worst_continue_the_best_and_the_others_themselves():
    """N35: truncation selection; which of the best is a matter of the seed and the number."""
    course = made(replaced=0.5)
    trials = grown(course, lambda number: float(number % SIZE), 2 * SIZE)
    assert {trials[number].parent for number in (4, 5)} <= {2, 3}
    assert [trials[number].parent for number in (6, 7)] == [2, 3]
    assert trials[6].values == trials[2].values and trials[4].values != trials[trials[4].parent].values
    lowest = grown(made("min", replaced=0.25), lambda number: float(number % SIZE), 2 * SIZE)
    assert [lowest[number].parent for number in range(4, 8)] == [0, 1, 2, 0]
    again = made(replaced=0.5)
    assert grown(again, lambda number: float(number % SIZE), 2 * SIZE) == trials


def test_a_trial_that_failed_is_replaced_also_where_nothing_else_is():
    """N35: and the sweep ends when no trial of a generation has weights."""
    results = {0: "failed", 1: 0.3, 2: "pruned", 3: 0.4}
    trials = grown(made(replaced=0), lambda number: results[number % SIZE], 2 * SIZE)
    assert [trials[number].parent for number in range(4, 8)] == [3, 1, 3, 3]
    course = made(directory="DIR")
    trials = grown(course, lambda number: "failed", SIZE)
    with pytest.raises(SweepError, match="all trials of generation 1 of 5 failed or were pruned, so there") as caught:
        course.parent(SIZE, trials)
    assert "official-trainer sweep retry DIR 0 1 2 3`, they run again" in str(caught.value)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(["pruned", "failed", 0.25, 0.5, 0.75]), min_size=SIZE * GENERATIONS),
    st.sampled_from([0, 0.25, 0.5]),
    st.sampled_from(["max", "min"]),
)
def test_a_trial_without_a_result_is_never_continued(results, replaced, direction):
    """N35: one that has failed, or whose loss was not finite; of the others only worse ones are replaced."""
    course = made(direction, replaced=replaced)
    for generation in range(GENERATIONS):
        own = range(generation * SIZE, (generation + 1) * SIZE)
        if all(isinstance(results[number], str) for number in own):
            results[own[0]] = 0.5
    trials = grown(course, results.__getitem__)
    for trial in list(trials.values())[SIZE:]:
        parent, before = trials[trial.parent], trials[trial.number - SIZE]
        assert parent.state == "complete" and parent.number // SIZE == trial.number // SIZE - 1
        if before.state == "complete" and parent != before:
            assert parent.value >= before.value if direction == "max" else parent.value <= before.value


def test_a_generation_begins_when_the_one_before_has_ended():
    """N35: in whatever order its trials ended; failed ones count."""
    course = made()
    trials = grown(course, lambda number: 0.5, 2 * SIZE)
    assert course.wanted({}) == SIZE and course.wanted(trials) == 3 * SIZE
    for number in range(SIZE, 2 * SIZE):
        running = trials | {number: dataclasses.replace(trials[number], state=None)}
        assert course.wanted(running) == 2 * SIZE
        assert course.wanted(trials | {number: dataclasses.replace(trials[number], state="failed")}) == 3 * SIZE
    assert course.total == SIZE * GENERATIONS and all(map(course.counts, trials.values()))


@settings(max_examples=200)
@given(
    st.sampled_from([RATE, UNITS, SHARE, EIGHTHS, POWER, KIND]), st.data(), st.sampled_from([0.5, 0.8, 1.0, 1.25, 2.0])
)
def test_a_value_moves_to_one_that_the_space_has(each, data, factor):
    """N35: inside the bounds, on its steps, of its type; by at least one step, unless a bound is there."""
    if each.kind == "choice":
        value = data.draw(st.sampled_from(each.choices))
    elif each.step is None:
        value = data.draw(st.floats(each.low, each.high))
    else:
        value = each.low + each.step * data.draw(st.integers(0, round((each.high - each.low) / each.step)))
    found = moved(each, value, factor)
    assert type(found) is type(value)
    if each.kind == "choice":
        assert abs(each.choices.index(found) - each.choices.index(value)) <= 1
        ends = (each.choices[0], each.choices[-1])
    else:
        assert each.low <= found <= each.high
        ends = (each.low, each.high)
        if each.step is not None:
            assert math.isclose((found - each.low) / each.step, round((found - each.low) / each.step), abs_tol=1e-9)
    if factor == 1:
        assert found == value
    elif value not in ends:
        assert found != value


def test_logarithmic_values_are_multiplied_and_others_move_by_a_part_of_their_range():
    """N35: so that also 0 can be left."""
    assert moved(RATE, 1e-2, 0.8) == 8e-3 and moved(RATE, 1e-4, 0.8) == 1e-4
    assert moved(SHARE, 0.0, 1.25) == 0.5
    assert moved(POWER, 1, 1.25) == 2 and moved(POWER, 40, 1.25) == 50


def test_what_is_drawn_with_a_new_choice_is_drawn_anew():
    """N35: a value that the parent does not have."""
    course = made(redrawn=0, factors=[0.5])
    trials = grown(course, lambda number: float(number % SIZE), SIZE)
    best = {"rate": 1e-2, "units": 4, "share": 0.5, "eighths": 0.5, "power": 8, "kind": "b"}
    trials[3] = dataclasses.replace(trials[3], values=best)
    assert course.parent(4, trials) == 3
    found = course.draw(4, trials).values
    assert RATE.low <= found.pop("of_a") <= RATE.high
    assert found == {"rate": 5e-3, "units": 2, "share": -0.5, "eighths": 0.0, "power": 4, "kind": "a"}


@pytest.mark.parametrize("best", range(SIZE * 2))
def test_weights_that_nothing_needs_any_more_are_removed(tmp_path, best):
    """N35: but those of the best trial, which another one may be later."""
    course = made(directory=str(tmp_path))
    trials = grown(course, lambda number: float(number == best))
    runs = [tmp_path / "trials" / str(number) / "run" for number in trials]
    for number, run in enumerate(runs):
        run.mkdir(parents=True)
        (run / "ckpt-1.index").touch()
        if number % SIZE == 0:
            course.begin(dataclasses.replace(trials[number], parent=None), trials, lambda: None)
            generation = number // SIZE
            left = {each for each in range(number) if (runs[each] / "ckpt-1.index").exists()}
            before = set(range((generation - 1) * SIZE, number))
            kept = best if best < (generation - 1) * SIZE else 0
            assert left == ((before | {kept}) if generation else set()), generation


def test_the_script_of_a_trial_has_its_values_from_step_to_step():
    """N35: one command for each change of the values."""
    space = Space((Dimension("it's", "float", 0, 1), Dimension("b", "choice", choices=("x", "y z"))))
    first = Trial(number=1, values={"it's": 0.1, "b": "x"})
    line = [
        first,
        dataclasses.replace(first, number=5, parent=1),
        Trial(number=8, values={"it's": 0.3, "b": "y z"}, parent=5),
    ]
    assert population.lineage({each.number: each for each in line}, line[-1]) == line
    lines = population.script("my exp", space, line, PopulationConfig(size=4, interval=10))
    train = """official-trainer train 'my exp' "$@" """
    assert lines[1:] == [
        "set -e",
        train + """--until_step=20 --allow_config_change '--set=it'"'"'s=0.1' --set=b=x""",
        train + """--until_step=30 --allow_config_change '--set=it'"'"'s=0.3' '--set=b=y z'""",
    ]
