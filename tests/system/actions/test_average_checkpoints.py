"""Averaging checkpoints in runs that average often, or that end and go on: nothing else differs."""

import types

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.actions.average_checkpoints import AverageCheckpointsConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import When
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.tracking import flatten
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.batch_norm_runs import (
    AVERAGE,
    INTERVAL,
    NormTask,
    PlainNormTask,
    do,
    loaded,
    parts,
    strategies,
    trained,
)
from tests.support.runs import assert_same_checkpoint


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with the action, and one that was ended at step 14 and went on."""
    folder = tmp_path_factory.mktemp("runs")
    do(folder / "with", AVERAGE)
    do(folder / "broken", AVERAGE, "trainer.train_steps=14")
    do(folder / "broken", AVERAGE)
    return folder


def test_the_mean_is_the_same_after_a_restart(runs):
    """G15, N2: the checkpoint of the step where the run ended first does not count."""
    assert committed_steps(f"{runs}/broken/averaged") == (22,)
    assert_same_checkpoint(runs / "broken" / "averaged", runs / "with" / "averaged", 22)
    rows = [row for row in read_rows(f"{runs}/broken/metrics.jsonl") if row["split"] == "averaged"]
    assert [(row["step"], row["averaged_checkpoints"]) for row in rows] == [(14, 3), (22, 3)]


@strategies
def test_a_run_that_averages_again_and_again_ends_the_same(strategy, tmp_path):
    """G15: and gives the same rows, also of metrics that replicas keep apart, in the middle of their sums."""
    ends = []
    for when in (None, When(every=3)):
        config = toy.experiment(checkpoint_interval=INTERVAL, summary_interval=5, validation_interval=6)
        config = config.replace(trainer=config.trainer.replace(train_steps=11))
        trainer = toy.build(config, task_cls=NormTask, strategy=strategy)
        action = AverageCheckpointsConfig(last=2, recalibrate_batch_norm=2).build()
        action.name, action.when = "average", when
        model_dir, rows = f"{tmp_path}/{when}", []
        journal = types.SimpleNamespace(
            log=lambda split, step, logs, rows=rows: rows.append((split, step, flatten(logs))), rewind=lambda step: None
        )
        store = CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None)
        Loop(
            trainer=trainer,
            store=store,
            metric_writer=journal,
            due=DueSteps(config.trainer, "interval"),
            actions=Schedule([action] if when else []),
            model_dir=model_dir,
        ).run()
        averaged = [step for split, step, _ in rows if split == "averaged"]
        ends.append((parts(trainer), averaged, [row for row in rows if row[0] != "averaged"]))
    (plain, none, rows), (averaging, steps, same_rows) = ends
    assert (none, steps) == ([], [3, 6, 9])
    toy.assert_bitwise_equal(plain, averaging)
    assert rows == same_rows
    assert_same_checkpoint(tmp_path / "None", f"{tmp_path}/{When(every=3)}", 11)


@strategies
def test_statistics_are_the_pooled_mean_and_variance(strategy, model_dir):
    """G15: over three batches of the training data as one; each layer normalises by the batch its replica sees."""
    trainer, run = trained(strategy, model_dir, PlainNormTask)
    before = [v.numpy() for v in trainer.model.variables]
    action = AverageCheckpointsConfig(last=1, recalibrate_batch_norm=3, evaluate=False).build()
    action.on_start(run)
    action.on_step(run)
    names = [variable.name for variable in trainer.model.variables]
    found = dict(zip(names, loaded(f"{model_dir}/averaged", 12, PlainNormTask), strict=True))
    for variable, value in zip(trainer.model.variables, before, strict=True):
        if "moving" not in variable.name:
            assert found[variable.name].tobytes() == value.tobytes()
    weights = {name: value.astype(np.float64) for name, value in found.items()}
    examples = toy.FEATURES[:30].astype(np.float64)
    seen = []
    for shard in np.split(examples, 6 if strategy == "mirrored2" else 3):
        normalised = (shard - shard.mean(0)) / np.sqrt(shard.var(0) + 1e-3)
        normalised = normalised * weights["first/gamma:0"] + weights["first/beta:0"]
        seen.append(np.tanh(normalised @ weights["dense/kernel:0"] + weights["dense/bias:0"]))
    for layer, pooled in (("first", examples), ("second", np.concatenate(seen))):
        np.testing.assert_allclose(found[f"{layer}/moving_mean:0"], pooled.mean(0), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(found[f"{layer}/moving_variance:0"], pooled.var(0), rtol=2e-5)


class UnseededTask(NormTask):
    """Shuffles in a way of its own, with a seed that TensorFlow draws."""

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        dataset = toy.examples(toy.NUM_EXAMPLES)
        return dataset.shuffle(50).repeat().batch(size) if params.is_training else dataset.batch(size)


def test_the_data_of_the_run_is_not_touched(model_dir):
    """G15: neither the iterator that trains nor what TensorFlow draws next; and the batches are always the same."""
    trainer, run = trained("off", model_dir, UnseededTask, steps=4)
    other, _ = trained("off", f"{model_dir}-other", UnseededTask, steps=4)
    tf.random.set_seed(5)
    drawn = tf.random.uniform([3]).numpy(), tf.random.uniform([3]).numpy()
    action = AverageCheckpointsConfig(last=2, recalibrate_batch_norm=2).build()
    tf.random.set_seed(5)
    first = tf.random.uniform([3]).numpy()
    epoch, batch = trainer.train_iterator.epoch(4), next(trainer.train_iterator.first_batches())
    action.on_start(run)
    action.on_step(run)
    np.testing.assert_array_equal([first, tf.random.uniform([3]).numpy()], drawn)
    trainer.train(3)
    other.train(3)
    toy.assert_bitwise_equal(parts(trainer), parts(other))
    assert trainer.train_iterator.epoch(4) == epoch
    toy.assert_bitwise_equal(next(trainer.train_iterator.first_batches()), batch)
