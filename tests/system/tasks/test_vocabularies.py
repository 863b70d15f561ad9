"""Vocabularies and statistics of layers, in whole runs: those of a checkpoint are used, and others are named."""

import functools
import itertools
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.runs.predictions import PredictionSettings
from official_trainer.tasks import registry
from tests.support import jobs
from tests.support.cases import cases, full
from tests.support.runs import differences, rows
from tests.support.vocabulary_runs import (
    FILES,
    KEEPING,
    KERASES,
    LAYERS,
    OTHER,
    ROWS,
    ConfigOf,
    VocabularyTask,
    do,
    fixed,
    made,
    resolved,
    small,
)

VERBS = cases(
    [*itertools.product(("tf_keras", "Keras 3"), ("predict", "eval", "export", "resume"), list(FILES)[1:])],
    *(("tf_keras", "predict", "grown"), ("tf_keras", "resume", "reordered")),
    *(("Keras 3", "eval", "shrunk"), ("Keras 3", "export", "reordered")),
)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Returns the directory of a run that a test may only read, by its Keras: it was stopped at step 2 of 4."""

    @functools.cache
    def of(name):
        run_dir = tmp_path_factory.mktemp("begun") / "run"
        do(run_dir, *KEEPING, kind=KERASES[name], until_step=2)
        return run_dir

    return of


def outcome(run_dir, verb, folder, **model):
    """Returns what a verb says of each layer, where another file lies there than in training."""
    if verb == "predict":
        prediction = PredictionSettings(output_dir=str(folder), format="npy", data="validation_data")
        do(run_dir, mode="predict", prediction=prediction, **model)
        with np.load(next(folder.glob("*.npz"))) as found:
            return dict(found)
    if verb == "eval":
        return do(run_dir, mode="eval", **model)
    if verb == "export":
        ConfigOf.kind, ConfigOf.file, ConfigOf.build = model["kind"], model["file"], None
        jobs.export("vocabularies", resolved(), model_dir=str(run_dir), output_dir=str(folder))
        serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
        return {key: value.numpy() for key, value in serve(**{k: tf.constant(v) for k, v in ROWS.items()}).items()}
    shutil.copytree(run_dir, folder)
    do(folder, *KEEPING, **model)
    return rows(folder)[-2]


def as_metric(output):
    """Returns what the metric of a layer is, over batches of four."""
    weights = np.resize(np.arange(1.0, 5.0), len(output))
    return np.sum(output.reshape(len(output), -1) * weights[:, None])


@pytest.mark.parametrize(("name", "verb", "file"), VERBS)
def test_what_a_layer_holds_comes_from_the_checkpoint(begun, tmp_path, name, verb, file):
    """N53: predict, eval, export and a resume give the numbers of training, though the file has changed."""
    found = outcome(begun(name), verb, tmp_path / verb, kind=KERASES[name], file=file)
    for layer in LAYERS:
        expected, by_code_alone = made(name, "as it was")[layer], made(name, file)[layer]
        assert not np.allclose(expected, by_code_alone), layer
        if verb in ("eval", "resume"):
            expected = as_metric(expected)
        np.testing.assert_allclose(found[layer], expected, rtol=1e-5, err_msg=layer)


@pytest.mark.parametrize("name", ["tf_keras", full("Keras 3")])
def test_words_come_with_the_weights_of_another_run(tmp_path, name, caplog):
    """N53: a run from init_checkpoint takes its words too, unless the embedding that they number has another shape."""
    do(tmp_path / "first", "trainer.train_steps=2", kind=KERASES[name], build=fixed)
    options = {"kind": KERASES[name], "file": "grown"}
    first, again = f"task.init_checkpoint={tmp_path / 'first'}", tmp_path / "again"
    do(again, "trainer.train_steps=2", first, build=fixed, **options)
    assert re.search(f"{OTHER}.* That of the checkpoint is used", caplog.text)
    assert words(again / "ckpt-2") == words(tmp_path / "first" / "ckpt-2") == ["c", "b", "a"]
    with pytest.raises(CheckpointError, match=f"(?s)embedding.*{OTHER}"):
        do(tmp_path / "refused", first, build=small, **options)
    caplog.clear()
    other = tmp_path / "other"
    allowed = "task.init_checkpoint_allow_missing=['*embedding*']"
    do(other, "trainer.train_steps=2", first, allowed, build=small, **options)
    assert re.search(f"{OTHER}.* That of the code is used, because weights have other shapes", caplog.text)
    assert words(other / "ckpt-2") == ["d", "c", "b", "a"]


def words(prefix, layer="words"):
    """Returns the words that a checkpoint holds, as the guide reads them."""
    found = tf.train.load_checkpoint(str(prefix)).get_tensor(f"model/vocabularies/{layer}/entries/.ATTRIBUTES/py_state")
    return json.loads(found)["vocabulary"]["words"]


@pytest.mark.parametrize("name", [full("tf_keras"), "Keras 3"])
def test_every_checkpoint_of_a_run_holds_them(begun, tmp_path, name):
    """N53: the newest, the best, the averaged and those of an action; the best is evaluated with its own."""
    run_dir, kind = shutil.copytree(begun(name), tmp_path / "run"), KERASES[name]
    do(run_dir, *KEEPING, kind=kind)
    for place in ("", "best", "averaged", "named"):
        (*_, newest) = sorted((run_dir / place).rglob("ckpt-*.index") if place else run_dir.glob("ckpt-*.index"))
        prefix = newest.with_suffix("")
        assert words(prefix, "string_lookup") == ["c", "b", "a"], place
    options = {"kind": kind, "mode": "eval", "checkpoint": "best"}
    assert do(run_dir, *KEEPING, **options) == do(run_dir, *KEEPING, file="reordered", **options)


@pytest.mark.full
@pytest.mark.parametrize("name", KERASES)
def test_two_replicas_go_on_with_the_words_of_the_checkpoint(tmp_path, name):
    """N53: mirrored; with a shrunk file the run ends as with the file that it began with."""
    options = {"kind": KERASES[name], "build": fixed, "mode": "train"}
    mirrored = ("runtime.distribution_strategy=mirrored", "runtime.num_gpus=0")
    do(tmp_path / "one", *mirrored, until_step=2, **options)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    do(tmp_path / "one", *mirrored, **options)
    do(tmp_path / "other", *mirrored, file="shrunk", **options)
    assert differences(tmp_path / "one", tmp_path / "other") == []


class ForData(VocabularyTask):
    """Looks words up where the data is read, by a layer that the task keeps."""

    def build_model(self):
        layers = ConfigOf.kind.layers
        self.words = layers.StringLookup(name="words")
        self.words.adapt(np.array(FILES[ConfigOf.file][0])[:, None])
        given = ConfigOf.kind.Input((1,))
        return ConfigOf.kind.Model(given, {"scored": layers.Dense(1)(given)})

    def build_inputs(self, params, input_context=None):
        def looked_up(features, labels):
            return tf.cast(self.words(features["word"]), tf.float32), labels

        return super().build_inputs(params, input_context).map(looked_up)

    def build_metrics(self, training=True):
        return []


@pytest.mark.parametrize("name", ["tf_keras", full("Keras 3")])
def test_a_layer_that_the_task_keeps_for_its_data_has_the_words_of_the_checkpoint(tmp_path, name, caplog, monkeypatch):
    """N53: an evaluation, and a resume with its evaluations, which were built before the checkpoint was read."""
    monkeypatch.setattr(registry, "get_task_cls", lambda config, *path: ForData)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder, until_step in ((whole, None), (broken, 2)):
        do(folder, *KEEPING, kind=KERASES[name], until_step=until_step)
    expected = do(whole, kind=KERASES[name], mode="eval")
    assert do(whole, kind=KERASES[name], mode="eval", file="reordered") == expected
    do(broken, *KEEPING, kind=KERASES[name], file="reordered")
    assert differences(broken, whole) == []
    assert "layer words: the code makes another vocabulary" in caplog.text
