"""A loop without TensorFlow: a trainer that counts, a store and a journal in memory, and kills at chosen places."""

import json
import math
import types

from hypothesis import strategies as st

from official_trainer.actions.schedule import Schedule
from official_trainer.config import TrainerConfig
from official_trainer.engine.events import DueSteps, LoopObserver
from official_trainer.engine.loop import Loop
from official_trainer.stopping import StopRequest

KILLS = st.lists(
    st.one_of(
        st.integers(1, 100), st.tuples(st.sampled_from(["evaluate", "saved", "logged", "stop"]), st.integers(1, 100))
    ),
    max_size=5,
)
"""When a run is killed: at a step, or at one of these events."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


class Disk:
    """What survives a kill."""

    def __init__(self):
        self.checkpoints = []
        self.extra = {}
        self.weights = {}
        self.rows = []
        self.results = {}
        self.events = []


class Step:
    """Stands for the global step variable."""

    def __init__(self):
        self.value = 0

    def numpy(self):
        return self.value


class FakeTrainIterator:
    def __init__(self, trainer, length):
        self.trainer, self.length = trainer, length
        self.position = types.SimpleNamespace(epoch=Step(), start_step=self.start_step)
        self.skipped = 0

    def start_step(self, step):
        return step - self.length * self.position.epoch.value if self.position.epoch.value else step

    def steps_per_epoch(self):
        return None

    def epoch(self, step):
        return step / self.length

    def begin_next_epoch(self):
        self.position.epoch.value += 1

    def reset(self):
        pass

    @property
    def skipped_steps(self):
        return self.skipped

    def skip(self, steps):
        self.skipped += steps


class FakeTrainer:
    """Counts steps, and has a weight that depends on all of them; its loss at a step is looked up in `losses`."""

    def __init__(self, disk, config, losses=(), kill_at=None, data_length=math.inf, accuracies=()):
        self.disk, self.losses, self.kill_at = disk, dict(losses), kill_at
        self.accuracies = dict(accuracies)
        self.config = types.SimpleNamespace(trainer=config)
        self.global_step = Step()
        self.train_iterator = FakeTrainIterator(self, data_length)
        self.mean_loss, self.first_bad_step, self.optimizer = 1.0, None, None
        self.weight = 1
        self.lengths = []
        self.context = types.SimpleNamespace(traces=types.SimpleNamespace(take=list), workers=None)
        self.checkpoint_state = self.windows = self
        self.in_loop = False

    def before_save(self):
        pass

    def after_restore(self, report):
        assert report == "report"

    def assign(self, values):
        self.weight = values["weight"]

    def load_weights(self, directory, step):
        self.disk.events.append(("load", (directory, step)))

    def non_finite_weights(self):
        return []

    def initialize(self):
        self.disk.events.append(("initialize", 0))

    def train_loop_begin(self):
        self.in_loop = True

    def synchronize(self):
        pass

    def train_loop_end(self):
        assert self.in_loop
        self.in_loop = False
        return {"training_loss": self.mean_loss, "step": self.global_step.value}

    def run_steps(self, num_steps, publish):
        assert num_steps >= 1 and not publish
        start = self.global_step.value
        left = self.train_iterator.length * (self.train_iterator.position.epoch.value + 1) - start
        ran = int(min(num_steps, left))
        for step in range(start + 1, start + ran + 1):
            if step == self.kill_at:
                raise Killed
            if step in self.losses and not self.train_iterator.skipped:
                self.mean_loss = self.losses[step]
            self.global_step.value = step
            self.weight = (self.weight * 31 + step) % 10007
        self.lengths.append(ran)
        if isinstance(self.kill_at, tuple) and self.kill_at[0] == "stop" and start < self.kill_at[1] <= start + ran:
            self.stop.reason = "SIGTERM"
        return ran

    def evaluate(self, num_steps):
        step = self.global_step.value
        if self.kill_at == ("evaluate", step):
            raise Killed
        return {"accuracy": self.accuracies.get(step, step / 1000)}


class FakeStore:
    def __init__(self, disk, trainer):
        self.disk, self.trainer = disk, trainer

    def restore(self):
        if not self.disk.checkpoints:
            return None
        self.trainer.global_step.value = self.disk.checkpoints[-1]
        self.trainer.mean_loss = 1.0
        self.trainer.weight = self.disk.weights.get(self.disk.checkpoints[-1], 1)
        return "report"

    def save(self, step, extra):
        if step not in self.disk.checkpoints:
            self.disk.checkpoints.append(step)
            self.disk.extra[step] = json.loads(json.dumps(extra))
            self.disk.weights[step] = getattr(self.trainer, "weight", None)
        self.disk.events.append(("save", step))
        if getattr(self.trainer, "kill_at", None) == ("saved", step):
            raise Killed

    def manifest(self, step):
        return types.SimpleNamespace(extra=self.disk.extra.get(step, {}))

    def steps(self):
        return tuple(self.disk.checkpoints)

    def delete(self, step):
        self.disk.checkpoints.remove(step)

    def poll(self):
        return []

    def wait(self):
        pass

    def close(self):
        pass

    def latest_step(self):
        return max(self.disk.checkpoints, default=None)

    def prefix(self, step):
        return f"ckpt-{step}"


class FakeJournal:
    def __init__(self, disk, kill_at=None):
        self.disk, self.kill_at = disk, kill_at

    def publish(self, split, step, media):
        self.disk.events.append(("published", step))

    def log(self, split, step, values):
        self.disk.rows.append((split, step))
        self.disk.results[split, step] = dict(values)
        self.disk.events.append((split, step))
        if self.kill_at == ("logged", step) and split == "validation":
            raise Killed

    def rewind(self, step):
        self.disk.rows[:] = [row for row in self.disk.rows if row[1] <= step]


class Observer(LoopObserver):
    """Finds the rows of a disk; `methods` take the place of its own."""

    def __init__(self, disk, **methods):
        self.disk = disk
        vars(self).update(methods)

    def find_row(self, step, split):
        return self.disk.results[split, step] if (split, step) in self.disk.rows else None


def start(disk, config, *actions, evaluate="interval", stop=None, methods=None, until_step=None, **kwargs):
    """Returns a loop over a fake trainer, as a process would build it that finds `disk`."""
    trainer = FakeTrainer(disk, config, **kwargs)
    stop = trainer.stop = stop or StopRequest()
    trainer.process_group = types.SimpleNamespace(stop=stop)
    loop = Loop(
        trainer=trainer,
        store=FakeStore(disk, trainer),
        metric_writer=FakeJournal(disk, trainer.kill_at),
        due=DueSteps(config, evaluate),
        observer=Observer(disk, **(methods or {})),
        actions=Schedule(actions),
        stop=stop,
        until_step=until_step,
    )
    return loop, trainer


def config_of(**kwargs):
    defaults = {"train_steps": 100, "steps_per_loop": 10, "summary_interval": 20, "checkpoint_interval": 50}
    return TrainerConfig(**{**defaults, "validation_interval": 40, **kwargs})


def multiples(interval, total):
    return sorted({*range(interval, total + 1, interval), total})
