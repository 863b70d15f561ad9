"""Vocabularies and statistics of layers, in whole runs: those of a checkpoint are used, and others are named."""

import functools
import itertools
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.checkpoints import restore
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config import schema
from official_trainer.program import Program, ProgramCheckpoint
from official_trainer.runs import run
from official_trainer.runs.predictions import PredictionSettings
from official_trainer.tasks import keras as kerases
from official_trainer.tasks import registry, vocabularies
from official_trainer.tasks.task import Task
from tests.support import toy
from tests.support.cases import cases, full
from tests.support.runs import differences, rows

KERASES = {"tf_keras": tf_keras, "Keras 3": keras}
ROWS = {
    "word": np.array([["a"], ["b"], ["c"], ["d"]] * 3),
    "number": np.linspace(-3, 8, 12, dtype="float32")[:, None],
}
FILES = {  # what a run was trained with, and what lies there later
    "as it was": (["a", "b", "b", "c", "c", "c"], [1.0, 2.0, 6.0, 7.0]),
    "grown": (["a", "b", "b", "c", "c", "c", "d", "d", "d", "d"], [1.0, 2.0, 6.0, 7.0, 70.0]),
    "shrunk": (["a", "b"], [1.0, 2.0, 2.5]),
    "reordered": (["c", "a", "a", "a", "b", "b"], [-1.0, -2.0, -6.0, -7.0]),
}
LAYERS = (
    "string_lookup",
    "integer_lookup",
    "text_vectorization",
    "normalization",
    "given_normalization",
    "discretization",
    "feature_space",
    "list_in_a_nested_model",
    "own_table",
)
VERBS = cases(
    [*itertools.product(("tf_keras", "Keras 3"), ("predict", "eval", "export", "resume"), list(FILES)[1:])],
    *(("tf_keras", "predict", "grown"), ("tf_keras", "resume", "reordered")),
    *(("Keras 3", "eval", "shrunk"), ("Keras 3", "export", "reordered")),
)


class ConfigOf:
    """What lies in the file, and which Keras builds the model; one of each in this process at a time."""

    kind, file, build = tf_keras, "as it was", None


@functools.cache
def table_layer(kind):
    class OwnTable(kind.layers.Layer):
        def __init__(self, words):
            super().__init__(name="own_table")
            numbers = tf.range(len(words), dtype=tf.int64)
            self.ranks = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, numbers), -1)

        def call(self, words):
            return tf.cast(self.ranks.lookup(words), tf.float32)

        def compute_output_shape(self, shape):
            return shape

        def compute_output_spec(self, words):
            return kind.KerasTensor(words.shape, "float32")

    return OwnTable


def build(kind, file):
    """Returns a model of all layers, with an output for each; the data of `file` make what they hold."""
    layers, (words, numbers) = kind.layers, FILES[file]
    words, numbers, distinct = np.array(words), np.array(numbers, "float32")[:, None], list(dict.fromkeys(words))
    adapted = {
        "string_lookup": layers.StringLookup(name="string_lookup"),
        "text_vectorization": layers.TextVectorization(
            name="text_vectorization", output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True
        ),
        "normalization": layers.Normalization(name="normalization"),
        "discretization": layers.Discretization(name="discretization", num_bins=3),
    }
    for name, layer in adapted.items():
        layer.adapt(numbers if name in ("normalization", "discretization") else words[:, None])
    integers = layers.IntegerLookup(name="integer_lookup", num_oov_indices=2)
    integers.adapt(np.round(numbers).astype("int64"))
    space_of = kind.utils.FeatureSpace
    space = space_of(
        {
            "word": space_of.string_categorical(output_mode="int"),
            "number": space_of.float_normalized(),
        },
        output_mode="dict",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices({"word": np.resize(words, len(numbers)), "number": numbers[:, 0]}))
    given = space.get_inputs()
    encoded = space.get_encoded_features()
    inner_given = kind.Input((1,), dtype="string")
    inner = kind.Model(inner_given, layers.StringLookup(vocabulary=distinct)(inner_given))
    middle_given = kind.Input((1,), dtype="string")
    middle = kind.Model(middle_given, inner(middle_given))
    word, number = given["word"], given["number"]
    mean, variance = float(numbers.mean()), float(numbers.var())
    outputs = {
        **{
            name: layer(number if name in ("normalization", "discretization") else word)
            for name, layer in adapted.items()
        },
        "integer_lookup": integers(
            layers.Lambda(
                lambda x: tf.cast(tf.round(x), tf.int64),
                output_shape=(1,),
                **({"dtype": "int64"} if kind is keras else {}),
            )(number)
        ),
        "given_normalization": layers.Normalization(mean=mean, variance=variance, name="given")(number),
        "feature_space": layers.Lambda(lambda parts: tf.cast(parts[0], tf.float32) + 9 * parts[1], output_shape=(1,))(
            [encoded["word"], encoded["number"]]
        ),
        "list_in_a_nested_model": middle(word),
        "own_table": table_layer(kind)(distinct)(word),
    }
    embedded = layers.Flatten()(layers.Embedding(20, 2)(outputs["string_lookup"]))
    outputs["scored"] = layers.Dense(1)(layers.Concatenate()([embedded, outputs["normalization"]]))
    return kind.Model(given, outputs)


class VocabularyConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(VocabularyConfig)
class VocabularyTask(Task):
    """Fits the number by all layers; the sum of each layer's output is a metric."""

    def build_model(self):
        return (ConfigOf.build or build)(ConfigOf.kind, ConfigOf.file)

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((ROWS, ROWS["number"]), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return (labels - model_outputs["scored"]) ** 2

    def build_metrics(self, training=True):
        return [] if ConfigOf.build else [ConfigOf.kind.metrics.Sum(name=name) for name in LAYERS]

    def process_metrics(self, metrics, labels, model_outputs):
        for metric in metrics:
            output = tf.cast(model_outputs[metric.name], tf.float32)
            metric.update_state(output * tf.range(1.0, tf.cast(tf.shape(output)[0] + 1, tf.float32))[:, None])

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return ConfigOf.kind.optimizers.Adam(0.05)


@registry.register_config_factory("vocabularies")
def vocabularies_experiment():
    data = {name: schema.DataConfig(global_batch_size=4) for name in ("train_data", "validation_data")}
    base = toy.experiment(checkpoint_interval=2, validation_interval=2, summary_interval=2)
    return base.replace(task=VocabularyConfig(**data), trainer=base.trainer.replace(train_steps=4))


KEEPING = (
    "trainer.best_checkpoint_eval_metric=validation_loss",
    "trainer.best_checkpoint_metric_comp=lower",
    "trainer.actions=[{type: average_checkpoints, last: 2}, {type: checkpoint, directory: named}]",
)


def resolved(*sets):
    return configuration.resolve(registry.get_config("vocabularies"), experiment="vocabularies", sets=sets)


def do(model_dir, *sets, kind, file="as it was", build=None, mode="train_and_eval", **options):
    ConfigOf.kind, ConfigOf.file, ConfigOf.build = kind, file, build
    return run.run("vocabularies", resolved(*sets), mode=mode, model_dir=str(model_dir), quiet=True, **options)


@functools.cache
def made(name, file):
    """Returns the output of each layer as the code makes it."""
    return {layer: np.asarray(value) for layer, value in build(KERASES[name], file)(ROWS).items()}


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
        run.export("vocabularies", resolved(), model_dir=str(run_dir), output_dir=str(folder))
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


def small(kind, file, *, mode="int", size=None, name="words"):
    """Returns a model of a lookup and an embedding, or a dense layer, which has as many rows as there are words."""
    lookup = kind.layers.StringLookup(name=name, output_mode=mode)
    lookup.adapt(np.array(FILES[file][0])[:, None])
    given = {"word": kind.Input((1,), dtype="string", name="word"), "number": kind.Input((1,), name="number")}
    found = lookup(given["word"])
    if mode == "int":
        size = lookup.vocabulary_size() if size is None else size
        found = kind.layers.Flatten()(kind.layers.Embedding(size, 2, name="embedding")(found))
    return kind.Model(given, {"scored": kind.layers.Dense(1, name="head")(found)})


def fixed(kind, file):
    """Returns one with a fixed number of rows."""
    return small(kind, file, size=20)


def shape_free(kind, file):
    """Returns one whose words have an output each, and no weight for it."""
    lookup = kind.layers.StringLookup(name="words", output_mode="multi_hot")
    lookup.adapt(np.array(FILES[file][0])[:, None])
    given = {"word": kind.Input((1,), dtype="string", name="word"), "number": kind.Input((1,), name="number")}
    total = kind.layers.Lambda(
        lambda hot: tf.reduce_sum(tf.cast(hot, tf.float32), -1, keepdims=True), output_shape=(1,)
    )
    return kind.Model(given, {"scored": kind.layers.Dense(1, name="head")(total(lookup(given["word"])))})


OTHER = (
    "layer words: the code makes another vocabulary \\(4 entries, not 3; entry 1 is 'd', not 'c'; .* and 1 more\\) than"
)


OF_ROWS = small, f"(?s)wrong shape or dtype .*embedding.*other vocabularies, which may be why.*{OTHER}"
OF_OUTPUTS = shape_free, f"{OTHER}.*an output for each"


@pytest.mark.parametrize(
    ("name", "build", "said"),
    [
        ("tf_keras", *OF_ROWS),
        ("Keras 3", *OF_OUTPUTS),
        full(("Keras 3", *OF_ROWS)),
        full(("tf_keras", *OF_OUTPUTS)),
    ],
)
def test_sizes_that_a_file_decides_are_explained_by_its_vocabulary(tmp_path, name, build, said):
    """N53: an embedding with other rows, and outputs for other words, are refused, and the layer is named."""
    do(tmp_path, "trainer.train_steps=2", kind=KERASES[name], build=build)
    for mode in ("eval", "train_and_eval"):
        with pytest.raises(CheckpointError, match=said):
            do(tmp_path, kind=KERASES[name], build=build, file="grown", mode=mode)


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


@pytest.mark.parametrize("name", [full("tf_keras"), "Keras 3"])
def test_two_replicas_go_on_with_the_words_of_the_checkpoint(tmp_path, name):
    """N53: mirrored; with a shrunk file the run ends as with the file that it began with."""
    options = {"kind": KERASES[name], "build": fixed, "mode": "train"}
    mirrored = ("runtime.distribution_strategy=mirrored", "runtime.num_gpus=0")
    do(tmp_path / "one", *mirrored, until_step=2, **options)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    do(tmp_path / "one", *mirrored, **options)
    do(tmp_path / "other", *mirrored, file="shrunk", **options)
    assert differences(tmp_path / "one", tmp_path / "other") == []


@pytest.mark.parametrize("name", [full("tf_keras"), "Keras 3"])
def test_a_program_takes_the_words_with_the_weights(tmp_path, name):
    """N53: also after steps were traced with others."""
    kind, labels = KERASES[name], {"scored": ROWS["number"]}

    def program(file):
        model = fixed(kind, file)
        model.compile(optimizer=kind.optimizers.Adam(0.05), loss={"scored": "mse"})
        return Program(model)

    first = program("as it was")
    first.fit(ROWS, labels, verbose=0, callbacks=[ProgramCheckpoint(str(tmp_path / "c-{epoch}"))])
    wanted = first.evaluate(ROWS, labels, verbose=0), first.predict(ROWS, verbose=0)["scored"].tolist()
    for method in ("load_weights", "load"):
        later = program("grown")
        later.evaluate(ROWS, labels, verbose=0)
        later.predict(ROWS, verbose=0)
        getattr(later, method)(str(tmp_path / "c-1"))
        assert (later.evaluate(ROWS, labels, verbose=0), later.predict(ROWS, verbose=0)["scored"].tolist()) == wanted


def reread(tmp_path, *, of, into):
    """Writes what a checkpoint holds of one layer or model, and reads it into another."""
    prefix = tf.train.Checkpoint(model=of).write(str(tmp_path / "ckpt-1"))
    restore.read_items(prefix, {"model": into})


@pytest.mark.parametrize("name", KERASES)
def test_any_words_come_back(tmp_path, name):
    """N53: those that are no text, and those that a number is turned into; a layer that has none yet takes them."""
    lookup, own = KERASES[name].layers.StringLookup, table_layer(KERASES[name])
    inverted = [lookup(vocabulary=words, invert=True, name="i") for words in (["a", "b"], ["c", "a", "b"])]
    adapted = lookup(name="n")
    adapted.adapt(np.array([["x"], ["y"], ["y"]]))
    layers = [
        (own([b"\xff", b"\xfe\n"]), own([b"a"]), np.array([b"\xff", b"\xfe\n", b"a"])),
        (*inverted, np.array([1, 2, 3])),
        (adapted, lookup(name="n"), np.array(["y", "z"])),
    ]
    for saved, live, given in layers:
        reread(tmp_path, of=vocabularies.in_checkpoint(saved), into=vocabularies.in_checkpoint(live))
        np.testing.assert_array_equal(live(given), saved(given))


@pytest.mark.parametrize("name", KERASES)
def test_words_are_written_again_only_after_another_adapt(name):
    """N53: a save takes the text that is there."""
    layer = KERASES[name].layers.Normalization(axis=None)
    layer.adapt(np.array([1.0, 3.0]))
    (vocabulary,) = vocabularies.of(layer).values()
    text = vocabulary.serialize()
    assert vocabulary.serialize() is text
    layer.adapt(np.array([1.0, 5.0]))
    assert json.loads(text)["mean"] != json.loads(vocabulary.serialize())["mean"]


@pytest.mark.parametrize("name", KERASES)
def test_a_checkpoint_of_another_tool_holds_none(tmp_path, name, caplog):
    """N53: that is said; statistics that the layer has as variables are used all the same. Ours adds nothing else."""
    kind = KERASES[name]
    theirs, live = [kind.Sequential([kind.Input((1,)), kind.layers.Normalization()]) for _ in range(2)]
    theirs.layers[-1].adapt(np.array([[1.0], [3.0]]))
    values = kerases.of(theirs).trackable(theirs)
    reread(tmp_path, of=values, into=vocabularies.in_checkpoint(live))
    np.testing.assert_array_equal(live(np.array([[1.0]])), [[-1.0]])
    assert "layer normalization: the checkpoint holds no vocabulary or statistics of it; the code's are" in caplog.text
    plain = kind.Sequential([kind.Input((1,)), kind.layers.Dense(1), kind.layers.Rescaling(2.0)])
    both = [vocabularies.in_checkpoint(plain), kerases.of(plain).trackable(plain)]
    assert len({repr(tf.train.TrackableView(each).descendants()) for each in both}) == 1


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
