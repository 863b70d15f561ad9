"""Replicas that differ are found, named, and measured."""

import math

import numpy as np
import pytest

from official_trainer.actions.action import Action, LoopState, Run
from official_trainer.actions.replica_integrity import ReplicaIntegrityConfig
from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import When
from official_trainer.distributed import ReplicaIntegrityError
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.tracking import Trackers
from tests.support import toy


def view(trainer):
    return Run(state=LoopState(step=7), trainer=trainer, model_dir="", tracker=Trackers([]))


def check(trainer, **tolerance):
    ReplicaIntegrityConfig(**tolerance).build().on_step(view(trainer))


@pytest.fixture(scope="module")
def trainer():
    """On two replicas, after some steps, which leave them with statistics and metrics of their own."""
    trainer = toy.build(toy.experiment(), strategy="mirrored2")
    trainer.train(3)
    return trainer


class Changed:
    """Adds to one replica's part of a variable, for a `with` block."""

    def __init__(self, variable, difference, index=(1,)):
        self.part, self.difference, self.index = variable.values[1], difference, index

    def __enter__(self):
        self.before = self.part.numpy()
        after = np.array(self.before)
        after[self.index if after.ndim else ()] += self.difference
        self.part.assign(after)

    def __exit__(self, *error):
        self.part.assign(self.before)


def test_replicas_that_trained_together_are_equal(trainer):
    """B9: bit for bit; what they keep apart on purpose does not count."""
    trainer.train_loop_begin()
    trainer.run_steps(2)
    kept_apart = trainer.train_loss.variables[0].values
    assert len({part.numpy().tobytes() for part in kept_apart}) == 2
    check(trainer)


def test_a_difference_names_variable_replicas_and_size(trainer):
    """B9: weights, slots of the optimizer, and its counter."""
    kernel = trainer.model.trainable_variables[0]
    message = (
        r"replicas hold different values of dense/kernel:0 at step \d: replicas 0 \(.*CPU:0\), 1 \(.*CPU:1\) differ by "
        r"up to 0\.25\. Allowed is no difference at all \(absolute_tolerance=0, relative_tolerance=0\)\. .*"
        "the same command continues from the last of them"
    )
    with Changed(kernel, 0.25, (2, 3)), pytest.raises(ReplicaIntegrityError, match=message):
        check(trainer)
    slot = next(v for v in trainer.optimizer.variables() if v.shape == (6, 8))
    with Changed(slot, 1e-7, (0, 0)), pytest.raises(ReplicaIntegrityError, match=slot.name):
        check(trainer)
    with Changed(trainer.optimizer.iterations, 1), pytest.raises(ReplicaIntegrityError, match="differ by up to 1"):
        check(trainer)
    check(trainer)


def test_tolerance_is_absolute_and_relative(trainer):
    """B9: a value may differ by the sum of both."""
    bias = trainer.model.trainable_variables[1]
    for part in bias.values:
        part.assign(np.full(8, 2.0, np.float32))
    with Changed(bias, 0.5):
        check(trainer, absolute_tolerance=0.5)
        check(trainer, relative_tolerance=0.25)
        check(trainer, absolute_tolerance=0.1, relative_tolerance=0.2)
        with pytest.raises(ReplicaIntegrityError, match=r"Allowed is absolute_tolerance=0\.1, relative_tolerance=0\.1"):
            check(trainer, absolute_tolerance=0.1, relative_tolerance=0.1)
    with Changed(bias, math.nan), pytest.raises(ReplicaIntegrityError, match="differ by up to inf"):
        check(trainer, absolute_tolerance=1e9)
    for part in bias.values:
        part.assign(np.full(8, math.nan, np.float32))
    check(trainer, absolute_tolerance=1.0)
    check(trainer)


class Breaks(Action):
    """Changes the weights of one replica at step 4."""

    name, when, priority = "breaks", When(at_steps=(4,)), -1

    def on_step(self, run):
        run.trainer.model.trainable_variables[0].values[1].assign_add(np.full((6, 8), 0.5, np.float32))


def run_loop(model_dir, *actions, strategy):
    config = toy.experiment(summary_interval=4, checkpoint_interval=2, steps_per_loop=3)
    config = config.replace(trainer=config.trainer.replace(train_steps=12))
    trainer = toy.build(config, strategy=strategy)
    store = CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None)
    loop = Loop(
        trainer=trainer,
        store=store,
        metric_writer=Trackers([]),
        due=DueSteps(config.trainer, "never"),
        actions=Schedule(actions),
        model_dir=model_dir,
    )
    return trainer, loop


def test_a_run_ends_before_a_checkpoint_of_it_is_saved(model_dir):
    """B9: by default where a summary is due; the action's own name is in the message."""
    _, loop = run_loop(model_dir, Breaks(), ReplicaIntegrityConfig(name="integrity"), strategy="mirrored2")
    with pytest.raises(ActionError, match="action 'integrity' failed in on_step at step 4: replicas hold different"):
        loop.run()
    assert CheckpointStore(model_dir, loop.trainer.checkpoint, max_to_keep=None).steps() == (2,)


def test_one_replica_costs_nothing(model_dir):
    """B9: no window ends for it."""
    action = ReplicaIntegrityConfig(when=None).build()
    action.when = When(every=1)
    windows = []
    _, loop = run_loop(model_dir, action, strategy="off")
    loop.observer.on_window = lambda state, steps, seconds, loss: windows.append(steps)
    loop.run()
    assert max(windows) == 2
    assert loop.state.step == 12
