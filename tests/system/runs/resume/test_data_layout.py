"""N25: runs that go on with other replicas keep the examples of each step."""

import json

import numpy as np
import orbit
import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support.cases import cases
from tests.support.numbered_examples import BATCH, SEEN, do, examples_by_step, layout, losses, settings


@pytest.mark.parametrize("data", cases(["arrays", "files", "cached files"], "arrays", "files"))
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


def as_pipeline(monkeypatch, pipelines, number=0):
    """Makes this process one of several that train together, as far as its data can tell."""
    context = tf.distribute.InputContext(pipelines, number, pipelines)
    monkeypatch.setattr(
        orbit.utils, "make_distributed_dataset", lambda strategy, build, input_options=None: build(context)
    )


def run_json(model_dir):
    return json.loads(files.read_text(f"{model_dir}/run.json"))


def test_data_in_memory_goes_on_with_any_number_of_pipelines(model_dir, monkeypatch, capsys):
    """N25: what a step has over all pipelines does not depend on their number, so nothing is asked."""
    SEEN.clear()
    do(model_dir, "trainer.train_steps=4")
    whole = examples_by_step()
    parts = {}
    for number in range(3):
        SEEN.clear()
        as_pipeline(monkeypatch, 3, number)
        do(f"{model_dir}-{number}", "trainer.train_steps=4")
        for step, ids in examples_by_step().items():
            parts.setdefault(step, []).extend(ids)
    assert {step: sorted(ids) for step, ids in parts.items()} == whole
    capsys.readouterr()
    do(model_dir, "trainer.train_steps=6", quiet=False)
    said = capsys.readouterr().out
    assert "one input pipeline until step 4, 3 from here on; the order of examples stays" in said
    assert run_json(model_dir)["input"] == {"replicas": 3, "pipelines": 3, "order": "global"}


@pytest.mark.parametrize("data", cases(["files", "cached files"], "files"))
def test_files_refuse_another_number_of_pipelines(model_dir, tmp_path, data, monkeypatch, capsys):
    """N25, N9: who shares files out decides their order; going on would show examples twice, unless it is allowed."""
    data = settings(data, tmp_path)
    as_pipeline(monkeypatch, 2)
    do(model_dir, *data, "trainer.train_steps=4")
    before = run_json(model_dir)
    as_pipeline(monkeypatch, 3)
    with pytest.raises(LayoutChangeError, match="some examples of the current epoch would be seen again"):
        do(model_dir, *data)
    assert run_json(model_dir) == before  # a refusal leaves the run as it was
    assert committed_steps(model_dir)[-1] == 4
    do(model_dir, *data, "trainer.train_steps=6", allow=True, quiet=False)
    assert "2 input pipelines until step 4, 3 from here on, by --allow_config_change." in capsys.readouterr().out
    do(model_dir, *data, "trainer.train_steps=8")  # the new number is remembered
    assert layout(model_dir) == {"replicas": 3, "pipelines": 3, "order": "by_pipeline"}
