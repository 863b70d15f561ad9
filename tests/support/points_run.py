"""Runs of twenty steps on a source, some of whose examples cannot be read."""

import dataclasses

from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.tasks import registry
from tests.support import toy

MARK = "data"  # the fingerprint of the source


class Points(inputs.Source):
    """The examples of the toy task."""

    def __init__(self, bad):
        self._bad = bad

    def __len__(self):
        return len(toy.FEATURES)

    def __getitem__(self, index):
        if index in self._bad:
            raise ValueError("its checksum is wrong")
        return toy.FEATURES[index], toy.LABELS[index]

    def fingerprint(self):
        return MARK


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""

    bad: tuple[int, ...] = ()


@registry.register_task_cls(PointsConfig)
class PointsTask(toy.ToyTask):
    """The toy task, from `Points`."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_source(Points(self.task_config.bad), params, input_context)


do = toy.runs_of(  # an epoch takes thirteen steps
    "points_run", None, PointsConfig, batch=8, eval_batch=8, train_steps=20, steps_per_loop=5, summary_interval=5,
    checkpoint_interval=5, validation_interval=10, export=toy.NO_EXPORT,
)  # fmt: skip
