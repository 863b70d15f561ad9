"""SavedModels while training goes on: at their steps, whole, the same after any restart."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.export_saved_model import ExportSavedModelConfig
from official_trainer.config import ConfigError, schema
from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import export, registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy


class ExportedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ExportedConfig)
class ExportedTask(toy.ToyTask):
    """The toy task with shuffled in-memory data."""

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)


@registry.register_config_factory("exported_run")
def exported_run():
    """Twenty steps with averaged weights and an evaluation every five."""
    base = toy.experiment(
        steps_per_loop=4, summary_interval=10, checkpoint_interval=10, validation_interval=5,
        ema=EMAConfig(average_decay=0.9),
    )  # fmt: skip
    data = [schema.DataConfig(global_batch_size=size) for size in (10, 32)]
    task = ExportedConfig(train_data=data[0], validation_data=data[1])
    trainer = base.trainer.replace(train_steps=20, export=schema.ExportConfig(at_end=False))
    return base.replace(task=task, trainer=trainer)


ACTIONS = (
    "trainer.actions=[{type: export_saved_model, max_to_keep: 2}, "
    "{type: export_saved_model, name: often, directory: often, when: {every: 3}, max_to_keep: 4}]"
)


def do(model_dir, *sets):
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("exported_run"), experiment="exported_run", sets=sets)
    return run.run("exported_run", resolved, mode="train_and_eval", model_dir=str(model_dir), quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    model_dir = str(tmp_path_factory.mktemp("exports") / "run")
    do(model_dir, ACTIONS)
    return model_dir


def exports(model_dir):
    """Returns folder → what the export in it stands for."""
    found = {}
    for folder in ("steps", "often"):
        for name in files.list_dir(f"{model_dir}/export/{folder}"):
            found[f"{folder}/{name}"] = json.loads(files.read_text(f"{model_dir}/export/{folder}/{name}/export.json"))
    return found


def loss_of(directory):
    serve = tf.saved_model.load(directory).signatures["serving_default"]
    logits = serve(features=tf.constant(toy.FEATURES))["logits"].numpy()
    return keras.losses.sparse_categorical_crossentropy(toy.LABELS, logits, from_logits=True).numpy().mean()


def test_exports_are_made_where_they_are_due(finished):
    """T19: after evaluations, with their results; at steps of their own; the newest are kept."""
    found = exports(finished)
    assert {name: record["step"] for name, record in found.items()} == {
        "steps/15": 15, "steps/20": 20, "often/9": 9, "often/12": 12, "often/15": 15, "often/18": 18,
    }  # fmt: skip
    rows = {row["step"]: row for row in read_rows(f"{finished}/metrics.jsonl") if row["split"] == "validation"}
    for step in (15, 20):
        metrics = found[f"steps/{step}"]["metrics"]
        assert metrics == {name: rows[step][name] for name in metrics}
        np.testing.assert_allclose(loss_of(f"{finished}/export/steps/{step}"), metrics["validation_loss"], rtol=1e-5)
    assert found["often/9"]["metrics"] == {}


def test_a_restart_leaves_the_same_exports(finished, tmp_path, monkeypatch):
    """T19, N1: killed in the middle of one; what is there already is not written again."""
    model_dir, written = str(tmp_path / "run"), []
    save = tf.saved_model.save

    class Killed(BaseException):
        pass

    def dies(module, path, **options):
        save(module, path, **options)
        if path.endswith("steps/15.writing"):
            raise Killed
        written.append(path)

    monkeypatch.setattr(tf.saved_model, "save", dies)
    with pytest.raises(Killed):
        do(model_dir, ACTIONS)
    assert "15.writing" in files.list_dir(f"{model_dir}/export/steps")
    monkeypatch.setattr(tf.saved_model, "save", lambda m, path, **kw: (written.append(path), save(m, path, **kw)))
    do(model_dir, ACTIONS)
    assert exports(model_dir) == exports(finished)
    names = [os.path.relpath(path, f"{model_dir}/export").removesuffix(".writing") for path in written]
    assert sorted(names) == sorted(
        [*(f"often/{step}" for step in (3, 6, 9, 12, 15, 18)), *(f"steps/{step}" for step in (5, 10, 15, 20))]
    )


def test_another_way_from_an_earlier_step_replaces_exports(finished, tmp_path):
    """T19: those after the end go; a step is exported again only with other weights."""
    trainer = toy.build(toy.experiment())
    folder = str(tmp_path / "export" / "steps")
    action = ExportSavedModelConfig(max_to_keep=1).build()

    def to(step):
        state = LoopState(step=step)
        return Run(state=state, trainer=trainer, model_dir=str(tmp_path), tracker=None)

    action.on_step(to(4))
    action.on_step(to(8))
    assert files.list_dir(folder) == ["8"]
    before = json.loads(files.read_text(f"{folder}/8/export.json"))
    trainer.model.variables[0].assign_add(tf.ones([6, 8]))  # back at 4 or before, with something changed
    action.on_step(to(4))
    assert files.list_dir(folder) == ["4", "8"]
    action.on_step(to(8))
    assert files.list_dir(folder) == ["8"]
    after = json.loads(files.read_text(f"{folder}/8/export.json"))
    assert (before["step"], after["step"]) == (8, 8)
    assert before["weights"] != after["weights"]
    action.on_step(to(6))
    action.on_end(to(6), RuntimeError())
    assert files.list_dir(folder) == ["6", "8"]
    action.on_end(to(6), None)
    assert files.list_dir(folder) == ["6"]
    assert export.holds(f"{folder}/6", trainer.model, step=6)
    assert not export.holds(f"{folder}/6", trainer.model, step=5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("saved_model", "is 'saved_model', which the run uses itself; name another folder"),
        ("..", "is '..'; it must be the name of one folder"),
    ],
)
def test_a_folder_that_is_taken_or_none_is_refused(name, message):
    """T19: with the fix."""
    sets = [f"trainer.actions=[{{type: export_saved_model, directory: {name}}}]"]
    with pytest.raises(ConfigError, match=f"trainer.actions.0..directory: {message}"):
        configuration.resolve(registry.get_config("exported_run"), experiment="exported_run", sets=sets)
