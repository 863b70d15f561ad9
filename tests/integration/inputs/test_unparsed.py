"""A record that `parse_fn` could not parse is found in the files."""

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from tests.support.cases import cases

ROWS = ["age,weight,label", *(f"{number},{number / 4},{number % 2}" for number in range(20))]


def parse(line):
    age, weight, label = tf.io.decode_csv(line, [tf.constant([], dtype) for dtype in ("int64", "float32", "int64")])
    return tf.stack([tf.cast(age, tf.float32), weight]), label


@pytest.mark.parametrize("cache", cases([False, True], False))
def test_the_record_that_parse_fn_cannot_parse(cache, tmp_path):
    """N28, N45: in the second file, whatever the record holds; with the line of `parse_fn`. A scan lists all."""
    for name, bad in (("a", None), ("b", 3)):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            for number, row in enumerate(ROWS[1:]):
                writer.write(b"14,,0" if number == bad else row.encode())
    params = DataConfig(input_path=f"{tmp_path}/*", global_batch_size=4, is_training=False, cache=cache)
    context = inputs.InputContext()
    batches = inputs.from_tfrecords(params, context, parse_fn=parse)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(batches)
    found = str(inputs.explain_data_error(caught.value, params, "task.train_data", context.find_record))
    said = "task.train_data: parse_fn failed on a record: Field 1 is required but missing in record 0!\n"
    line = parse.__code__.co_firstlineno
    assert found.startswith(f"{said}  {tmp_path}/b.tfrecord: record 3\n  parse_fn: "), found
    assert found.endswith(f"tests/integration/inputs/test_unparsed.py:{line}")
    damaged = tmp_path / "a.tfrecord"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    of_a, of_b = context.scan()
    assert of_a.startswith(f"{damaged}: truncated record at offset 455, record 19; all records before it are whole")
    assert of_b == f"{tmp_path}/b.tfrecord: record 3: Field 1 is required but missing in record 0!"
