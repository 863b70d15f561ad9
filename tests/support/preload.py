"""What the fork server imports once, for all commands that tests start."""

import gc
import importlib
import os

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

from tests.support.untuned import use_no_tuning

use_no_tuning()

for name in (
    "keras",
    "matplotlib.pyplot",  # which Keras 3 imports
    "official.modeling.optimization",
    "official.nlp.modeling.layers",
    "sklearn.datasets",
    "sklearn.model_selection",
    "tensorboard.plugins.scalar.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
    "tf_keras",
    "official_trainer.cli",
    "official_trainer.runs.run",
    "official_trainer.runs.train",
):
    importlib.import_module(name)

gc.freeze()  # children need not look through all of TensorFlow for garbage
