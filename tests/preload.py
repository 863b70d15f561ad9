"""What the fork server imports once, for all commands that tests start."""

import os

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

import official.modeling.optimization
import official.nlp.modeling.layers  # noqa: F401
import sklearn.datasets
import sklearn.model_selection  # noqa: F401
import tensorboard.plugins.scalar.summary_v2  # noqa: F401
import tensorflow  # noqa: F401
import tf_keras  # noqa: F401

import official_trainer.trainer  # noqa: F401
