"""The best checkpoint's record, whatever happens between any two writes: never without its checkpoint, never worse."""

import errno
import itertools
import json
import logging
import math
import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError
from tests.support import scripted_runs
from tests.support.cases import cases
from tests.support.chaos.faulty_files import Killed
from tests.support.chaos.tiny import read_newest


class Evaluated:
    """A trainer whose weights tell what its evaluation found, and one process's keeper of the best of them."""

    def __init__(self, directory, *, comp="higher"):
        self.directory = directory
        model = tf.Module()
        model.weights = tf.Variable([0.0, 0.0])
        self.checkpoint = tf.train.Checkpoint(global_step=tf.Variable(0, dtype=tf.int64), model=model)
        self.best = BestCheckpoint(directory, metric="dev|accuracy", comp=comp)
        self.told = []
        self.best.observe(lambda step, logs: self.told.append((step, logs["dev"]["accuracy"])))

    def evaluate(self, step, value):
        self.checkpoint.global_step.assign(step)
        self.checkpoint.model.weights.assign([step, value])
        return self.best.maybe_export_checkpoint(self.checkpoint, {"dev": {"accuracy": value}, "loss": math.nan}, step)

    @property
    def record(self):
        return None if self.best.step is None else (self.best.step, self.best.value)

    def assert_holds(self, step, value):
        """The record, the checkpoint it is about, and what other tools read, say the same; nothing else is there."""
        assert self.record == (step, value)
        assert self.best.best_ckpt_logs["dev"] == {"accuracy": value}
        assert read_newest(self.checkpoint, self.directory) == step
        assert self.checkpoint.model.weights.numpy().tolist() == tf.constant([step, value], tf.float32).numpy().tolist()
        info = json.loads(Path(self.directory, "info.json").read_text())
        assert (info["best_ckpt_global_step"], info["dev"]["accuracy"]) == (step, value)
        names = {name for name in os.listdir(self.directory) if not name.startswith(f"ckpt-{step}.")}
        assert names == {"checkpoint", "info.json"}
        assert not [name for name in os.listdir(self.directory) if "saving" in name or ".tmp-" in name]
        assert tf.train.latest_checkpoint(self.directory) == f"{self.directory}/ckpt-{step}"


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "best")


HISTORIES = {
    "first": (None, (10, 0.5)),
    "later": ((10, 0.5), (20, 0.7)),
    "same_step_evaluated_again": ((10, 0.5), (10, 0.7)),
}


FOLLOWING = ("again", "better", "worse", "nan")


def renewed(directory, before):
    """Puts `directory` back to where an evaluation `before` leaves it; made once, then copied."""
    made = f"{directory}.made"
    if before is not None and not os.path.exists(made):
        Evaluated(made).evaluate(*before)
    shutil.rmtree(directory, ignore_errors=True)
    if before is not None:
        shutil.copytree(made, directory)


@pytest.mark.parametrize("is_each_with_each", cases([False, True], False), ids=["in_turn", "each_with_each"])
@pytest.mark.parametrize("history", cases(HISTORIES, "later"))
def test_a_kill_between_any_two_writes(faults, directory, history, is_each_with_each):
    """T11, N1: the next process knows the old best or the new one, with its checkpoint, until there is a better."""
    before, better = HISTORIES[history]
    for number in itertools.count():
        # Each operation, and then in turn what the next process finds, or each with each.
        at, following = divmod(number, len(FOLLOWING)) if is_each_with_each else (number, number % len(FOLLOWING))
        renewed(directory, before)
        first = Evaluated(directory)
        faults.arm(at, Killed)
        try:
            first.evaluate(*better)
        except Killed:
            is_killed = True
        else:
            is_killed = False
        faults.arm()
        check_next_process(directory, FOLLOWING[following], before, better, told=first.told, where=at)
        if not is_killed:
            assert at > 20
            return


def check_next_process(directory, next_evaluation, before, better, *, told, where):
    fresh = Evaluated(directory)
    known = fresh.record
    assert known in (before, better), where
    evaluation = {"again": better, "worse": (40, 0.1), "nan": (40, math.nan), "better": (40, 0.9)}[next_evaluation]
    fresh.evaluate(*evaluation)
    expected = known
    if next_evaluation in ("again", "better") or (known is None and next_evaluation == "worse"):
        expected = evaluation
    if expected is None:
        assert fresh.record is None
        return
    fresh.assert_holds(*expected)
    Evaluated(directory).assert_holds(*expected)
    if expected != before:
        # Who is told of new bests is told of this one, by the process that died or by the one that evaluated again.
        assert expected in told + fresh.told or next_evaluation in ("worse", "nan"), where


@pytest.mark.parametrize("history", cases(HISTORIES, "later"))
def test_an_error_at_any_write(faults, directory, history):
    """T11, N3: the process ends; if it did go on, it would not forget the best value either."""
    before, better = HISTORIES[history]
    for at in itertools.count():
        renewed(directory, before)
        first = Evaluated(directory)
        faults.arm(at, errno.ENOSPC)
        error = None
        try:
            first.evaluate(*better)
        except OSError as caught:
            error = caught
            assert files.as_storage_error(error) is not None
        has_struck = faults.has_struck
        faults.arm()
        assert has_struck == (error is not None), faults.operations
        fresh = Evaluated(directory)
        known = fresh.record
        assert known in (before, better)
        fresh.evaluate(*better)
        fresh.assert_holds(*better)
        if not has_struck:
            return


def test_a_worse_value_after_a_restart_changes_nothing(directory):
    """T11: nor an equal one; a better one does."""
    Evaluated(directory).evaluate(10, 0.5)
    restarted = Evaluated(directory)
    assert not restarted.evaluate(20, 0.4)
    restarted.assert_holds(10, 0.5)
    assert not restarted.evaluate(30, 0.5)
    restarted.assert_holds(10, 0.5)
    assert restarted.told == []
    assert restarted.evaluate(40, 0.6)
    restarted.assert_holds(40, 0.6)


def test_a_lower_metric_after_a_restart(directory):
    """T11: the comparison is the config's."""
    Evaluated(directory, comp="lower").evaluate(10, 0.5)
    restarted = Evaluated(directory, comp="lower")
    assert not restarted.evaluate(20, 0.6)
    assert restarted.evaluate(30, 0.4)
    Evaluated(directory, comp="lower").assert_holds(30, 0.4)


def test_a_nan_is_never_the_best(directory):
    """T11: not even the first; and it leaves nothing behind that could stand in the way."""
    first = Evaluated(directory)
    assert not first.evaluate(10, math.nan)
    assert (first.record, first.told, os.path.exists(directory)) == (None, [], False)
    assert Evaluated(directory).evaluate(20, 0.1)
    restarted = Evaluated(directory)
    assert not restarted.evaluate(30, math.nan)
    restarted.assert_holds(20, 0.1)


@pytest.mark.parametrize("content", [None, b"", b'{"loss": 0.', b"\x00\xff", b'{"best_ckpt_global_step": 99.0}'])
def test_damage_to_info_json_changes_nothing(directory, content):
    """T11: it is written for Model Garden's tools, again after the next evaluation, and never read."""
    Evaluated(directory).evaluate(10, 0.5)
    info = Path(directory, "info.json")
    info.unlink() if content is None else info.write_bytes(content)
    restarted = Evaluated(directory)
    assert restarted.record == (10, 0.5)
    assert not restarted.evaluate(20, 0.4)
    restarted.assert_holds(10, 0.5)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_record_whose_checkpoint_is_damaged_does_not_count(directory, caplog, suffix, is_missing):
    """T11: a record never exists without its checkpoint, so the next evaluation is the best."""
    Evaluated(directory).evaluate(10, 0.5)
    path = Path(directory, f"ckpt-10{suffix}")
    path.unlink() if is_missing else path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        restarted = Evaluated(directory)
    assert restarted.record is None
    assert "best/ckpt-10 is damaged: " in caplog.text
    assert restarted.evaluate(20, 0.4)
    restarted.assert_holds(20, 0.4)


def test_a_record_that_was_altered_does_not_count(directory):
    """T11, N3: a digit of the value, changed on the disk, is noticed."""
    Evaluated(directory).evaluate(10, 0.5)
    path = Path(directory, "ckpt-10.manifest.json")
    path.write_text(path.read_text().replace('"value": 0.5', '"value": 0.9'))
    restarted = Evaluated(directory)
    assert restarted.record is None
    assert restarted.evaluate(20, 0.4)
    restarted.assert_holds(20, 0.4)


def test_a_checkpoint_takes_anothers_place_on_a_url():
    """T11, C6: where rename does not replace."""
    directory = "ram://best_record/best"
    first = Evaluated(directory)
    assert first.evaluate(10, 0.5)
    assert first.evaluate(10, 0.7)
    restarted = Evaluated(directory)
    assert restarted.record == (10, 0.7)
    assert read_newest(restarted.checkpoint, directory) == 10
    assert restarted.checkpoint.model.weights.numpy()[1] == pytest.approx(0.7)
    assert "replacement" not in files.list_dir(directory)


@pytest.mark.parametrize(
    ("metric", "chosen", "right"),
    [("score", "lower", "higher"), ("dev|score", "lower", "higher"), ("validation_loss", "higher", "lower")],
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
