"""Runs by a warm server that has imported TensorFlow: the same bits as cold ones, also when they are killed."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.processes.children import PRELOAD
from tests import ROOT
from tests.support.launch.jobs import until
from tests.support.launch.warm import Place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

STEPS = 60
WORDS = (
    "--mode=train",
    f"--config_file={ROOT / 'configs' / 'smoke' / 'digits_mlp.yaml'}",
    f"trainer.train_steps={STEPS}",
    "trainer.checkpoint_interval=20",
    "trainer.export.at_end=false",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    found = Place(tmp_path_factory.mktemp("warm"), preload=PRELOAD)
    found.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    shutil.copy(ROOT / "experiments" / "digits.py", found.workspace / "experiments")
    try:
        started = found.warm()
        assert started.returncode == 0, started.stderr
        yield found
    finally:
        found.close()


def variables(model_dir):
    reader = tf.train.load_checkpoint(f"{model_dir}/ckpt-{STEPS}")
    names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


def test_nothing_has_been_computed_before_a_command(place):
    """N26: TensorFlow is imported, and its runtime starts in the command's own process."""
    done = place.run(
        "from tensorflow.python.eager import context\n"
        "print('tf_keras' in sys.modules, context.context()._context_handle, context.context()._physical_devices)\n"
        "import tensorflow as tf\n"
        "print(int(tf.reduce_sum(tf.ones([3]))), flush=True)\n"
        "os._exit(0)"
    )
    assert done.stdout == "True None None\n3\n", done.stderr


def test_a_killed_run_that_goes_on_warm_has_the_bits_of_a_cold_one(place):
    """N26, N1: the command is killed after a checkpoint, given again, and ends as one that was never killed."""
    words = [sys.executable, "train.py", "--experiment=digits_mlp", *WORDS]
    cold = {**place.environ, "XDG_RUNTIME_DIR": "/nowhere"}
    options = {"cwd": place.workspace, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run([*words, "--model_dir=cold"], env=cold, check=False, **options)
    assert done.returncode == 0, done.stderr
    slow = [*words, "--model_dir=warm"]
    run = place.workspace / "warm"
    process = subprocess.Popen(
        slow, cwd=place.workspace, env=place.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: committed_steps(str(run)) or process.poll() is not None)
    process.kill()
    said = process.communicate(timeout=60)[0]
    assert "cold start" not in said, said
    assert committed_steps(str(run)), said
    done = subprocess.run(slow, env=place.environ, check=False, **options)
    assert done.returncode == 0 and "cold start" not in done.stderr, done.stderr
    assert variables(run) == variables(place.workspace / "cold")
