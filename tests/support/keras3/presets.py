"""A backbone and a task in the layout of KerasHub, from plain Keras: their presets have its files."""

import json

import h5py
import keras


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


def build(classes=3):
    return TinyClassifier(TinyBackbone(name="tiny_backbone"), classes)


def save(model, folder, *, with_head):
    """Writes what `save_to_preset` writes of a task, or of its backbone alone."""
    folder.mkdir()
    _describe(model.backbone, folder / "config.json")
    model.backbone.save_weights(folder / "model.weights.h5")
    if with_head:
        _describe(model, folder / "task.json")
        model.save_weights(folder / "task.weights.h5")
        with h5py.File(folder / "task.weights.h5", "a") as file:  # KerasHub skips the layers of the backbone
            for name in [name for name in file["layers"] if name != "dense_1"]:
                del file["layers"][name]


def _describe(model, path):
    kind = type(model).__name__
    path.write_text(
        json.dumps({"class_name": kind, "module": "keras_hub.src.tiny", "registered_name": f"keras_hub>{kind}"})
    )
