"""TensorFlow itself, imported lazily."""

import subprocess
import sys


def test_packages_that_tensorflow_rarely_needs_are_imported_where_they_are_used():
    source = """
import sys
from official_trainer import lazy
keras = lazy.load("tf_keras")
absent = [name for name in lazy.RARELY_USED if name in sys.modules]
assert not absent, absent
import numpy as np
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
image = np.arange(12, dtype="float32").reshape([2, 2, 3])
turned = keras.preprocessing.image.apply_affine_transform(image, theta=90, row_axis=0, col_axis=1, channel_axis=2)
assert turned.shape == (2, 2, 3)

import pandas
model.compile("sgd", "mse")
model.fit(pandas.DataFrame({"a": [1.0], "b": [2.0]}), pandas.Series([1.0]), verbose=0)
import scipy.linalg
print(pandas.DataFrame.__name__, scipy.linalg.inv.__name__)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["DataFrame", "inv"]
