"""The runs that are broken and the unbroken ones that they are compared with: variants, workspace, commands."""

import contextlib
import dataclasses
import fcntl
import functools
import json
import shutil
import sys
import time
from pathlib import Path

from tests import ROOT
from tests.support.chaos import inside
from tests.support.forked import Command, run_command

STRATEGIES = ("off", "one_device", "mirrored1", "mirrored2")
SOURCES = ("arrays", "records", "stream")
STEPS_PER_LOOP = (1, 7, 1000)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the experiment."""

    strategy: str = "off"
    source: str = "arrays"
    averages: bool = True

    @classmethod
    def number(cls, number):
        """Returns the variants in turn: 24, so that the first four already have all strategies and all sources."""
        turn = number // 4
        return cls(STRATEGIES[number % 4], SOURCES[(number + turn) % 3], (number + turn) % 2 == 0)

    @property
    def name(self):
        return f"{self.strategy}-{self.source}-{'averages' if self.averages else 'plain'}"

    def sets(self, workspace):
        devices = 2 if self.strategy == "mirrored2" else 1
        sets = [
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


@dataclasses.dataclass(frozen=True)
class Unbroken:
    """A run from its beginning to its end.

    Attributes:
      model_dir: where it lies.
      seconds: how long it took.
      writes: how many write operations in `model_dir` it took.
    """

    model_dir: Path
    seconds: float
    writes: int


class Workspace:
    """A folder with the experiment, its records, and one unbroken run of each variant that was asked for.

    Several processes may share it.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        run_command(["list"], cwd=ROOT, folder=self.folder)  # the fork server's own start is no part of a run's time
        with self.once("workspace") as done:
            if not done.exists():
                self._make()
                done.touch()

    def _make(self):
        experiments = self.folder / "experiments"
        experiments.mkdir()
        shutil.copy(ROOT / "experiments" / "digits.py", experiments)
        shutil.copy(Path(__file__).with_name("experiment.py"), experiments / "chaos.py")
        others = _forget_experiments()  # those of this repository, if a test before has imported them
        sys.path.insert(0, str(self.folder))
        try:
            from experiments import chaos

            chaos.write_records(f"{self.folder}/digits-*.tfrecord")
        finally:
            sys.path.remove(str(self.folder))
            _forget_experiments()
            sys.modules.update(others)

    @contextlib.contextmanager
    def once(self, name):
        """Yields the mark that `name` is there; one process at a time."""
        with open(self.folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.folder / f"{name}.done"

    def start(self, model_dir, variant, *sets, mode="train_and_eval", first=None):
        """Starts the command in a process of its own; its output is in `<model_dir>.output`."""
        output = Path(f"{model_dir}.output")
        output.mkdir(parents=True, exist_ok=True)
        words = [f"--set={word}" for word in (*variant.sets(self.folder), *sets)]
        argv = ["train", "--experiment=digits_chaos", f"--mode={mode}", f"--model_dir={model_dir}", *words]
        return Command(argv, cwd=self.folder, folder=output, first=first)

    def unbroken(self, variant, *sets, mode="train_and_eval"):
        """Returns the unbroken run of a variant; runs it if nobody has."""
        name = "-".join(["unbroken", variant.name, mode, *sets])
        model_dir = self.folder / name
        counter = self.folder / f"{name}.writes"
        with self.once(name) as done:
            if not done.exists():
                first = functools.partial(inside.kill_at_write, None, str(model_dir), str(counter))
                start = time.monotonic()
                completed = self.start(model_dir, variant, *sets, mode=mode, first=first).wait()
                assert completed.code == 0, completed.err
                done.write_text(json.dumps({"seconds": time.monotonic() - start, "writes": int(counter.read_text())}))
            return Unbroken(model_dir, **json.loads(done.read_text()))


def _forget_experiments():
    """Takes the package `experiments` out of this process, and returns its modules."""
    names = [name for name in sys.modules if name.partition(".")[0] == "experiments"]
    return {name: sys.modules.pop(name) for name in names}
