"""Exports as a server and TensorFlow's own tool find them, without this package."""

import json
import os
import re
import subprocess
import sys

from official_trainer.lazy import tf
from tests.support import shuffled_runs

CALLS = """
import json, sys
from tensorflow.python.tools import saved_model_cli
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        saved_model_cli.main()
    except SystemExit as end:
        assert not end.code
    print("end of the call")
"""


def cli(*calls):
    """Calls TensorFlow's `saved_model_cli` in one process that has nothing else; returns what each call prints."""
    argv = [sys.executable, "-c", CALLS, json.dumps(calls)]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return done.stdout.split("end of the call\n")[:-1]


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
    signature = ["--tag_set=serve", "--signature_def=serving_default"]
    run = ["run", f"--dir={newest}", *signature, f"--input_exprs=features={[[1.0] * 6] * 2}"]
    shown, printed = cli(["show", f"--dir={newest}", *signature], run)
    assert "inputs['features'] tensor_info:\n      dtype: DT_FLOAT\n      shape: (-1, 6)" in shown
    assert "outputs['logits'] tensor_info:\n      dtype: DT_FLOAT\n      shape: (-1, 3)" in shown
    answer = tf.saved_model.load(newest).signatures["serving_default"](features=tf.ones([2, 6]))["logits"].numpy()
    found = [float(number) for number in re.findall(r"-?\d+\.\d*(?:e[+-]\d+)?", printed.partition("logits")[2])]
    assert [round(number, 4) for number in found] == [round(float(number), 4) for number in answer.reshape(-1)]
