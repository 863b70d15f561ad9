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


def test_packages_that_tensorflow_rarely_needs_are_imported_where_they_are_used(tmp_path):
    source = f"""
import sys
from official_trainer import lazy
keras = lazy.load("tf_keras")
absent = [name for name in lazy.RARELY_USED if name in sys.modules]
assert not absent, absent
from tensorflow.python.distribute.cluster_resolver import gce_cluster_resolver
if gce_cluster_resolver._GOOGLE_API_CLIENT_INSTALLED:
    import oauth2client.client as client
    assert gce_cluster_resolver.GoogleCredentials.from_json == client.GoogleCredentials.from_json

import numpy as np
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.save_weights({str(tmp_path / "weights.h5")!r})
model.load_weights({str(tmp_path / "weights.h5")!r})
image = np.arange(12, dtype="float32").reshape([2, 2, 3])
turned = keras.preprocessing.image.apply_affine_transform(image, theta=90, row_axis=0, col_axis=1, channel_axis=2)
assert turned.shape == (2, 2, 3)

import pandas
model.compile("sgd", "mse")
model.fit(pandas.DataFrame({{"a": [1.0], "b": [2.0]}}), pandas.Series([1.0]), verbose=0)
import requests, scipy.linalg, h5py
print(requests.get.__module__, h5py.File.__name__, scipy.linalg.inv.__name__)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["requests.api", "File", "inv"]


def test_scikit_learn_imports_pandas_where_it_uses_it():
    source = """
import sys
from official_trainer import lazy
lazy.select()
lazy.select()
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
assert "pandas" not in sys.modules
features, labels = load_wine(return_X_y=True, as_frame=True)
assert sys.modules["pandas"].DataFrame is type(features)
train, held_out = train_test_split(features, random_state=0)
from sklearn.utils import fixes
print(type(train).__name__, fixes.pd_fillna(fixes.pd, train).equals(train))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["DataFrame", "True"]
