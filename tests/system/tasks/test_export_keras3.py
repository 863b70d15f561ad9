"""Exports of models of Keras 3, loaded by TensorFlow alone."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.schema import TaskConfig
from official_trainer.tasks import export
from official_trainer.tasks.task import Task
from tests.support import jobs
from tests.support.keras3.runs import FEATURES, do, resolved

LOADING = """
import json, sys
for name in ("keras", "tf_keras", "official_trainer", "official"):
    sys.modules[name] = None  # an import of it is an error
import tensorflow as tf
for path, values, dtypes in json.load(sys.stdin):
    serve = tf.saved_model.load(path).signatures["serving_default"]
    given = {name: tf.constant(value, dtypes[name]) for name, value in values.items()}
    print(json.dumps({name: value.numpy().tolist() for name, value in serve(**given).items()}))
"""


@pytest.fixture(autouse=True)
def _float32():
    yield
    keras.config.set_dtype_policy("float32")


def served(*calls):
    """Returns the outputs of exports for inputs by name, in a process without Keras, and without this package."""
    text = []
    for path, values in calls:
        dtypes = {name: "string" if value.dtype.kind in "OSU" else value.dtype.name for name, value in values.items()}
        text.append([str(path), {name: value.tolist() for name, value in values.items()}, dtypes])
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    argv, given = [sys.executable, "-c", LOADING], json.dumps(text)
    done = subprocess.run(argv, input=given, capture_output=True, text=True, env={**env, "PYTHONPATH": ""}, timeout=240)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


RUNS = {
    "averages": [
        *("trainer.optimizer_config.ema={average_decay: 0.9}", "runtime.num_gpus=0"),
        "runtime.distribution_strategy=mirrored",
    ],
    "bfloat16": ["runtime.mixed_precision_dtype=bfloat16", "task.lora=2"],
}


def test_exports_of_runs_compute_what_their_models_compute(tmp_path):
    """N40: two inputs, two outputs by name; averages, bfloat16, LoRA, two replicas: equal to 1e-6.

    Those of a run without any of it, and which weights are averages, see `tests/system/runs/test_run_keras3.py`.
    """
    outputs = {}
    for name, sets in RUNS.items():
        do(tmp_path / name, *sets, "trainer.train_steps=4", mode="train")
        model = jobs.model_of("keras3_run", resolved(*sets), model_dir=str(tmp_path / name))
        traced = tf.function(lambda batch, model=model: model(batch, training=False))  # rounds bfloat16 less often
        outputs[name] = {key: value.numpy() for key, value in traced(FEATURES).items()}
    found = served(*((tmp_path / name / "export" / "4", FEATURES) for name in RUNS))
    for (name, expected), values in zip(outputs.items(), found, strict=True):
        assert values.keys() == {"logits", "size"}
        for key in expected:
            np.testing.assert_allclose(values[key], expected[key], atol=1e-6, err_msg=name)


class Words(keras.Model):
    """Subclassed: its task says what its inputs are."""

    def __init__(self):
        super().__init__()
        self.text = keras.layers.TextVectorization(vocabulary=["red", "green", "blue"], output_sequence_length=3)
        self.embedding = keras.layers.Embedding(5, 4)
        self.heads = [keras.layers.Dense(2), keras.layers.Dense(3)]
        self(tf.constant(["red"]))

    def call(self, inputs):
        hidden = keras.ops.mean(self.embedding(self.text(inputs)), axis=1)
        return [head(hidden) for head in self.heads]


class Noise(keras.layers.Layer):
    """Draws at inference, too."""

    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs):
        return inputs + 0.0 * keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


class WordsTask(Task):
    """Exports a signature of its own."""

    def build_signatures(self, model):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
        def serve(words):
            return export.by_name(self.inference_step(words, model), model)

        return {"serving_default": serve}


def test_tables_states_and_signatures_of_a_task_are_in_the_export(tmp_path):
    """N40: of a subclassed model with a vocabulary, and of layers that draw; several outputs without names."""
    words, given = Words(), keras.Input([4], name="given")
    drawing = keras.Model(given, [Noise()(keras.layers.Dense(2, name="first")(given)), keras.ops.add(given, 1.0)])
    export.save(str(tmp_path / "words"), WordsTask(TaskConfig()), words, step=3)
    export.save(str(tmp_path / "drawing"), Task(TaskConfig()), drawing, step=3)
    texts, numbers = np.array(["red blue", "green", "violet"]), FEATURES["left"]
    found = served((tmp_path / "words", {"words": texts}), (tmp_path / "drawing", {"given": numbers}))
    for number, expected in enumerate(words(tf.constant(texts))):
        np.testing.assert_allclose(found[0][f"output_{number}"], expected.numpy(), atol=1e-6)
    assert found[1].keys() == {"noise", "add"}
    for name, expected in zip(("noise", "add"), drawing(numbers), strict=True):
        np.testing.assert_allclose(found[1][name], expected.numpy(), atol=1e-6)


def test_two_exports_of_the_same_weights_are_alike(tmp_path):
    """N40: whichever model was built before."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        given = keras.Input([4], name="given")
        model = keras.Model(given, Noise()(keras.layers.Dense(2, kernel_initializer="ones")(given)))
        export.save(str(path), Task(TaskConfig()), model, step=3)
    first, second = (tf.train.load_checkpoint(f"{path}/variables/variables") for path in paths)
    names = {name for name in first.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}
    assert names == {name for name in second.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}
    assert [name for name in names if not np.array_equal(first.get_tensor(name), second.get_tensor(name))] == []
