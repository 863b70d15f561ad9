"""tf.data without its tuning thread, for all pipelines of a process, those that tests build as users do too.

The thread sleeps for up to a minute at a time, and whoever drops an iterator waits for it: an arbitrary test that
happens to collect garbage. That was a third of the time of all tests.
"""

from tensorflow.python.data.ops import dataset_ops

from official_trainer.inputs import without_tuning


def use_no_tuning():
    # TensorFlow calls this on every dataset before it makes an iterator.
    dataset_ops.DatasetV2._apply_debug_options = without_tuning
