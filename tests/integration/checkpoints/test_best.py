"""The best checkpoints: ranking, restarts, and a death between any two writes."""

import errno
import itertools
import json
import math
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError
from tests.support import scripted_runs
from tests.support.cases import cases, full
from tests.support.chaos.faulty_files import Killed
from tests.support.chaos.faulty_saves import renewed, sweep
from tests.support.chaos.tiny import read_newest
from tests.support.one_weight import evaluated, saved_weight


def keeper(directory, **options):
    return BestCheckpoint(str(directory), **{"metric": "accuracy", "comp": "higher", **options})


def offer(best, step, value):
    return best.maybe_export_checkpoint(evaluated(step), {"accuracy": value, "loss": 1.0}, step)


def steps_of(best):
    return tuple(one.step for one in best.kept)


def value_of(best):
    return best.kept[0].value


def assert_whole(directory, ranking):
    """The ranking is on disk: checkpoints with their own weights, records, and the files that repeat them."""
    assert committed_steps(directory) == tuple(sorted(step for step, _ in ranking))
    again = keeper(directory, max_to_keep=max(1, len(ranking)))
    assert steps_of(again) == tuple(step for step, _ in ranking)
    for step, _ in ranking:
        assert saved_weight(directory, step) == step
    step, value = ranking[0]
    assert (again.step, value_of(again)) == (step, value)
    info = json.loads(files.read_text(f"{directory}/info.json"))
    assert (info["best_ckpt_global_step"], info["accuracy"]) == (step, value)
    assert tf.train.latest_checkpoint(directory) == f"{directory}/ckpt-{step}"
    assert not [name for name in files.list_dir(directory) if "saving" in name or ".tmp-" in name]


def test_the_k_best_are_kept(model_dir):
    """C6, T11: by value, the earlier of equal ones, NaN never; files describe the very best."""
    best = keeper(model_dir, max_to_keep=3)
    assert not offer(best, 5, math.nan)
    assert best.step is None
    taken = [offer(best, step, value) for step, value in
             [(10, 0.5), (20, 0.7), (30, 0.6), (40, 0.5), (50, math.nan), (60, 0.4), (70, 0.9), (80, 0.6)]]  # fmt: skip
    assert taken == [True, True, True, False, False, False, True, False]
    assert_whole(model_dir, [(70, 0.9), (20, 0.7), (30, 0.6)])
    assert best.best_ckpt_logs["accuracy"] == value_of(best) == 0.9


def test_a_value_that_is_nan_is_said(model_dir, caplog):
    """C6, T11: once until there is a number again."""
    best = keeper(model_dir)
    said = []
    for step, value in [(10, math.nan), (20, math.nan), (30, 0.5), (40, math.nan)]:
        offer(best, step, value)
        said.append(len(caplog.messages))
    assert said == [1, 1, 1, 2]
    assert caplog.messages[0].startswith("accuracy is NaN at step 10, so this checkpoint cannot be the best by ")
    assert "accuracy is NaN at step 40" in caplog.messages[1]


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
    assert steps_of(keeper(model_dir, comp="lower", max_to_keep=2)) == (20, 30)
    assert committed_steps(model_dir) == (10, 20, 30)  # a reader changes nothing
    keeper(model_dir, comp="lower", max_to_keep=2).tidy()
    assert committed_steps(model_dir) == (20, 30)
    assert not offer(keeper(model_dir, comp="lower", max_to_keep=2), 40, 0.25)
    assert offer(keeper(model_dir, comp="lower", max_to_keep=2), 50, 0.05)
    assert steps_of(keeper(model_dir, comp="lower", max_to_keep=2)) == (50, 20)
    keeper(model_dir, comp="lower").tidy()
    assert committed_steps(model_dir) == (50,)


def test_a_later_step_counts_once_the_run_has_reached_it_again(model_dir):
    """C6: a run that was killed goes on from an earlier step; what it kept of later ones is not used, nor deleted."""
    offer(keeper(model_dir), 80, 0.5)
    best = keeper(model_dir)
    assert offer(best, 40, 0.4)
    assert (best.step, value_of(best)) == (40, 0.4)
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
            found[step] = value_of(best)
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
    assert (steps_of(best), committed_steps(model_dir)) == ((40,), (10, 40))
    again = keeper(model_dir)
    again.observe(lambda step, logs: None, lambda: checkpoints)
    assert not offer(again, 25, 0.45)
    assert (again.step, value_of(again)) == (10, 0.5)
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


def test_records_of_another_metric_stay_until_there_is_one_of_this(model_dir):
    """T11: changing the metric does not leave a run without a best checkpoint."""
    for step, value in [(10, 0.5), (20, 0.6)]:
        offer(keeper(model_dir, max_to_keep=2), step, value)
    best = keeper(model_dir, metric="recall")
    best.tidy()
    assert best.step is None
    assert committed_steps(model_dir) == (10, 20)
    best.maybe_export_checkpoint(evaluated(30), {"recall": 0.1}, 30)
    assert committed_steps(model_dir) == (30,)


def test_another_metric_ranks_what_is_there_by_its_results(model_dir):
    """T11: the results of an evaluation are the record, so the best by another of them is known."""
    for step, accuracy, loss in [(10, 0.5, 0.1), (20, 0.6, math.nan), (30, 0.7, 0.2)]:
        logs = {"accuracy": accuracy, "loss": loss}
        keeper(model_dir, max_to_keep=3).maybe_export_checkpoint(evaluated(step), logs, step)
    best = keeper(model_dir, metric="loss", comp="lower", max_to_keep=2)
    best.tidy()
    assert (steps_of(best), value_of(best), committed_steps(model_dir)) == ((10, 30), 0.1, (10, 30))


FIRST = [(10, 0.5), (20, 0.7), (30, 0.6)]


@pytest.mark.parametrize(
    ("fault", "max_to_keep", "step", "value", "ranking"),
    [
        full((Killed, 1, 40, 0.9, [(40, 0.9)])),
        (Killed, 1, 40, 0.6, [(20, 0.7)]),
        (Killed, 1, 20, 0.7, [(20, 0.7)]),  # an evaluation that is done again replaces nothing
        full((Killed, 1, 20, 0.8, [(20, 0.8)])),
        full((Killed, 2, 40, 0.9, [(40, 0.9), (20, 0.7)])),
        full((Killed, 2, 40, 0.65, [(20, 0.7), (40, 0.65)])),
        full((Killed, 3, 40, 0.55, [(20, 0.7), (30, 0.6), (40, 0.55)])),
        (errno.ENOSPC, 1, 40, 0.9, [(40, 0.9)]),
    ],
)
def test_a_fault_at_any_write_leaves_a_true_ranking(faults, model_dir, fault, max_to_keep, step, value, ranking):
    """T11, C6, N3: the very best is never lost; the evaluation, done again, ends as it would have."""
    start = f"{model_dir}.start"
    for old_step, old_value in FIRST:
        offer(keeper(start, max_to_keep=max_to_keep), old_step, old_value)
    is_taken = step in dict(ranking) and (step, value) not in FIRST
    for error, operations in sweep(
        faults,
        lambda: offer(keeper(model_dir, max_to_keep=max_to_keep), step, value),
        prepare=lambda: renewed(start, model_dir),
        least=20 if is_taken else 0,
        fault=fault,
    ):
        if error is not None:
            for restart in (keeper(model_dir, max_to_keep=max_to_keep), keeper(model_dir, max_to_keep=max_to_keep)):
                assert restart.step in (20, ranking[0][0]), operations  # never a worse one, never none
                assert len(steps_of(restart)) == max_to_keep
                restart.tidy()
            offer(restart, step, value)
        assert_whole(model_dir, ranking)


def test_an_announcement_that_was_cut_off_is_made_again(model_dir):
    """T11: killed after the save, before the export: the evaluation is done again, and so is the export."""
    best = keeper(model_dir)

    def die(step, logs):
        raise Killed

    best.observe(die)
    with pytest.raises(Killed):
        offer(best, 10, 0.5)
    announced = []
    again = keeper(model_dir)
    again.observe(lambda step, logs: announced.append(step))
    assert offer(again, 10, 0.5)
    assert announced == [10]


# Damage.


def test_damage_to_info_json_changes_nothing(model_dir):
    """T11: it is written for Model Garden's tools, again after the next evaluation, and never read."""
    offer(keeper(model_dir), 10, 0.5)
    info = Path(model_dir, "info.json")
    for content in (None, b"", b'{"loss": 0.', b"\x00\xff", b'{"best_ckpt_global_step": 99.0}'):
        info.unlink() if content is None else info.write_bytes(content)
        assert not offer(keeper(model_dir), 20, 0.4)
        assert_whole(model_dir, [(10, 0.5)])


def test_a_record_whose_checkpoint_is_damaged_does_not_count(model_dir, caplog):
    """T11: a record never exists without its checkpoint, so the next evaluation is the best."""
    for number, (suffix, is_missing) in enumerate(itertools.product((".index", ".data-00000-of-00001"), (True, False))):
        folder = f"{model_dir}/{number}"
        offer(keeper(folder), 10, 0.5)
        path = Path(folder, f"ckpt-10{suffix}")
        path.unlink() if is_missing else path.write_bytes(path.read_bytes()[:-1])
        restarted = keeper(folder)
        assert restarted.step is None
        assert f"{folder}/ckpt-10 is damaged: " in caplog.text
        assert offer(restarted, 20, 0.4)
        assert_whole(folder, [(20, 0.4)])


def test_a_checkpoint_takes_anothers_place_on_a_url():
    """T11, C6: where rename does not replace."""
    directory = "ram://best/best"
    assert offer(keeper(directory), 10, 0.5) and offer(keeper(directory), 10, 0.7)
    assert (keeper(directory).step, value_of(keeper(directory))) == (10, 0.7)
    assert read_newest(evaluated(0), directory) == 10
    assert "replacement" not in files.list_dir(directory)


# The direction.


@pytest.mark.parametrize(
    ("metric", "chosen", "right"),
    cases(
        [("score", "lower", "higher"), ("dev|score", "lower", "higher"), ("validation_loss", "higher", "lower")],
        ("score", "lower", "higher"),
    ),
)
def test_the_worst_checkpoint_is_not_kept_as_the_best(model_dir, metric, chosen, right):
    """C6: what the task, the metric or the engine declares is not contradicted; nothing was trained."""
    options = {"best_checkpoint_eval_metric": metric, "best_checkpoint_metric_comp": chosen}
    with pytest.raises(ConfigError) as caught:
        scripted_runs.do(model_dir, **options)
    assert str(caught.value) == (
        f"trainer.best_checkpoint_metric_comp: is {chosen!r}, which would keep the worst checkpoint as the best: a "
        f"{right} {metric!r} is better; set trainer.best_checkpoint_metric_comp={right}"
    )
    assert committed_steps(model_dir) == ()


def test_the_best_of_a_metric_that_declares_nothing_is_as_configured(model_dir):
    """C6: most of Model Garden's metrics declare nothing."""
    options = {"best_checkpoint_eval_metric": "perplexity", "train_steps": 20}
    scripted_runs.do(model_dir, scores=(0.6, 0.5), **options)  # perplexity is the negative of the score here
    assert committed_steps(f"{model_dir}/best") == (20,)
