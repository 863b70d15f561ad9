"""What a model of Keras 3 starts from, whatever wrote it: all of it, or nothing and a report by names."""

import importlib.util
import json
import re
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config.schema import TaskConfig
from official_trainer.engine import first_weights
from official_trainer.errors import ExitCode
from official_trainer.tasks import export
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.task import Task

BATCH = np.random.RandomState(0).randn(5, 4).astype("float32")
SOURCES = ("ckpt-1", "some.weights.h5", "some.keras", "h5 of another name", "keras of another name", "saved_model")
BY_CONTENT = ("ckpt-1", "some.keras", "saved_model")
"""One source of each way to read; the others only have other names, or less around the same values."""
OLD_NAMES = {
    "stem/*": "encoder/dense/*",
    "norm/*": "encoder/batch_normalization/*",
    "model/layer_with_weights-2/*": "head/*",
}


class Ours(Task):
    """Has our default."""

    def build_signatures(self, model):
        return export.default_signatures(self, model)


def build(*, classes=3, rank=0, added=0):
    """Returns an encoder with batch norm inside a model; with LoRA, or with layers added before the head."""
    inner = keras.Input([4])
    dense = keras.layers.Dense(6)
    encoder = keras.Model(inner, keras.layers.BatchNormalization()(dense(inner)), name="encoder")
    given = keras.Input([4], name="numbers")
    hidden = encoder(given)
    for _ in range(added):
        hidden = keras.layers.Dense(6)(hidden)
    model = keras.Model(given, keras.layers.Dense(classes, name="head")(keras.layers.Dropout(0.1)(hidden)))
    if rank:
        dense.enable_lora(rank)
    return model


# A backbone and a task in the layout of KerasHub, from plain Keras: their presets have its files.


class TinyBackbone(keras.Model):
    """Two layers, as a functional model."""

    def __init__(self, size=4, **options):
        given = keras.Input([4], name="numbers")
        hidden = keras.layers.Dense(size, "tanh", name="dense")(given)
        super().__init__(given, keras.layers.LayerNormalization(name="norm")(hidden), **options)


class TinyClassifier(keras.Model):
    """A backbone and a head; the backbone's values are not among those that are saved of the task."""

    def __init__(self, backbone, classes=3):
        super().__init__(backbone.input, keras.layers.Dense(classes, name="logits")(backbone.output))
        self.backbone = backbone


def tiny():
    return TinyClassifier(TinyBackbone(name="tiny_backbone"))


def save_preset(model, folder, *, with_head):
    """Writes what `save_to_preset` writes of a task, or of its backbone alone."""
    folder.mkdir()
    describe(model.backbone, folder / "config.json")
    model.backbone.save_weights(folder / "model.weights.h5")
    if with_head:
        describe(model, folder / "task.json")
        model.save_weights(folder / "task.weights.h5")
        with h5py.File(folder / "task.weights.h5", "a") as file:  # KerasHub skips the layers of the backbone
            for name in [name for name in file["layers"] if name != "dense_1"]:
                del file["layers"][name]


def describe(model, path):
    kind = type(model).__name__
    path.write_text(
        json.dumps({"class_name": kind, "module": "keras_hub.src.tiny", "registered_name": f"keras_hub>{kind}"})
    )


def trained(model):
    for number, weight in enumerate(model.weights):
        weight.assign(tf.abs(tf.random.stateless_normal(weight.shape, [number, 1])))
    return model


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The folder with all files of one trained model, and its outputs."""
    folder, model = tmp_path_factory.mktemp("sources"), trained(build())
    tf.train.Checkpoint(model=kerases.of(model).trackable(model)).write(str(folder / "ckpt-1"))
    model.save_weights(folder / "some.weights.h5")
    model.save(folder / "some.keras")
    (folder / "h5 of another name").write_bytes((folder / "some.weights.h5").read_bytes())
    (folder / "keras of another name").write_bytes((folder / "some.keras").read_bytes())
    export.save(str(folder / "saved_model"), Ours(TaskConfig()), model, step=1)
    trained(preset := tiny())
    save_preset(preset, folder / "backbone", with_head=False)
    save_preset(preset, folder / "task", with_head=True)
    tf.train.Checkpoint(model=old_model()).write(str(folder / "old-1"))
    return folder, model(BATCH).numpy(), preset(BATCH).numpy()


def old_model():
    """Returns a model of tf_keras with the same layers under other names, in one level."""
    given = tf_keras.Input([4])
    hidden = tf_keras.layers.BatchNormalization(name="norm")(tf_keras.layers.Dense(6, name="stem")(given))
    model = tf_keras.Model(given, tf_keras.layers.Dense(3, name="top")(hidden))
    for number, weight in enumerate(model.weights):
        weight.assign(tf.abs(tf.random.stateless_normal(weight.shape, [number, 1])))
    return model


def begin(model, path, **config):
    (found,) = first_weights.initialize(
        Ours(TaskConfig(init_checkpoint=str(path), **config)), model, tf.distribute.get_strategy()
    )
    return found


def refused(model, path, **config):
    """Returns the message, after which no weight of the model has changed."""
    before = [weight.numpy() for weight in model.weights]
    with pytest.raises(CheckpointError) as caught:
        begin(model, path, **config)
    assert all(np.array_equal(old, new.numpy()) for old, new in zip(before, model.weights, strict=True))
    assert caught.value.exit_code == ExitCode.CONFIG == 2
    assert str(caught.value).startswith("task.init_checkpoint: ")
    return str(caught.value)


@pytest.mark.parametrize("source", SOURCES)
def test_all_values_are_restored_and_counted(places, source):
    """N40: a run of ours, a file or an export; its content says what it is."""
    folder, outputs, _ = places
    model = build()
    found = begin(model, folder / source)
    assert (found.restored, found.variables) == (8, 8) and source in found.path
    np.testing.assert_array_equal(model(BATCH).numpy(), outputs)


@pytest.mark.parametrize("source", BY_CONTENT)
def test_a_layer_that_the_source_lacks_is_named(places, source):
    """N40: nothing was assigned, and the message says how it can be allowed."""
    message = refused(build(added=1), places[0] / source)
    assert "does not fit the model" in message and "nothing was restored" in message
    assert "missing: in the program, not in the checkpoint (2)" in message
    lacking = "head" if source == "some.keras" else "dense"  # in Keras's files layers of one class are counted
    assert f"model/{lacking}/kernel float32" in message and f"for example [model/{lacking}/*" in message


@pytest.mark.parametrize("source", BY_CONTENT)
def test_a_head_of_another_size_is_named_and_can_be_allowed(places, source):
    """N40: the rest is then restored, and the head keeps its first weights."""
    model = build(classes=7)
    message = refused(model, places[0] / source)
    assert "model/head/kernel: float32 [6, 3] in the checkpoint, float32 [6, 7] in the program" in message
    before = model.get_layer("head").kernel.numpy()
    found = begin(model, places[0] / source, init_checkpoint_allow_missing=["head/*"])
    assert (found.restored, found.variables) == (6, 8)
    np.testing.assert_array_equal(model.get_layer("head").kernel.numpy(), before)
    assert "matches no variable of the model" in refused(
        model, places[0] / source, init_checkpoint_allow_missing=["head/*", "heads/*"]
    )


@pytest.mark.parametrize("source", BY_CONTENT)
def test_a_model_with_lora_starts_from_one_without(places, source, caplog):
    """N39: in Keras's files a layer with LoRA begins from the whole kernel; a checkpoint lacks its small matrices."""
    caplog.set_level("INFO")
    model = build(rank=2)
    allowed = {} if source == "some.keras" else {"init_checkpoint_allow_missing": ["*/lora_*"]}
    found = begin(model, places[0] / source, **allowed)
    assert (found.restored, found.variables) == (8, 10)
    np.testing.assert_allclose(model(BATCH).numpy(), places[1], rtol=1e-6)
    with tf.GradientTape() as tape:
        loss = keras.ops.sum(model(BATCH))
    second = model.get_layer("encoder").layers[1].lora_kernel_b
    assert np.abs(tape.gradient(loss, second.value)).max() > 0, "no gradient reaches the small matrices"
    assert ": 8 variables match" in caplog.text  # the kernel is one of them


def test_a_part_of_a_layer_is_restored_where_the_rest_may_differ(places):
    """N40: a kernel of a file that fits, where its bias does not."""
    model, source = build(), trained(build())
    source.get_layer("head").bias.assign([7.0, 8.0, 9.0])
    path = places[0] / "part.weights.h5"
    source.save_weights(path)
    with h5py.File(path, "a") as file:
        place = next(place for place in file["layers"] if file["layers"][place]["vars"].attrs.get("name") == "head")
        del file["layers"][place]["vars"]["1"]
    assert "model/head/bias float32 [3]" in refused(model, path)
    assert begin(model, path, init_checkpoint_allow_missing=["head/bias"]).restored == 7
    np.testing.assert_array_equal(model.get_layer("head").kernel.numpy(), source.get_layer("head").kernel.numpy())


@pytest.mark.parametrize(
    ("source", "damage", "message"),
    [
        ("some.weights.h5", lambda content: content[:-2000], "is damaged: .*truncated file"),
        ("some.keras", lambda content: content[:-200], "is damaged: File is not a zip file"),
        ("some.keras", lambda content: content[:-9000] + bytes(400) + content[-8600:], "is damaged: Bad CRC-32"),
        ("some.keras", lambda content: content[:40], "is damaged: File is not a zip file"),
        ("some.weights.h5", lambda content: b"text", "is not a checkpoint"),
    ],
)
def test_a_damaged_file_is_told_as_such(places, tmp_path, source, damage, message):
    """N40: before anything is assigned."""
    path = tmp_path / source
    path.write_bytes(damage((places[0] / source).read_bytes()))
    refusal = refused(build(), path)
    assert str(path) in refusal
    assert re.search(message, refusal), refusal


def test_a_damaged_export_is_told_as_such(places, tmp_path):
    """N40: its values have checksums of their own."""
    shutil.copytree(places[0] / "saved_model", tmp_path / "copy")
    data = next((tmp_path / "copy" / "variables").glob("variables.data*"))
    content = bytearray(data.read_bytes())
    content[8] ^= 1
    data.write_bytes(content)
    assert "is a SavedModel, and its values are damaged" in refused(build(), tmp_path / "copy")


def test_other_formats_of_tf_keras_are_told(tmp_path):
    """N40: HDF5 and zip files that hold no weights of Keras 3."""
    old = old_model()
    old.save_weights(tmp_path / "legacy.h5")
    assert "is HDF5, but holds no weights as Keras 3 saves them" in refused(build(), tmp_path / "legacy.h5")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is a zip file without model.weights.h5, so not of Keras 3: it holds readme.txt" in refused(
        build(), tmp_path / "some.zip"
    )


class ReadsLegacy(Ours):
    """Reads HDF5 of tf_keras, which names layers in another way."""

    def initialize(self, model):
        with h5py.File(self.task_config.init_checkpoint) as file:
            model.get_layer("head").kernel.assign(file["top"]["top"]["kernel:0"][...])


class ReadsNothing(Ours):
    def initialize(self, model):
        pass


def test_a_task_may_read_a_file_in_its_own_way(tmp_path):
    """N40: what it has changed counts; if that is nothing, the run is refused."""
    path = str(tmp_path / "legacy.h5")
    old_model().save_weights(path)
    config, strategy = TaskConfig(init_checkpoint=path), tf.distribute.get_strategy()
    (found,) = first_weights.initialize(ReadsLegacy(config), build(), strategy)
    assert (found.restored, found.variables) == (1, 8)
    with pytest.raises(CheckpointError, match=r"task.init_checkpoint: .*legacy.h5 is HDF5, but holds no weights"):
        first_weights.initialize(ReadsNothing(config), build(), strategy)
    build().save_weights(tmp_path / "some.weights.h5")
    config = TaskConfig(init_checkpoint=str(tmp_path / "some.weights.h5"))
    message = r"restores none of the 8 variables of the model: ReadsNothing.initialize changed none.*It holds 8 values"
    with pytest.raises(CheckpointError, match=message):
        first_weights.initialize(ReadsNothing(config), build(), strategy)


def test_a_preset_gives_the_backbone_its_weights_and_one_of_a_task_the_head_too(places):
    """N39: config.json says which layer of the model is the backbone."""
    folder, _, outputs = places
    model = tiny()
    message = refused(model, folder / "backbone")
    assert "missing: in the program, not in the checkpoint (2)" in message and "model/logits/kernel" in message
    assert begin(model, folder / "backbone", init_checkpoint_allow_missing=["logits/*"]).restored == 4
    model = tiny()
    found = begin(model, folder / "task")
    assert (found.restored, found.variables) == (6, 6)
    np.testing.assert_array_equal(model(BATCH).numpy(), outputs)
    assert begin(TinyBackbone(), folder / "task").restored == 4


def test_a_preset_of_another_model_says_what_is_needed(places, monkeypatch):
    """N40: KerasHub, if it is not installed; or the classes of the model's layers."""
    without = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "keras_hub" else without(name))
    message = refused(build(), places[0] / "task")
    assert "is a preset of TinyBackbone, and keras_hub is not installed" in message
    assert "pip install keras-hub" in message and "keras_hub.models.TinyBackbone" in message
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name)
    assert "is of a TinyBackbone, and the model has no layer of that class: it is made of " in refused(
        build(), places[0] / "task"
    )


def test_a_preset_that_cannot_be_read_is_told(places, tmp_path):
    """N40: two layers of the class that config.json names, or weights in several files."""
    given = keras.Input([4])
    both = keras.ops.add(TinyBackbone(name="one")(given), TinyBackbone(name="two")(given))
    message = refused(keras.Model(given, both), places[0] / "backbone")
    assert "is of a TinyBackbone, and the model has 2 layers of that class" in message
    (tmp_path / "model.weights.json").write_text("{}")
    assert "holds weights in several files, which are not read" in refused(tiny(), tmp_path)


def test_names_of_another_checkpoint_are_mapped(places):
    """N40: names of layers in tf_keras, or places in the checkpoint; a star stands for the same on both sides."""
    folder, model = places[0], build()
    assert "6 of 8 variables cannot be restored" not in refused(model, folder / "old-1")
    found = begin(model, folder / "old-1", init_checkpoint_names=OLD_NAMES)
    assert (found.restored, found.variables) == (8, 8)
    np.testing.assert_allclose(model(BATCH).numpy(), old_model()(BATCH).numpy(), rtol=1e-6)
    tf_model = tf_keras.Sequential([tf_keras.Input([4]), tf_keras.layers.Dense(6, name="first")])
    begin(tf_model, folder / "old-1", init_checkpoint_names={"stem/*": "first/*"})
    np.testing.assert_array_equal(tf_model.weights[0].numpy(), old_model().weights[0].numpy())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"stam/*": "encoder/dense/*"},
            "'stam/*' matches nothing of it; it holds model/layer_with_weights-0",
        ),
        (
            {"stem/*": "encoder/dens/*"},
            "which no variable of the model has; did you mean encoder/dense/",
        ),
        (
            {"stem/kernel": "encoder/dense/kernel", "top/kernel": "encoder/dense/kernel"},
            "the same name, encoder/dense/kernel",
        ),
        ({"stem/kernel": "encoder/*/kernel"}, "'encoder/*/kernel' has more * than 'stem/kernel'"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(places, names, message):
    """N40: a pattern without use, a name that the model lacks, two values for one variable."""
    refusal = refused(build(), places[0] / "old-1", init_checkpoint_names=names)
    assert "task.init_checkpoint_names" in refusal and message in refusal, refusal
    assert "are found by their layers: leave task.init_checkpoint_names out" in refused(
        build(), places[0] / "some.keras", init_checkpoint_names=names
    )


def test_a_float16_source_is_cast(places, tmp_path):
    """N40: presets are published in 16 bits."""
    keras.config.set_dtype_policy("bfloat16")
    try:
        half = trained(build())
    finally:
        keras.config.set_dtype_policy("float32")
    half.save_weights(tmp_path / "half.weights.h5")
    model = build()
    assert begin(model, tmp_path / "half.weights.h5").restored == 8
    np.testing.assert_array_equal(model.weights[0].numpy(), tf.cast(half.weights[0], tf.float32).numpy())
