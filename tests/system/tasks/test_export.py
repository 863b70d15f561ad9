"""Exports as a server and TensorFlow's own tool find them, without this package."""

import os
import re
import subprocess
import sys

from official_trainer.lazy import tf
from tests.support import shuffled_runs


def cli(*words):
    """Calls TensorFlow's `saved_model_cli` in a process of its own; returns what it prints."""
    argv = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return done.stdout


def served(base):
    """Returns the version that TensorFlow Serving would load from a base path, by its rule for names of folders."""
    versions = [int(name) for name in os.listdir(base) if re.fullmatch(r"\s*[+-]?\d+\s*", name)]
    return os.path.join(base, str(max(versions)))


def test_the_newest_version_in_export_is_what_tensorflows_tool_reads(model_dir):
    """T19: a server that watches `export/` of a run finds its last export among all else that lies there."""
    both = "trainer.actions=[{type: export_saved_model, when: {every: 20}}]"
    shuffled_runs.do(model_dir, "trainer.export.best=true", both)
    assert sorted(os.listdir(f"{model_dir}/export")) == ["80", "best", "steps"]
    newest = served(f"{model_dir}/export")
    assert newest == f"{model_dir}/export/80"
    shown = cli("show", f"--dir={newest}", "--tag_set=serve", "--signature_def=serving_default")
    assert "inputs['features'] tensor_info:\n      dtype: DT_FLOAT\n      shape: (-1, 6)" in shown
    assert "outputs['logits'] tensor_info:\n      dtype: DT_FLOAT\n      shape: (-1, 3)" in shown
    words = ["--tag_set=serve", "--signature_def=serving_default", f"--input_exprs=features={[[1.0] * 6] * 2}"]
    printed = cli("run", f"--dir={newest}", *words)
    answer = tf.saved_model.load(newest).signatures["serving_default"](features=tf.ones([2, 6]))["logits"].numpy()
    found = [float(number) for number in re.findall(r"-?\d+\.\d*(?:e[+-]\d+)?", printed.partition("logits")[2])]
    assert [round(number, 4) for number in found] == [round(float(number), 4) for number in answer.reshape(-1)]
