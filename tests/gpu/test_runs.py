"""Whole runs on a GPU, each in a process of its own: kills, memory, NCCL."""

import os
import signal
import subprocess
import sys
import time

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.distributed import devices
from tests import ROOT
from tests.support import runs

SETTINGS = (
    *("trainer.train_steps=300", "trainer.steps_per_loop=20", "trainer.checkpoint_interval=20"),
    *("trainer.validation_interval=50", "trainer.export.at_end=false", "runtime.enable_op_determinism=true"),
)
WAYS = {
    "off": ("digits_cnn",),
    "float16": ("digits_mlp", "runtime.mixed_precision_dtype=float16", "runtime.loss_scale=dynamic"),
    "xla": ("digits_mlp", "runtime.enable_xla=true"),
}
SECONDS = 240


@pytest.fixture
def start():
    """Returns a function that starts a run; those that a failed test leaves end with it."""
    started = []

    def start(model_dir, experiment, *words):
        argv = [sys.executable, "train.py", f"--experiment={experiment}", f"--model_dir={model_dir}", *SETTINGS, *words]
        started.append(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(way, start, tmp_path, kind):
    whole, broken = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, *WAYS[way]).wait(SECONDS) == 0
    killed, deadline = start(broken, *WAYS[way]), time.monotonic() + SECONDS
    while not committed_steps(str(broken)):
        assert killed.poll() is None and time.monotonic() < deadline, "it ended before its first checkpoint"
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert max(committed_steps(str(broken))) < 300
    assert start(broken, *WAYS[way]).wait(SECONDS) == 0
    assert runs.differences(broken, whole) == []


GROWTH = """
from official_trainer.config import RuntimeConfig
from official_trainer.engine import process
from official_trainer.lazy import tf
process.configure_process(RuntimeConfig(num_gpus=1))
gpu = tf.config.list_physical_devices("GPU")[0]
assert tf.config.experimental.get_memory_growth(gpu)
with tf.device("GPU:0"):
    x = tf.ones([1024, 1024])
print(tf.config.experimental.get_memory_info("GPU:0")["current"], len(tf.config.list_logical_devices("GPU")))
"""


def test_memory_grows_on_demand(kind):
    if kind != "GPU":
        pytest.skip("memory growth is of GPUs")
    done = subprocess.run([sys.executable, "-c", GROWTH], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    used, count = map(int, done.stdout.split())
    assert (used < 64 << 20, count) == (True, 1)


def test_nccl_sums_over_the_gpus_of_a_machine(start, tmp_path, kind):
    """Logical GPUs of one cannot use NCCL."""
    if kind != "GPU" or len(devices.gpus(os.environ)) < 2:
        pytest.skip("NCCL needs two GPUs, and there are none, or one")
    words = ["runtime.distribution_strategy=mirrored", "runtime.num_gpus=2", "runtime.all_reduce_alg=nccl"]
    assert start(tmp_path / "run", "digits_cnn", *words).wait(SECONDS) == 0
    assert max(committed_steps(str(tmp_path / "run"))) == 300
