"""The loop in Python: GoMLX's hooks and runs, on the engine's loop."""

import functools
import json
import os
import re
import signal

import numpy as np
import pytest
from official.core import config_definitions

from official_trainer.actions import Action, Result, Rollback, Save, Stop
from official_trainer.actions.schedule import ActionError
from official_trainer.config import When
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.program import Loop, LoopError, every_n_steps, exponential, n_times_during_loop, periodic
from official_trainer.stopping import PreemptedError
from tests.support.cases import cases
from tests.support.toy import (
    FEATURES,
    LABELS,
    Undropped,
    assert_bitwise_equal,
    build,
    experiment,
    weights,
)


def loop_of(model_dir="", strategy="off", task_cls=Undropped, **options):
    options = {"steps_per_loop": 100, "summary_interval": 1000, "checkpoint_interval": 5, **options}
    return Loop(build(experiment(**options), task_cls=task_cls, strategy=strategy), model_dir=model_dir)


def batches(count, start=0):
    """Returns `count` batches of ten examples."""
    rows = slice(10 * start, 10 * (start + count))
    return tf.data.Dataset.from_tensor_slices((FEATURES[rows], LABELS[rows])).batch(10)


@pytest.fixture(scope="module")
def trainer_and_start(tmp_path_factory):
    """Returns a trainer, which is traced once for many tests, and a checkpoint of its state before the first step."""
    trainer = loop_of().trainer
    trainer.checkpoint_state.before_save()
    return trainer, trainer.checkpoint.write(str(tmp_path_factory.mktemp("start") / "ckpt"))


@pytest.fixture
def loop(trainer_and_start):
    """Returns a loop in memory, whose trainer is where it was before its first step."""
    trainer, start = trainer_and_start
    trainer.checkpoint_state.after_restore(trainer.checkpoint_state.read_checkpoint(start, 0))
    return Loop(trainer)


@functools.cache  # a dataset is known by its identity
def endless():
    return batches(10).repeat()


@functools.cache
def four(*, is_known=True):
    return batches(4) if is_known else batches(4).filter(lambda *_: True)


def steps_in(seen):
    """Returns a hook that notes the step of each call."""
    return lambda loop, metrics: seen.append(loop.state.step)


# Hooks.


def test_hooks_are_called_by_priority_and_then_in_the_order_they_were_added(loop):
    """G17, G1: negative priorities too; one name may stand for a start, a step and an end."""
    calls = []

    def noting(what):
        return lambda loop, argument: calls.append((what, loop.state.step))

    loop.on_end("note", 0, noting("end"))
    loop.on_step("note", 100, noting("late"))
    loop.on_step("note", 0, noting("first"))
    loop.on_step("other", 0, noting("second"))
    loop.on_step("early", -1, noting("early"))
    loop.on_start("note", 0, noting("start"))
    loop.run_steps(endless(), 2)
    names = ["early", "first", "second", "late"]
    assert calls == [("start", 0), *((w, 1) for w in names), *((w, 2) for w in names), ("end", 2)]


def test_a_hook_gets_the_dataset_at_the_start_and_then_the_metrics(loop):
    """G17: those since the last summary, with the moving average, as floats; at the end those of the last step."""
    seen = {}
    loop.on_start("a", 0, lambda loop, dataset: seen.update(start=(loop, dataset)))
    loop.on_step("b", 0, lambda loop, metrics: seen.setdefault("steps", []).append(dict(metrics)))
    loop.on_end("c", 0, lambda loop, metrics: seen.update(end=dict(metrics)))
    returned = loop.run_steps(endless(), 3)
    assert seen["start"] == (loop, endless())
    assert seen["start"][1] is endless()
    assert seen["end"] == returned == seen["steps"][-1]
    assert set(returned) == {"training_loss", "accuracy", "batch_loss", "smoothed_loss", "learning_rate"}
    losses = [metrics["batch_loss"] for metrics in seen["steps"]]
    assert [metrics["training_loss"] for metrics in seen["steps"]] == pytest.approx(
        [np.mean(losses[: i + 1]) for i in range(3)]
    )
    assert all(type(value) is float for value in returned.values())


def test_hooks_are_due_at_exactly_their_steps():
    """G17, G2, G3, G4: in one line each, whatever `steps_per_loop` is."""
    loop, seen = loop_of(steps_per_loop=7), {name: [] for name in ("every", "times", "growing", "ending")}
    every_n_steps(loop, 10, "every", 0, steps_in(seen["every"]))
    n_times_during_loop(loop, 4, "times", 0, steps_in(seen["times"]))
    exponential(loop, 5, 2.0, "growing", 0, steps_in(seen["growing"]))
    exponential(loop, 20, 1.5, "ending", 0, steps_in(seen["ending"]), call_on_end=True)
    loop.run_steps(endless(), 26)
    assert seen == {"every": [10, 20], "times": [7, 13, 20, 26], "growing": [5, 15], "ending": [20, 26]}


def test_n_times_need_data_that_says_its_length(loop):
    """G3, G17: the same steps in a second call."""
    unknown, seen = four(is_known=False), []
    n_times_during_loop(loop, 2, "times", 0, steps_in(seen))
    with pytest.raises(
        LoopError, match=r"^n_times_during_loop needs the number of batches, which is unknown; give dat"
    ):
        loop.run_epochs(unknown, 1)
    combined = Loop(loop.trainer)
    combined.on_step("times", 0, steps_in([]), when=When(any=(When(n_times_of_process=2), When(at_end=True))))
    with pytest.raises(LoopError, match=r"^n_times_during_loop needs the number of batches"):
        combined.run_epochs(unknown, 1)
    for _ in range(2):
        loop.run_epochs(unknown.apply(tf.data.experimental.assert_cardinality(4)), 1)
    assert seen == [2, 4, 6, 8]


def test_calls_that_follow_each_other_continue_with_the_step(loop):
    """G17: `every_n_steps` counts from the beginning of training, `n_times_during_loop` from that of the call."""
    every, times, spans = [], [], []
    every_n_steps(loop, 4, "every", 0, steps_in(every))
    n_times_during_loop(loop, 2, "times", 0, steps_in(times))
    loop.on_end("span", 0, lambda loop, _: spans.append((loop.state.start_step, loop.state.end_step, loop.state.step)))
    for _ in range(3):
        loop.run_steps(endless(), 6)
    assert every == [4, 8, 12, 16]
    assert times == [3, 6, 9, 12, 15, 18]
    assert spans == [(0, 6, 6), (6, 12, 12), (12, 18, 18)]


def test_a_hook_on_the_clock():
    """G17, G5: when the time has passed; at the end too, if it is asked for, and once."""
    loop, often, never, ending = loop_of(steps_per_loop=1), [], [], []
    periodic(loop, 1e-9, "often", 0, steps_in(often))
    periodic(loop, 1e9, "never", 0, steps_in(never))
    periodic(loop, 1e9, "ending", 0, steps_in(ending), call_on_end=True)
    loop.run_steps(endless(), 3)
    assert (often[-1], never, ending) == (3, [], [3])


def failing(loop, argument):
    raise KeyError("no such plot")


@pytest.mark.parametrize(
    ("hook", "fn", "where"),
    [
        ("on_start", failing, "on_start at step 0: KeyError: 'no such plot'"),
        ("on_step", failing, "on_step at step 1: KeyError: 'no such plot'"),
        ("on_end", failing, "on_end at step 2: KeyError: 'no such plot'"),
        ("on_step", lambda loop, metrics: OSError("disk is away"), "on_step at step 1: .*disk is away"),  # as in Go
        (
            "on_step",
            lambda loop, metrics: "stop",
            "on_step at step 1: TypeError: it returned 'stop'; a hook returns None",
        ),
    ],
)
def test_an_error_names_the_hook(loop, hook, fn, where):
    """G17, G1: raised, or handed back; no hook after it is called, and no end."""
    calls = []
    getattr(loop, hook)("plot", 0, fn)
    loop.on_end("end", 1, lambda loop, metrics: calls.append("end"))
    with pytest.raises(ActionError, match=f"action 'plot' failed in {where}"):
        loop.run_steps(endless(), 2)
    assert calls == ["end"] * (hook == "on_end"), "only other ends are still called"


def test_a_hook_asks_to_stop(loop):
    """G17: by the request of an action; the next call goes on."""
    loop.on_step("stop", 0, lambda loop, metrics: Stop(reason="enough") if loop.state.step == 3 else None)
    loop.run_steps(endless(), 10)
    assert (loop.state.step, loop.state.stop_reason) == (3, "enough")
    loop.run_steps(endless(), 2)
    assert (loop.state.step, loop.state.stop_reason) == (5, None)


def test_a_loss_that_is_not_finite_ends_the_call_before_the_hooks_see_the_state():
    """G17, G8: in GoMLX the hooks come first."""

    class Diverging(Undropped):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return tf.reduce_mean(model_outputs) * float("nan")

    loop, seen = loop_of(task_cls=Diverging), []
    loop.on_step("seen", 0, steps_in(seen))
    with pytest.raises(NonFiniteError, match="the training loss is nan at step 1"):
        loop.run_steps(endless(), 2)
    assert seen == []


def test_what_hooks_share_and_hand_back_goes_on_from_call_to_call(loop):
    """G17, G7, B12: a place for what tools leave for each other, results by name, and how long steps took."""
    seen = []

    def total(loop, metrics):
        return Result(value=loop.state.results.get("total", 0) + loop.state.shared["by"])

    loop.on_step("total", 0, total)
    loop.on_end("take", 0, lambda loop, _: seen.append((loop.state.shared["by"], len(loop.state.step_durations))))
    for by, steps, expected in ((3, 2, 6), (10, 3, 36)):
        loop.state.shared["by"] = by
        loop.run_steps(endless(), steps)
        assert loop.state.results == {"total": expected}
    assert seen == [(3, 2), (10, 3)]
    durations = loop.state.step_durations
    assert 0 < durations.percentile(0.5) <= durations.percentile(0.9)
    assert sorted(durations) == list(durations) and list(durations)[1] == durations.percentile(0.5)
    assert len(list(durations)) == 3, "one for each step of the call"
    assert loop.state.median_step_seconds > 0


def test_actions_of_the_task_and_the_trainer_run_too():
    """G17, B1: hooks are actions among others."""
    seen = []

    class Noting(Action):
        def on_step(self, run):
            seen.append((self.name, run.step))

    class Acting(Undropped):
        def build_actions(self, trainer):
            action = Noting()
            action.name = "of the task"
            return [action]

    loop = loop_of(task_cls=Acting, summary_interval=2)
    loop.trainer.actions.append(Noting())
    loop.run_steps(endless(), 4)
    assert seen == [("of the task", 2), ("Noting", 2), ("of the task", 4), ("Noting", 4)]


# Runs.


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_a_loop_computes_what_the_trainer_does(strategy):
    """G17: the same bits as the task's own data, which has the same batches; in calls of any length, over replicas."""
    expected = build(experiment(), task_cls=Undropped, strategy=strategy)
    expected.run_steps(6)
    loop = loop_of(strategy=strategy)
    loop.run_steps(endless(), 2)
    loop.run_steps(endless(), 4)
    assert_bitwise_equal(weights(loop.trainer), weights(expected))
    loop = loop_of(strategy=strategy)
    loop.run_steps(None, 6)
    assert_bitwise_equal(weights(loop.trainer), weights(expected))


def test_another_dataset_begins_with_its_first_batch():
    """G17: in memory; also after steps on the task's own data."""
    expected = build(experiment(), task_cls=Undropped)
    for number in (0, 1, 7, 8, 0):
        expected.train_on((FEATURES[10 * number : 10 * number + 10], LABELS[10 * number : 10 * number + 10]))
    loop = loop_of()
    loop.trainer.run_steps(2)
    loop.run_steps(batches(2, start=7), 2)
    loop.run_steps(endless(), 1)
    for value, other in zip(weights(loop.trainer), weights(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_a_call_without_steps_does_nothing(loop):
    """G17: as in GoMLX; a hook of the start is not called."""
    seen = []
    loop.on_start("start", 0, steps_in(seen))
    assert loop.run_steps(endless(), 0) == loop.run_steps(endless(), -1) == loop.run_epochs(endless(), 0) == {}
    assert seen == []
    assert loop.run_to_global_step(endless(), 0) == {}
    assert loop.state.step == 0


def test_running_to_a_global_step(loop):
    """G17, G6: the steps that are left, and none if there are none."""
    loop.run_steps(endless(), 3)
    assert "batch_loss" in loop.run_to_global_step(endless(), 5)
    assert loop.state.step == 5
    assert loop.run_to_global_step(endless(), 4) == {}
    assert int(loop.trainer.global_step) == 5


def test_epochs_end_where_the_data_does(loop):
    """G17, G6: the last step is known from the first epoch on; each call begins with the first batch."""
    ends, dataset = [], four(is_known=False)
    loop.on_step("ends", 0, lambda loop, _: ends.append(loop.state.end_step))
    loop.run_epochs(dataset, 3)
    assert ends == [None] * 4 + [12] * 8
    loop.run_epochs(dataset, 1)
    assert loop.state.step == 16
    loop.run_steps(dataset, 3)
    loop.run_epochs(dataset, 2)  # the rest of a pass, and one more
    assert loop.state.step == 16 + 4 + 4
    expected = build(experiment(), task_cls=Undropped)
    expected.train_dataset = four().repeat()
    expected.run_steps(24)
    assert_bitwise_equal(weights(loop.trainer), weights(expected))


def test_a_hook_is_not_called_for_steps_of_an_earlier_call(loop):
    """G17, G1: whether it was added after that call, or not reached in it because of an error."""
    seen = []
    loop.run_steps(endless(), 3)
    loop.on_step("late", 0, steps_in(seen))
    loop.run_steps(endless(), 2)
    assert seen == [4, 5]
    errors = iter([ValueError("once")])
    loop.on_step("fails once", -1, lambda loop, _: next(errors, None))
    with pytest.raises(ActionError, match="once"):
        loop.run_steps(endless(), 1)
    loop.run_steps(endless(), 1)
    assert seen == [4, 5, 7]


@pytest.mark.parametrize(("is_known", "expected"), [(True, [2.25, 2.5, 2.75, 3.0]), (False, [2.0, 2.0, 2.0, 2.0])])
def test_the_epoch_is_the_passes_so_far(loop, is_known, expected):
    """G17, G7: with the part of the one that is under way, where the length is known: from the first end on."""
    epochs = []
    loop.run_epochs(batches(3), 2)
    loop.on_step("epochs", 0, lambda loop, _: epochs.append(loop.state.epoch))
    loop.run_epochs(four(is_known=is_known), 3)
    assert epochs == [*expected, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0]
    assert loop.state.epoch == 5.0


def test_epochs_of_the_tasks_own_data():
    """G17: data that goes on over its end is counted."""

    class Sized(Undropped):
        def build_inputs(self, params, input_context=None):
            input_context.examples_per_epoch = 40
            return super().build_inputs(params, input_context)

    loop = loop_of(task_cls=Sized)
    loop.run_steps(None, 1)
    loop.run_epochs(None, 2)
    assert loop.state.step == 8


def test_data_that_ends_early_says_so(loop):
    """G17, G18, G6: as `trainer.on_data_end` says."""
    with pytest.raises(
        DataError, match=r"dataset: the training data ended at step 4; set trainer.on_data_end to repeat"
    ):
        loop.run_steps(four(), 5)
    stopping = loop_of(on_data_end="stop")
    stopping.run_steps(four(), 5)
    assert stopping.state.step == 4
    again = loop_of(on_data_end="repeat")
    again.run_steps(four(), 5)
    assert again.state.step == 5


def test_an_error_of_tensorflow_names_the_dataset(loop):
    """G18: of a program that has several, in training and in an evaluation."""
    bad = four().map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "no features"), y))
    calls = {"dataset": lambda: loop.run_steps(bad, 1), "bad": lambda: loop.trainer.evaluate_on(bad, name="bad")}
    for name, call in calls.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match="no features") as caught:
            call()
        assert caught.value.__notes__[0] == f"It came from {name}, or a step on it."
        # A report, where it is a call of the loop; no method of the task has built the data.
        assert not any("build_inputs" in note for note in caught.value.__notes__)


def test_the_first_weights_are_loaded_once():
    """G17: a later call, or one after steps without a loop, keeps what was trained."""
    loads = []

    class Loading(Undropped):
        def initialize(self, model):
            loads.append(True)

    loop = loop_of(task_cls=Loading)
    loop.run_steps(endless(), 1)
    loop.run_steps(endless(), 1)
    assert loads == [True]


# A run directory.


class Sum:
    """A hook with a state of its own."""

    def __init__(self):
        self.total = 0.0

    def __call__(self, loop, metrics):
        self.total += metrics["batch_loss"]

    def state(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state.get("total", 0.0)


def test_the_state_of_a_hook_goes_on_from_call_to_call_in_memory_too(loop):
    """G17: a hook that failed is called again, as after a restart; the others are not."""
    total, losses, failures = Sum(), [], [RuntimeError("once")]
    loop.on_step("sum", 0, total)
    loop.on_step("losses", 0, lambda loop, metrics: losses.append(metrics["batch_loss"]))
    loop.on_step("fail", 1, lambda loop, metrics: failures.pop() if failures and loop.state.step == 3 else None)
    loop.run_steps(endless(), 2)
    with pytest.raises(ActionError, match="'fail'"):
        loop.run_steps(endless(), 2)
    loop.run_steps(endless(), 2)
    assert total.total == pytest.approx(sum(losses))
    assert (len(losses), loop.state.step) == (5, 5)


def in_directory(model_dir, *, dies_at=None, **options):
    loop, total, seen = loop_of(str(model_dir), **options), Sum(), []
    loop.on_step("sum", 0, total)
    n_times_during_loop(loop, 3, "times", 0, steps_in(seen))
    loop.on_step("die", 1, lambda loop, _: RuntimeError("killed") if loop.state.step == dies_at else None)
    return loop, total


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Returns weights, metrics and the state of a hook after twelve steps, by strategy."""

    @functools.cache
    def of(strategy):
        loop, total = in_directory(tmp_path_factory.mktemp("whole"), strategy=strategy)
        metrics = loop.run_to_global_step(endless(), 12)
        return weights(loop.trainer), metrics, total.total

    return of


@pytest.mark.parametrize(("strategy", "dies_at"), cases([("off", 7), ("mirrored2", 10)], ("off", 7)))
def test_a_program_that_is_started_again_continues_with_the_same_bits(unbroken, tmp_path, strategy, dies_at):
    """G17, N1: weights, the position in the dataset, the state of hooks; the checkpoint is that of step 5."""
    broken, _ = in_directory(tmp_path, strategy=strategy, dies_at=dies_at)
    with pytest.raises(ActionError, match="'die'"):
        broken.run_to_global_step(endless(), 12)
    again, total = in_directory(tmp_path, strategy=strategy)
    metrics = again.run_to_global_step(endless(), 12)
    expected_weights, *expected = unbroken(strategy)
    assert [metrics, total.total] == expected
    assert again.state.start_step == (dies_at - 1) // 5 * 5
    assert_bitwise_equal(weights(again.trainer), expected_weights)


def test_a_signal_saves_and_the_program_goes_on_when_it_is_started_again(unbroken, tmp_path):
    """G17, N5: with a run directory; the error has the exit code of a run that was stopped."""
    stopped, _ = in_directory(tmp_path)
    stopped.on_step("kill", 0, lambda loop, _: os.kill(os.getpid(), signal.SIGTERM) if loop.state.step == 3 else None)
    with pytest.raises(PreemptedError, match=r"at step [34], which is saved; the same command continues") as caught:
        stopped.run_to_global_step(endless(), 12)  # a thread of its own notices the signal, perhaps a step later
    assert caught.value.exit_code == 143
    again, total = in_directory(tmp_path)
    again.run_to_global_step(endless(), 12)
    expected_weights, _, expected_total = unbroken("off")
    assert (again.state.start_step, total.total) == (stopped.state.step, expected_total)
    assert_bitwise_equal(weights(again.trainer), expected_weights)


def test_a_run_directory_has_what_a_run_leaves(tmp_path):
    """G17, G19, N15: checkpoints, the record with the durations of all steps, one row a step."""
    loop, _ = in_directory(tmp_path)
    loop.run_steps(endless(), 6)
    loop.run_steps(endless(), 6)
    assert (loop.state.start_step, loop.state.step) == (6, 12)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["experiment"], record["status"], record["last_checkpoint_step"]) == ("Undropped", "done", 12)
    attempts = record["time"]["attempts"]
    assert [attempt["steps"] for attempt in attempts] == [6, 6]
    for attempt in attempts:
        assert 0 < attempt["step_seconds_p50"] <= attempt["step_seconds_p90"] <= attempt["step_seconds_p95"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "train"] == [6, 12]


def test_hooks_ask_for_checkpoints_and_to_go_back(loop, tmp_path):
    """G17: as actions do; in memory there is nothing to go back to."""
    saving = loop_of(str(tmp_path), checkpoint_interval=1000)
    every_n_steps(saving, 3, "save", 100, lambda loop, metrics: Save())
    saving.run_steps(endless(), 8)
    assert sorted(int(re.search(r"\d+", path.name)[0]) for path in tmp_path.glob("ckpt-*.index")) == [3, 6, 8]
    loop.on_step("back", 0, lambda loop, metrics: Rollback(reason="it diverges"))
    with pytest.raises(NonFiniteError, match="it diverges; the last good checkpoint is none"):
        loop.run_steps(endless(), 2)


# What is refused.


def test_a_run_directory_continues_in_one_dataset(tmp_path):
    """G17: its checkpoints hold one position."""
    loop = loop_of(str(tmp_path))
    loop.run_steps(endless(), 1)
    with pytest.raises(LoopError, match=r"dataset: .* continues in the dataset of the calls before; train on another"):
        loop.run_steps(four(), 1)


def test_a_loop_says_what_it_cannot_train(loop, monkeypatch):
    """G17: other processes, Model Garden's configs, actions that write, and what is no dataset."""
    with pytest.raises(DataError, match=r"dataset is a ndarray; give a tf.data.Dataset of batches"):
        loop.run_steps(FEATURES, 1)
    with pytest.raises(DataError, match=r"dataset: .* this dataset repeats forever"):
        loop.run_epochs(endless(), 1)
    trainer = build(task_cls=Undropped)
    config = trainer.config
    trainer.use_config(config.replace(trainer=config.trainer.replace(actions=({"type": "early_stopping"},))))
    with pytest.raises(LoopError, match=r"trainer.actions of the config need a run directory; give Loop\(trainer, mod"):
        Loop(trainer)
    monkeypatch.setattr(type(trainer.process_group), "is_alone", property(lambda self: False))
    with pytest.raises(LoopError, match=r"Loop trains in one process, and this run is on 1 CPU; use train.py"):
        Loop(trainer)
    trainer.use_config(config_definitions.ExperimentConfig())
    with pytest.raises(LoopError, match=r"is a official.core.config_definitions.ExperimentConfig; Loop needs an Exp"):
        Loop(trainer)
