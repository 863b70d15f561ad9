"""Which live variables hold other bits than the checkpoint that they were restored from."""

import numpy as np
import tensorflow as tf

from official_trainer.checkpoints import live
from tests.support.chaos.tiny import Tiny, save


class Wide(tf.Module):
    """Variables of several kinds."""

    def __init__(self, names="abcd"):
        super().__init__()
        values = {"a": np.float32(1), "b": np.zeros([2, 3], "float16"), "c": np.array([True]), "d": np.arange(5)}
        self.values = {name: tf.Variable(values.get(name, 7)) for name in names}


def compare(wide, prefix, is_wanted=lambda path, variable: True):
    return live.compare(tf.train.Checkpoint(wide=wide), prefix, is_wanted)


def test_a_bit_that_differs_is_found(tmp_path):
    """N51: in a scalar, an array, a minus zero; what is assigned again is equal."""
    wide = Wide()
    prefix = tf.train.Checkpoint(wide=wide).write(str(tmp_path / "ckpt"))
    every = {f"wide/values/{name}" for name in "abcd"}
    found = compare(wide, prefix)
    assert set(found.equal) == every and not found.differing and not found.lacking
    wide.values["a"].assign(np.nextafter(np.float32(1), np.float32(2)))
    wide.values["b"].assign(-wide.values["b"])
    found = compare(wide, prefix)
    assert found.differing == ["wide/values/a", "wide/values/b"] and set(found.equal) == every - {*found.differing}
    wide.values["a"].assign(1), wide.values["b"].assign(abs(wide.values["b"]))
    assert not compare(wide, prefix).differing


def test_what_one_side_lacks_is_named(tmp_path):
    """N51: and what is not wanted is not looked at."""
    prefix = tf.train.Checkpoint(wide=Wide("abc")).write(str(tmp_path / "ckpt"))
    found = compare(Wide("bcd"), prefix)
    assert (set(found.equal), set(found.lacking)) == (
        {"wide/values/b", "wide/values/c"},
        {"wide/values/a", "wide/values/d"},
    )
    found = compare(Wide("bcd"), prefix, lambda path, variable: path.endswith("c"))
    assert (found.equal, found.differing, found.lacking) == (["wide/values/c"], [], [])


def test_a_checkpoint_of_a_store_is_compared(tmp_path):
    """N51: its index is written by this package."""
    tiny = Tiny(3)
    store = tiny.store(tmp_path)
    save(store, 3)
    assert live.compare(tiny.checkpoint, store.prefix(3), lambda *about: True).differing == []
    tiny.train_to(4)
    assert set(live.compare(tiny.checkpoint, store.prefix(3), lambda *about: True).differing) == {"step", "weights"}
