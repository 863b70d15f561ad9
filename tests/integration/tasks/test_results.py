"""Results of evaluations as values: merged in any order they are the same, bit for bit."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.actions.action import Action, LoopState, Run
from official_trainer.actions.schedule import Schedule
from official_trainer.lazy import keras
from official_trainer.tasks.results import Mean, Results, SampledSet
from official_trainer.tracking import Text, flatten
from tests.support import toy

numbers = st.floats(width=32) | st.floats() | st.integers(-5, 5).map(float)
weights = st.floats(0, 1e30) | st.just(0.0)


def merged(parts, order):
    """Merges neighbours, chosen by `order`, until one is left: any tree over any permutation."""
    parts = list(parts)
    order.shuffle(parts)
    while len(parts) > 1:
        index = order.randrange(len(parts) - 1)
        parts[index : index + 2] = [parts[index].merge(parts[index + 1])]
    return parts[0]


def bits(value):
    return np.float64(value).tobytes() if not math.isnan(value) else "nan"


@given(st.lists(st.tuples(numbers, weights), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_means_merge_in_any_order_to_the_same_bits(pairs, order):
    """B2: associative and commutative, also with numbers that are none and sums that would run over."""
    whole = Mean.of([value for value, _ in pairs], [weight for _, weight in pairs])
    again = merged([Mean.of(value, weight) for value, weight in pairs], order)
    assert bits(again.value) == bits(whole.value)
    assert again.weight == whole.weight
    assert whole.merge(Mean()).weight == whole.weight


def test_a_mean_is_exact():
    """B2: nothing is rounded before the end, nothing counts that weighs nothing, and nothing gives NaN."""
    assert Mean.of([0.1] * 10).value == 0.1
    assert Mean.of([1e16, 1.0, -1e16]).total == Fraction(1)
    assert Mean.of([1e308, 1e308, 1e308]).value == 1e308
    assert Mean.of([3.0, math.nan], [2.0, 0.0]) == Mean(Fraction(6), Fraction(2))
    assert Mean.of([math.inf, 1.0]).value == math.inf
    assert math.isnan(Mean.of([math.inf, -math.inf]).value)
    assert math.isnan(Mean().value)
    of_replicas = Mean.of((tf.constant([True, False]), tf.constant([[1.0]]), np.array([], "float32")))
    assert (of_replicas.total, of_replicas.weight) == (2, 3)
    assert Mean.of(tf.constant([0.5], tf.bfloat16)).value == 0.5


def test_weights_that_are_none():
    """B2: messages."""
    with pytest.raises(ValueError, match="2 values have 1 weights; give each value one"):
        Mean.of([1, 2], [1])
    with pytest.raises(ValueError, match="weight -1 is not allowed; a weight is a finite number, at least 0"):
        Mean.of([1], [-1])
    with pytest.raises(ValueError, match="weight inf is not allowed"):
        Mean.of([1], [math.inf])


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=20), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(-3, 3),
    st.randoms(use_true_random=False),
)
def test_a_sample_is_the_same_whatever_the_order_and_the_parts(batches, size, seed, order):
    """B5: batches, hosts and examples that come twice change nothing; every example of a small set is in it."""
    keys = [key for batch in batches for key in batch]
    whole = SampledSet(size, seed).add(keys, [f"example {key}" for key in keys])
    parts = [SampledSet(size, seed).add(batch, [f"example {key}" for key in batch]) for batch in batches]
    assert merged(parts, order) == whole
    one_by_one = SampledSet(size, seed)
    for key in keys:
        one_by_one = one_by_one.add([key], [f"example {key}"])
    assert one_by_one == whole
    assert len(set(whole.values)) == len(whole.values) == min(size, len(set(keys)))


def test_a_sample_is_uniform_and_its_seed_counts():
    """B5: each example is in about as many samples of 10 out of 50 as any other."""
    counts = np.zeros(50)
    for seed in range(1000):
        counts[list(SampledSet(10, seed).add(range(50), range(50)).values)] += 1
    expected, variance = 200, 1000 * 0.2 * 0.8
    assert counts.sum() == 10_000
    assert abs(counts - expected).max() < 5 * math.sqrt(variance)
    assert SampledSet(10, 1).add(range(50), range(50)).values != SampledSet(10, 2).add(range(50), range(50)).values


def test_a_sample_does_not_change():
    """B5: adding and merging return another one; keys may be numbers, names and tensors."""
    empty = SampledSet(2)
    full = empty.add(tf.constant([1, 2, 3]), "abc").add(tf.constant(["x"]), ["d"]).add([np.int64(4)], ["e"])
    assert empty.values == ()
    assert len(full.values) == 2
    assert full == empty.add([1, 2, 3, b"x", 4], "abcde")
    assert full.merge(empty) == full


def test_samples_that_cannot_be():
    """B5: messages."""
    with pytest.raises(ValueError, match="size is 0; a sample has at least 1 example"):
        SampledSet(0)
    with pytest.raises(ValueError, match="1 values have 2 keys; give each value one"):
        SampledSet(1).add([1, 2], ["a"])
    with pytest.raises(TypeError, match=r"0\.5 \(float\) cannot be the key of an example; use an int, str or bytes"):
        SampledSet(1).add([0.5], ["a"])
    message = "size 1, seed 0 and of size 1, seed 7 cannot be merged; give both the same"
    with pytest.raises(ValueError, match=message):
        SampledSet(1).merge(SampledSet(1, seed=7))


def results_of(keys):
    """Results as an evaluation has them: named sets, a mean, a sample; a set that only some parts have."""
    parts = {"all": Results({"error": Mean.of([key / 7 for key in keys]), "sample": SampledSet(3).add(keys, keys)})}
    if max(keys, default=0) > 10:
        parts["far"] = Results({"error": Mean.of([key for key in keys if key > 10])})
    return Results(parts)


@given(st.lists(st.lists(st.integers(0, 20), max_size=5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_results_merge_in_any_order(batches, order):
    """B2: part by part, however they are nested."""
    whole = merged(map(results_of, batches), random.Random(0))
    again = merged(map(results_of, batches), order)
    assert again == whole
    assert again["all"]["sample"].values == whole["all"]["sample"].values
    left, right = flatten(again.as_logs()), flatten(whole.as_logs())
    assert [(name, bits(value)) for name, value in left.items()] == [(n, bits(v)) for n, v in right.items()]


def test_parts_of_two_kinds_are_not_merged():
    """B2: message."""
    with pytest.raises(
        TypeError, match="'a' is Mean and SampledSet; parts with the same name must have the same class"
    ):
        Results({"a": Mean()}).merge(Results({"a": SampledSet(1)}))


# In an evaluation.


class SamplingTask(toy.ToyTask):
    """Its evaluation gives the accuracy of each class, and shows a sample of its predictions."""

    def build_inputs(self, params, input_context=None):
        numbered = (
            toy.examples(toy.NUM_EXAMPLES).enumerate().map(lambda number, example: (example[0], (example[1], number)))
        )
        return numbered.batch(input_context.get_per_replica_batch_size(params.global_batch_size))

    def build_metrics(self, training=True):
        return []

    def validation_step(self, inputs, model, metrics=None):
        features, (labels, numbers) = inputs
        outputs = self.inference_step(features, model)
        loss = tf.reduce_mean(self.build_losses(labels, outputs))
        return {self.loss: loss, "label": labels, "number": numbers, "predicted": tf.argmax(outputs, -1)}

    def aggregate_logs(self, state, step_logs):
        self.results = Results() if state is None else state
        labels, numbers, predicted = (np.concatenate(step_logs[name]) for name in ("label", "number", "predicted"))
        of_class = {f"class_{c}": Mean.of((predicted == c)[labels == c]) for c in range(3)}
        rows = [f"{number}: {label} → {guess}" for number, label, guess in zip(numbers, labels, predicted, strict=True)]
        batch = Results({"accuracy": Results(of_class), "sample": SampledSet(5, seed=1).add(numbers, rows)})
        self.results = self.results.merge(batch)
        return self.results

    def build_actions(self, trainer):
        return [ShowSample()]


class ShowSample(Action):
    def on_eval(self, run, logs):
        lines = run.trainer.task.results["sample"].values
        run.tracker.publish("validation", run.step, {"predictions": Text("\n".join(lines))})


class Published:
    def __init__(self):
        self.texts = []

    def log(self, split, step, values):
        raise AssertionError("nothing to log")

    def publish(self, split, step, media):
        self.texts += [(split, step, name, value.markdown) for name, value in media.items()]


def evaluated(strategy, batch):
    trainer = toy.build(toy.experiment(eval_batch=batch), SamplingTask, strategy)
    state = random.Random(0)
    for weight in trainer.model.trainable_variables:  # the same under every strategy
        weight.assign(np.reshape([state.gauss(0, 1) for _ in range(weight.shape.num_elements())], weight.shape))
    logs = trainer.evaluate(-1)
    published = Published()
    schedule = Schedule(trainer.task.build_actions(trainer))
    schedule.start(Run(state=LoopState(step=7), trainer=trainer, model_dir="", tracker=published))
    schedule.evaluation(flatten(logs), ended=False)
    return trainer, logs, published.texts


def test_an_evaluation_folds_its_steps_into_results():
    """B2, B5: accuracies of classes and a sample, the same over other batches and over two replicas."""
    trainer, logs, texts = evaluated("off", 10)
    predicted = np.argmax(trainer.model(toy.FEATURES, training=False), -1)
    for c in range(3):
        of_class = predicted[c == toy.LABELS]
        assert logs["accuracy"][f"class_{c}"] == (of_class == c).sum() / of_class.size
    ((split, step, name, text),) = texts
    assert (split, step, name, len(text.splitlines())) == ("validation", 7, "predictions", 5)
    for line in text.splitlines():
        number, rest = line.split(": ")
        assert rest == f"{toy.LABELS[int(number)]} → {predicted[int(number)]}"
    keras.backend.clear_session()
    for strategy, batch in [("mirrored2", 10), ("off", 32)]:
        _, others, same = evaluated(strategy, batch)
        assert others["accuracy"] == logs["accuracy"]
        assert same == texts
