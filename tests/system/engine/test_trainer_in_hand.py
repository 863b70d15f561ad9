"""One batch, or one dataset, in hand: `train_on`, `eval_on`, `evaluate_on`."""

import math
import re

import numpy as np
import pytest

from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.trainer import Trainer
from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from tests.support.cases import cases, full
from tests.support.toy import (
    FEATURES,
    LABELS,
    STRATEGIES,
    Undropped,
    assert_bitwise_equal,
    build,
    examples,
    experiment,
    strategy_of,
    weights,
)

BATCH = FEATURES[:10], LABELS[:10]


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "mirrored2"))
def test_a_step_on_a_batch_in_hand_is_that_step_of_a_run(strategy):
    """G18: the same bits as when the task yields the batch; the metrics are those since they were reset."""
    run, ours = (build(experiment(), strategy=strategy) for _ in range(2))
    run.run_steps(3)
    for i in range(3):
        logs = ours.train_on((FEATURES[10 * i : 10 * i + 10], LABELS[10 * i : 10 * i + 10]))
    assert_bitwise_equal(weights(ours), weights(run))
    expected = run.train_loop_end()
    assert {name: float(value) for name, value in logs.items()} == {n: float(v) for n, v in expected.items()}


@pytest.mark.parametrize("options", [{}, full({"enable_xla": True, "steps_per_loop": 4})])
def test_a_batch_in_hand_leaves_the_training_data_where_it_is(options):
    """G18: the steps around it take the batches they would take without it, also where windows are compiled."""
    seen = []

    class Watching(Undropped):
        def train_step(self, inputs, model, optimizer, metrics=None):
            model.layers[-1].first.assign(inputs[0][0, 0])
            return super().train_step(inputs, model, optimizer, metrics)

        def build_model(self):
            model = super().build_model()
            model.layers[-1].first = tf.Variable(0.0, trainable=False)
            return model

    trainer = build(experiment(**options), task_cls=Watching)

    def first_of_a_run_of(steps):
        trainer.run_steps(steps)
        seen.append(float(trainer.model.layers[-1].first))

    first_of_a_run_of(2)
    trainer.train_on(BATCH)
    assert float(trainer.model.layers[-1].first) == FEATURES[0, 0]
    first_of_a_run_of(1)
    trainer.train_iterator.reset()  # as after a restart
    first_of_a_run_of(1)
    assert seen == [FEATURES[10, 0], FEATURES[20, 0], FEATURES[30, 0]]
    assert int(trainer.global_step) == 5


class Overridden(Trainer):
    """Model Garden's override point."""

    steps = 0

    def train_step(self, iterator):
        self.steps += 1
        super().train_step(iterator)


def test_the_override_points_of_model_garden_are_called():
    """G18, T1: `train_step(iterator)` keeps its one meaning, and a batch in hand goes through it."""
    trainer = build(experiment(), trainer_cls=Overridden)
    trainer.train_on(BATCH)
    assert trainer.steps == 1  # traced


@pytest.mark.parametrize(
    ("strategy", "batch"), cases([(s, b) for s in STRATEGIES for b in (1, 10, 101)], ("off", 1), ("mirrored2", 101))
)
def test_a_dataset_in_hand_is_evaluated_exactly(strategy, batch):
    """G18, N17: each example once, at any batch size; a short last batch too."""
    trainer = build(experiment(), strategy=strategy)
    logits = trainer.model(FEATURES[:51]).numpy()
    logs = trainer.evaluate_on(examples(51).batch(batch))
    loss = keras.losses.sparse_categorical_crossentropy(LABELS[:51], logits, from_logits=True).numpy().mean()
    assert math.isclose(float(logs["validation_loss"]), loss, rel_tol=1e-6)
    assert math.isclose(float(logs["accuracy"]), (logits.argmax(1) == LABELS[:51]).mean(), rel_tol=1e-6)


class Best:
    """Keeps what evaluations offer."""

    best_ckpt_logs = None

    def __init__(self):
        self.offers = []

    def maybe_export_checkpoint(self, checkpoint, logs, global_step):
        self.offers.append(global_step)


def test_an_evaluation_in_hand_leaves_the_run_as_it_is():
    """G18: the own validation set, the best checkpoint, weights and training metrics; averages are evaluated."""
    best = Best()
    config = experiment(ema=EMAConfig(average_decay=0.5))
    trainer = build(config, checkpoint_exporter=best)
    trainer.run_steps(2)
    before = weights(trainer), trainer.windows.results()
    with trainer.weights_averaged():
        logits = trainer.model(BATCH[0]).numpy()
    found = trainer.evaluate_on(examples(10).batch(10), name="first ten")
    assert float(found["accuracy"]) == pytest.approx((logits.argmax(1) == BATCH[1]).mean())
    assert best.offers == []
    assert_bitwise_equal(weights(trainer), before[0])
    assert {n: float(v) for n, v in trainer.windows.results().items()} == {n: float(v) for n, v in before[1].items()}
    own = trainer.evaluate(-1)
    assert best.offers == [2]
    assert float(own["validation_loss"]) != float(found["validation_loss"])


def test_a_trainer_without_validation_data_evaluates_what_is_in_hand():
    """G18: the metrics are built when they are needed first."""
    config = experiment()
    config = config.replace(task=config.task.replace(validation_data=None))
    trainer = build(config, evaluate=False)
    assert set(trainer.evaluate_on(examples(20).batch(10))) == {"accuracy", "validation_loss"}


def test_the_device_is_the_one_of_the_scope():
    """G18: a strategy around the constructor chooses it."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:1")
    with strategy.scope():
        task = Undropped(experiment().task)
        model = task.build_model()
        trainer = Trainer(experiment(), task, model, keras.optimizers.SGD(0.1))
    trainer.train_on(BATCH)
    trainer.eval_on(BATCH)
    assert {variable.device[-5:] for variable in model.variables} == {"CPU:1"}


WRONG = [
    (lambda t: t.train_on(examples(10), name="mine"), "mine is a dataset, and one batch is wanted; "),
    (lambda t: t.train_on((FEATURES[:3], LABELS[:2])), "batch: all parts .* need the same number .*(3, 6), (2,)"),
    (lambda t: t.eval_on((object(), LABELS[:2])), "batch cannot become tensors: "),
    (lambda t: t.evaluate_on(FEATURES, name="dev"), "dev is a ndarray; give a tf.data.Dataset of batches"),
    (lambda t: t.evaluate_on(examples(10).batch(5).repeat(), name="dev"), "dev has no end; give dataset.take"),
    (lambda t: t.evaluate_on(examples(0).batch(5), name="dev"), "dev: the validation data holds no example"),
]


def test_messages_name_what_is_in_hand():
    """G18: a program has several datasets."""
    trainer = build()
    for call, message in WRONG:
        with pytest.raises(DataError, match=re.escape(message).replace(r"\.\*", ".*")):
            call(trainer)


def test_replicas_need_equal_parts_of_a_training_batch():
    """G18: the mean over replicas weighs them equally."""
    trainer = build(strategy="mirrored2")
    with pytest.raises(DataError, match="odd: 2 replicas cannot share 3 examples equally"):
        trainer.train_on((FEATURES[:3], LABELS[:3]), name="odd")
    assert strategy_of("mirrored2").num_replicas_in_sync == 2


def test_other_processes_do_not_have_what_is_in_hand(monkeypatch):
    """G18: refused, because the others would wait for their part."""
    trainer = build()
    monkeypatch.setattr(type(trainer.process_group), "is_alone", property(lambda self: False))
    with pytest.raises(DataError, match=r"mine: data in hand is in this process alone, .* build it in the task's"):
        trainer.train_on(BATCH, name="mine")
    np.testing.assert_equal(int(trainer.global_step), 0)
