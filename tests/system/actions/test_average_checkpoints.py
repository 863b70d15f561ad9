"""Averaging checkpoints in runs that average often, or that end and go on: nothing else differs."""

import types

import pytest

from official_trainer.actions.average_checkpoints import AverageCheckpointsConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.engine.loop import Loop
from official_trainer.engine.loop_parts import DueSteps, LoopParts
from official_trainer.tracking import flatten
from official_trainer.tracking.jsonl import read_rows
from official_trainer.triggers import Every
from tests.support import toy
from tests.support.norm import AVERAGE, INTERVAL, NormTask, do, parts
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


strategies = pytest.mark.parametrize("strategy", ["off", "mirrored2"])


@strategies
def test_a_run_that_averages_again_and_again_ends_the_same(strategy, tmp_path):
    """G15: and gives the same rows, also of metrics that replicas keep apart, in the middle of their sums."""
    ends = []
    for when in (None, Every(3)):
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
        loop_parts = LoopParts(
            trainer=trainer,
            store=store,
            metric_writer=journal,
            due=DueSteps(config.trainer, "interval"),
            actions=Schedule([action] if when else []),
            model_dir=model_dir,
        )
        Loop(loop_parts).run()
        averaged = [step for split, step, _ in rows if split == "averaged"]
        ends.append((parts(trainer), averaged, [row for row in rows if row[0] != "averaged"]))
    (plain, none, rows), (averaging, steps, same_rows) = ends
    assert (none, steps) == ([], [3, 6, 9])
    toy.assert_bitwise_equal(plain, averaging)
    assert rows == same_rows
    assert_same_checkpoint(tmp_path / "None", f"{tmp_path}/{Every(3)}", 11)
