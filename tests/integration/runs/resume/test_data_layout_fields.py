"""Training and validation data of different fields: named before the first step."""

import json
import logging

import numpy as np
import pytest

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import DataConfig, schema
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from official_trainer.runs import run
from official_trainer.runs.resume import data_layout
from official_trainer.sources.npy import NpyConfig
from official_trainer.tasks import registry
from tests.support import toy


class FieldsConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(FieldsConfig)
class FieldsTask(toy.ToyTask):
    """The toy task on fields of a source; an evaluation leaves a third alone."""

    def build_inputs(self, params, input_context=None):
        fields = inputs.from_source(params.source, params, input_context)
        return fields.map(lambda example: (example["x"], *(example[name] for name in ("y", "more") if name in example)))

    def validation_step(self, inputs, model, metrics=None):
        return super().validation_step(inputs[:2], model, metrics)


@registry.register_config_factory("fields_of_data")
def fields_of_data():
    base = toy.experiment(steps_per_loop=2, summary_interval=2, checkpoint_interval=2, validation_interval=4)
    data = DataConfig(global_batch_size=8)
    task = FieldsConfig(train_data=data, validation_data=data)
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=4))


def do(folder, **arrays):
    """Trains on features and labels of the toy task, and evaluates on `arrays`."""
    keras.backend.clear_session()
    sources = []
    for name, given in {"train": {"x": toy.FEATURES, "y": toy.LABELS}, "validation": arrays}.items():
        for field, array in given.items():
            np.save(folder / f"{name}-{field}.npy", array)
        source = NpyConfig(files={field: str(folder / f"{name}-{field}.npy") for field in given})
        sources.append(f"task.{name}_data.source={json.dumps(source.as_dict())}")
    sets = [*sources, "trainer.export.at_end=false"]
    resolved = configuration.resolve(registry.get_config("fields_of_data"), experiment="fields_of_data", sets=sets)
    run.run("fields_of_data", resolved, mode="train_and_eval", model_dir=str(folder / "run"), quiet=True)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": toy.FEATURES}, r"example\[1\] is missing"),
        ({"x": toy.FEATURES.astype(np.float64), "y": toy.LABELS}, r"example\[0\] is float64, there float32"),
    ],
)
def test_other_fields_are_refused_before_the_first_step(arrays, message, tmp_path):
    """N45: instead of in the first evaluation, hours later."""
    with pytest.raises(DataError, match=f"task.validation_data: its examples differ .*: {message}") as caught:
        do(tmp_path, **arrays)
    assert caught.value.exit_code == ExitCode.DATA
    assert committed_steps(str(tmp_path / "run")) == ()


def test_more_fields_are_a_warning(tmp_path, caplog):
    """N45: and the run trains."""
    with caplog.at_level(logging.WARNING):
        do(tmp_path, x=toy.FEATURES[:16], y=toy.LABELS[:16], more=np.zeros(16))
    assert "task.validation_data: its examples differ from those of train_data: example[2] is not there" in caplog.text
    assert committed_steps(str(tmp_path / "run"))[-1] == 4


def test_the_same_fields_say_nothing(tmp_path, caplog):
    """N45"""
    with caplog.at_level(logging.WARNING):
        do(tmp_path, x=toy.FEATURES[:16], y=toy.LABELS[:16])
    assert "differ" not in caplog.text


def spec(dtype="float32", shape=(None, 3)):
    return tf.TensorSpec(shape, dtype)


@pytest.mark.parametrize(
    ("validation", "wrong", "others"),
    [
        ((spec(shape=[5, 3]), spec("int64", [8])), [], []),
        ((spec(shape=[None, None]), spec("int64", [8])), [], []),
        ((spec(), spec("float32", [8])), ["example[1] is float32, there int64"], []),
        ((spec(),), ["example[1] is missing"], []),
        ({"x": spec()}, ["example[0] is missing", "example[1] is missing"], ["example['x'] is not there"]),
        ((spec(shape=[None, 4]), spec("int64", [8])), [], ["example[0] has shape (4,), there (3,)"]),
    ],
)
def test_how_batches_differ(validation, wrong, others):
    """N45: the number of examples in a batch is no difference."""
    assert data_layout.unlike(validation, (spec(), spec("int64", [8]))) == (wrong, others)
