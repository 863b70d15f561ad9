"""N25: a run that goes on with other replicas or input pipelines keeps its examples in order, or refuses."""

import json

import orbit
import pytest
import tensorflow as tf

from official_trainer import files, inputs
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.errors import ExitCode
from official_trainer.runs.resume import data_layout
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support import toy
from tests.support.cases import cases
from tests.support.elastic import SEEN, do, examples_by_step, layout, settings
from tests.support.record_files import write


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
    assert "training data for 3 input pipelines: each reads its part of every global batch" in said
    assert run_json(model_dir)["input"] == {
        "replicas": 3, "pipelines": 3, "order": "global", "sharing": {"by": "batches", "pipelines": 3},
    }  # fmt: skip


@pytest.mark.parametrize("data", cases(["files", "cached files"], "files"))
def test_files_refuse_another_number_of_pipelines(model_dir, tmp_path, data, monkeypatch, capsys):
    """N25, N9: who shares files out decides their order; going on would show examples twice, unless it is allowed."""
    data = settings(data, tmp_path)
    as_pipeline(monkeypatch, 2)
    do(model_dir, *data, "trainer.train_steps=4")
    before = run_json(model_dir)
    assert before["input"]["sharing"] == {
        "by": "files", "pipelines": 2, "files": [2, 1], "examples": [22, 8], "size_bytes": [440, 160],
    }  # fmt: skip
    as_pipeline(monkeypatch, 3)
    with pytest.raises(LayoutChangeError) as caught:
        do(model_dir, *data)
    assert caught.value.exit_code == ExitCode.CONFIG
    text = str(caught.value)
    assert f"--model_dir={model_dir}: ckpt-4 was saved with 2 input pipelines, now there are 3." in text
    assert "some examples of the current epoch would be seen again" in text
    assert "start 2 workers again" in text and "add --allow_config_change" in text
    assert run_json(model_dir) == before  # a refusal leaves the run as it was
    assert committed_steps(model_dir)[-1] == 4
    do(model_dir, *data, "trainer.train_steps=6", allow=True, quiet=False)
    assert "2 input pipelines until step 4, 3 from here on, by --allow_config_change." in capsys.readouterr().out
    do(model_dir, *data, "trainer.train_steps=8")  # the new number is remembered
    assert layout(model_dir) == {"replicas": 3, "pipelines": 3, "order": "by_pipeline"}


def test_a_checkpoint_that_does_not_say_is_no_reason_to_refuse(model_dir):
    """N25: those of earlier versions."""
    toy.commit(model_dir, 4, {})
    assert data_layout.check(model_dir, 4, 3, allow_change=False) is None


def test_shares_that_are_very_uneven_are_warned_of_once(tmp_path, caplog):
    """N25"""
    for number, records in enumerate([3, 20]):
        write(tmp_path / f"part-{number}", range(records))
    lines = []
    context = inputs.InputContext(num_input_pipelines=2, num_replicas_in_sync=2)
    params = schema.DataConfig(input_path=f"{tmp_path}/part-*", global_batch_size=2, is_training=True)
    inputs.from_tfrecords(params, context, parse_fn=lambda record: record)
    teller = data_layout.LayoutReport(remember=lines.append, record=lines.append, show=lines.append)
    teller(context)
    teller(context)
    assert len(lines) == 3
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "input pipeline 0 reads 3 examples, and pipeline 1 reads 20" in warning and "6.7 times as often" in warning


def test_a_damaged_manifest_entry_is_not_taken_for_a_layout(model_dir):
    """N25: what another version wrote beside it is left alone."""
    toy.commit(model_dir, 4, {"input": {"replicas": 1, "pipelines": 1, "order": "global", "later": 1}})
    assert data_layout.check(model_dir, 4, 1, allow_change=False) is None
    assert data_layout.check(model_dir, 4, 2, allow_change=False) == (
        "one input pipeline until step 4, 2 from here on; the order of examples stays"
    )
