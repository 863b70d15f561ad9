import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.errors import ExitCode, UserError


def context(**settings):
    return inputs.InputContext(**settings)


@pytest.mark.parametrize(
    ("batch", "replicas", "advice"),
    [(30, 4, "use 28 or 32"), (3, 4, "use 4"), (1, 2, "use 2"), (9, 8, "use 8 or 16")],
)
def test_batch_that_does_not_divide_names_the_sizes_that_would(batch, replicas, advice):
    with pytest.raises(inputs.BatchSizeError, match=advice) as caught:
        context(num_replicas_in_sync=replicas).get_per_replica_batch_size(batch)
    assert f"global_batch_size {batch} does not divide over {replicas} replicas" in str(caught.value)
    assert isinstance(caught.value, UserError) and isinstance(caught.value, ValueError)
    assert caught.value.exit_code == ExitCode.CONFIG


def test_batch_size_of_a_replica():
    assert context(num_replicas_in_sync=4, num_input_pipelines=2).get_per_replica_batch_size(32) == 8


def test_a_start_is_said_by_a_call():
    """N1: the engine reads over batches for pipelines that did not call; a look changes nothing."""
    asked = context(start_step=7).with_stride(3)
    assert (asked.start_step, asked.batch_stride) == (7, 3)
    assert not asked.starts_here and not asked.strides_here
    assert asked.start_here() == asked.start_here() == 7
    assert asked.starts_here and not asked.strides_here
    assert asked.stride_here() == 3 and asked.strides_here


def test_examples_per_epoch_is_counted_once_and_only_when_asked():
    calls = []
    asked = context()
    assert asked.examples_per_epoch is None
    asked.examples_per_epoch = lambda: calls.append(1) or 12
    assert calls == []
    assert (asked.examples_per_epoch, asked.examples_per_epoch, len(calls)) == (12, 12, 1)


def test_adopts_the_context_of_tensorflow():
    theirs = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    ours = inputs.InputContext.adopt(theirs)
    assert (ours.num_input_pipelines, ours.input_pipeline_id, ours.num_replicas_in_sync) == (2, 1, 4)
    assert ours.get_per_replica_batch_size(8) == theirs.get_per_replica_batch_size(8)
    assert ours.start_step == 0 and ours.batch_stride == 1
    assert inputs.InputContext.adopt(ours) is ours
    assert inputs.InputContext.adopt(None).num_replicas_in_sync == 1


def dataset(**tensors):
    return tf.data.Dataset.from_tensors(tensors)


@pytest.mark.parametrize(
    "good",
    [
        lambda: dataset(x=tf.zeros([4, 3]), y=tf.zeros([4])),
        lambda: tf.data.Dataset.range(8).batch(4),
        lambda: tf.data.Dataset.range(8).batch(4).map(lambda x: (x, None)),
        lambda: tf.data.Dataset.from_tensors((tf.zeros([8, 3]), tf.zeros([4]))),  # two views of each example
        lambda: tf.data.Dataset.from_tensors((tf.zeros([1, 3]), tf.zeros([1]))),
        lambda: dataset(x=tf.ragged.constant([[1], [2, 3]])),
        lambda: dataset(x=tf.sparse.from_dense([[1, 0], [0, 2]])),
    ],
)
def test_batches_pass(good):
    inputs.check_element_structure(good(), "train_data")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: [1, 2], "must return a tf.data.Dataset of batches, but it returned list"),
        (lambda: None, "it returned nothing; is a `return` missing"),
        (
            lambda: dataset(x=tf.zeros([4]), label=tf.constant(1)),
            r"element\['label'\] is a single int32 without a batch",
        ),
        (lambda: tf.data.Dataset.range(4), r"element is a single int64 without a batch dimension.*\.batch\("),
        (lambda: tf.data.Dataset.range(4).window(2), "element is a DatasetSpec"),
        (
            lambda: tf.data.Dataset.from_tensors((tf.zeros([4, 2]), tf.zeros([3]))),
            r"one common batch size, or .* for each example, but element\[0\] has 4, element\[1\] has 3",
        ),
        (
            lambda: tf.data.Dataset.from_tensors((tf.zeros([4, 2]), tf.zeros([1, 4]))),
            r"one common batch size, .* but element\[0\] has 4, element\[1\] has 1",
        ),
    ],
)
def test_wrong_elements_name_the_task_method(bad, message):
    with pytest.raises(inputs.DataError, match=message) as caught:
        inputs.check_element_structure(bad(), "train_data")
    assert str(caught.value).startswith("train_data: Task.build_inputs")
    assert caught.value.exit_code == ExitCode.FAILED
    with pytest.raises(inputs.DataError, match=r"^DigitsTask.build_inputs must"):
        inputs.check_element_structure(bad(), "DigitsTask.build_inputs")
