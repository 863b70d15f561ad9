"""The digits run that is killed: its variants, its workspace, and the command that starts it."""

import dataclasses
import functools
import shutil
from pathlib import Path

from tests import ROOT
from tests.support import workspaces
from tests.support.chaos.contract import RUN, Case
from tests.support.forked import Command, run_command

STRATEGIES = ("off", "one_device", "mirrored1", "mirrored2")
SOURCES = ("arrays", "records", "stream")
STEPS_PER_LOOP = (1, 7, 1000)
INTERVALS = {"saves": (6, 26), "evaluations": (24, 7)}
"""Of checkpoints and of evaluations, by what there are several of between two of the others."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the experiment."""

    strategy: str = "off"
    source: str = "arrays"
    averages: bool = True
    several: str = "saves"

    @classmethod
    def number(cls, number):
        """Returns the variants in turn: 48, so that the first four already have all strategies and all sources."""
        turn = number // 4
        several = "saves" if (number // 2 + number // 24) % 2 == 0 else "evaluations"
        return cls(STRATEGIES[number % 4], SOURCES[(number + turn) % 3], (number + turn) % 2 == 0, several)

    @property
    def name(self):
        return f"{self.strategy}-{self.source}-{'averages' if self.averages else 'plain'}-{self.several}"

    def sets(self, workspace):
        devices = 2 if self.strategy == "mirrored2" else 1
        checkpoints, evaluations = INTERVALS[self.several]
        sets = [
            f"trainer.checkpoint_interval={checkpoints}",
            f"trainer.validation_interval={evaluations}",
            f"runtime.distribution_strategy={self.strategy.rstrip('12')}",
            f"runtime.num_logical_cpus={devices}",
            f"task.source={self.source}",
            f"trainer.export.best={self.source == 'arrays'}",  # each export takes as long as all the training
        ]
        if self.source == "records":
            sets.append(f"task.train_data.input_path={workspace}/digits-*.tfrecord")
        if not self.averages:
            sets.append("trainer.optimizer_config.ema=null")
        return sets


def digits(variant, *sets, mode="train_and_eval", name=""):
    """Returns a variant of the experiment as a case."""
    name = "-".join(filter(None, ["digits", variant.name, name]))
    return Case(name, functools.partial(_start, variant, sets, mode))


def workspace_in(shared):
    """Returns the folder with the experiment and its records."""
    return shared.made("digits", _make_workspace)


def _start(variant, sets, mode, shared, folder, *more, first=None):
    workspace = workspace_in(shared)
    words = [f"--set={word}" for word in (*variant.sets(workspace), *sets, *more)]
    argv = ["train", "--experiment=digits_chaos", f"--mode={mode}", f"--model_dir={folder}/{RUN}", *words]
    return Command(argv, cwd=workspace, folder=folder, first=first)


def _make_workspace(folder):
    """Writes the experiment and its records into a folder."""
    run_command(["list"], cwd=ROOT, folder=folder)  # the fork server's own start is no part of a run's time
    experiments = folder / "experiments"
    experiments.mkdir()
    shutil.copy(ROOT / "experiments" / "digits.py", experiments)
    shutil.copy(Path(__file__).with_name("experiment.py"), experiments / "chaos.py")
    with workspaces.apart(folder):
        from experiments import chaos

        chaos.write_records(f"{folder}/digits-*.tfrecord")
