"""Requests that are computed together, without a server."""

import asyncio

import numpy as np
import pytest

from official_trainer.formats.batching import Batches, QueueFullError


class Model:
    """Doubles its input, and refuses negative numbers. It begins when the first request is told to."""

    def __init__(self):
        self.sizes = []

    def __call__(self, key, inputs):
        self.sizes.append((key, len(inputs["x"])))
        if inputs["x"].min() < 0:
            raise ValueError("negative")
        return {"y": inputs["x"] * 2} if key != "sum" else {"y": inputs["x"].sum(keepdims=True)}


async def answers(model, requests, **limits):
    """Returns what comes of requests `(key, numbers)` that all wait before the first is computed."""
    batches = Batches(model, **{"max_rows": 8, "max_waiting": 100, **limits})
    calls = [batches.answer(key, {"x": np.array(numbers)}, len(numbers)) for key, numbers in requests]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    work = asyncio.create_task(batches.work())
    found = await asyncio.gather(*tasks, return_exceptions=True)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return [each["y"].tolist() if isinstance(each, dict) else each for each in found]


def test_what_waits_is_one_batch_and_each_gets_its_rows():
    """N47: of one key, up to the most rows, in order."""
    model = Model()
    requests = [("a", [1, 2, 3]), ("b", [4]), ("a", [5]), ("a", [6, 7, 8, 9, 10]), ("a", [11])]
    assert asyncio.run(answers(model, requests)) == [[2, 4, 6], [8], [10], [12, 14, 16, 18, 20], [22]]
    assert model.sizes == [("a", 5), ("b", 1), ("a", 5)]


def test_a_request_that_fails_fails_no_other():
    """N47: those of its batch are computed alone."""
    ok, failed, other = asyncio.run(answers(Model(), [("a", [1]), ("a", [-1]), ("a", [3])]))
    assert (ok, other) == ([2], [6])
    assert isinstance(failed, ValueError) and str(failed) == "negative"


def test_outputs_without_a_row_for_each_example_are_computed_alone():
    """N47: they cannot be told apart in a batch."""
    assert asyncio.run(answers(Model(), [("sum", [1, 2]), ("sum", [3])])) == [[3], [3]]


def test_more_than_may_wait_are_refused():
    """N47: and what was taken is answered."""
    first, second, refused = asyncio.run(answers(Model(), [("a", [1]), ("a", [2]), ("a", [3])], max_waiting=2))
    assert (first, second) == ([2], [4])
    assert isinstance(refused, QueueFullError) and "2 requests wait already" in str(refused)


def test_a_request_whose_client_is_gone_is_not_computed():
    """N47: nor is what it would have cost."""

    async def run():
        model = Model()
        batches = Batches(model, max_rows=8, max_waiting=100)
        gone, kept = (asyncio.create_task(batches.answer("a", {"x": np.array([number])}, 1)) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        work = asyncio.create_task(batches.work())
        assert (await kept)["y"].tolist() == [4]
        with pytest.raises(asyncio.CancelledError):
            await gone
        work.cancel()
        return model.sizes

    assert asyncio.run(run()) == [("a", 1)]
