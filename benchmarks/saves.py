"""What a checkpoint of about 500 MB costs the training loop, saved and restored; what saving often costs; local disk.

Owns: the ways to save that are compared, on the same weights, and how their stall is told from the steps beside it; a
run of a small model with many saves and with one. Does not own: the tables (`report.py`).

All ways save the state of one model. Before each measurement the disk is left to finish what it has, so that none
pays for another's pages. TensorFlow's own savers never wait for the disk; what waiting costs ours is shown.

Run as a process of its own (`python -m benchmarks.saves FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target
from official_trainer import files
from official_trainer.config import schema
from official_trainer.lazy import keras, tf
from official_trainer.tasks.task import Task

UNITS = 3584  # three layers of it, with both slots of Adam, are 463 MB
LAYERS = 3
BATCH = 16
STEPS_BEFORE = 6  # undisturbed steps that the others are compared with
STEPS_AFTER = 4  # at least so many follow a save, however soon it is committed
KEPT = 2
SMALL_UNITS = 512  # 9 MB
SMALL_BATCH = 512  # so that a step takes about 20 ms
RUN_STEPS = 300
INTERVAL = 50  # steps between two saves
WARM_ROUNDS = 2  # buffers are allocated, TensorFlow's asynchronous saver makes its copy

OURS = "CheckpointStore"
OURS_ASYNC = "CheckpointStore, asynchronous"
OURS_UNSYNCED = "CheckpointStore, not waiting for the disk"
MANAGER = "tf.train.CheckpointManager"
MANAGER_ASYNC = "tf.train.CheckpointManager, asynchronous (orbit's)"

WHOLE = "a save of ours"
VALUES = "… taking the values"
WRITE = "… TensorFlow writing them"
SYNC = "… waiting for the disk"
DELETE = "… deleting the oldest checkpoint"
REST = "… manifest, checksums, listing, all else"

FINITE = "before it: looking for weights that are not finite"

RESTORE_TF = "tf.train.Checkpoint.read"
RESTORE_UNVERIFIED = "CheckpointStore.restore, verify=False"
RESTORE = "CheckpointStore.restore"


SAVING = "a run that saves every 50 steps"
NOT_SAVING = "the same run, saved at its end alone"


class Saver(Protocol):
    """One way to save."""

    def save(self, step: int) -> None:
        """Returns when training may go on."""

    def is_done(self, step: int) -> bool:
        """Whether the save is over; raises its error."""


class DenseTask(Task):
    """Dense layers of many weights, with little to compute."""

    units, batch = UNITS, BATCH

    def build_model(self) -> keras.Model:
        x = inputs = keras.Input([self.units])
        for _ in range(LAYERS):
            x = keras.layers.Dense(self.units, activation="relu")(x)
        return keras.Model(inputs, x)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        batch = np.random.default_rng(0).random((self.batch, self.units), dtype=np.float32)
        return tf.data.Dataset.from_tensors((batch, batch)).repeat()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(labels - model_outputs))


class SmallTask(DenseTask):
    """Few weights, with more to compute."""

    units, batch = SMALL_UNITS, SMALL_BATCH


def build_trainer(task_class: type[DenseTask] = DenseTask, steps_per_loop: int = 1) -> Any:
    """Our Trainer, with the Adam that `optimizer.type: adam` selects."""
    from official_trainer.engine.trainer import Trainer

    config = schema.ExperimentConfig(
        task=schema.TaskConfig(train_data=schema.DataConfig(global_batch_size=task_class.batch, is_training=True)),
        trainer=schema.TrainerConfig(steps_per_loop=steps_per_loop),
    )
    task = task_class(config.task)
    return Trainer(config, task, task.build_model(), keras.optimizers.legacy.Adam(1e-4), evaluate=False)


class Ours:
    """The store of the engine."""

    def __init__(
        self, directory: str, trainer: Any, *, asynchronous: bool = False, waits_for_disk: bool = True
    ) -> None:
        from official_trainer.checkpoints.store import CheckpointStore, StoreOptions

        options = StoreOptions(is_asynchronous=asynchronous)
        self.store = CheckpointStore(directory, trainer.checkpoint, max_to_keep=KEPT, options=options)
        self._waits_for_disk = waits_for_disk

    def save(self, step: int) -> None:
        with contextlib.nullcontext() if self._waits_for_disk else _replaced(files, "sync", lambda path: None):
            self.store.save(step)

    def is_done(self, step: int) -> bool:
        return step in self.store.poll()


class Manager:
    """TensorFlow's manager, asked as orbit's Controller asks it."""

    def __init__(self, directory: str, trainer: Any, *, asynchronous: bool = False) -> None:
        items = {**tf.train.TrackableView.children(trainer.checkpoint)}
        items.pop("save_counter", None)
        self._directory = directory
        self._manager = tf.train.CheckpointManager(tf.train.Checkpoint(**items), directory, max_to_keep=KEPT)
        self._options = tf.train.CheckpointOptions(enable_async=asynchronous)

    def save(self, step: int) -> None:
        self._manager.save(checkpoint_number=step, options=self._options)

    def is_done(self, step: int) -> bool:
        return Path(self._directory, f"ckpt-{step}.index").exists()  # the last thing that it writes


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# Measuring.


def stall(trainer: Any, saver: Saver, number: Iterator[int]) -> dict[str, float]:
    """Saves between steps; returns how long `save` keeps the loop, and what it costs with the steps that it slows.

    Steps follow until the save is over; what they take beyond undisturbed ones is the save's.
    """
    os.sync()
    undisturbed = statistics.median(_seconds_of_step(trainer) for _ in range(STEPS_BEFORE))
    step = next(number)
    start = time.perf_counter()
    saver.save(step)
    called = time.perf_counter()
    num_steps, is_done = 0, saver.is_done(step)
    while not is_done or num_steps < STEPS_AFTER:
        trainer.run_steps(1)
        num_steps += 1
        is_done = is_done or saver.is_done(step)
    total = time.perf_counter() - start
    return {"call": called - start, "extra": total - num_steps * undisturbed, "step": undisturbed}


def _seconds_of_step(trainer: Any) -> float:
    start = time.perf_counter()
    trainer.run_steps(1)
    return time.perf_counter() - start


def parts_of_a_save(trainer: Any, store: Any, step: int) -> dict[str, float]:
    """Saves once with a synchronous store; returns what each part took. The manifest's own way to the disk is its."""
    from official_trainer.checkpoints import manifest
    from official_trainer.checkpoints import store as checkpoints

    timer = _Timer()
    snapshot = checkpoints.Snapshot
    timed = type(
        "Timed",
        (snapshot,),
        {"__init__": timer.of(VALUES, snapshot.__init__), "write": timer.of(WRITE, snapshot.write)},
    )
    trainer.run_steps(1)
    os.sync()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(checkpoints, "Snapshot", timed))
        for owner, name, part in ((manifest, "write", REST), (files, "sync", SYNC), (files, "remove", DELETE)):
            stack.enter_context(_replaced(owner, name, timer.of(part, getattr(owner, name))))
        start = time.perf_counter()
        store.save(step)
        whole = time.perf_counter() - start
    named = {part: timer.seconds.get(part, 0.0) for part in (VALUES, WRITE, SYNC, DELETE)}
    return {WHOLE: whole, **named, REST: whole - sum(named.values())}


class _Timer:
    """Adds up what calls take; what a call does is its own, whatever it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._is_running = False

    def of(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, timed as `part`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return function(*args, **kwargs)
            start, self._is_running = time.perf_counter(), True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_running = False
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

        return call


def run_of(trainer: Any, root: str, *, saves: bool) -> dict[str, float]:
    """Runs the loop for `RUN_STEPS` steps, with all saves or the last alone; returns how long it took."""
    from official_trainer.checkpoints.store import CheckpointStore, StoreOptions
    from official_trainer.engine.events import DueSteps
    from official_trainer.engine.loop import Loop
    from official_trainer.tracking import Tracker

    end = int(trainer.global_step.numpy()) + RUN_STEPS
    settings = {"train_steps": end, "checkpoint_interval": INTERVAL if saves else end, "summary_interval": end}
    trainer.use_config(trainer.config.replace(trainer=trainer.config.trainer.replace(**settings)))
    with tempfile.TemporaryDirectory(dir=root) as directory:
        options = StoreOptions(is_asynchronous=True)
        store = CheckpointStore(directory, trainer.checkpoint, max_to_keep=KEPT, options=options)
        due = DueSteps(trainer.config.trainer, "never")
        loop = Loop(trainer=trainer, store=store, metric_writer=Tracker(), due=due)
        os.sync()
        return seconds_of(loop.run)


def seconds_of(function: Callable[[], Any]) -> dict[str, float]:
    start = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - start}


def measure_all(num_rounds: int) -> dict[str, Any]:
    """Returns seconds by quantity and variant, round by round."""
    with tempfile.TemporaryDirectory() as root:
        return _measure_in(root, num_rounds)


def _measure_in(root: str, num_rounds: int) -> dict[str, Any]:
    trainer = build_trainer()
    trainer.run_steps(STEPS_BEFORE)
    ours = Ours(f"{root}/ours", trainer)
    savers: dict[str, Saver] = {
        OURS: ours,
        OURS_ASYNC: Ours(f"{root}/ours_async", trainer, asynchronous=True),
        OURS_UNSYNCED: Ours(f"{root}/ours_unsynced", trainer, waits_for_disk=False),
        MANAGER: Manager(f"{root}/manager", trainer),
        MANAGER_ASYNC: Manager(f"{root}/manager_async", trainer, asynchronous=True),
    }
    number = itertools.count(1)  # restoring takes the global step back
    stalls = {name: functools.partial(stall, trainer, saver, number) for name, saver in savers.items()}
    rounds.interleave(stalls, WARM_ROUNDS)
    store = ours.store
    parts: list[dict[str, float]] = []

    def measure_parts() -> dict[str, float]:
        parts.append(parts_of_a_save(trainer, store, next(number)))
        return {}

    others: dict[str, rounds.Measure] = {
        "parts": measure_parts,
        FINITE: lambda: seconds_of(trainer.checkpoint_state.non_finite_weights),
        RESTORE_TF: lambda: seconds_of(lambda: _read(trainer, store)),
        RESTORE_UNVERIFIED: lambda: seconds_of(lambda: store.restore(verify=False)),
        RESTORE: lambda: seconds_of(store.restore),
    }
    results: dict[str, Any] = dict(rounds.interleave({**stalls, **others}, num_rounds))
    small = build_trainer(SmallTask, steps_per_loop=INTERVAL)
    small.run_steps(INTERVAL)
    runs = {
        SAVING: functools.partial(run_of, small, root, saves=True),
        NOT_SAVING: functools.partial(run_of, small, root, saves=False),
    }
    rounds.interleave(runs, 1)
    results["runs"] = rounds.interleave(runs, num_rounds)["seconds"]
    return {**results, "parts": {name: [each[name] for each in parts] for name in parts[0]}}


def _read(trainer: Any, store: Any) -> None:
    """Restores as TensorFlow does, without our checks."""
    items = {**tf.train.TrackableView.children(trainer.checkpoint)}
    items.pop("save_counter", None)
    status = tf.train.Checkpoint(**items).read(store.prefix(store.latest_step()))
    status.expect_partial().assert_existing_objects_matched()


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that this one stays small."""
    results = processes.results_of("benchmarks.saves", num_rounds)
    seconds = results["seconds"]
    in_seconds = functools.partial(Comparison, unit="s", digits=3, quartiles=True)
    return [
        in_seconds(
            title="a checkpoint of 463 MB: the call",
            values=results["call"],
            baseline=OURS,
            targets=[Target(name=OURS_ASYNC, against=OURS, at_most=0.25)],
        ),
        in_seconds(
            title="the call, and what it slows the steps beside it",
            values=results["extra"],
            baseline=OURS,
            targets=[Target(name=OURS_ASYNC, against=OURS, at_most=0.35)],
        ),
        in_seconds(title="a step before, undisturbed", values=results["step"]),
        in_seconds(
            title="parts of a synchronous save",
            values={**results["parts"], FINITE: seconds[FINITE]},
            baseline=WHOLE,
            targets=[Target(name=REST, against=WHOLE, at_most=0.1)],
        ),
        in_seconds(
            title="restoring it",
            values={name: seconds[name] for name in (RESTORE_TF, RESTORE_UNVERIFIED, RESTORE)},
            baseline=RESTORE_TF,
        ),
        *_compare_runs(results["runs"]),
    ]


def _compare_runs(seconds: dict[str, list[float]]) -> list[Comparison]:
    num_saves = RUN_STEPS // INTERVAL - 1
    pairs = list(zip(seconds[SAVING], seconds[NOT_SAVING], strict=True))
    milliseconds = {
        "a step, with one save in all": [1e3 * without / RUN_STEPS for _, without in pairs],
        "what a save adds": [1e3 * (saving - without) / num_saves for saving, without in pairs],
    }
    return [
        Comparison(
            title=f"{RUN_STEPS} steps of a small model, whose checkpoint has 9 MB",
            unit="s",
            values=seconds,
            digits=2,
            ratio_digits=3,
            quartiles=True,
            baseline=NOT_SAVING,
            targets=[Target(name=SAVING, against=NOT_SAVING, at_most=1.03)],
        ),
        Comparison(title="of these runs", unit="ms", values=milliseconds, digits=1, quartiles=True),
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
