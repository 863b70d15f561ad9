"""N25: runs that go on with other replicas keep the examples of each step."""

import numpy as np
import pytest

from tests.support.elastic import BATCH, SEEN, do, examples_by_step, layout, losses, settings


@pytest.mark.parametrize("data", ["arrays", "files", "cached files"])
def test_another_number_of_replicas_keeps_the_examples_of_every_step(tmp_path, data):
    """N25: two replicas, one, two again: each step has the examples of an unbroken run, and the loss agrees."""
    data = settings(data, tmp_path)
    two = ("runtime.distribution_strategy=mirrored", *data)
    SEEN.clear()
    do(tmp_path / "whole", *two)
    whole = examples_by_step()
    assert len(whole) == 12 and all(len(ids) == BATCH for ids in whole.values())
    SEEN.clear()
    do(tmp_path / "broken", *two, "trainer.train_steps=4")
    do(tmp_path / "broken", "runtime.distribution_strategy=off", *data, "trainer.train_steps=8", allow=True)
    do(tmp_path / "broken", *two, allow=True)
    assert examples_by_step() == whole
    np.testing.assert_allclose(losses(tmp_path / "broken"), losses(tmp_path / "whole"), rtol=1e-5)
    order = "by_pipeline" if data else "global"
    expected = [{"replicas": n, "pipelines": 1, "order": order} for n in (2, 1, 2)]
    assert [layout(tmp_path / "broken", step) for step in (4, 8, 12)] == expected
