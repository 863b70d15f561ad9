"""The FLOPs of a step, beside what they are by hand: 2 for a weight and an example forwards, 4 backwards."""

import functools
import logging

import pytest
import tensorflow as tf

from official_trainer.engine import flops
from official_trainer.lazy import keras
from tests.support import toy

BATCH = 10
OF_TOY = BATCH * (6 * (6 * 8 + 8 * 3) - 2 * 6 * 8)  # no gradient of the features is needed


class Arrays(toy.ToyTask):
    """Its windows run over blocks of batches."""

    def build_inputs(self, params, input_context=None):
        return toy.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@pytest.mark.parametrize(
    ("fields", "strategy", "task_cls"),
    [
        ({}, "off", toy.ToyTask),
        ({}, "off", Arrays),
        ({}, "mirrored2", toy.ToyTask),
        ({"enable_xla": True}, "off", Arrays),
        ({"enable_xla": True}, "off", toy.ToyTask),
        ({"train_tf_while_loop": False}, "off", toy.ToyTask),
        ({"gradient_accumulation_steps": 5}, "off", toy.ToyTask),
        ({"gradient_accumulation_steps": 5}, "mirrored2", toy.ToyTask),
    ],
)
def test_a_step_has_the_same_number_however_it_runs(fields, strategy, task_cls):
    """N51: in a loop of steps, in blocks, compiled, on two replicas, in micro-batches."""
    trainer = toy.build(toy.experiment(steps_per_loop=7, **fields), strategy=strategy, task_cls=task_cls)
    assert trainer.context.flops.per_step is None
    trainer.train(7)
    trainer.train(3)
    assert trainer.context.flops.unknown is None
    assert trainer.context.flops.per_step == OF_TOY


def test_a_step_that_publishes_is_no_other_step():
    """N51: what is computed only to be shown is not the model's."""
    trainer = toy.build(toy.experiment())
    trainer.run_steps(1, publish=True)
    assert trainer.context.flops.per_step is None
    trainer.run_steps(1)
    assert trainer.context.flops.per_step == OF_TOY


def conv():
    layers = [
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.DepthwiseConv2D(3, padding="same"),
        keras.layers.Conv2D(32, 3, strides=2),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    by_hand = 4 * 28 * 28 * 16 * 27 + 6 * 28 * 28 * 16 * 9 + 6 * 13 * 13 * 32 * 9 * 16 + 6 * 13 * 13 * 32 * 10
    return keras.Sequential([keras.Input([28, 28, 3]), *layers]), [28, 28, 3], by_hand


def transposed():
    layer = keras.layers.Conv2DTranspose(6, 3, strides=2, padding="same")
    return keras.Sequential([keras.Input([8, 8, 4]), layer]), [8, 8, 4], 4 * 8 * 8 * 4 * 6 * 9


def recurrent():
    layers = [keras.layers.LSTM(24, return_sequences=True), keras.layers.GRU(8), keras.layers.Dense(3)]
    by_hand = 20 * (4 * 12 * 96 + 6 * 24 * 96) + 20 * (6 * 24 * 24 + 6 * 8 * 24) + 6 * 8 * 3
    return keras.Sequential([keras.Input([20, 12]), *layers]), [20, 12], by_hand


def attention():
    inputs = keras.Input([16, 24])
    outputs = keras.layers.Dense(4)(keras.layers.MultiHeadAttention(3, 8)(inputs, inputs))
    by_hand = 12 * 16 * 24 * 24 + 6 * 16 * 24 * 24 + 12 * 3 * 16 * 16 * 8 + 6 * 16 * 24 * 4
    return keras.Model(inputs, outputs), [16, 24], by_hand


def gradients_of(model, shape):
    """Returns the concrete function of a forward and a backward pass for a batch, whose gradients are all used."""

    @tf.function(autograph=False)
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs, training=True) ** 2)
        for gradient, variable in zip(tape.gradient(loss, found := model.trainable_variables), found, strict=True):
            variable.assign_sub(gradient)

    return step.get_concrete_function(tf.TensorSpec(shape))


@pytest.mark.parametrize("case", [conv, transposed, recurrent, attention], ids=lambda case: case.__name__)
def test_layers_by_hand(case):
    """N51: convolutions, loops over time, Einsum."""
    model, shape, by_hand = case()
    assert flops.count(gradients_of(model, [4, *shape]).graph) == 4 * by_hand


@functools.cache
def weights():
    return tf.Variable(tf.ones([4, 4]))


def product(inputs):
    return weights().assign(inputs @ weights())


def loop_to_convergence(inputs):
    tf.while_loop(lambda x: tf.reduce_sum(x) < 9, lambda x: product(x), [inputs], maximum_iterations=50)


def one_or_another(inputs):
    tf.cond(tf.reduce_sum(inputs) > 0, lambda: product(inputs), lambda: inputs)


def in_python(inputs):
    weights().assign(tf.ensure_shape(tf.numpy_function(lambda x: x, [inputs], tf.float32), [4, 4]))


def often_in_python(inputs):
    for _ in range(9):
        in_python(inputs)


def sparse(inputs):
    weights().assign(tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(inputs), weights()))


@pytest.mark.parametrize(
    ("step", "shape", "why"),
    [
        (loop_to_convergence, [4, 4], "how often the loop while turns is not known before it runs"),
        (one_or_another, [4, 4], r"cond \(If\) decides at each step what is computed"),
        (in_python, [4, 4], r"what PyFunc \(PyFunc\) computes is not known"),
        (often_in_python, [4, 4], r"what PyFunc \(PyFunc\) computes is not known"),  # the first of them
        (sparse, [4, 4], r"SparseTensorDenseMatMul\) computes is not known"),
        (product, [None, 4], "the shape of .* is not known before it runs; drop_remainder, or padding"),
    ],
)
def test_what_a_graph_does_not_say_is_unknown(step, shape, why):
    """N51: no wrong number."""
    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
    with pytest.raises(flops.UnknownFlopsError, match=why):
        flops.count(graph)


def test_branches_that_cost_the_same_and_loops_that_end_at_a_number_are_known():
    """N51: also one loop in another, and what a loop keeps but nothing uses is pruned."""

    def step(inputs):
        def outer(number, x):
            _, y, _ = tf.while_loop(lambda i, *_: i < 3, lambda i, y, z: (i + 1, y @ x, z @ x), [0, x, x])
            return number + 1, y

        _, x = tf.while_loop(lambda number, _: number < 5, outer, [0, inputs])
        weights().assign(tf.cond(tf.reduce_sum(x) > 0, lambda: x @ inputs, lambda: inputs @ x))

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([4, 4])).graph
    assert flops.count(graph) == (5 * 3 + 1) * 2 * 4**3


def test_batches_of_several_shapes_have_no_one_number(caplog):
    """N51: it is not that of the newest trace."""
    strategy = tf.distribute.get_strategy()
    step = flops.StepFlops(strategy, processes=2, is_asynchronous=False)
    graphs = [tf.function(product).get_concrete_function(tf.TensorSpec([4, 4])).graph for _ in range(2)]
    for graph in graphs:
        step.trace_ends(graph)
    assert step.per_step == 2 * 2 * 4**3
    step.trace_ends(tf.Graph())
    assert (step.per_step, step.unknown) == (None, "batches have several shapes")
    step.trace_ends(graphs[0])
    assert step.per_step is None


def test_workers_that_make_steps_of_their_own():
    """N51: have no step whose time could be told."""
    step = flops.StepFlops(tf.distribute.get_strategy(), processes=1, is_asynchronous=True)
    step.trace_ends(tf.Graph())
    assert (step.per_step, step.unknown) == (None, "workers make steps of their own")


def test_no_run_fails_because_of_the_number(monkeypatch, caplog):
    """N51: an error in counting is one line."""

    def fail(graph):
        raise ZeroDivisionError("of a graph from the future")

    monkeypatch.setattr(flops, "count", fail)
    trainer = toy.build(toy.experiment())
    with caplog.at_level(logging.INFO, "official_trainer"):
        trainer.train(3)
        trainer.train(3)
    assert int(trainer.global_step) == 6
    said = [record.getMessage() for record in caplog.records if "FLOPs" in record.getMessage()]
    assert said == ["the FLOPs of a step are unknown, and so is MFU: ZeroDivisionError: of a graph from the future"]
    assert trainer.context.flops.per_step is None


def test_steps_that_are_not_traced_have_none():
    """N51: there is no graph to count in."""
    trainer = toy.build(toy.experiment(train_tf_function=False, train_tf_while_loop=False))
    trainer.train(2)
    assert (trainer.context.flops.per_step, trainer.context.flops.unknown) == (None, None)
