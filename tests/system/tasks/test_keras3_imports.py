"""Which Keras a process imports: the one that its experiment uses, and none before it is needed."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.cases import full

SHOW = """
print("loaded", *(root for root in ("keras", "tf_keras", "official", "tensorflow") if root in sys.modules))
"""
PROGRAM = f"""
import sys
from official_trainer.cli import main
code = main(sys.argv[1:])
{SHOW}
sys.exit(code)
"""


EXPERIMENT = """
import keras
import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig, opt


class OnesConfig(TaskConfig):
    pass


@register_task_cls(OnesConfig)
class OnesTask(Task):
    def build_model(self):
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((np.ones([8, 2], "float32"), np.ones([8, 1], "float32")), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.mean_squared_error(labels, model_outputs)


@register_config_factory("ones")
def ones():
    data = DataConfig(is_training=True, global_batch_size=4)
    optimizer_config = opt.adam(0.01, decay="cosine", warmup_steps=1)
    trainer = TrainerConfig(train_steps=2, optimizer_config=optimizer_config)
    return ExperimentConfig(task=OnesConfig(train_data=data), trainer=trainer)
"""


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "ones.py").write_text(EXPERIMENT)
    return tmp_path


def run(folder, *words):
    environ = {key: value for key, value in os.environ.items() if key not in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "jax" not in done.stderr
    return done.stdout.splitlines()


def loaded(folder, *words):
    return run(folder, *words)[-1].split()[1:]


def train(folder, experiment, model_dir):
    words = ["--mode=train", f"--model_dir={model_dir}", "--set=trainer.train_steps=2"]
    return {*loaded(folder, "train", f"--experiment={experiment}", *words)}


@pytest.mark.full
def test_a_run_with_keras_3_imports_neither_tf_keras_nor_model_garden(workspace):
    """N37: although orbit, and TensorFlow at its defaults here, import tf_keras."""
    assert train(workspace, "ones", workspace / "run") == {"keras", "tensorflow"}


def test_a_run_with_tf_keras_does_not_import_keras_3(tmp_path):
    """N37: although TensorFlow does, where it is not told."""
    assert train(ROOT, "diabetes", tmp_path / "run") == {"tf_keras", "official", "tensorflow"}


def test_a_process_of_a_job_has_the_keras_of_its_experiment_alone(workspace):
    """N37: it is forked from one that has imported it, before TensorFlow's runtime starts."""
    with open(workspace / "experiments" / "ones.py", "a", encoding="utf-8") as file:
        file.write(f"import sys\n{SHOW}")
    words = ["launch", "local", "--", "--experiment=ones", "--mode=train", f"--model_dir={workspace / 'run'}"]
    assert {line.partition("loaded")[2] for line in run(workspace, *words) if "loaded" in line} == {
        "",  # of the launcher
        " keras tensorflow",
    }


def test_an_experiment_that_imports_keras_is_shown_without_it(workspace):
    """N37: `import keras` at the top of its module imports nothing until it is used."""
    assert loaded(workspace, "show", "ones") == []


@pytest.mark.parametrize("line", ["import keras_hub", full("from keras_hub.models import Backbone")])
def test_keras_hub_may_be_imported_at_the_top(line, workspace):
    """N39: it imports nothing until it is used, and then says nothing about JAX."""
    pytest.importorskip("keras_hub")
    path = workspace / "experiments" / "ones.py"
    use = "\n        print(keras_hub.__name__)" if line == "import keras_hub" else ""
    source = path.read_text().replace("import keras\n", f"import keras\n{line}\n", 1)
    path.write_text(source.replace("def build_model(self):", f"def build_model(self):{use}"))
    assert loaded(workspace, "show", "ones") == ([] if use else ["keras", "tensorflow"])
    assert train(workspace, "ones", workspace / "run") == {"keras", "tensorflow"}
