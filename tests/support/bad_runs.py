"""Runs of twenty steps on a source some of whose examples cannot be read, and which can kill its process."""

import dataclasses
import itertools
import os
import signal
from pathlib import Path

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy

BAD = frozenset(range(0, toy.NUM_EXAMPLES, 9))
MARK = "data"  # the fingerprint of the source


class Points(inputs.Source):
    """The examples of the toy task; `kill_at` are numbers of reads before which the process dies, once each."""

    def __init__(self, folder, bad, kill_at=()):
        self._folder, self._bad, self._kill_at, self._reads = Path(folder), bad, kill_at, itertools.count(1)

    def __len__(self):
        return len(toy.FEATURES)

    def __getitem__(self, index):
        number = next(self._reads)
        if number in self._kill_at and not (mark := self._folder / f"killed-{number}").exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self._bad:
            raise ValueError("its checksum is wrong")
        return toy.FEATURES[index], toy.LABELS[index]

    def fingerprint(self):
        return MARK


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""

    folder: str = ""
    kill_at: tuple[int, ...] = ()
    fails: bool = True


@registry.register_task_cls(BadConfig)
class BadTask(toy.ToyTask):
    """The toy task, from `Points`."""

    def build_inputs(self, params, input_context=None):
        config = self.task_config
        kill_at = config.kill_at if params.is_training else ()
        source = Points(config.folder, BAD if config.fails else (), kill_at)
        return inputs.from_source(source, params, input_context)


@registry.register_config_factory("bad_run")
def bad_run():
    """Twenty steps, of which an epoch takes thirteen."""
    base = toy.experiment(steps_per_loop=5, summary_interval=5, checkpoint_interval=5, validation_interval=10)
    data = schema.DataConfig(global_batch_size=8, on_bad_record="skip", max_bad_share=0.2)
    task = BadConfig(train_data=data, validation_data=data)
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=20))


def do(folder, *sets, **options):
    keras.backend.clear_session()
    sets = [f"task.folder={folder}", "trainer.export.at_end=false", *sets]
    resolved = configuration.resolve(registry.get_config("bad_run"), experiment="bad_run", sets=sets)
    run.run("bad_run", resolved, mode="train_and_eval", model_dir=str(Path(folder) / "run"), quiet=True, **options)
