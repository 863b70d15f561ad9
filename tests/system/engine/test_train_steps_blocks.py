"""Steps over blocks of batches compute what steps on single batches do, to the bit."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs, publish
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.engine.trainer import Trainer
from official_trainer.engine.windows import Blocks
from tests.support.cases import cases
from tests.support.toy import FEATURES, LABELS, ToyTask, assert_bitwise_equal, build, experiment, weights

TEXTS = np.array([f"example {number}" for number in range(len(LABELS))])


class Arrays(ToyTask):
    """Several columns of data in memory, one of them text; an epoch has 10.1 batches."""

    def build_inputs(self, params, input_context=None):
        columns = ({"features": FEATURES}, {"label": LABELS, "text": TEXTS})
        return inputs.from_arrays(columns, params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        publish.scalar("length", tf.reduce_sum(tf.strings.length(labels["text"])))
        return super().build_losses(labels["label"], model_outputs)

    def process_metrics(self, metrics, labels, model_outputs):
        super().process_metrics(metrics, labels["label"], model_outputs)


class Single(Arrays):
    """The same data in single batches: what a dataset is made into comes as it is."""

    def build_inputs(self, params, input_context=None):
        return super().build_inputs(params, input_context).map(lambda features, labels: (features, labels))


def saved(trainer, model_dir):
    trainer.checkpoint_state.before_save()
    CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=1).save(trainer.context.step)
    return model_dir


def restored(trainer, model_dir):
    trainer.checkpoint_state.after_restore(CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=1).restore())
    return trainer


@pytest.mark.parametrize("strategy", cases(["off", "one_device", "mirrored1", "mirrored2"], "off"))
def test_blocks_train_what_single_batches_do(strategy):
    """T2, N1: the same weights, slots, metrics and published values, over epochs and for any windows."""
    blocks, single = (build(task_cls=task, strategy=strategy) for task in (Arrays, Single))
    for steps, publishes in ((3, False), (1, True), (40, False), (100, False), (1, True), (7, False)):
        for trainer in (blocks, single):
            trainer.run_steps(steps, publish=publishes)
        if publishes:
            assert blocks.windows.published["length"] == single.windows.published["length"] > 0
    in_blocks = isinstance(blocks.train_iterator.iterator(), Blocks)
    assert in_blocks == (strategy != "mirrored2")  # replicas get batches of their own
    assert not isinstance(single.train_iterator.iterator(), Blocks)
    assert_bitwise_equal(weights(blocks), weights(single))
    of_blocks, of_single = blocks.train_loop_end(), single.train_loop_end()
    assert {name: float(value) for name, value in of_blocks.items()} == {
        name: float(value) for name, value in of_single.items()
    }


@pytest.mark.parametrize(
    ("before", "after"),
    cases([(Arrays, Arrays), (Single, Arrays), (Arrays, Single)], (Single, Arrays)),
)
def test_a_run_goes_on_in_the_middle_of_a_block(before, after, tmp_path):
    """N1: the position is the step alone, so a run that began on single batches goes on over blocks."""
    whole = build(task_cls=Single)
    whole.run_steps(150)
    first = build(task_cls=before)
    first.run_steps(33)
    second = restored(build(task_cls=after), saved(first, str(tmp_path)))
    second.run_steps(117)
    assert_bitwise_equal(weights(whole), weights(second))


def test_a_step_on_a_batch_in_hand_takes_nothing_from_a_block():
    """N1: the training data go on where they were."""
    with_one, without = build(task_cls=Arrays), build(task_cls=Single)
    features, labels = {"features": FEATURES[:10]}, {"label": LABELS[:10], "text": TEXTS[:10]}
    for trainer in (with_one, without):
        trainer.run_steps(5)
        trainer.train_on((features, labels))
        trainer.run_steps(5)
    assert isinstance(with_one.train_iterator.iterator(), Blocks)
    assert_bitwise_equal(weights(with_one), weights(without))


def test_batches_left_out_are_left_out_of_blocks():
    """N1: going past batches that training cannot use begins a new block at the right one."""
    blocks, single = build(task_cls=Arrays), build(task_cls=Single)
    for trainer in (blocks, single):
        trainer.run_steps(5)
        trainer.train_iterator.skip(3)
        trainer.run_steps(9)
    assert_bitwise_equal(weights(blocks), weights(single))


def test_steps_go_on_after_one_that_failed():
    """N1: a caller that catches the error trains on the batches that follow the last step that was done."""

    class Failing(Arrays):
        fails = tf.Variable(False, trainable=False)

        def build_losses(self, labels, model_outputs, aux_losses=None):
            is_bad = self.fails & tf.reduce_any(labels["text"] == TEXTS[50])
            with tf.control_dependencies([tf.debugging.assert_equal(is_bad, False, "found")]):
                return super().build_losses(labels, model_outputs)

    whole, caught = build(task_cls=Arrays), build(task_cls=Failing)
    Failing.fails.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="found"):
        caught.run_steps(40)
    assert 0 < caught.context.step < 40
    Failing.fails.assign(False)
    caught.run_steps(40 - caught.context.step)
    whole.run_steps(40)
    assert_bitwise_equal([v.numpy() for v in whole.model.variables], [v.numpy() for v in caught.model.variables])


@pytest.mark.parametrize("enable_xla", cases([False, True], False))
def test_what_a_pipeline_makes_of_arrays_gets_batches(enable_xla):
    """T2: also under XLA, a `map` of the user's behind `from_arrays` sees one batch."""
    shapes = []

    class Mapping(ToyTask):
        def build_inputs(self, params, input_context=None):
            def look(features, labels):
                shapes.append(features.shape.as_list())
                return features, labels

            return inputs.from_arrays((FEATURES, LABELS), params, input_context).map(look)

    build(experiment(enable_xla=enable_xla), task_cls=Mapping).run_steps(2)
    assert shapes and all(shape == [10, 6] for shape in shapes)


def test_a_loop_of_the_users_own_gets_batches():
    """T4: `create_train_loop_fn` takes an iterator over batches."""

    class Own(Trainer):
        def create_train_loop_fn(self):
            loop = super().create_train_loop_fn()

            def own(iterator, num_steps):
                assert iterator.element_spec[0]["features"].shape.as_list() == [10, 6]
                loop(iterator, num_steps)

            return own

    trainer = build(task_cls=Arrays, trainer_cls=Own)
    trainer.run_steps(3)
    assert trainer.context.step == 3
