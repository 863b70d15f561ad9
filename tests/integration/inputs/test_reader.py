"""Examples that cannot be read, or differ from the first: named with their place."""

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from tests.support.sources import Numbers, kills_its_worker


def evaluation(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=False, **fields)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"id": 1, "x": [1.0, 2.0]}, "example 1 of list: x has shape [2], and in the first example [1]"),
        ({"id": 1.5, "x": [1.0]}, "example 1 of list: id is float32, and in the first example int64"),
        ({"id": 1}, "example 1 of list: it lacks x"),
        ({"id": 1, "x": [1.0], "y": 2}, "example 1 of list: it has y as well"),
        ({"id": 1, "x": None}, "example 1 of list: x is None"),
    ],
)
def test_an_example_that_differs_from_the_first_is_named(second, message):
    """N45: with its place and field, not TensorFlow's message alone."""
    context = inputs.InputContext()
    dataset = inputs.from_source([{"id": 0, "x": [0.0]}, second], evaluation(2), context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert message in str(context.failure())


@pytest.mark.parametrize("processes", [False, True])
def test_an_example_that_cannot_be_read_is_named(processes):
    """N45: among those of its batch, in a thread or in a process."""
    context = inputs.InputContext()
    params = evaluation(16, use_multiprocessing=processes, workers=1)
    examples = [{"id": None if number == 21 else number} for number in range(53)]
    dataset = inputs.from_source(examples, params, context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert str(context.failure()) == "example 21 of list: id is None; fill in what is missing"


def test_transforms_of_processes_must_be_pickled():
    with pytest.raises(inputs.DataError, match=r"use_multiprocessing: cannot be sent to processes.*top level"):
        inputs.from_source(Numbers(9), evaluation(use_multiprocessing=True), transforms=[lambda example: example])


@pytest.mark.parametrize("name", ["train_data", "validation_data"])
def test_a_worker_process_that_is_killed_is_said_with_its_section(name):
    """N41: and the run does not hang."""
    context = inputs.InputContext()
    context.section = f"task.{name}"
    params = evaluation(16, use_multiprocessing=True, workers=1)
    dataset = inputs.from_source(Numbers(53), params, context, transforms=[kills_its_worker])
    with pytest.raises(tf.errors.OpError):
        list(dataset)
    assert str(context.failure()).startswith(f"task.{name}.workers: one of the processes that read examples was killed")
