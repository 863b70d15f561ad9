"""The Trainer's contract: Model Garden's constructor, override points, exact numbers."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config import schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.distributed.strategy import DeviceError
from official_trainer.engine.trainer import Trainer
from official_trainer.inputs import DataError
from official_trainer.lazy import keras
from tests.support.cases import cases, full
from tests.support.toy import (
    FEATURES,
    LABELS,
    NUM_EXAMPLES,
    STRATEGIES,
    ToyTask,
    Undropped,
    assert_bitwise_equal,
    build,
    examples,
    experiment,
    weights,
)


def test_smoothed_loss_weighs_a_new_loss_by_one_percent():
    """G9, T2: moving average with weight 0.01, from the first loss on; one call reports what its steps gave."""
    trainer = build()
    rows = [trainer.train(1) for _ in range(4)]
    assert [float(row["training_loss"]) for row in rows] == pytest.approx([float(row["batch_loss"]) for row in rows])
    weights_of_losses = [0.01 * 0.99**age for age in (3, 2, 1, 0)]
    expected = np.average([float(row["batch_loss"]) for row in rows], weights=weights_of_losses)
    assert math.isclose(float(rows[-1]["smoothed_loss"]), expected, rel_tol=1e-5)
    assert set(rows[-1]) == {"training_loss", "accuracy", "batch_loss", "smoothed_loss", "learning_rate"}
    assert int(trainer.global_step.numpy()) == 4


def test_an_evaluation_has_the_loss_of_its_own_steps():
    """T2: what an evaluation before it has measured does not count."""
    trainer, other = build(), build()
    trainer.evaluate(-1)
    trainer.train(3)
    other.train(3)
    assert float(trainer.evaluate(-1)["validation_loss"]) == float(other.evaluate(-1)["validation_loss"])


@pytest.mark.parametrize(
    ("strategy", "batch"),
    cases(
        [
            (strategy, batch)
            for strategy in STRATEGIES
            for batch in (1, 10, 50, 100, 101, 202)
            if strategy != "mirrored2" or batch % 2 == 0
        ],
        ("off", 1),
        ("mirrored2", 100),  # of the last batch, one replica has all
        ("mirrored2", 202),  # the second replica never has an example
    ),
)
def test_evaluation_counts_every_example_once(strategy, batch):
    """N17: the same results at any batch size and replica count, also when the last batch is short."""
    trainer = build(experiment(eval_batch=batch), strategy=strategy)
    logits = trainer.model(FEATURES).numpy()
    loss = keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True).numpy().mean()
    logs = trainer.evaluate(-1)
    assert math.isclose(float(logs["validation_loss"]), loss, rel_tol=1e-6)
    assert math.isclose(float(logs["accuracy"]), (logits.argmax(1) == LABELS).mean(), rel_tol=1e-6)


class CollectingTask(ToyTask):
    """Collects the labels it evaluates on the host."""

    def validation_step(self, inputs, model, metrics=None):
        return {**super().validation_step(inputs, model, metrics), "labels": inputs[1]}

    def aggregate_logs(self, state, step_logs):
        return [*(state or []), *(labels.numpy() for labels in step_logs["labels"])]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        labels = np.concatenate(aggregated_logs)
        return {"seen": {"count": len(labels), "sum": int(labels.sum())}}


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "mirrored2"))
def test_host_state_is_folded_over_the_whole_evaluation(strategy):
    """T5: eval_reduce and eval_end see each example once, with one value for each replica that had data."""
    trainer = build(task_cls=CollectingTask, strategy=strategy)
    logs = trainer.evaluate(-1)
    assert logs["seen"] == {"count": NUM_EXAMPLES, "sum": int(LABELS.sum())}


def test_weights_that_are_not_finite_are_named():
    """N3: also those that are only so large that a sum of their squares is not finite are finite."""
    trainer = build()
    first, second = trainer.model.trainable_variables[:2]
    first.assign(tf.fill(first.shape, 1e30))
    assert trainer.checkpoint_state.non_finite_weights() == []
    for value in (math.inf, -math.inf, math.nan):
        second.assign(tf.tensor_scatter_nd_update(second, [[0] * len(second.shape)], [value]))
        assert trainer.checkpoint_state.non_finite_weights() == [second.name]


@pytest.mark.parametrize(
    ("strategy", "steps"), cases([("off", 3), ("off", -1), ("mirrored2", 3), ("mirrored2", -1)], ("mirrored2", -1))
)
def test_traced_evaluation_loop_gives_the_same(strategy, steps):
    """T2, T5: eval_tf_while_loop works with -1 too, and what a task aggregates after each step is the same."""
    plain = build(task_cls=CollectingTask, strategy=strategy).evaluate(steps)
    traced = build(experiment(eval_tf_while_loop=True), CollectingTask, strategy).evaluate(steps)
    assert traced.pop("seen") == plain.pop("seen")
    for name, value in plain.items():
        assert math.isclose(float(value), float(traced[name]), rel_tol=1e-6), name


@pytest.mark.parametrize("eval_tf_while_loop", [False, True])
def test_a_trainer_may_begin_an_evaluation_with_a_state(eval_tf_while_loop):
    """T3: what eval_begin returns is folded by eval_reduce, whatever the loop is."""

    class Counting(Trainer):
        def eval_begin(self):
            super().eval_begin()
            return 5

        def eval_reduce(self, state=None, step_outputs=None):
            return state + 1

        def eval_end(self, aggregated_logs=None):
            return {"steps": aggregated_logs}

    config = experiment(eval_tf_while_loop=eval_tf_while_loop)
    task = ToyTask(config.task)
    assert Counting(config, task, task.build_model(), None, train=False).evaluate(3) == {"steps": 8}


@pytest.mark.parametrize(
    ("strategy", "enable_xla"),
    cases(
        [("off", False), ("off", True), ("one_device", False), ("one_device", True), ("mirrored2", False)],
        ("off", True),
    ),
)
def test_weights_do_not_depend_on_how_steps_are_cut_into_windows(strategy, enable_xla):
    """T2: bitwise the same weights and slots for any windows, with dropout."""
    whole, cut = (build(experiment(enable_xla=enable_xla), strategy=strategy) for _ in range(2))
    whole.run_steps(23)
    for steps in (1, 5, 10, 7):
        cut.run_steps(steps)
    assert_bitwise_equal(weights(whole), weights(cut))


@pytest.mark.parametrize(
    "loop", [full({"train_tf_while_loop": False}), {"train_tf_while_loop": False, "train_tf_function": False}]
)
def test_untraced_loops_train_the_same(loop):
    """T2: tracing changes speed only."""
    traced, untraced = build(), build(experiment(**loop))
    traced.train(3)
    untraced.train(3)
    for a, b in zip(weights(traced), weights(untraced), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_xla_over_cpu_replicas_is_refused():
    """T16: what cannot be compiled is said at construction."""
    with pytest.raises(DeviceError, match=r"runtime.enable_xla: XLA cannot compile .* 2 CPU devices"):
        build(experiment(enable_xla=True), strategy="mirrored2")


def test_override_points_are_called_in_order():
    """T3, T4: begin, fetch, step, end; begin and end eager, fetch and step traced."""
    calls = []

    def recording(name):
        def call(self, *arguments):
            calls.append((name, tf.executing_eagerly()))
            return getattr(Trainer, name)(self, *arguments)

        return call

    class Recording(Trainer):
        def eval_reduce(self, state=None, step_outputs=None):
            calls.append(("eval_reduce", tf.executing_eagerly()))
            return (state or 0) + 1

        def eval_end(self, aggregated_logs=None):
            calls.append(("eval_end", aggregated_logs))
            return super().eval_end()

    for part in ("train_loop_begin", "train_step", "next_train_inputs", "train_loop_end"):
        setattr(Recording, part, recording(part))
    for part in ("eval_begin", "eval_step", "next_eval_inputs"):
        setattr(Recording, part, recording(part))
    trainer = build(trainer_cls=Recording)
    trainer.train(3)
    trainer.evaluate(2)
    unique = list(dict.fromkeys(calls))  # a traced function may be traced more than once
    assert unique == [
        ("train_loop_begin", True),
        ("train_step", False),
        ("next_train_inputs", False),
        ("train_loop_end", True),
        ("eval_begin", True),
        ("eval_step", False),
        ("next_eval_inputs", False),
        ("eval_reduce", True),
        ("eval_end", 2),
    ]


def test_passthrough_logs_stay_on_the_host_and_lose_to_the_model(caplog):
    """T4: pass-through logs reach eval_reduce; the model's value wins, with a warning."""

    class PassingThrough(Trainer):
        def next_eval_inputs(self, iterator):
            inputs, logs = super().next_eval_inputs(iterator)
            return inputs, {**logs, "names": tf.constant(["a"]), "labels": tf.constant([-1])}

    class Reading(CollectingTask):
        def aggregate_logs(self, state, step_logs):
            assert step_logs["names"].numpy().tolist() == [b"a"]
            return super().aggregate_logs(state, step_logs)

    logs = build(task_cls=Reading, trainer_cls=PassingThrough).evaluate(-1)
    assert logs["seen"]["count"] == NUM_EXAMPLES
    assert "next_eval_inputs and the model both log labels" in caplog.text


def test_properties_are_named_as_in_model_garden():
    """T9: every property of the contract."""
    trainer = build()
    names = "strategy config task model optimizer global_step train_loss validation_loss train_metrics"
    for name in [*names.split(), "validation_metrics", "checkpoint", "checkpoint_exporter"]:
        assert hasattr(trainer, name), name
    assert trainer.train_loss.name == "training_loss"
    assert trainer.validation_loss.name == "validation_loss"
    assert trainer.checkpoint_exporter is None


def test_metrics_with_one_name_are_refused():
    """T9: one would silently hide the other."""

    class Twice(ToyTask):
        def build_metrics(self, training=True):
            return [keras.metrics.Mean("accuracy"), keras.metrics.SparseCategoricalAccuracy("accuracy")]

    with pytest.raises(ValueError, match=r"two training metrics are named 'accuracy' \(Mean and SparseCategorical"):
        build(task_cls=Twice)


@pytest.mark.parametrize(
    ("missing", "message"),
    [("trainer", "section 'trainer'"), ("task", "section 'task'"), ("train_data", "section 'task.train_data'"),
     ("validation_data", "section 'task.validation_data'")],
)  # fmt: skip
def test_missing_sections_are_named(missing, message):
    """T1: an AttributeError that names what is missing."""
    config = experiment()

    class Section:
        def __init__(self, source, without=""):
            self.__dict__.update({k: v for k, v in vars(source).items() if k != without})

    broken = Section(config, missing)
    if hasattr(broken, "task"):
        broken.task = Section(config.task, missing)
    with pytest.raises(AttributeError, match=message):
        Trainer(broken, ToyTask(None), None, None)


def test_given_datasets_replace_the_tasks():
    """T1: train_dataset and validation_dataset are used as they are."""
    data = examples(20).batch(10)
    trainer = build(task_cls=CollectingTask, train_dataset=data.repeat(), validation_dataset=data)
    trainer.train(3)
    assert trainer.evaluate(-1)["seen"]["count"] == 20


def test_distribute_dataset_takes_datasets_and_functions():
    """T8: a dataset, or a function with or without input_context."""
    trainer = build(strategy="mirrored2")
    data = tf.data.Dataset.range(8).batch(4)

    def values(dataset):
        return [int(tf.size(v)) for v in trainer.strategy.experimental_local_results(next(iter(dataset)))]

    assert values(trainer.distribute_dataset(data)) == [2, 2]
    assert values(trainer.distribute_dataset(lambda: data)) == [4, 4]

    def with_context(start, input_context=None):
        assert input_context.num_replicas_in_sync == 2
        return data.skip(start)

    assert values(trainer.distribute_dataset(with_context, 0)) == [4, 4]


def finite(repeats):
    class Finite(ToyTask):
        def build_inputs(self, params, input_context=None):
            return examples(30).repeat(repeats).batch(10)

    return Finite


def test_data_that_ends_is_an_error_by_default():
    """G6: a run is never silently shorter; no step is counted that did not happen."""
    trainer = build(task_cls=finite(1))
    with pytest.raises(DataError, match=r"Finite.build_inputs: the training data ended at step 3; set trainer.on_d"):
        trainer.train(10)
    assert int(trainer.global_step.numpy()) == 3
    assert int(trainer.optimizer.iterations.numpy()) == 3


@pytest.mark.parametrize("loop", [{}, full({"train_tf_while_loop": False})])
def test_data_that_ends_may_stop_or_repeat(loop):
    """G6, G7: `stop` ends there, `repeat` goes on with the next epoch; epochs are counted from the ends of the data."""
    stopping = build(experiment(on_data_end="stop", **loop), task_cls=finite(1))
    assert stopping.run_steps(10) == 3
    repeating = build(experiment(on_data_end="repeat", **loop), task_cls=finite(1))
    assert repeating.train_iterator.epoch(0) is None
    assert repeating.run_steps(7) == 7
    assert int(repeating.train_iterator.position.epoch.numpy()) == 2
    assert repeating.train_iterator.epoch(7) == 7 / 3
    endless = build(experiment(**loop), task_cls=finite(None))
    endless.run_steps(7)
    assert endless.train_iterator.epoch(7) is None
    assert_bitwise_equal(weights(repeating), weights(endless))


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_a_step_whose_data_never_came_is_no_update(strategy):
    """G6, N1: not for an optimizer that counts without looking at its gradients either."""

    class Finite(finite(1)):
        def create_optimizer(self, optimizer_config, runtime_config=None):
            return keras.optimizers.Adam(0.01)

    trainer = build(experiment(on_data_end="repeat"), task_cls=Finite, strategy=strategy)
    assert trainer.run_steps(4) == 4
    assert int(trainer.optimizer.iterations.numpy()) == 4


def test_no_data_is_an_error():
    """G6, G9: empty training data and empty validation data are errors that name their source."""
    trainer = build(task_cls=finite(0))
    with pytest.raises(DataError, match=r"Finite.build_inputs: the training data holds no batch"):
        trainer.train(1)
    with pytest.raises(DataError, match=r"Finite.build_inputs: the validation data holds no example"):
        trainer.evaluate(-1)


def test_loss_may_come_from_layers_alone():
    """G10: add_loss anywhere in the model; the task's loss may be absent; non-scalar losses are averaged."""

    class OnlyAdded(ToyTask):
        def build_model(self):
            inputs = keras.Input((6,))
            outputs = keras.layers.Dense(3)(inputs)
            model = keras.Model(inputs, outputs)
            model.add_loss(2.0 * tf.reduce_mean(outputs**2))
            return model

        def build_losses(self, labels, model_outputs, aux_losses=None):
            return None

    trainer = build(task_cls=OnlyAdded)
    outputs = trainer.model(FEATURES[:10]).numpy()
    assert math.isclose(float(trainer.train(1)["batch_loss"]), 2.0 * (outputs**2).mean(), rel_tol=1e-5)


def test_added_losses_join_the_tasks_loss():
    """G10: regularisation counts without the task asking for it."""

    class Regularised(ToyTask):
        def build_model(self):
            inputs = keras.Input((6,))
            return keras.Model(inputs, keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.5))(inputs))

    trainer = build(task_cls=Regularised)
    logits = trainer.model(FEATURES[:10]).numpy()
    data_loss = keras.losses.sparse_categorical_crossentropy(LABELS[:10], logits, from_logits=True).numpy().mean()
    expected = data_loss + 0.5 * (trainer.model.layers[1].kernel.numpy() ** 2).sum()
    assert math.isclose(float(trainer.train(1)["batch_loss"]), expected, rel_tol=1e-5)


def test_a_step_without_loss_is_an_error():
    """T2: train_step must report the loss under the task's key."""

    class Silent(ToyTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            return {"lost": 1.0}

    with pytest.raises(ValueError, match=r"Silent.train_step must return 'loss', got \['lost'\]"):
        build(task_cls=Silent).train(1)


def test_a_step_that_does_not_count_is_an_error():
    """T3: an overridden train_step that forgets global_step would never end."""

    class Forgetful(Trainer):
        def train_step(self, iterator):
            self.next_train_inputs(iterator)

    with pytest.raises(
        RuntimeError, match=r"3 steps moved global_step from 0 to 0, not to 3; Forgetful.train_step must"
    ):
        build(trainer_cls=Forgetful).train(3)


AVERAGED_STEPS = 3


@pytest.fixture(scope="module", params=cases(["off", "mirrored2"], "mirrored2"))
def averaging(request):
    """Trains with averages; returns the trainer, and a kernel before the first step and after each."""
    config = experiment(ema=EMAConfig(average_decay=0.5, dynamic_decay=False))
    trainer = build(config, task_cls=CollectingTask, strategy=request.param)
    kernel = trainer.model.layers[1].kernel
    kernels = [kernel.numpy()]
    for _ in range(AVERAGED_STEPS):
        trainer.train(1)
        kernels.append(kernel.numpy())
    return trainer, kernels


def test_averages_follow_the_formula_from_the_first_weights(averaging):
    """T13: the average starts from the weights, then avg += (1 - decay) * (weight - avg)."""
    trainer, (expected, *trained) = averaging
    for kernel in trained:
        expected = expected + 0.5 * (kernel - expected)
    with trainer.weights_averaged():
        np.testing.assert_allclose(trainer.model.layers[1].kernel.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_evaluation_uses_averages_and_changes_no_bit(averaging, monkeypatch):
    """T13: averaged weights are evaluated; the swap is lossless, also when the evaluation fails."""

    def fail(aggregated_logs, global_step=None):
        raise RuntimeError("in the evaluation")

    trainer, _ = averaging
    before = weights(trainer)
    own_loss = loss_of(trainer.model)
    with trainer.weights_averaged():
        loss = loss_of(trainer.model)
    assert not math.isclose(loss, own_loss, rel_tol=1e-4)
    assert math.isclose(float(trainer.evaluate(-1)["validation_loss"]), loss, rel_tol=1e-5)
    assert_bitwise_equal(weights(trainer), before)
    monkeypatch.setattr(trainer.task, "reduce_aggregated_logs", fail)
    with pytest.raises(RuntimeError, match="in the evaluation"):
        trainer.evaluate(-1)
    assert_bitwise_equal(weights(trainer), before)


def loss_of(model):
    losses = keras.losses.sparse_categorical_crossentropy(LABELS, model(FEATURES).numpy(), from_logits=True)
    return float(losses.numpy().mean())


def test_averaging_works_with_float16_and_loss_scaling():
    """T13, T15: mixed precision, loss scaling and averages together."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    config = experiment(ema=EMAConfig())
    config = config.replace(runtime=schema.RuntimeConfig(mixed_precision_dtype="float16"))
    trainer = build(config)
    assert isinstance(trainer.optimizer, keras.mixed_precision.LossScaleOptimizer)
    before = float(trainer.evaluate(-1)["validation_loss"])
    trainer.train(50)
    assert float(trainer.evaluate(-1)["validation_loss"]) < before


def test_a_pipeline_that_is_read_over_says_what_that_took(caplog):
    """N1: a foreign pipeline cannot start at a step; ours can, and says nothing."""
    trainer = build(experiment(steps_per_loop=5))
    trainer.global_step.assign(7)
    trainer.run_steps(5)
    trainer.run_steps(5)
    assert "reading over 7 batches up to the restored step" in caplog.text
    assert len([line for line in caplog.messages if re.match(r"skipping 7 batches, .* took \d+\.\d s", line)]) == 1


def _pipeline_of(start):
    """Returns a task over numbered examples whose pipeline begins with the batch of the step that `start` returns."""

    class Numbered(ToyTask):
        def build_inputs(self, params, input_context=None):
            size = params.global_batch_size
            step = start(input_context) if params.is_training else 0
            later = step if callable(step) else lambda number: number + step * size
            return tf.data.Dataset.range(NUM_EXAMPLES).map(later).map(lambda n: (tf.fill([6], float(n)), 0)).batch(size)

    return Numbered


def _look(input_context):
    return 0 * input_context.start_step * input_context.batch_stride


def _in_a_map(input_context):
    return lambda number: number + input_context.start_here() * 10


@pytest.mark.parametrize("start", [_look, lambda context: context.start_here(), _in_a_map])
def test_only_a_call_says_that_a_pipeline_starts_by_itself(start, caplog):
    """N1: one that looks at the step, for example to print it, is read over as before."""
    trainer = build(task_cls=_pipeline_of(start))
    trainer.global_step.assign(4)
    batch, _ = next(trainer.train_iterator.iterator())
    assert batch[:, 0].numpy().tolist() == list(range(40, 50))
    assert ("reading over 4 batches" in caplog.text) == (start is _look)


def test_a_start_that_is_said_while_batches_are_read_is_an_error():
    """N1: the engine has read over them by then, so the pipeline would begin twice as far on."""

    def late(input_context):
        return lambda number: number + tf.numpy_function(input_context.start_here, [], tf.int64)

    message = r"input_context\.start_here\(\) is called too late, while .*; call it in build_inputs itself, and use the"
    with pytest.raises(DataError, match=message):
        build(task_cls=_pipeline_of(late)).train(1)


class Measured(Undropped):
    """Its model brings a metric of its own, in which both steps count."""

    def build_model(self):
        model = super().build_model()
        model.compile(metrics=[keras.metrics.Sum("examples")])
        model.compiled_metrics.build(0.0, 0.0)
        return model

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(labels, model_outputs)
        metrics[1].update_state(keras.backend.ones_like(labels))


def _trained(strategy, *, evaluates):
    trainer = build(task_cls=Measured, strategy=strategy)
    trainer.run_steps(2)
    results = trainer.evaluate(-1) if evaluates else {}
    trainer.run_steps(1)
    return float(trainer.train_loop_end()["examples"]), results


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "off"))
def test_an_evaluation_leaves_what_training_has_counted_in_the_models_metrics(strategy):
    """T2: a row of training metrics is the same whether an evaluation lies in it or not."""
    counted, results = _trained(strategy, evaluates=True)
    assert float(results["examples"]) == 101
    assert counted == _trained(strategy, evaluates=False)[0] == 30
