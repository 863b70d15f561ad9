"""How often steps are traced: counted, reported, bounded."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.actions.action import Action
from official_trainer.engine.inference import Inference
from official_trainer.engine.traces import RetraceError, Traces, signature_of
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode
from official_trainer.user_code import notes_on
from tests.support import action_runs, toy
from tests.support.cases import cases, full


def batches(size):
    """Batches of a size that the dataset declares."""
    return toy.examples(size).repeat().batch(size, drop_remainder=True)


def spec(shape, dtype=tf.float32):
    return tf.TensorSpec(shape, dtype)


def test_signatures_are_short():
    """G12: as text."""
    for given, text in (
        (spec([None, 6]), "float32[?,6]"),
        (spec(None, tf.string), "string[...]"),
        (spec([]), "float32[]"),
        ((spec([2, 6]), spec([2], tf.int32)), "(float32[2,6], int32[2])"),
        ({"image": spec([4]), "more": [spec([1])]}, "{image: float32[4], more: (float32[1])}"),
        (np.zeros([2, 3], "int64"), "int64[2,3]"),
        (object(), "object"),
    ):
        assert signature_of(given) == text


def test_a_signature_is_that_of_what_an_iterator_yields():
    """G12: of a plain one, and of one for each replica."""
    assert signature_of(iter(toy.examples(8).batch(4))) == "(float32[?,6], int32[?])"
    distributed = toy.strategy_of("mirrored2").experimental_distribute_dataset(batches(4))
    assert signature_of(iter(distributed)) == "(2 replicas of float32[2,6], 2 replicas of int32[2])"


LOOPS = {"windows": {}, "steps": {"train_tf_while_loop": False}, "compiled": {"enable_xla": True}}


@pytest.mark.parametrize(
    ("strategy", "loop"),
    cases([*(("off", loop) for loop in LOOPS), ("mirrored2", "windows"), ("mirrored2", "steps")], ("off", "steps")),
)
def test_steps_are_traced_once(strategy, loop):
    """G12: whatever the number of replicas, windows and epochs is."""
    trainer = toy.build(toy.experiment(**LOOPS[loop]), strategy=strategy)
    for num_steps in (1, 7, 30):
        trainer.train(num_steps)
    trainer.train_iterator.begin_next_epoch()
    trainer.train(3)
    trainer.evaluate(-1)
    trainer.evaluate(2)
    assert [trace.kind for trace in trainer.context.traces.take()] == ["train", "eval"]
    assert trainer.context.traces.take() == []
    assert trainer.context.traces.seconds("train") > 0


def test_what_runs_eagerly_is_not_traced():
    """G12: neither by our settings nor by TensorFlow's own."""
    options = {"train_tf_function": False, "train_tf_while_loop": False, "eval_tf_function": False}
    trainer = toy.build(toy.experiment(**options))
    trainer.train(3)
    trainer.evaluate(2)
    assert trainer.context.traces.take() == []
    trainer = toy.build()
    tf.config.run_functions_eagerly(True)
    try:
        trainer.train(2)
        trainer.evaluate(2)
    finally:
        tf.config.run_functions_eagerly(False)
    assert trainer.context.traces.take() == []


@pytest.mark.parametrize("loop", cases(list(LOOPS), "windows"))
def test_data_of_another_shape_traces_again_until_it_is_too_much(loop):
    """G12: counted, with the batches; the error comes after the window; XLA compiles for fixed shapes."""
    trainer = toy.build(toy.experiment(max_traces=2, **LOOPS[loop]))
    for size in (4, 6, 4):
        trainer.train_dataset = batches(size)
        trainer.train(2)
    assert trainer.context.traces.count("train") == 2
    trainer.train_dataset = batches(8)
    with pytest.raises(RetraceError, match=r"traced 3 times, more often than trainer.max_traces=2") as error:
        trainer.train(2)
    assert error.value.exit_code == ExitCode.DATA
    assert int(trainer.global_step.numpy()) == 8
    for size in (4, 6, 8):
        assert f"\n  (float32[{size},6], int32[{size}])" in str(error.value)
    for fix in ("pad", "bucket", "drop_remainder", "task.train_data", "raise trainer.max_traces"):
        assert fix in str(error.value)


def test_an_evaluation_of_another_shape_traces_again():
    """G12: evaluations have a count of their own."""
    trainer = toy.build(toy.experiment(max_traces=1))
    trainer.eval_dataset = batches(4)
    trainer.evaluate(2)
    trainer.eval_dataset = batches(6)
    with pytest.raises(RetraceError, match=r"the evaluation step was traced 2 times(.*\n)*.*task.validation_data"):
        trainer.evaluate(2)


def test_many_signatures_are_not_all_shown():
    """G12: the message stays readable; what came more than once is said so."""
    traces = Traces(1)
    for size in [1, 1, *range(2, 14)]:
        tf.function(traces.watched("train", lambda x: x))(tf.zeros([size]))
    with pytest.raises(RetraceError, match=r"\[1\] \(2 times\)(\n.*){9}\n  and 3 more\n"):
        traces.check("train")


class InArrays(toy.ToyTask):
    """The data are arrays in memory, which come in blocks of batches; a loss cannot be computed."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        none = tf.zeros([0])
        return super().build_losses(labels, model_outputs) + tf.gather(none, labels + 1_000)


@pytest.mark.parametrize(("enable_xla", "publishes"), [full((False, False)), (True, True)])
def test_what_is_said_of_a_batch_is_not_said_of_a_block(enable_xla, publishes):
    """N7, G12: blocks of batches are not the user's: neither an error nor a trace has their shapes."""
    trainer = toy.build(toy.experiment(enable_xla=enable_xla), task_cls=InArrays)
    notes = {}
    try:
        trainer.run_steps(1, publish=publishes)
    except tf.errors.OpError as error:
        notes = notes_on(error)
    assert enable_xla or notes["batch"] == "features float32[10,6], labels int32[10]"  # XLA reads what there is
    assert {trace.signature for trace in trainer.context.traces.take()} == {"(float32[10,6], int32[10])"}


def test_a_step_of_ones_own_is_counted():
    """G12: also one that shares nothing with ours."""

    class Own(Trainer):
        def train_step(self, iterator):
            next(iterator)
            self.global_step.assign_add(1)

    trainer = toy.build(trainer_cls=Own)
    trainer.run_steps(3)
    trainer.train_dataset = batches(4)
    trainer.run_steps(3)
    assert trainer.context.traces.count("train") == 2
    assert trainer.context.clock.waited_seconds is None


class Witness(Action):
    """Writes down what it is told of."""

    def __init__(self):
        self.told = []

    def on_trace(self, run, trace):
        self.told.append((trace.kind, trace.number, run.step))


def test_actions_are_told_of_traces(monkeypatch, model_dir):
    """G13: once the window or the evaluation has ended, whichever it was."""
    witness = Witness()
    monkeypatch.setattr(toy.ToyTask, "build_actions", lambda task, trainer: [witness])
    action_runs.do(model_dir, "trainer.train_steps=8", "trainer.validation_interval=4")
    assert witness.told == [("train", 1, 1), ("eval", 1, 4)]


def test_first_traces_of_several_trainers_are_no_retracing(caplog):
    """G12: TensorFlow counts each function by itself, and warns of one that is traced again and again."""
    trainer = toy.build()

    def traced_for(function, size):
        return function(tf.zeros([size]))

    with caplog.at_level("WARNING", "tensorflow"):
        for _ in range(5):
            traced_for(tf.function(trainer.context.traces.watched("train", lambda x: x)), 1)
            [*Inference(trainer.task, trainer.model).batches(toy.examples(4).batch(4))]
    assert "retracing" not in caplog.text
    one = tf.function(trainer.context.traces.watched("train", lambda x: x))
    for size in range(1, 6):
        traced_for(one, size)
    assert "5 out of the last 5 calls to" in caplog.text
