"""Runs of a task whose evaluations return everything that can be shown, and results of its own."""

import numpy as np
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from official_trainer.tasks.results import Mean, Results, SampledSet
from official_trainer.tracking import Histogram, Image
from tests.support import jobs, toy

SCRIPT = {20: (0.5, 3.0), 40: (0.5, 2.0), 60: (0.4, 1.0), 80: (0.5, 2.0), 100: (float("nan"), 0.0)}
"""Quality and cost of the evaluation of a step: 40 is better than 20, and none after it is better than that."""


class Quality:
    """Results of a user's own: many right answers, and of as many, few costs."""

    def __init__(self, right, cost, sample=None):
        self.right, self.cost, self.sample = right, cost, sample

    def as_logs(self):
        return {"right": self.right, "cost": self.cost, "sample": self.sample or {}}

    @staticmethod
    def is_better(numbers, than):
        assert numbers.keys() == than.keys() == {"right", "cost"}
        return (numbers["right"], -numbers["cost"]) > (than["right"], -than["cost"])


class ShowingConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ShowingConfig)
class ShowingTask(toy.ToyTask):
    """Returns everything that can be shown."""

    metric_directions = {"quality": Quality.is_better}  # noqa: RUF012

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "label": inputs[1], "first": inputs[0][:, 0]}

    def aggregate_logs(self, state, step_logs):
        labels, first = (np.concatenate(step_logs[name]) for name in ("label", "first"))
        rows = [{"label": int(label), "first": float(each)} for label, each in zip(labels, first, strict=True)]
        keys = [f"{each:.6f}" for each in first]
        batch = Results({"mean_label": Mean.of(labels), "worst": SampledSet(4).add(keys, rows)})
        return batch if state is None else state.merge(batch)

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        logs = super().reduce_aggregated_logs(aggregated_logs)
        step = int(global_step.numpy())
        pictures = {str(n): Image(np.full([4, 4, 3], 0.5)) for n in range(2)}
        quality = Quality(*SCRIPT.get(step, (0.0, 0.0)), aggregated_logs["worst"])
        shown = {"pictures": pictures, "note": f"*at* {step}", "spread": Histogram(tf.range(9))}
        return {**logs, **shown, "quality": quality, "image/masks": tf.zeros([2, 4, 4, 3], tf.uint8)}


MEDIA = {"worst/examples", "pictures/0", "pictures/1", "note", "spread", "quality/sample/examples"}
MEDIA |= {"image/masks/0", "image/masks/1"}


@registry.register_config_factory("showing")
def showing():
    base = toy.experiment(
        steps_per_loop=10, summary_interval=20, checkpoint_interval=20, validation_interval=20,
        export=configuration.ExportConfig(at_end=False),
    )  # fmt: skip
    data = configuration.DataConfig(global_batch_size=10)
    return base.replace(task=ShowingConfig(train_data=data, validation_data=data))


def resolve(**trainer):
    base = showing()
    return configuration.resolve(base.replace(trainer=base.trainer.replace(**{"train_steps": 40, **trainer})))


def do(model_dir, mode="train_and_eval", **trainer):
    keras.backend.clear_session()
    return jobs.run("showing", resolve(**trainer), mode=mode, model_dir=str(model_dir), quiet=True)
