"""Training steps on a GPU: strategies, precisions, XLA, where batches and variables are."""

import numpy as np
import pytest

from official_trainer.config.schema import RuntimeConfig
from official_trainer.inputs import from_arrays
from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support import programs, seeded_runs, toy

STRATEGIES = ("off", "one_device", "mirrored")


class InMemory(toy.Undropped):
    """Reads blocks of batches where there is one replica."""

    def build_inputs(self, params, input_context=None):
        return from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


def losses(trainer, num_steps=20):
    return [float(trainer.train(1)["batch_loss"]) for _ in range(num_steps)]


def devices_of(variable):
    values = getattr(variable, "values", None)
    return {tf.DeviceSpec.from_string(each.device).device_type for each in (values or [variable])}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_computes_what_a_cpu_does(name, kind, strategy_on):
    with tf.device("CPU:0"):
        expected = losses(toy.build(task_cls=InMemory))
    trainer = toy.build(task_cls=InMemory, strategy=strategy_on(name))
    assert losses(trainer) == pytest.approx(expected, rel=1e-2)  # a GPU may multiply with fewer bits
    assert {each for variable in trainer.model.variables for each in devices_of(variable)} == {kind}
    assert trainer.evaluate(-1)["validation_loss"] < expected[0]


def test_batches_are_on_the_devices_before_the_step(kind, strategy_on):
    strategy = strategy_on("mirrored")
    trainer = toy.build(task_cls=InMemory, strategy=strategy)
    features, _ = next(trainer.train_iterator.iterator())
    found = [tf.DeviceSpec.from_string(each.device) for each in strategy.experimental_local_results(features)]
    assert [(spec.device_type, spec.device_index) for spec in found] == [
        (kind, number if kind == "GPU" else 0)
        for number in range(2)  # on CPUs they are not fetched, as is cheaper
    ]


@pytest.mark.parametrize("name", ["off", "one_device"])
def test_windows_of_xla_have_the_same_bits_however_they_are_cut(name, strategy_on):
    config = toy.experiment(enable_xla=True)
    whole, cut = (toy.build(config, task_cls=InMemory, strategy=strategy_on(name)) for _ in range(2))
    whole.run_steps(20)
    for steps in (7, 1, 12):
        cut.run_steps(steps)
    toy.assert_bitwise_equal(toy.weights(whole), toy.weights(cut))
    plain = toy.build(task_cls=InMemory, strategy=strategy_on(name))
    plain.run_steps(20)
    for ours, theirs in zip(toy.weights(whole), toy.weights(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("name", "enable_xla"), [("off", False), ("off", True), ("one_device", False), ("mirrored", False)]
)
def test_a_run_in_two_parts_has_the_bits_of_one(name, enable_xla, strategy_on, model_dir):
    seeded_runs.check_two_parts_draw_what_one_does(strategy_on(name), enable_xla, model_dir)


@pytest.mark.parametrize("name", ["off", "mirrored"])
@pytest.mark.parametrize(("dtype", "loss_scale"), [("bfloat16", None), ("float16", "dynamic"), ("float16", 128.0)])
def test_mixed_precision(name, dtype, loss_scale, strategy_on):
    keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
    runtime = RuntimeConfig(mixed_precision_dtype=dtype, loss_scale=loss_scale)
    trainer = toy.build(toy.experiment().replace(runtime=runtime), task_cls=InMemory, strategy=strategy_on(name))
    first, *_, last = losses(trainer, 60)
    assert last < first < 3
    assert trainer.model.layers[-1].compute_dtype == dtype
    assert all(weight.dtype == tf.float32 for weight in trainer.model.trainable_variables)
    if loss_scale is not None:
        scale = float(trainer.optimizer.loss_scale)
        assert scale == loss_scale if loss_scale != "dynamic" else scale >= 1


def test_an_overflow_of_float16_changes_no_weight(strategy_on):
    """A dynamic loss scale is halved instead."""

    class Large(InMemory):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return super().build_losses(labels, model_outputs, aux_losses) * 1e6

    keras.mixed_precision.set_global_policy("mixed_float16")
    runtime = RuntimeConfig(mixed_precision_dtype="float16", loss_scale="dynamic")
    trainer = toy.build(toy.experiment().replace(runtime=runtime), task_cls=Large, strategy=strategy_on("off"))
    before, scale = trainer.model.get_weights(), float(trainer.optimizer.loss_scale)
    trainer.run_steps(1)
    toy.assert_bitwise_equal(before, trainer.model.get_weights())
    assert float(trainer.optimizer.loss_scale) == scale / 2


def test_a_keras_model_in_a_program(kind):
    owner = programs.lightly(Program(programs.deep), optimizer="adam")
    x, y = programs.examples()
    history = owner.fit(x, y, batch_size=10, epochs=5, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert {each for variable in owner.model.variables for each in devices_of(variable)} == {kind}
