"""Predictions of whole runs: a row for each example, in order; what is refused. Kills: system/kills/."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config import ConfigError, schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.inference import Inference, OutputError
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError
from official_trainer.lazy import keras
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.runs import prediction_formats, run
from official_trainer.runs.build import build
from official_trainer.runs.job import Job
from official_trainer.runs.predict import Batches, predict_into
from official_trainer.runs.predictions import MANIFEST, PredictionFiles, PredictionsError, PredictionSettings, Share
from official_trainer.tasks import export, registry
from tests import ROOT
from tests.support import jobs, toy
from tests.support.cases import cases
from tests.support.garden.toy import GardenTask
from tests.support.predictions import Noisy, arrays, records, stream
from tests.support.runs import contents

NUM_TRAINING = 60


class SplitTask(toy.ToyTask):
    """The toy task, shuffled, with other examples for training than for evaluation."""

    def build_inputs(self, params, input_context=None):
        part = slice(NUM_TRAINING) if params.is_training else slice(None)
        return inputs.from_arrays((toy.FEATURES[part], toy.LABELS[part]), params, input_context)


run_toy = toy.runs_of(
    "toy_predict", SplitTask, eval_batch=10, train_steps=20, checkpoint_interval=10, validation_interval=10,
    best_checkpoint_eval_metric="accuracy", ema=EMAConfig(average_decay=0.9), export=toy.NO_EXPORT,
)  # fmt: skip


def do(model_dir, *sets, mode="predict", checkpoint="latest", **settings):
    return run_toy(model_dir, *sets, mode=mode, checkpoint=checkpoint, prediction=PredictionSettings(**settings))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory with checkpoints of steps 10 and 20, and the averaged weights' outputs for all examples."""
    model_dir = str(tmp_path_factory.mktemp("trained") / "run")
    do(model_dir, mode="train_and_eval")
    keras.backend.clear_session()
    trainer = build(
        Job(experiment="toy_predict", resolved=jobs.resolved("toy_predict"), model_dir=model_dir, mode="eval")
    )
    trainer.checkpoint_state.load_weights(model_dir, 20)
    plain = trainer.model.predict(toy.FEATURES, verbose=0)
    with trainer.weights_averaged():
        averaged = trainer.model.predict(toy.FEATURES, verbose=0)
    assert not np.allclose(plain, averaged, atol=1e-4)
    return model_dir, averaged


def loaded(directory):
    return np.concatenate([np.load(path) for path in sorted(Path(directory).glob("predictions-*.npy"))])


CASES = [("off", 1), ("off", 7), ("off", 101), ("off", 128), ("mirrored", 2), ("mirrored", 14), ("mirrored", 202)]


@pytest.mark.parametrize(("strategy", "batch"), cases(CASES, ("off", 7), ("mirrored", 202)))
def test_a_row_for_each_example_in_order(strategy, batch, trained, tmp_path):
    """N18: the same as the model's own `predict`, whatever the batches and replicas; a replica may have no example."""
    model_dir, expected = trained
    sets = [f"task.validation_data.global_batch_size={batch}", f"runtime.distribution_strategy={strategy}"]
    done = do(model_dir, *sets, output_dir=str(tmp_path / "out"), format="npy", shard_size=40)
    assert done == {"rows": 101}
    assert len(list((tmp_path / "out").glob("predictions-*.npy"))) == {1: 3, 2: 3, 7: 3, 14: 3}.get(batch, 1)
    np.testing.assert_allclose(loaded(tmp_path / "out"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", cases(["off", "mirrored"], "off"))
def test_training_data_once_and_in_order(strategy, trained, tmp_path, monkeypatch):
    """N18: what the task trains on, unshuffled, up to where it begins again; in files of a chosen size."""
    monkeypatch.setattr("official_trainer.runs.predictions._FILE_BYTES", 400)
    model_dir, expected = trained
    sets = [f"runtime.distribution_strategy={strategy}", "task.train_data.global_batch_size=14"]
    do(model_dir, *sets, output_dir=str(tmp_path / "out"), format="npy", data="train_data")
    assert len(list((tmp_path / "out").glob("predictions-*.npy"))) > 2
    np.testing.assert_allclose(loaded(tmp_path / "out"), expected[:NUM_TRAINING], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("data", cases(["validation_data", "train_data"], "validation_data"))
def test_files_are_read_one_after_the_other(data, trained, tmp_path, monkeypatch):
    """N18: rows come in the order of the files, of different sizes, and of the records in each."""

    def from_files(self, params, input_context=None):
        def parse(record):
            return tf.io.decode_raw(record, tf.float32), 0

        return inputs.from_tfrecords(params, input_context, parse_fn=parse)

    monkeypatch.setattr(SplitTask, "build_inputs", from_files)
    for number, part in enumerate((slice(40), slice(40, 41), slice(41, None))):
        with tf.io.TFRecordWriter(str(tmp_path / f"part-{number}")) as writer:
            for row in toy.FEATURES[part]:
                writer.write(row.tobytes())
    model_dir, expected = trained
    sets = [f"task.{data}.input_path={tmp_path}/part-*", f"task.{data}.cycle_length=2"]
    do(model_dir, *sets, output_dir=str(tmp_path / "out"), format="npy", data=data)
    np.testing.assert_allclose(loaded(tmp_path / "out"), expected, rtol=1e-5, atol=1e-6)


def test_best_latest_and_numbered_checkpoints(trained, tmp_path):
    """N18: each has its own predictions; the manifest says of which they are."""
    model_dir, expected = trained
    said = {}
    for which in ("latest", "10", "best"):
        do(model_dir, checkpoint=which, output_dir=str(tmp_path / which), format="npy")
        said[which] = json.loads((tmp_path / which / MANIFEST).read_text())["settings"]
    np.testing.assert_allclose(loaded(tmp_path / "latest"), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(loaded(tmp_path / "10"), expected, atol=1e-4)
    assert [said[which]["checkpoint"] for which in ("latest", "10")] == [20, 10]
    assert len({settings["checkpoint_digest"] for settings in said.values()}) == 3


def test_the_run_directory_is_the_default_place_and_nothing_else_changes_there(trained):
    """N18: and what is done is not done again."""
    model_dir, expected = trained
    before = {path: path.read_bytes() for path in Path(model_dir).rglob("*") if path.is_file()}
    assert [do(model_dir, format="npy")["rows"] for _ in range(2)] == [101, 0]
    after = {path: path.read_bytes() for path in Path(model_dir).rglob("*") if path.is_file()}
    new = {path.relative_to(model_dir).parts[0] for path in after.keys() - before.keys()}
    assert (new, {path: after[path] for path in before}) == ({"predictions"}, before)
    np.testing.assert_allclose(loaded(f"{model_dir}/predictions"), expected, rtol=1e-5, atol=1e-6)


def test_another_checkpoint_config_or_format_is_refused(trained, tmp_path):
    """N18: with what differs and what to give; what makes no difference to predictions does not count."""
    model_dir, _ = trained
    again = functools.partial(do, model_dir, output_dir=str(tmp_path))
    again(format="jsonl", checkpoint="10")
    before = contents(tmp_path)
    with pytest.raises(PredictionsError, match=r"--checkpoint: 10 -> 20\n.*\n?.*another --output"):
        again(format="jsonl")
    with pytest.raises(PredictionsError, match=r"--format: jsonl -> tfrecord\nUse those to continue, or name another"):
        again(checkpoint="10")
    size = "task.validation_data.global_batch_size"
    with pytest.raises(PredictionsError, match=rf"{size}: 10 -> 20\n"):
        again(f"{size}=20", format="jsonl", checkpoint="10")
    with pytest.raises(PredictionsError, match=r"trainer.optimizer_config.ema.*: 0.9 -> "):
        again("trainer.optimizer_config.ema=null", format="jsonl", checkpoint="10")
    sets = ["task.train_data.global_batch_size=30", "runtime.stop_grace_seconds=9", "trainer.train_steps=99"]
    again(*sets, format="jsonl", checkpoint="10")
    assert contents(tmp_path) == before


def test_one_process_at_a_time_writes(trained, tmp_path):
    """N18: a second one is told who that is."""
    with (
        DirectoryLock(str(tmp_path)),
        pytest.raises(LockedError, match=rf"--output={tmp_path} is in use by .* or name another --output\."),
    ):
        do(trained[0], output_dir=str(tmp_path))
    assert not (tmp_path / MANIFEST).exists()


def test_parquet_needs_its_library(trained, tmp_path, monkeypatch):
    """N18: which is said before TensorFlow is imported."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PredictionsError, match=r"needs pyarrow.*: pip install 'official-trainer\[parquet\]', or use"):
        do(trained[0], output_dir=str(tmp_path / "out"), format="parquet")
    assert not (tmp_path / "out").exists()


def test_nothing_to_predict_is_refused(trained, model_dir, tmp_path, monkeypatch):
    """N18: no checkpoint, no such step, no data section, several tasks, no example, examples without end."""
    out = {"output_dir": str(tmp_path / "out")}
    with pytest.raises(CheckpointError, match=r"holds no checkpoint to predict; train first"):
        do(model_dir, **out)
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 5; saved steps: 10, 20"):
        do(trained[0], checkpoint="5", **out)
    resolved = configuration.resolve(registry.get_config("digits_tasks", ROOT), experiment="digits_tasks")
    with pytest.raises(ConfigError, match=r"task: holds several tasks, but mode predict takes one"):
        jobs.run("digits_tasks", resolved, mode="predict", model_dir=model_dir)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(SplitTask, "build_inputs", toy.ToyTask.build_inputs)
    with pytest.raises(
        DataError, match=r"task.train_data has no end, and its number of examples .*\.is_training=false, or"
    ):
        do(trained[0], data="train_data", **out)
    assert do(trained[0], "task.train_data.is_training=false", data="train_data", **out)["rows"] == 101
    empty = tf.data.Dataset.from_tensor_slices((toy.FEATURES[:0], toy.LABELS[:0])).batch(2)
    monkeypatch.setattr(SplitTask, "build_inputs", lambda self, params, input_context=None: empty)
    for _ in range(2):  # the first has not said that all is done
        with pytest.raises(DataError, match=r"there is nothing to predict: the data holds no example"):
            do(trained[0], output_dir=str(tmp_path / "empty"))


def test_a_section_that_is_not_there_is_refused(tmp_path):
    """N18: with those that are."""
    resolved = jobs.resolved("toy_predict")
    config = resolved.config.replace(task=resolved.config.task.replace(validation_data=None))
    resolved = dataclasses.replace(resolved, config=config)
    job = Job(experiment="x", resolved=resolved, model_dir=str(tmp_path), mode="predict")
    with pytest.raises(ConfigError, match=r"task.validation_data: is not set, .*use --data=train_data"):
        run.check_startable(job, PredictionSettings())


# From Python.


def opened(directory, format, batch_size, shard_size=None, share=(0, 1)):
    directory.mkdir(exist_ok=True)
    settings = {"format": format, "shard_size": shard_size}
    return PredictionFiles(str(directory), settings, batch_size=batch_size, share=Share(index=share[0], count=share[1]))


def batches_of(inference, task, section, **options):
    with inference.strategy.scope():
        builder = DatasetBuilder(task, section, training=False, seed=0)
        return Batches(builder, inference, builder.build(), **options)


GOES_ON = [(pipeline, strategy) for pipeline in (arrays, records, stream) for strategy in ("off", "mirrored2")]


@pytest.mark.parametrize(("pipeline", "strategy"), cases(GOES_ON, (records, "off"), (stream, "off")))
def test_what_is_broken_off_or_shared_out_has_the_same_bytes(pipeline, strategy, tmp_path, monkeypatch):
    """N18: for data in memory, in files, and of a plain dataset, which alone is read from its start; draws are kept.

    Three processes, one after the other, write what one does; the last one sees that all is there.
    """
    monkeypatch.setattr(Noisy, "pipeline", staticmethod(pipeline))
    monkeypatch.setattr("official_trainer.runs.predict._NEAR_BATCHES", 1)
    path = str(tmp_path / "x.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in toy.FEATURES:
            writer.write(row.tobytes())
    trainer = toy.build(task_cls=Noisy, strategy=strategy, train=False, evaluate=False)
    section = schema.DataConfig(global_batch_size=14, is_training=False, input_path=path if pipeline is records else "")
    read = []
    with trainer.strategy.scope():
        inference = Inference(trainer.task, trainer.model)

    def write(folder, most=None, size=28, share=(0, 1)):
        target = opened(tmp_path / folder, "npy", 14, shard_size=size, share=share)
        batches = batches_of(inference, trainer.task, section, on_batch=lambda: read.append(folder))
        if most is None:
            return predict_into(target, batches)
        return [target.write(number, batches.outputs(2 * number, 2 * number + 2)) for number in range(most)]

    assert write("whole")
    write("broken", 2)
    read.clear()
    assert write("broken")
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert len(read) == (8 if pipeline is stream else 4)
    size = None if pipeline is records else 28  # then one file has all, and the process that writes it sees that
    said = [write("shared", size=size, share=(index, 3)) for index in (2, 0, 1)]
    assert said == ([False, True, True] if size is None else [False, False, True])
    if size is not None:
        assert contents(tmp_path / "shared") == contents(tmp_path / "whole")
    parts = [np.load(path) for path in sorted((tmp_path / "whole").glob("predictions-*.npz"))]
    assert sorted(parts[0]) == ["drawn", "features", "logits", "with/dropout", "with/noise"]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert joined["features"].tobytes() == toy.FEATURES.tobytes()
    assert len(np.unique(joined["drawn"])) > 90


def test_data_that_begins_again_is_cut_there(tmp_path, monkeypatch):
    """N18: in the middle of a batch, and of a file; batches of other sizes are refused, as the cut is unknown then."""
    monkeypatch.setattr(toy.ToyTask, "build_inputs", lambda self, params: toy.examples(23).repeat().batch(size))
    trainer = toy.build(train=False, evaluate=False)
    section, inference = (
        schema.DataConfig(global_batch_size=5, is_training=False),
        Inference(trainer.task, trainer.model),
    )

    def write(folder, max_rows=23, shard_size=10):
        batches = batches_of(inference, trainer.task, section, max_rows=max_rows)
        return predict_into(opened(folder, "npy", 5, shard_size), batches)

    def num_rows(folder):
        return [len(np.load(path)) for path in sorted(folder.glob("*.npy"))]

    size = 5
    assert write(tmp_path / "cut") and write(tmp_path / "one", 23, None) and write(tmp_path / "short", 4, None)
    assert [num_rows(tmp_path / name) for name in ("cut", "one", "short")] == [[10, 10, 3], [23], [4]]
    size = 4
    with pytest.raises(
        DataError, match=r"has 4 examples, and global_batch_size is 5, so it is unknown where they begin"
    ):
        write(tmp_path / "other")


def test_a_task_of_model_garden(tmp_path):
    """N18: its own `inference_step`, on its own data."""
    model, dataset = toy.build().model, toy.examples(101).batch(33)
    outputs = [columns["logits"] for _, columns in Inference(GardenTask(None), model).batches(dataset)]
    np.testing.assert_allclose(np.concatenate(outputs), model.predict(toy.FEATURES, verbose=0), rtol=1e-5, atol=1e-6)


class Named(toy.ToyTask):
    """Its labels have an id for each example, which no model and no loss reads."""

    def predict_step(self, inputs, model, labels=None):
        logits = self.inference_step(inputs, model)
        outputs = {"probabilities": tf.nn.softmax(logits)}
        return outputs if labels is None else {**outputs, "id": labels["id"], "right": labels["digit"]}


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_a_prediction_step_sees_labels_and_ids(tmp_path, strategy):
    """N18: each row has them beside its outputs; an exported model gets none, and has the outputs alone."""
    trainer = toy.build(toy.experiment(), strategy=strategy)
    ids = np.array([f"scan-{number}" for number in range(toy.NUM_EXAMPLES)])
    labels = {"id": ids, "digit": toy.LABELS}
    dataset = tf.data.Dataset.from_tensor_slices((toy.FEATURES, labels)).batch(34)
    task = Named(None)
    with trainer.strategy.scope():
        dataset = trainer.strategy.experimental_distribute_dataset(dataset)
        chunks = [columns for _, columns in Inference(task, trainer.model).batches(dataset)]
    prediction_formats.write("jsonl", f"{tmp_path}/rows.jsonl", chunks)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(ids)
    assert [row["right"] for row in rows] == toy.LABELS.tolist()
    probabilities = np.array([row["probabilities"] for row in rows])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    export.save(f"{tmp_path}/model", task, trainer.model, step=1)
    serve = tf.saved_model.load(f"{tmp_path}/model").signatures["serving_default"]
    served = serve(features=tf.constant(toy.FEATURES))
    assert list(served) == ["probabilities"]
    np.testing.assert_allclose(served["probabilities"], probabilities, rtol=1e-5, atol=1e-6)


def test_data_without_labels_has_none(tmp_path):
    """N18: the features are not handed over as labels."""
    seen = []

    class Seen(toy.ToyTask):
        def predict_step(self, inputs, model, labels=None):
            seen.append(labels)
            return self.inference_step(inputs, model)

    dataset = tf.data.Dataset.from_tensor_slices(toy.FEATURES).batch(50)
    assert len(list(Inference(Seen(None), toy.build().model).batches(dataset))) == 3
    assert set(seen) == {None}


ODD = [
    (lambda logits: tf.reduce_mean(logits), r"the output 'logits' has shape \[\] for 5 examples; it needs a row for"),
    (lambda logits: {"a": logits, "b": logits[:3]}, r"Odd.inference_step: the output 'b' has shape \[3, 3\] for 5"),
    (
        lambda logits: {"a": tf.RaggedTensor.from_tensor(logits)},
        r"Odd.inference_step returns a RaggedTensor; predictions are rows of dense tensors, so return its",
    ),
]


def test_outputs_without_a_row_for_each_example_are_refused():
    """N18: with the name of the output, and its shape."""

    class Odd(toy.ToyTask):
        outputs = None

        def inference_step(self, inputs, model):
            return Odd.outputs(model(inputs, training=False))

    model = toy.build().model
    for outputs, message in ODD:
        Odd.outputs = staticmethod(outputs)
        with pytest.raises(OutputError, match=message):
            list(Inference(Odd(None), model).batches(toy.examples(5).batch(5)))
