"""Checkpoints that a policy keeps by their names: which stay, restarts, and a death between any two writes."""

import math
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import files
from official_trainer.checkpoints.kept import KeptCheckpoints, latest, templates
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.checkpoints.retention import Candidate, Retention
from tests.support.cases import full
from tests.support.chaos.faulty_files import Killed
from tests.support.chaos.faulty_saves import renewed, sweep
from tests.support.one_weight import evaluated, saved_weight


def started(directory, policy, template="{name}", **options):
    """Returns what the action has at the start of a process."""
    checkpoints = KeptCheckpoints(directory, policy, template=template, **options)
    checkpoints.tidy()
    return checkpoints


def offer(checkpoints, name, step, value, weight=None):
    """Does what the action does after an evaluation; returns whether it was taken."""
    new = checkpoints.candidate(name, step, {"accuracy": value})
    if not checkpoints.takes(new):
        return False
    checkpoint = evaluated(step)
    checkpoint.model.assign(float(step if weight is None else weight))
    checkpoints.save(new, checkpoint)
    return True


def on_disk(directory):
    """Returns {folder: step}, after checking that each is whole and has its own weights."""
    steps = {}
    for name in files.list_dir(directory):
        (steps[name],) = committed_steps(f"{directory}/{name}")
        assert saved_weight(f"{directory}/{name}", steps[name]) == steps[name]
    return steps


TEMPLATES = ("run-{epoch}", "run-{step}")
BEST = Retention(monitor="accuracy", max_to_keep=2)
HISTORY = [(10, 0.5), (20, 0.7), (30, math.nan), (40, 0.7), (50, 0.6), (60, 0.9)]


def test_which_are_saved_and_which_stay(model_dir):
    """C1, C6: the best by value, the earlier of equal ones, NaN never; or the newest; the same after each restart."""
    by_value = {"monitor": "accuracy", "max_to_keep": None}
    for number, (policy, taken, kept) in enumerate(
        (
            (BEST, [10, 20, 40, 60], [60, 20]),
            (Retention(monitor="accuracy", max_to_keep=1), [10, 20, 60], [60]),
            (Retention(**by_value), [10, 20, 40, 50, 60], [60, 20, 40, 50, 10]),
            (Retention(**by_value, save_best_only=True), [10, 20, 60], [60, 20, 10]),
            (Retention(monitor="accuracy", direction="min", max_to_keep=2), [10, 20, 50], [10, 50]),
            (Retention(**by_value, threshold=0.7), [60], [60]),
            (Retention(**by_value, direction="min", threshold=0.6), [10], [10]),
            (Retention(max_to_keep=2), [10, 20, 30, 40, 50, 60], [60, 50]),
            (Retention(max_to_keep=1, keep_every_n_steps=20), [10, 20, 30, 40, 50, 60], [60, 40, 20]),
            (Retention(monitor="accuracy", max_to_keep=1, keep_every_n_steps=25), [10, 20, 50, 60], [60, 50]),
        )
    ):
        folder = f"{model_dir}/{number}"
        assert [step for step, value in HISTORY if offer(started(folder, policy), f"s{step}", step, value)] == taken
        assert [one.step for one in started(folder, policy).kept] == kept
        assert on_disk(folder) == {f"s{step}": step for step in kept}


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), max_size=12),
    st.sampled_from(["max", "min"]),
    st.sampled_from([1, 2, None]),
    st.booleans(),
    st.data(),
)
def test_evaluations_that_are_repeated_change_nothing(history, direction, max_to_keep, save_best_only, data):
    """C1: killed anywhere and continued from any earlier step, the same ones stay."""
    for monitor in ("accuracy", ""):
        policy = Retention(monitor=monitor, direction=direction, max_to_keep=max_to_keep)
        policy = Retention(**{**vars(policy), "save_best_only": save_best_only and bool(monitor)})
        values = [float(value) if monitor else None for _, value in history]
        offers = [
            Candidate(name=name, step=10 * (index + 1), value=values[index]) for index, (name, _) in enumerate(history)
        ]

        def after(offered, checkpoints=(), policy=policy):
            checkpoints = list(checkpoints)
            for new in offered:
                if policy.takes(new, checkpoints):
                    checkpoints = policy.kept([one for one in checkpoints if one != new] + [new])
            return checkpoints

        killed = data.draw(st.integers(0, len(offers)))
        back = data.draw(st.integers(0, killed))
        assert after(offers[back:], after(offers[:killed])) == after(offers)


def test_two_steps_of_one_name(model_dir):
    """C3: the better one has it, or else the newer one, and the old one goes only after that."""
    best = started(model_dir, BEST)
    assert offer(best, "epoch-1", 10, 0.5)
    assert not offer(best, "epoch-1", 20, 0.4)
    assert offer(best, "epoch-1", 30, 0.6)
    assert on_disk(model_dir) == {"epoch-1": 30}
    newest = started(f"{model_dir}/newest", Retention())
    assert [offer(newest, "last", step, 0.0) for step in (10, 20, 30)] == [True] * 3
    assert not offer(newest, "last", 20, 0.0)
    assert on_disk(f"{model_dir}/newest") == {"last": 30}


def test_a_step_that_is_evaluated_again_after_a_rollback(model_dir):
    """C1: by value, the better stays; without a metric, what the run is now."""
    best = started(model_dir, BEST)
    offer(best, "a-0.5", 10, 0.5)
    assert not offer(best, "a-0.4", 10, 0.4)
    assert offer(best, "a-0.6", 10, 0.6)
    assert on_disk(model_dir) == {"a-0.6": 10}
    newest = started(f"{model_dir}/newest", Retention(max_to_keep=None))
    offer(newest, "10-0.5", 10, 0.5)
    offer(newest, "10-0.4", 10, 0.4)
    assert on_disk(f"{model_dir}/newest") == {"10-0.4": 10}
    offer(newest, "10-0.4", 10, 0.4, weight=7)
    assert saved_weight(f"{model_dir}/newest/10-0.4", 10) == 7


def test_sets_share_a_directory(model_dir):
    """C6: each sees its own, tidies its own, and is refused a name that another one has."""
    options = {name: {"template": name, "is_shared": True} for name in ("first", "second")}
    sets = {name: started(model_dir, Retention(max_to_keep=1), **of_set) for name, of_set in options.items()}
    for step in (10, 20):
        for name, checkpoints in sets.items():
            offer(checkpoints, f"{name}-{step}", step, 0.5)
    files.make_dirs(f"{model_dir}/empty")  # may be what the other's save begins with
    for name in sets:
        again = started(model_dir, Retention(max_to_keep=1), **options[name])
        assert [one.name for one in again.kept] == [f"{name}-20"]
    assert files.list_dir(model_dir) == ["empty", "first-20", "second-20"]
    with pytest.raises(CheckpointError, match="first-20 belongs to 'first', not to 'second'; give one of them another"):
        offer(sets["second"], "first-20", 30, 0.5)


@pytest.mark.parametrize(
    ("policy", "name", "step", "value", "expected"),
    [
        full((BEST, "new", 40, 0.9, {"new": 40, "b": 20})),
        (BEST, "b", 40, 0.9, {"b": 40, "c": 30}),  # takes the place of another
        full((BEST, "new", 20, 0.8, {"new": 20, "c": 30})),  # of the same step
        full((Retention(max_to_keep=2), "new", 40, 0.1, {"new": 40, "c": 30})),
        full((Retention(max_to_keep=2), "c", 30, 0.1, {"b": 20, "c": 30})),  # written again
    ],
)
def test_a_death_between_any_two_writes(faults, model_dir, policy, name, step, value, expected):
    """C1, C6: what is there is whole, the first is never lost, and the evaluation, done again, ends as it would."""
    start = f"{model_dir}.start"
    for old_name, old_step, old_value in [("a", 10, 0.5), ("b", 20, 0.7), ("c", 30, 0.6)]:
        offer(started(start, policy), old_name, old_step, old_value)
    first = started(start, policy).kept[0].step
    for error, operations in sweep(
        faults,
        lambda: offer(started(model_dir, policy), name, step, value),
        prepare=lambda: renewed(start, model_dir),
        least=20,
        fault=Killed,
    ):
        if error is not None:
            restart = started(model_dir, policy)
            assert restart.kept[0].step in (first, step), operations
            assert len(on_disk(model_dir)) == 2
            offer(restart, name, step, value)
        assert on_disk(model_dir) == expected


def test_only_what_is_ours_is_deleted(model_dir):
    """C6: other files and folders stay, checkpoints of others too, and what a dead save left goes."""
    offer(started(model_dir, BEST), "a", 10, 0.5)
    files.make_dirs(f"{model_dir}/notes")
    files.write_text_atomically(f"{model_dir}/notes/mine.txt", "x")
    files.write_text_atomically(f"{model_dir}/readme.txt", "x")
    for name in (".named_checkpoint", "ckpt-20.saving", "ckpt-20.index"):
        files.make_dirs(f"{model_dir}/dead")
        files.write_text_atomically(f"{model_dir}/dead/{name}", "" if name == ".named_checkpoint" else "x")
    files.make_dirs(f"{model_dir}/half")
    files.write_text_atomically(f"{model_dir}/half/.named_checkpoint.tmp-1-0a1b2c3d", "")
    shutil.copytree(f"{model_dir}/a", f"{model_dir}/run")  # somebody's run
    files.remove(f"{model_dir}/run/.named_checkpoint")
    started(model_dir, BEST)
    assert files.list_dir(model_dir) == ["a", "notes", "readme.txt", "run"]
    assert committed_steps(f"{model_dir}/run") == (10,)


def test_the_latest_of_a_template_is_found_by_its_step(model_dir):
    """C4: never by a modification time, nor by the order of names."""
    assert latest(model_dir, "run-{epoch}") is None
    runs, other = (started(model_dir, Retention(max_to_keep=None), template=t, is_shared=True) for t in TEMPLATES)
    for checkpoints, name, step in [(runs, "run-9", 90), (runs, "run-10", 100), (other, "run-1", 500), (runs, "x", 80)]:
        offer(checkpoints, name, step, 0.0)
    for age, name in enumerate(["run-10", "run-1", "run-9", "x"]):
        for file in files.list_dir(f"{model_dir}/{name}"):
            os.utime(f"{model_dir}/{name}/{file}", (age, age))
    assert latest(model_dir, "run-{epoch}") == f"{model_dir}/run-10/ckpt-100"
    assert latest(model_dir, "run-{step}") == f"{model_dir}/run-1/ckpt-500"
    assert latest(model_dir, "run-{epoch}-{loss}") is None
    assert templates(model_dir) == list(TEMPLATES)
