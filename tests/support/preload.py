"""What the fork server imports once, for all commands that tests start."""

import functools
import gc
import importlib
import os

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

from tensorflow.python.autograph.core.converter import ConversionOptions, ProgramContext
from tensorflow.python.autograph.impl import api

from official_trainer.tasks import export, task
from tests.support.untuned import use_no_tuning

use_no_tuning()

for name in (
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

TRACED = (
    (task, "Task.train_step Task.validation_step Task.inference_step Task.after_step Task.process_metrics"),
    (task, "total_loss scaled_loss update"),
    (export, "by_name"),
)
"""What most runs trace. AutoGraph rewrites each function first, which takes longer than all the rest of a short run,
needs no runtime, and is kept: here for every child. A name that is gone costs time only."""


def _rewrite():
    context = ProgramContext(options=ConversionOptions(recursive=True, user_requested=False, optional_features=None))
    for module, names in TRACED:
        for name in names.split():
            function = functools.reduce(lambda place, part: getattr(place, part, None), name.split("."), module)
            if function is not None:
                api._TRANSPILER.transform(function, context)


_rewrite()
gc.freeze()  # children need not look through all of TensorFlow for garbage
