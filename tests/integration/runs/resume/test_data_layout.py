"""N25: a run that goes on with other replicas or input pipelines keeps its examples in order, or refuses."""

import json

import numpy as np
import orbit
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.runs.resume import data_layout
from official_trainer.runs.resume.data_layout import LayoutChangeError
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.record_files import write

BATCH, EXAMPLES = 12, 30
SEEN = []


class ElasticConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ElasticConfig)
class ElasticTask(toy.ToyTask):
    """Learns from numbered examples, in memory or in files, without dropout, and notes which examples a step had."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(8, "tanh")(features)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))

    def build_inputs(self, params, input_context=None):
        if not params.input_path:
            numbers = np.arange(EXAMPLES)
            return inputs.from_arrays((toy.FEATURES[numbers], toy.LABELS[numbers], numbers), params, input_context)

        def parse(record):
            number = tf.io.decode_raw(record, tf.int32)[0]
            return tf.gather(toy.FEATURES, number), tf.gather(toy.LABELS, number), tf.cast(number, tf.int64)

        return inputs.from_tfrecords(params, input_context, parse_fn=parse)

    def train_step(self, batch, *args, **kwargs):
        features, labels, numbers = batch
        tf.numpy_function(lambda step, ids: SEEN.append((int(step), ids.tolist())), [self._step(), numbers], [])
        return super().train_step((features, labels), *args, **kwargs)

    def validation_step(self, batch, *args, **kwargs):
        return super().validation_step(batch[:2], *args, **kwargs)

    def _step(self):
        return kept_step["variable"]


kept_step = {}


@registry.register_config_factory("elastic_run")
def elastic_run():
    base = toy.experiment(batch=BATCH, steps_per_loop=2, summary_interval=2, checkpoint_interval=2)
    task = ElasticConfig(
        train_data=schema.DataConfig(global_batch_size=BATCH), validation_data=schema.DataConfig(global_batch_size=30)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=12))


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """Lets the task see the global step of the trainer that is built."""
    from official_trainer.runs import train

    build = train.build

    def noting(*args, **kwargs):
        trainer = build(*args, **kwargs)
        kept_step["variable"] = trainer.global_step
        return trainer

    monkeypatch.setattr(train, "build", noting)
    SEEN.clear()
    yield
    kept_step.clear()


def do(model_dir, *sets, allow=False, quiet=True):
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config("elastic_run"), experiment="elastic_run", sets=sets)
    run.run("elastic_run", resolved, mode="train", model_dir=str(model_dir), quiet=quiet, allow_config_change=allow)


def examples_by_step():
    """Returns which examples each step had, whichever replica had them."""
    found = {}
    for step, ids in SEEN:
        found.setdefault(step, []).extend(ids)
    return {step: sorted(ids) for step, ids in sorted(found.items())}


def losses(model_dir):
    return [row["training_loss"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]


def layout(model_dir, step=None):
    return manifest.read(str(model_dir), step or max(committed_steps(str(model_dir)))).metadata["input"]


@pytest.fixture(params=["arrays", "files", "cached files"])
def data(request, tmp_path):
    """Settings of training data; the files are three of uneven sizes."""
    if request.param == "arrays":
        return ()
    for number, (first, last) in enumerate([(0, 14), (14, 22), (22, EXAMPLES)]):
        write(tmp_path / f"part-{number}", range(first, last))
    cached = "true" if request.param.startswith("cached") else "false"
    return (f"task.train_data.input_path={tmp_path}/part-*", f"task.train_data.cache={cached}")


def test_another_number_of_replicas_keeps_the_examples_of_every_step(tmp_path, data):
    """N25: two replicas, one, two again: each step has the examples of an unbroken run, and the loss agrees."""
    two = ("runtime.distribution_strategy=mirrored", *data)
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


@pytest.mark.parametrize("data", ["files", "cached files"], indirect=True)
def test_files_refuse_another_number_of_pipelines(model_dir, data, monkeypatch, capsys):
    """N25, N9: who shares files out decides their order; going on would show examples twice, unless it is allowed."""
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
