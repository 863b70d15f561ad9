"""What each process that trains imports: the fork server imports this module, and with it all of them.

Owns: which modules these are. Does not own: when they are imported (`forked.py`).

None of them starts TensorFlow's runtime. orbit imports tf_keras, which a process with models of Keras 3 does not need.
"""

from __future__ import annotations

import importlib

from official_trainer.lazy import deferring_idle_keras

MODULES = (
    "tensorflow",
    "official_trainer.runs.train",
    "official_trainer.runs.evaluate",
    "official_trainer.runs.run",
    "official_trainer.runs.worker",
    "official_trainer.cli.dispatch",
    "official_trainer.cli.verbs.train",
    "official_trainer.config.decode",
    "official_trainer.config.dump",
    "official_trainer.config.layers",
    "official_trainer.inputs.arrays",
    "rich.live",
    "rich.progress",
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.plugins.scalar.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
)

for name in MODULES:
    with deferring_idle_keras():
        importlib.import_module(name)
