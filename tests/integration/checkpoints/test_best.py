"""The best checkpoints: ranking, restarts, and a death between any two writes."""

import json
import math
import os
import shutil

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.manifest import committed_steps
from tests.support.cases import full
from tests.support.dying_writes import Died, Writes, evaluated, saved_weight


def keeper(directory, **options):
    return BestCheckpoint(str(directory), **{"metric": "accuracy", "comp": "higher", **options})


def offer(best, step, value):
    return best.maybe_export_checkpoint(evaluated(step), {"accuracy": value, "loss": 1.0}, step)


def assert_whole(directory, ranking):
    """The ranking is on disk: checkpoints with their own weights, records, and the files that repeat them."""
    assert committed_steps(directory) == tuple(sorted(step for step, _ in ranking))
    again = keeper(directory, max_to_keep=max(1, len(ranking)))
    assert again.steps == tuple(step for step, _ in ranking)
    for step, _ in ranking:
        assert saved_weight(directory, step) == step
    step, value = ranking[0]
    assert (again.step, again.value) == (step, value)
    info = json.loads(files.read_text(f"{directory}/info.json"))
    assert (info["best_ckpt_global_step"], info["accuracy"]) == (step, value)
    assert tf.train.latest_checkpoint(directory) == f"{directory}/ckpt-{step}"


def test_the_k_best_are_kept(model_dir):
    """C6, T11: by value, the earlier of equal ones, NaN never; files describe the very best."""
    best = keeper(model_dir, max_to_keep=3)
    assert not offer(best, 5, math.nan)
    assert best.step is None
    taken = [offer(best, step, value) for step, value in
             [(10, 0.5), (20, 0.7), (30, 0.6), (40, 0.5), (50, math.nan), (60, 0.4), (70, 0.9), (80, 0.6)]]  # fmt: skip
    assert taken == [True, True, True, False, False, False, True, False]
    assert_whole(model_dir, [(70, 0.9), (20, 0.7), (30, 0.6)])
    assert best.best_ckpt_logs["accuracy"] == best.value == 0.9


def test_a_value_that_is_nan_is_said(model_dir, caplog):
    """C6, T11: once until there is a number again; and at the end, if there never was one."""
    best = keeper(model_dir)
    said = []
    for step, value in [(10, math.nan), (20, math.nan), (30, 0.5), (40, math.nan)]:
        offer(best, step, value)
        said.append((len(caplog.messages), best.lacks))
    lacks = "no best checkpoint was kept: accuracy was NaN in every evaluation"
    assert said == [(1, lacks), (1, lacks), (1, ""), (2, "")]
    assert caplog.messages[0].startswith("accuracy is NaN at step 10, so this checkpoint cannot be the best by ")
    assert "accuracy is NaN at step 40" in caplog.messages[1]
    assert not keeper(f"{model_dir}/new").lacks


def test_only_a_new_very_best_is_announced(model_dir):
    """C6: an export is made of the very best only, while its weights are in the model."""
    best = keeper(model_dir, max_to_keep=2)
    announced = []
    best.observe(lambda step, logs: announced.append((step, logs["accuracy"])))
    for step, value in [(10, 0.5), (20, 0.4), (30, 0.45), (40, 0.6), (50, 0.6)]:
        offer(best, step, value)
    assert announced == [(10, 0.5), (40, 0.6)]
    assert_whole(model_dir, [(40, 0.6), (50, 0.6)])


def test_ranking_goes_on_after_a_restart_and_a_lower_limit_holds_at_once(model_dir):
    """C6: what an earlier process kept is the bar; a limit that was lowered deletes the worst."""
    for step, value in [(10, 0.3), (20, 0.1), (30, 0.2)]:
        offer(keeper(model_dir, comp="lower", max_to_keep=3), step, value)
    assert keeper(model_dir, comp="lower", max_to_keep=2).steps == (20, 30)
    assert committed_steps(model_dir) == (10, 20, 30)  # a reader changes nothing
    keeper(model_dir, comp="lower", max_to_keep=2).tidy()
    assert committed_steps(model_dir) == (20, 30)
    assert not offer(keeper(model_dir, comp="lower", max_to_keep=2), 40, 0.25)
    assert offer(keeper(model_dir, comp="lower", max_to_keep=2), 50, 0.05)
    assert keeper(model_dir, comp="lower", max_to_keep=2).steps == (50, 20)
    keeper(model_dir, comp="lower").tidy()
    assert committed_steps(model_dir) == (50,)


def test_a_later_step_counts_once_the_run_has_reached_it_again(model_dir):
    """C6: a run that was killed goes on from an earlier step; what it kept of later ones is not used, nor deleted."""
    offer(keeper(model_dir), 80, 0.5)
    best = keeper(model_dir)
    assert offer(best, 40, 0.4)
    assert (best.step, best.value) == (40, 0.4)
    assert committed_steps(model_dir) == (40, 80)
    assert offer(best, 60, 0.45)
    assert (best.step, committed_steps(model_dir)) == (60, (60, 80))
    offer(best, 80, 0.5)
    assert_whole(model_dir, [(80, 0.5)])


@pytest.mark.parametrize("max_to_keep", [1, 2, 3])
def test_kills_between_evaluations_change_no_best_value(tmp_path, max_to_keep):
    """C6, N1: each evaluation is told the same best value as in a run without kills, and the same ones remain."""
    values = dict(zip(range(8, 72, 8), [0.3, 0.5, 0.4, 0.9, 0.2, 0.8, 0.9, 0.1], strict=True))

    def told(directory, steps):
        best, found = keeper(directory, max_to_keep=max_to_keep), {}
        for step in steps:
            offer(best, step, values[step])
            found[step] = best.value
        return found

    expected = told(tmp_path / "unbroken", values)
    seen = {}
    for again_from, last in ((8, 24), (8, 40), (32, 56), (8, 64)):
        seen |= told(tmp_path / "killed", range(again_from, last + 8, 8))
    assert seen == expected
    assert committed_steps(tmp_path / "killed") == committed_steps(tmp_path / "unbroken")


def test_what_was_the_best_where_the_run_may_go_back_to_stays(model_dir):
    """C6, N1: a better one that came later is not there any more then; nothing worse may take its place."""
    checkpoints = [20]
    best = keeper(model_dir)
    best.observe(lambda step, logs: None, lambda: checkpoints)
    for step, value in [(10, 0.5), (20, 0.4), (30, 0.6), (40, 0.7)]:
        offer(best, step, value)
    assert (best.steps, committed_steps(model_dir)) == ((40,), (10, 40))
    again = keeper(model_dir)
    again.observe(lambda step, logs: None, lambda: checkpoints)
    assert not offer(again, 25, 0.45)
    assert (again.step, again.value) == (10, 0.5)
    checkpoints[:] = [40]
    offer(again, 40, 0.7)
    assert_whole(model_dir, [(40, 0.7)])


def test_a_rollback_drops_what_comes_after_its_step_and_nothing_else(model_dir):
    """C6: the best checkpoint of the step that the run goes back to stays."""
    best = keeper(model_dir, max_to_keep=3)
    for step, value in [(10, 0.5), (20, 0.9), (30, 0.7)]:
        offer(best, step, value)
    assert best.drop_after(20) == (30,)
    assert_whole(model_dir, [(20, 0.9), (10, 0.5)])
    assert best.drop_after(9) == (10, 20)
    assert (best.step, committed_steps(model_dir)) == (None, ())
    assert not files.exists(f"{model_dir}/info.json")


def test_one_step_has_one_checkpoint_the_better(model_dir):
    """C6: evaluated again, a step keeps its better value."""
    best = keeper(model_dir, max_to_keep=2)
    offer(best, 10, 0.5)
    offer(best, 20, 0.4)
    assert not offer(best, 20, 0.3)
    assert offer(best, 20, 0.6)
    assert_whole(model_dir, [(20, 0.6), (10, 0.5)])


def test_records_of_another_metric_stay_until_there_is_one_of_this(model_dir):
    """T11: changing the metric does not leave a run without a best checkpoint."""
    offer(keeper(model_dir), 10, 0.5)
    best = keeper(model_dir, metric="loss", comp="lower")
    best.tidy()
    assert best.step is None
    assert committed_steps(model_dir) == (10,)
    offer(best, 20, 0.1)
    assert committed_steps(model_dir) == (20,)


FIRST = [(10, 0.5), (20, 0.7), (30, 0.6)]


@pytest.mark.parametrize(
    ("max_to_keep", "step", "value", "ranking"),
    [
        (1, 40, 0.9, [(40, 0.9)]),
        (1, 40, 0.6, [(20, 0.7)]),
        (1, 20, 0.7, [(20, 0.7)]),  # an evaluation that is done again replaces nothing
        (2, 40, 0.9, [(40, 0.9), (20, 0.7)]),
        full((2, 40, 0.65, [(20, 0.7), (40, 0.65)])),
        (3, 40, 0.55, [(20, 0.7), (30, 0.6), (40, 0.55)]),
    ],
)
def test_a_death_between_any_two_writes_leaves_a_true_ranking(
    model_dir, monkeypatch, max_to_keep, step, value, ranking
):
    """T11, C6: the very best is never lost; the evaluation that was cut off is done again and ends as it would have."""
    before = keeper(model_dir, max_to_keep=max_to_keep)
    for old_step, old_value in FIRST:
        offer(before, old_step, old_value)
    start = f"{model_dir}.start"
    os.rename(model_dir, start)
    deaths = 0
    while True:
        shutil.copytree(start, model_dir)
        with monkeypatch.context() as patch:
            Writes(patch, die_at=deaths + 1)
            try:
                offer(keeper(model_dir, max_to_keep=max_to_keep), step, value)
                break
            except Died:
                deaths += 1
        for restart in (keeper(model_dir, max_to_keep=max_to_keep), keeper(model_dir, max_to_keep=max_to_keep)):
            assert restart.step in (20, ranking[0][0])  # never a worse one, never none
            assert len(restart.steps) == max_to_keep
            restart.tidy()
        offer(restart, step, value)
        assert_whole(model_dir, ranking)
        shutil.rmtree(model_dir)
    assert_whole(model_dir, ranking)
    assert (deaths >= 5) is (step in dict(ranking) and (step, value) not in FIRST)


def test_an_announcement_that_was_cut_off_is_made_again(model_dir):
    """T11: killed after the save, before the export: the evaluation is done again, and so is the export."""
    best = keeper(model_dir)

    def die(step, logs):
        raise Died

    best.observe(die)
    with pytest.raises(Died):
        offer(best, 10, 0.5)
    announced = []
    again = keeper(model_dir)
    again.observe(lambda step, logs: announced.append(step))
    assert offer(again, 10, 0.5)
    assert announced == [10]
