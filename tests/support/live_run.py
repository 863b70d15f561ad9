"""A run directory in which a test moves the run on, by a clock of its own."""

import os

from official_trainer.lock import lock_path
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.record import RunRecord

NOW = 1_790_000_000.0


class LiveRun:
    """A run directory that is written as a run writes it, by a clock of its own."""

    def __init__(self, folder, *, end_step=1000):
        folder.mkdir(parents=True)
        self.folder, self.now, self.step = folder, NOW, 0
        launch = {"experiment": "digits", "mode": "train", "argv": [], "imports": [], "config_digest": "0"}
        self.record = RunRecord(str(folder), launch, clock=lambda: self.now)
        self.record.start()
        self.record.set_span(0, end_step)
        self.rows = JsonlTracker(str(folder / "metrics.jsonl"), clock=lambda: self.now)
        (folder / "params.yaml").write_text(f"# experiment: digits\ntrainer:\n  train_steps: {end_step}\n")
        self.hold()

    def hold(self):
        """A process renews its lock."""
        path = lock_path(str(self.folder))
        with open(path, "w"):
            os.utime(path, (self.now, self.now))

    def train(self, steps=10, seconds=5.0, loss=0.5):
        self.now, self.step = self.now + seconds, self.step + steps
        self.rows.log("train", self.step, {"training_loss": loss})
        self.rows.log("time", self.step, {"steps_seconds": 0.8 * seconds, "wall_seconds": seconds})
        self.record.phase("train", self.step)
        self.hold()
