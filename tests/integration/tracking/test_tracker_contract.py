"""What all trackers get, and what a config of them needs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import official_trainer
from official_trainer.tracking import Histogram, Image, Media, Tracker, Trackers


def test_configs_are_read_and_built_without_any_of_their_libraries(tmp_path):
    """N7: and without TensorFlow and NumPy; a machine that shows a config needs none of them."""
    code = """
import json, sys
from official_trainer.config import TrackerConfig
from official_trainer.tracking import Place
place = Place(directory=sys.argv[1], experiment="e", name="n")
for name in TrackerConfig.names():
    TrackerConfig.named(name)().build(place)
heavy = {"tensorflow", "numpy", "mlflow", "wandb", "prometheus_client", "tensorboard", "PIL"}
print(json.dumps(sorted(heavy & set(sys.modules))))
"""
    environ = {"PYTHONPATH": str(Path(official_trainer.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_media_are_arrays_of_their_own_when_a_tracker_gets_them():
    """B6: device memory is released in the caller, and nobody changes them behind the thread's back."""
    tf = pytest.importorskip("tensorflow")

    class Keeper(Tracker):
        def publish(self, split, step, media):
            self.media = media

    keeper, pixels = Keeper(), np.zeros((2, 2, 1), np.uint8)
    values = tf.Variable([[1.0, float("nan")], [float("inf"), 2.0]])
    media = {"a": Histogram(values), "b": {"c": Image(pixels), "d": Image(tf.constant([[[-1.0], [0.5], [2.0]]]))}}
    bfloat16 = Histogram(tf.constant([0.5, 2.0], tf.bfloat16))
    Trackers([keeper]).publish("train", 1, {**media, "e": bfloat16, "f": Histogram(tf.constant([True, False]))})
    pixels += 1
    values.assign_add(tf.ones_like(values))
    kept = keeper.media
    assert list(kept) == ["a", "b/c", "b/d", "e", "f"]
    assert all(isinstance(thing, Media) for thing in kept.values())
    assert type(kept["a"].values) is np.ndarray
    assert kept["a"].values.tolist() == [1.0, 2.0]
    assert kept["b/c"].pixels.tolist() == [[[0], [0]], [[0], [0]]]
    assert kept["b/d"].pixels.tolist() == [[[0], [128], [255]]]
    assert (kept["e"].values.tolist(), kept["f"].values.tolist()) == ([0.5, 2.0], [1.0, 0.0])


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0], [-1e38, 1e38], [1, 2, 3]])
def test_a_histogram_counts_every_value(values):
    """T18: none, one, equal ones, far ones, integers."""
    counts, edges = Histogram(np.array(values, np.float32 if 3.0 in values else None)).buckets()
    assert counts.sum() == len(values)
    assert (len(counts), len(edges)) == (64, 65)
    assert np.isfinite(edges).all()
