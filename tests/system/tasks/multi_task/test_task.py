"""Several tasks in one Trainer: on replicas, under XLA, interleaved, in steps of all kinds."""

import numpy as np
import pytest

from official_trainer.config.optimization import EMAConfig
from tests.support import several_tasks, toy
from tests.support.cases import cases, full
from tests.support.several_tasks import NoDropout


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "interleaved"])
def plain(request):
    """What one device learns without anything else: whether jointly, weights by step, and results after 30 steps."""
    trainer = several_tasks.build(several_tasks.experiment(joint=request.param), task_cls=NoDropout)
    found, before = {}, 0
    for step in (10, 12, 30):
        trainer.train(step - before)
        found[step], before = several_tasks.values(trainer), step
    return request.param, found, trainer.evaluate(-1)


@pytest.mark.parametrize("plain", cases([True, False], False), indirect=True)
def test_two_replicas_compute_what_one_does(plain):
    """T21: mirrored over two devices gives the weights and the results of one, within rounding."""
    joint, expected, one = plain
    trainer = several_tasks.build(several_tasks.experiment(joint=joint), "mirrored2", NoDropout)
    trainer.train(30)
    several_tasks.assert_close(trainer, expected[30], rtol=2e-3, atol=2e-4)
    two = trainer.evaluate(-1)
    for name in ("points", "sums"):
        for metric, value in one[name].items():
            np.testing.assert_allclose(float(two[name][metric]), float(value), rtol=2e-3, err_msg=f"{name} {metric}")


def test_xla_compiles_steps_of_several_tasks(plain):
    """T21: batches of several tasks in blocks, or the step of one."""
    joint, expected, _ = plain
    config = several_tasks.experiment(joint=joint)
    fast = several_tasks.build(config.replace(runtime=config.runtime.replace(enable_xla=True)), task_cls=NoDropout)
    fast.train(12)
    several_tasks.assert_close(fast, expected[12], rtol=1e-3, atol=1e-4)


def test_gradients_accumulate_over_batches_of_different_sizes(plain):
    """T21, G14: two micro-batches of each task's batch, one update, the numbers of whole batches."""
    joint, expected, _ = plain
    config = several_tasks.experiment(joint=joint, gradient_accumulation_steps=2)
    trainer = several_tasks.build(config, task_cls=NoDropout)
    trainer.train(10)
    several_tasks.assert_close(trainer, expected[10], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("joint", "strategy"), [(False, "off"), (True, "mirrored2"), full((True, "off")), full((False, "mirrored2"))]
)
def test_weights_do_not_depend_on_windows_or_on_a_start_in_the_middle(joint, strategy, tmp_path):
    """T21, N1: cut into other windows, and continued from a checkpoint by another process's objects, bit for bit."""
    whole, rest = (several_tasks.build(several_tasks.experiment(joint=joint), strategy) for _ in range(2))
    whole.train(11)
    prefix = whole.checkpoint.write(str(tmp_path / "ckpt"))
    whole.train(12)
    rest.checkpoint.read(prefix).assert_existing_objects_matched()
    rest.train_iterator.reset()
    for steps in (1, 4, 7):
        rest.train(steps)
    toy.assert_bitwise_equal(toy.weights(whole), toy.weights(rest))
    assert len(whole.context.traces.take()) == 1


def test_steps_of_all_kinds_agree():
    """T21: traced or not, in one loop or step by step; a step whose values somebody wants is the same step."""

    def trained(publish=False, **options):
        trainer = several_tasks.build(several_tasks.experiment(ema=EMAConfig(average_decay=0.9), **options))
        for _ in range(6 if publish else 0):
            trainer.run_steps(1, publish=True)
            assert any(name.startswith("gradients/") for name in trainer.windows.published)
        trainer.train(0 if publish else 6)
        return toy.weights(trainer) + [v.numpy() for v in trainer.context.average.values]

    expected = trained()
    toy.assert_bitwise_equal(trained(publish=True), expected)
    toy.assert_bitwise_equal(trained(train_tf_while_loop=False), expected)
    eager = trained(train_tf_while_loop=False, train_tf_function=False)
    for left, right in zip(eager, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)
