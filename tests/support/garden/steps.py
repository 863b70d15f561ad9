"""The steps of Model Garden's tasks, run by our Trainer on the batches that its tests have in hand."""

import contextlib
import pkgutil
from unittest import mock

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import tf

_trainers = {}  # by task, model and optimizer, which live as long as their module runs
_calls = []  # of a Trainer, which calls the steps themselves, with the names of what they return


class _Stepping(Trainer):
    """Keeps what the last evaluation step returned."""

    logs = None

    def eval_reduce(self, state=None, step_outputs=None):
        self.logs = {name: value[0] for name, value in step_outputs.items()}


def steps_of(task, names):
    """Returns `{(class of a task, step): replacement}`, for a class `module:class` and the names of its steps."""
    cls, found = pkgutil.resolve_name(task), {}
    for name in names:
        make = {"train_step": _train_step, "validation_step": _validation_step}[name]
        found[task, name] = make(getattr(cls, name))
        found[task, name].is_inside = _is_within_a_step  # such calls are not counted
    return found


def _train_step(original):
    def train_step(self, inputs, model, optimizer, metrics=None):
        if _is_within_a_step():
            logs = original(self, inputs, model, optimizer, metrics=metrics)
            for names in _calls:
                names.update(logs)
            return logs
        with _called() as names:
            trainer = _trainer_of(self, model, optimizer, metrics, inputs)
            trainer.train_dataset = tf.data.Dataset.from_tensors(inputs).repeat()  # read from the batch of the step on
            loss = trainer.train(1)["training_loss"]
            return {**dict.fromkeys(names), self.loss: loss}  # the other values stay in the step

    return train_step


def _validation_step(original):
    def validation_step(self, inputs, model, metrics=None):
        if _is_within_a_step():
            return original(self, inputs, model, metrics=metrics)
        with _called():
            trainer = _trainer_of(self, model, None, metrics, inputs)
            trainer.eval_dataset = tf.data.Dataset.from_tensors(inputs)
            trainer.evaluate(1)
            return trainer.logs

    return validation_step


def _is_within_a_step():
    """Whether a Trainer of ours, or a test's `strategy.run` or `tf.function`, makes the call."""
    from tensorflow.python.distribute import distribute_lib

    mode = distribute_lib._get_per_thread_mode()
    is_outside = mode.cross_replica_context is not None or mode is distribute_lib._get_default_replica_mode()
    return bool(_calls) or not tf.executing_eagerly() or not is_outside


@contextlib.contextmanager
def _called():
    _calls.append({})
    try:
        yield _calls[-1]
    finally:
        _calls.pop()


def _trainer_of(task, model, optimizer, metrics, inputs):
    """Returns a trainer of the task, with these metrics; the same each time."""
    key = id(task), id(model), id(optimizer)
    if key not in _trainers:
        _trainers[key] = _trainer(task, model, optimizer, metrics or [], tf.data.Dataset.from_tensors(inputs))
    return _trainers[key]


def _trainer(task, model, optimizer, metrics, data):
    from official.core import config_definitions

    config = config_definitions.ExperimentConfig(task=task.task_config)
    own = [metric for metric in metrics if metric not in getattr(model, "metrics", [])]
    sets = {"train_dataset": data} if optimizer is not None else {"validation_dataset": data}
    trains = optimizer is not None
    with mock.patch.object(task, "build_metrics", lambda training=True: own):
        return _Stepping(config, task, model, optimizer, train=trains, evaluate=not trains, **sets)
