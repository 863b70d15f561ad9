"""Runs under a coordinator."""

import json

import tensorflow as tf

from tests import ROOT
from tests.support.distributed.clusters import LocalCluster

WORKSPACE = ROOT / "tests" / "support" / "distributed" / "workspace"


ROLES = {"chief": 1, "worker": 2, "ps": 1}


class Run:
    """One run of the experiment `points` by a cluster."""

    def __init__(self, folder, *sets, roles=ROLES, spins=2, **options):
        self.model_dir = folder / "run"
        self.shares_path = folder / "shares"
        self.sets = [
            "runtime.distribution_strategy=parameter_server",
            "runtime.rendezvous_timeout_seconds=60",
            "trainer.export.at_end=false",
            *sets,
        ]
        self.cluster = LocalCluster(
            roles,
            argv=["train", *self.words(*self.sets)],
            cwd=WORKSPACE,
            folder=folder / "output",
            env={"POINTS_SPINS": str(spins), "SHARES": str(self.shares_path)},
            **options,
        )

    def __enter__(self):
        self.cluster.start_all()
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def words(self, *sets):
        return ["--experiment=points", f"--model_dir={self.model_dir}", *(f"--set={word}" for word in sets)]

    def wait_for_step(self, step):
        """Returns when windows of so many steps are done; the run must not be over by then."""
        self.cluster.wait_for(lambda: self.steps_so_far() >= step)
        assert self.cluster.is_alive("chief"), self.cluster.outputs()

    def steps_so_far(self):
        return sum(window["window"] for window in self.windows())

    def windows(self):
        """Returns who did how much, window by window."""
        if not self.shares_path.exists():
            return []
        return [json.loads(line) for line in self.shares_path.read_text().splitlines(True) if line.endswith("\n")]

    def wait_all(self):
        """Waits for all processes; returns the exit codes that there were."""
        codes = self.cluster.wait_all()
        return set(codes.values())

    def seen(self, step):
        """Returns how often each example was trained on, by the checkpoint of `step`."""
        return self.value(step, "model/seen/.ATTRIBUTES/VARIABLE_VALUE")

    def value(self, step, key):
        return tf.train.load_checkpoint(f"{self.model_dir}/ckpt-{step}").get_tensor(key)

    def rows(self, split, folder=""):
        path = self.model_dir / folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {row["step"]: row for row in rows if row["split"] == split}

    def record(self):
        return json.loads((self.model_dir / "run.json").read_text())

    def assert_done(self, step):
        record = self.record()
        assert record["status"] == "done", self.cluster.outputs()
        assert record["steps"]["current"] == step
        assert self.value(step, "global_step/.ATTRIBUTES/VARIABLE_VALUE") == step


LONG = (
    "trainer.train_steps=600",
    "trainer.summary_interval=100",
    "trainer.checkpoint_interval=100",
    "trainer.validation_interval=600",
)
"""Long enough to break it in the middle."""
