"""SavedModels while training goes on: at their steps, whole, the same after any restart."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.export_saved_model import ExportSavedModelConfig
from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.tasks import export
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.cases import cases
from tests.support.runs import bits

do = toy.runs_of(
    "exported_run", toy.InMemory, train_steps=12, steps_per_loop=4, summary_interval=10, checkpoint_interval=10,
    validation_interval=4, ema=EMAConfig(average_decay=0.9), export=toy.NO_EXPORT,
)  # fmt: skip


def exports(model_dir):
    """Returns folder → what the export in it stands for."""
    found = Path(model_dir, "export").glob("*/*/export.json")
    return {f"{path.parts[-3]}/{path.parts[-2]}": json.loads(path.read_text()) for path in found}


def loss_of(directory):
    serve = tf.saved_model.load(directory).signatures["serving_default"]
    logits = serve(features=tf.constant(toy.FEATURES))["logits"].numpy()
    return keras.losses.sparse_categorical_crossentropy(toy.LABELS, logits, from_logits=True).numpy().mean()


def test_exports_are_made_where_they_are_due(model_dir):
    """T19: after evaluations, with their results; at steps of their own; the newest are kept."""
    actions = (
        "trainer.actions=[{type: export_saved_model, max_to_keep: 2}, "
        "{type: export_saved_model, name: often, directory: often, when: {every: 5}, max_to_keep: 1}]"
    )
    do(model_dir, actions)
    found = exports(model_dir)
    assert {name: record["step"] for name, record in found.items()} == {"steps/8": 8, "steps/12": 12, "often/10": 10}
    rows = {row["step"]: row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "validation"}
    for step in (8, 12):
        metrics = found[f"steps/{step}"]["metrics"]
        assert metrics == {name: rows[step][name] for name in metrics}
        np.testing.assert_allclose(loss_of(f"{model_dir}/export/steps/{step}"), metrics["validation_loss"], rtol=1e-5)
    assert found["often/10"]["metrics"] == {}


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_what_was_drawn_before_an_export_does_not_change_it(tmp_path, strategy):
    """T19, N1: nothing is drawn by a process that only exports what another one has trained; layers stay apart."""
    trainer = toy.build(toy.experiment(), strategy=strategy)
    with trainer.strategy.scope():
        random = [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0)]
        model = keras.Sequential([keras.Input([6], name="features"), *random])
    export.save(f"{tmp_path}/first", trainer.task, model, step=3)
    trainer.strategy.run(lambda: model(tf.ones([4, 6]), training=True))
    export.save(f"{tmp_path}/second", trainer.task, model, step=3)
    first, second = (bits(tmp_path / name / "variables" / "variables") for name in ("first", "second"))
    assert first == second
    states = {value for name, value in first.items() if "_random_generator" in name}
    assert len(states) == len(random)


def test_another_way_from_an_earlier_step_replaces_exports(tmp_path):
    """T19: those after the end go; a step that is reached again is exported again."""
    trainer = toy.build(toy.experiment())
    folder = str(tmp_path / "export" / "steps")
    action = ExportSavedModelConfig(max_to_keep=1).build()

    def to(step):
        state = LoopState(step=step)
        return Run(state=state, trainer=trainer, model_dir=str(tmp_path), tracker=None)

    action.on_step(to(4))
    action.on_step(to(8))
    assert files.list_dir(folder) == ["8"]
    before = loss_of(f"{folder}/8")
    trainer.model.variables[0].assign_add(tf.ones([6, 8]))  # back at 4 or before, with something changed
    action.on_step(to(4))
    assert files.list_dir(folder) == ["4", "8"]
    action.on_step(to(8))
    assert files.list_dir(folder) == ["8"]
    assert loss_of(f"{folder}/8") != before
    action.on_step(to(6))
    action.on_end(to(6), RuntimeError())
    assert files.list_dir(folder) == ["6", "8"]
    action.on_end(to(6), None)
    assert files.list_dir(folder) == ["6"]
