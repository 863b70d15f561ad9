"""Names of the variables of Keras 3, in another process."""

import json
import os
import subprocess
import sys

from tests import ROOT
from tests.support.keras3 import shapes


def test_names_are_the_same_in_a_new_process():
    """N40: where other models were built first, in another order."""
    env = {**os.environ, "TF_USE_LEGACY_KERAS": "0"}
    command = [sys.executable, "-m", "tests.support.keras3.shapes"]
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=True)
    here = {shape: [*shapes.names(shapes.build(shape))] for shape in shapes.EXPECTED}
    assert json.loads(found.stdout.splitlines()[-1]) == here
