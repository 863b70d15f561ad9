"""Gin bindings of whole commands: modules that are imported late, runs that are ended, launched jobs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.forked import Command
from tests.support.runs import values

OPERATIVE = "operative_config.train_and_eval.gin"
WORKSPACE = {
    "blocks.py": """
import gin
from official.nlp.modeling import layers

@gin.configurable
def width(units=6):
    return units
""",
    "experiments/lazily.py": '''
"""An experiment that imports what gin binds when its model is built."""
from official_trainer import registry
from official_trainer.config import schema
from official_trainer.lazy import keras
from tests.support import toy

class LazyConfig(schema.TaskConfig):
    """Config class of its own."""

@registry.register_task_cls(LazyConfig)
class LazyTask(toy.ToyTask):
    """A feed-forward block of Model Garden."""
    gin_modules = ("blocks",)

    def build_model(self):
        import blocks
        inputs = keras.Input((6,), name="features")
        x = keras.layers.Reshape((1, 6))(inputs)
        x = blocks.layers.GatedFeedforward(inner_dim=blocks.width(), inner_activation="relu")(x)
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))

@registry.register_config_factory("lazily")
def lazily():
    """Two hundred steps."""
    base = toy.experiment(steps_per_loop=10, checkpoint_interval=20, validation_interval=40, summary_interval=20)
    task = LazyConfig(
        train_data=schema.DataConfig(global_batch_size=10), validation_data=schema.DataConfig(global_batch_size=10)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=40))
''',
}


@pytest.fixture
def workspace(tmp_path):
    for name, content in WORKSPACE.items():
        path = tmp_path / "ws" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "ws"


def command(workspace, model_dir, *words):
    argv = ["train", "lazily", f"--model_dir={model_dir}", "trainer.export.at_end=false", *words]
    return Command(argv, cwd=workspace, folder=workspace.parent, env={"PYTHONPATH": str(ROOT)})


def test_a_function_of_model_garden_that_is_imported_late(workspace, model_dir):
    """T17: its module is imported before the flags are looked up; a whole run from the command line."""
    (workspace / "model.gin").write_text("GatedFeedforward.use_gate = False\n")
    done = command(workspace, model_dir, "--gin_file=model.gin", "--gin_params=width.units=17\nwidth.units=9").wait()
    assert done.code == 0, done.err
    found = {name: value for name, value in values(model_dir, 40).items() if "OPTIMIZER" not in name}
    shapes = {name: value.shape for name, value in found.items() if not isinstance(value, bytes)}
    assert (6, 9) in shapes.values()
    assert sum(shape == (6, 9) for shape in shapes.values()) == 1, "without a gate there is one such kernel, not two"
    operative = Path(model_dir, OPERATIVE).read_text()
    assert "GatedFeedforward.use_gate = False" in operative
    assert "width.units = 9" in operative


def test_the_guides_first_command_in_a_process_that_has_imported_nothing(model_dir):
    """T17: what makes optimizers is known before one is made."""
    words = ["train", "digits_mlp", f"--model_dir={model_dir}", "trainer.train_steps=2", "trainer.export.at_end=false"]
    params = "--gin_params=build_optimizer.use_legacy_optimizer = False"
    assert params.split("=", 1)[1] in (ROOT / "docs/guides/gin.md").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "official_trainer", *words, params],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "use_legacy_optimizer = False" in Path(model_dir, OPERATIVE).read_text()
