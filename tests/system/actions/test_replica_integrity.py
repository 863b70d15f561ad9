"""Replicas are equal after an action that puts other weights into the model."""

from official_trainer.actions.average_checkpoints import AverageCheckpointsConfig
from official_trainer.actions.replica_integrity import ReplicaIntegrityConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import When
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.tracking import Trackers
from tests.support import toy


def test_averaging_leaves_replicas_equal(model_dir):
    """B9, G15: what puts other weights into the model for a while gives every replica its own back."""
    integrity = ReplicaIntegrityConfig().build()
    integrity.when = When(every=3)
    average = AverageCheckpointsConfig(last=2, evaluate=False).build()
    average.when, average.priority = When(every=3), -1
    config = toy.experiment(summary_interval=4, checkpoint_interval=2, steps_per_loop=3)
    config = config.replace(trainer=config.trainer.replace(train_steps=12))
    trainer = toy.build(config, strategy="mirrored2")
    loop = Loop(
        trainer=trainer,
        store=CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None),
        metric_writer=Trackers([]),
        due=DueSteps(config.trainer, "never"),
        actions=Schedule([average, integrity]),
        model_dir=model_dir,
    )
    loop.run()
    assert loop.state.step == 12
