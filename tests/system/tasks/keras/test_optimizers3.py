"""What building an optimizer of Keras 3 imports: Keras 3, and neither tf_keras nor Model Garden."""

import json
import os
import subprocess
import sys

from tests import ROOT

BUILD = """
import json, sys
from official_trainer.config import opt
from official_trainer.config import optimization as spelled
from official_trainer.tasks.keras import optimizers3
light = sorted({"tensorflow", "keras", "numpy"} & set(sys.modules))
rate = {"initial_learning_rate": 0.1}
rates = [
    spelled.LrConfig(type="cosine", cosine=spelled.CosineLrConfig(**rate, decay_steps=5, offset=2)),
    spelled.LrConfig(type="constant"),
]
kinds = "sgd", "adam", "adamw", "rmsprop", "adagrad"
built = [optimizers3.build_optimizer(getattr(opt, kind)(rate, warmup_steps=4)) for kind in kinds for rate in rates]
values = [float(optimizer.learning_rate) for optimizer in built]
heavy = sorted({"keras", "tf_keras", "official", "orbit"} & set(sys.modules))
print(json.dumps({"light": light, "built": len(built), "heavy": heavy}))
"""


def test_only_keras_3_is_imported():
    """N37: and nothing heavy until an optimizer is built. TensorFlow itself imports the Keras that is selected."""
    command = [sys.executable, "-c", BUILD]
    environ = os.environ | {"TF_USE_LEGACY_KERAS": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == {"light": [], "built": 10, "heavy": ["keras"]}
