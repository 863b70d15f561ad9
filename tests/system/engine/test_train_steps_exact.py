"""The numbers of whole curves and evaluations do not depend on how their work is divided."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official_trainer.inputs import from_arrays
from official_trainer.lazy import keras
from tests import ROOT
from tests.support.forked import run_command
from tests.support.runs import differences
from tests.support.toy import ToyTask, build, experiment

MAX_EXAMPLES = 23


FEATURES = np.random.RandomState(2).randn(MAX_EXAMPLES, 6).astype("float32")


LABELS = np.random.RandomState(3).randint(0, 3, MAX_EXAMPLES).astype("int32")


class Evaluated(ToyTask):
    """Metrics on the device, a loss with a penalty of the weights, and results that are folded on the host."""

    num_examples = MAX_EXAMPLES

    def build_model(self):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(5, "tanh", kernel_regularizer="l2")(inputs)
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.BatchNormalization()(hidden)))

    def build_inputs(self, params, input_context=None):
        size = len(FEATURES) if params.is_training else self.num_examples
        return from_arrays((FEATURES[:size], LABELS[:size]), params, input_context)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy("accuracy"), keras.metrics.MeanTensor("labels")]

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(labels, model_outputs)
        metrics[1].update_state([1.0, 2.0])

    def validation_step(self, inputs, model, metrics=None):
        logits = self.inference_step(inputs[0], model)
        return {**super().validation_step(inputs, model, metrics), "margin": logits[:, 0], "labels": inputs[1]}

    def aggregate_logs(self, state, step_logs):
        return [*(state or []), *zip(step_logs["margin"], step_logs["labels"], strict=True)]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        margins, labels = (
            np.concatenate([part.numpy() for part in parts]) for parts in zip(*aggregated_logs, strict=True)
        )
        return {"host": {"margin": float(margins.mean()), "count": len(labels), "labels": float(labels.sum())}}


def evaluated(strategy, batch, num_examples):
    trainer = build(experiment(eval_batch=batch), task_cls=Evaluated, strategy=strategy)
    trainer.task.num_examples = num_examples
    logs = trainer.evaluate(-1)
    host = logs.pop("host")
    return {name: np.asarray(value) for name, value in {**logs, **host}.items() if name != "labels" or name in host}


EXPECTED = {}


def expected(num_examples):
    """What one batch of everything gives on one device, which NumPy confirms in `test_trainer.py`."""
    if num_examples not in EXPECTED:
        EXPECTED[num_examples] = evaluated("off", num_examples, num_examples)
    return EXPECTED[num_examples]


@pytest.mark.parametrize("strategy", ["off", "mirrored2"])
@settings(max_examples=3, derandomize=True)
@given(half=st.integers(1, 14), num_examples=st.integers(1, MAX_EXAMPLES))
@example(half=1, num_examples=1)
@example(half=2, num_examples=6)  # of the last batch, one replica has all
@example(half=14, num_examples=14)  # the second replica never has an example
def test_an_evaluation_does_not_depend_on_how_it_is_divided(strategy, half, num_examples):
    """N17: metrics, loss and what the host folds, for any batch size, tail and number of replicas."""
    found = evaluated(strategy, 2 * half, num_examples)
    assert found["count"] == num_examples
    for name, value in expected(num_examples).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


class Plain(ToyTask):
    """Neither dropout nor batch norm: what depends on the division by its nature."""

    def build_model(self):
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(8, "tanh")(inputs)))


def test_two_replicas_train_along_the_same_curve():
    """T16, T2: within 1e-6 of one device over 30 steps."""
    curves = []
    for strategy in ("off", "one_device", "mirrored1", "mirrored2"):
        trainer = build(experiment(), task_cls=Plain, strategy=strategy)
        curves.append([float(trainer.train(1)["batch_loss"]) for _ in range(30)])
    assert curves[0] == curves[1]
    np.testing.assert_allclose(curves[2], curves[0], rtol=1e-6)
    np.testing.assert_allclose(curves[3], curves[0], rtol=1e-6)


def test_mirrored_over_one_device_costs_nothing(tmp_path):
    """T16: it is no strategy, with the numbers that MirroredStrategy over that device gives."""
    sets = ["trainer.train_steps=4", "trainer.validation_interval=4", "trainer.export.at_end=false"]
    argv = ["train", "--experiment=digits_mlp", *(f"--set={word}" for word in sets)]
    for name in ("mirrored", "off"):
        words = [f"--model_dir={tmp_path / name}", f"--set=runtime.distribution_strategy={name}"]
        done = run_command([*argv, *words, "--set=runtime.num_logical_cpus=1"], cwd=ROOT, folder=tmp_path)
        assert done.code == 0, done.err
        assert "on 1 CPU" in done.out
    assert differences(tmp_path / "mirrored", tmp_path / "off") == []
