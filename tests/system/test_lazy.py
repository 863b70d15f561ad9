"""TensorFlow itself, imported lazily."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("level", "is_said"), [("0", True), ("2", False)])
def test_cpp_code_that_logs_by_abseil_heeds_the_log_level(level, is_said):
    source = """
from official_trainer.lazy import load
tf = load("tensorflow")
tf.distribute.Server({"worker": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
"""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=True)
    assert ("Started server with target" in done.stderr) == is_said, done.stderr
