"""The numbers of a run do not depend on how its work is divided: over replicas, into batches."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed import strategy as distribute
from official_trainer.distributed.strategy import DeviceError
from official_trainer.engine import process
from official_trainer.inputs import from_arrays
from official_trainer.lazy import keras, tf
from tests import ROOT
from tests.support.forked import run_command
from tests.support.runs import differences
from tests.support.toy import ToyTask, assert_bitwise_equal, build, experiment, strategy_of, weights

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
@settings(max_examples=3, deadline=None, derandomize=True)
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


def test_sums_that_are_exact_give_the_same_bits_on_two_replicas():
    """T16: where nothing has to be rounded, no bit differs."""

    class Exact(ToyTask):
        def build_model(self):
            inputs = keras.Input((6,))
            return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))

        def build_inputs(self, params, input_context=None):
            features = np.random.RandomState(0).randint(-2, 3, (16, 6)).astype("float32")
            return from_arrays((features, features[:, :1]), params, input_context)

        def build_losses(self, labels, model_outputs, aux_losses=None):
            return (labels - model_outputs) ** 2

        def build_metrics(self, training=True):
            return []

    one, two = (build(experiment(batch=16), task_cls=Exact, strategy=name) for name in ("off", "mirrored2"))
    assert float(one.train(1)["batch_loss"]) == float(two.train(1)["batch_loss"])
    assert_bitwise_equal(weights(one), weights(two))


@pytest.mark.parametrize(
    ("name", "devices", "fields", "said"),
    [
        ("mirrored", ["CPU:0"], {"num_packs": 2}, "num_packs: has no effect without GPUs"),
        ("off", ["GPU:0"], {"num_packs": 2}, "num_packs: has no effect"),
        ("off", ["CPU:0"], {"all_reduce_alg": "nccl"}, "all_reduce_alg: nccl has no effect on one device"),
        ("mirrored", ["CPU:0"], {"all_reduce_alg": "nccl"}, "nccl sums on GPUs, and there are none"),
        ("mirrored", ["GPU:0", "GPU:1"], {"all_reduce_alg": "ring"}, "ring is for multi_worker_mirrored"),
        ("mirrored", ["GPU:0"], {"num_logical_cpus": 2}, "num_logical_cpus: has no effect with GPUs"),
        ("off", ["GPU:0", "GPU:1"], {"num_gpus": 2}, "num_gpus: strategy off uses one of 2"),
    ],
)
def test_what_has_no_effect_on_the_devices_that_there_are(name, devices, fields, said):
    """T16: `auto` knows its devices only then."""
    with pytest.raises(DeviceError, match=f"runtime.{said}" if ":" in said else said):
        distribute._check_effects(name, devices, RuntimeConfig(**fields))


def test_the_sum_of_gradients_can_be_chosen():
    """T16: the strategy that is built sums as it was told to."""
    chosen = RuntimeConfig(distribution_strategy="mirrored", all_reduce_alg="hierarchical_copy")
    operations = distribute.build_strategy(chosen).extended._cross_device_ops
    assert type(operations).__name__ == "HierarchicalCopyAllReduce"


def test_what_a_run_is_said_to_run_on():
    """T16: with the kind of device, of which all are taken unless num_gpus says otherwise."""
    assert distribute.described(strategy_of("off")) == "one device"
    assert distribute.described(strategy_of("mirrored2")) == "2 replicas (CPU)"


def test_operations_are_made_deterministic_if_asked(monkeypatch):
    """T16: by TensorFlow's own switch, which is for the whole process; otherwise it is left alone."""
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append("on"))
    process.configure_process(RuntimeConfig())
    assert asked == []
    process.configure_process(RuntimeConfig(enable_op_determinism=True))
    assert asked == ["on"]


def test_mirrored_over_one_device_costs_nothing(tmp_path):
    """T16: it is no strategy, with the numbers that MirroredStrategy over that device gives."""
    sets = ["trainer.train_steps=4", "trainer.validation_interval=4", "trainer.export.at_end=false"]
    argv = ["train", "--experiment=digits_mlp", *(f"--set={word}" for word in sets)]
    for name in ("mirrored", "off"):
        words = [f"--model_dir={tmp_path / name}", f"--set=runtime.distribution_strategy={name}"]
        done = run_command([*argv, *words, "--set=runtime.num_logical_cpus=1"], cwd=ROOT, folder=tmp_path)
        assert done.code == 0, done.err
        assert "on one device" in done.out
    assert differences(tmp_path / "mirrored", tmp_path / "off") == []
