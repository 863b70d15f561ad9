"""Metrics of Keras 3, and those that create their variables at first use, on one replica and on two."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.lazy import keras as keras2
from official_trainer.tasks import MovingAverage, Task
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.metrics import TaskMetrics
from tests.support import toy
from tests.support.cases import full

CLASSES = 3
NUM_EXAMPLES = 22
FEATURES = np.random.RandomState(0).rand(NUM_EXAMPLES, 4).astype("float32")
LABELS = np.eye(CLASSES, dtype="float32")[np.arange(NUM_EXAMPLES) % CLASSES]


class Counted(keras.Metric):
    """Counts examples; returns its variable, as the example in Keras's documentation does."""

    def __init__(self, name="counted"):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.count


class Late(keras.Metric):
    """Creates a variable, and a metric that creates its own, when it is used; returns several results."""

    inner = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.inner is None:
            self.inner = keras.metrics.F1Score(average="macro")
            self.total = self.add_variable((y_pred.shape[-1],), "zeros", name="total")
        self.inner.update_state(y_true, y_pred)
        self.total.assign_add(keras.ops.sum(y_pred, axis=0))

    def result(self):
        return {"f1": self.inner.result(), "first": self.total[0]}


def _arguments(name):
    if name.endswith(("IoU",)):
        ids = {"target_class_ids": [0, 1]} if not name.endswith("MeanIoU") else {}
        return ids if name == "BinaryIoU" else {"num_classes": CLASSES, **ids}
    return {
        "F1Score": {"average": "macro"},
        "FBetaScore": {"average": "weighted", "beta": 0.5},
        "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
        "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.4},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
    }.get(name, {})


EVERY = [name for name in dir(keras.metrics) if name[0].isupper() and name != "Metric"]
ONE_OF_A_SORT = ["AUC", "F1Score", "KLDivergence", "MeanIoU", "R2Score", "SparseCategoricalAccuracy", "Sum"]
"""Means, sums, matrices, thresholds, and those that create their variables at first use."""


def metrics_of(names):
    """Returns an object of each of these classes of `keras.metrics`, and others, with variables made at first use."""
    made = [getattr(keras.metrics, name)(name=name.lower(), **_arguments(name)) for name in names]
    made += [keras.metrics.AUC(multi_label=True, name="auc_of_labels"), Counted(), Late(name="late")]
    return [*made, MovingAverage(keras.metrics.F1Score(average="micro"), weight=0.5, name="smoothed")]


def update(metrics, labels, outputs):
    for metric in metrics:
        kind, numbers = type(metric).__name__, tf.argmax(labels, axis=1)
        if kind in ("Mean", "Sum"):
            metric.update_state(outputs)
        elif kind.startswith("Sparse"):
            metric.update_state(numbers, outputs)
        elif kind in ("IoU", "MeanIoU"):
            metric.update_state(numbers, tf.argmax(outputs, axis=1))
        else:
            metric.update_state(labels, outputs)


class EveryTask(Task):
    """Measures with every metric; its weights do not change."""

    names = EVERY

    def build_model(self):
        keras.utils.set_random_seed(0)
        features = keras.Input([4])
        return keras.Model(features, keras.layers.Dense(CLASSES, activation="softmax")(features))

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((FEATURES, LABELS), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.categorical_crossentropy(labels, model_outputs)

    def build_metrics(self, training=True):
        return metrics_of(self.names)

    def process_metrics(self, metrics, labels, model_outputs):
        update(metrics, labels, model_outputs)

    @classmethod
    def create_optimizer(cls, *args, **kwargs):
        return keras.optimizers.SGD(0.0)


def flat(logs):
    found = {}
    for name, value in logs.items():
        found |= {f"{name}/{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return {name: np.asarray(value) for name, value in found.items()}


class SomeTask(EveryTask):
    """Measures with one metric of a sort."""

    names = ONE_OF_A_SORT


def alone(names):
    """Returns what the metrics give by themselves, without the one that smooths, which depends on replicas."""
    metrics = metrics_of(names)
    update(metrics, LABELS, EveryTask(None).build_model()(FEATURES))
    return flat({metric.name: metric.result() for metric in metrics if metric.name != "smoothed"})


@pytest.mark.parametrize("task", [SomeTask, full(EveryTask)])
def test_every_metric_of_keras_3_gives_what_it_gives_by_itself(task):
    """N37: in rows of training, which reset it, and in evaluations, whose last batch is smaller."""
    trainer = toy.build(toy.experiment(batch=NUM_EXAMPLES, eval_batch=8), task, "mirrored2")
    expected = alone(task.names)
    for logs in (trainer.train(1), trainer.train(1), trainer.evaluate(-1)):
        found = flat(logs)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert 0 < found["smoothed"] < 1


class Keras2Task(toy.Undropped):
    """Measures with a metric of tf_keras that creates its variables at first use."""

    def build_metrics(self, training=True):
        return [keras2.metrics.R2Score(name="fit")]

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(tf.one_hot(labels, 3), model_outputs)


class Keras3Task(EveryTask):
    """Measures with one of Keras 3."""

    def build_metrics(self, training=True):
        return [keras.metrics.R2Score(name="fit")]


@pytest.mark.parametrize(
    ("task", "strategy"), [(Keras2Task, "off"), (Keras3Task, "off"), full((Keras3Task, "mirrored2"))]
)
def test_a_checkpoint_holds_what_metrics_create_at_first_use(task, strategy, tmp_path):
    """N52: what was measured since the last row goes on after a restart."""
    make = functools.partial(toy.build, toy.experiment(batch=10, eval_batch=10), task, strategy)
    trainer, unbroken = make(), make()
    trainer.run_steps(1)
    trainer.checkpoint_state.before_save()
    prefix = trainer.checkpoint.write(str(tmp_path / "ckpt"))
    resumed = make()
    resumed.checkpoint_state.after_restore(resumed.checkpoint_state.read_checkpoint(prefix, 1))
    unbroken.run_steps(2)
    resumed.run_steps(1)
    assert float(resumed.train_loop_end()["fit"]) == float(unbroken.train_loop_end()["fit"])


def test_a_checkpoint_holds_the_metrics_of_one_of_several_tasks(tmp_path):
    """N52: with their task's loss, under its number."""
    of_task = TaskMetrics("points", [Counted()])
    held = kerases.of(of_task, *of_task.metrics).trackable(of_task)
    prefix = tf.train.Checkpoint(points=held).write(str(tmp_path / "ckpt"))
    keys = {name.split("/.ATTR")[0] for name, _ in tf.train.list_variables(prefix)}
    assert {"points/loss/total", "points/loss/count", "points/metrics/0/count"} <= keys


class LateLayers(keras.Model):
    """Has its variables when it is called."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(CLASSES, activation="softmax"), keras.layers.BatchNormalization()

    def call(self, inputs, training=None):
        return self.dense(self.norm(inputs, training=training))


class LateTask(Keras3Task):
    """Model and metrics wait for their first call."""

    def build_model(self):
        return LateLayers()


def test_a_model_and_metrics_may_both_wait_for_their_first_call():
    """N37: on two replicas, whose threads create no variable of Keras 3."""
    trainer = toy.build(toy.experiment(batch=10, eval_batch=10), LateTask, "mirrored2")
    assert len(trainer.model.weights) == 6
    assert np.isfinite(float(trainer.train(2)["fit"]))
    assert np.isfinite(float(trainer.evaluate(-1)["fit"]))


class ReturningTask(EveryTask):
    """Folds an evaluation into a variable of its model, which the run averages."""

    def build_metrics(self, training=True):
        return []

    def build_model(self):
        self.model = super().build_model()
        return self.model

    def aggregate_logs(self, state, step_logs):
        return 1

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self.model.layers[-1].bias.assign([0.5, 0.0, 0.0])
        return {"bias": self.model.layers[-1].bias, "step": global_step}


def test_what_an_evaluation_returns_is_read_before_the_run_goes_on():
    """N52: variables have other values once an evaluation gives training's back."""
    trainer = toy.build(toy.experiment(batch=10, eval_batch=10), ReturningTask)
    logs = trainer.evaluation.run_without_effects(-1)
    trainer.run_steps(1)
    assert np.asarray(logs["bias"]).tolist() == [0.5, 0.0, 0.0]
    assert int(logs["step"]) == 0
