"""What TensorFlow could not parse is found in the files: which line, which record, which image."""

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.inputs import unparsed

ROWS = ["age,weight,label", *(f"{number},{number / 4},{number % 2}" for number in range(20))]


def parse(line):
    age, weight, label = tf.io.decode_csv(line, [tf.constant([], dtype) for dtype in ("int64", "float32", "int64")])
    return tf.stack([tf.cast(age, tf.float32), weight]), label


def to_number(line):
    return tf.strings.to_number(tf.strings.split(line, ",")), 0


def error_of(path, function, skip=1):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tf.data.TextLineDataset(path).skip(skip).map(function))
    return caught.value


@pytest.mark.parametrize(
    ("row", "function", "said"),
    [
        ("14,,0", parse, "field 1 'weight' is '', in the line '14,,0'"),
        ("14,heavy,0", parse, "field 1 'weight' is 'heavy', in the line '14,heavy,0'"),
        ("14,3.5", parse, "2 fields, in the line '14,3.5'"),
        ('14,"3,5",0', parse, "field 1 'weight' is '3,5', in the line '14,\"3,5\",0'"),
        ("14,heavy,0", to_number, "field 1 'weight' is 'heavy', in the line '14,heavy,0'"),
        ("14,,0", to_number, "field 1 'weight' is '', in the line '14,,0'"),
    ],
)
def test_the_line_and_the_field_are_named(row, function, said, tmp_path):
    """N28: of the second of two files, whose lines are counted from 1."""
    (tmp_path / "a.csv").write_text("\n".join(ROWS))
    path = tmp_path / "b.csv"
    path.write_text("\n".join([*ROWS[:15], row, *ROWS[16:]]))
    params = DataConfig(input_path=f"{tmp_path}/*.csv", is_training=True)
    found = inputs.explain_data_error(error_of(str(path), function), params, "task.train_data")
    assert str(found).startswith(f"task.train_data: {path}:16: {said}; TensorFlow says: ")
    assert found.names_line == "behind"


def test_a_header_that_is_read_as_a_row_is_line_one(tmp_path):
    """N28"""
    path = tmp_path / "a.csv"
    path.write_text("\n".join(ROWS))
    found = unparsed.find(str(error_of(str(path), parse, skip=0)), [str(path)])
    assert found == f"{path}:1: field 0 is 'age', in the line 'age,weight,label'"


def test_other_delimiters_and_files_that_are_no_text(tmp_path):
    """N28: a file with zero bytes is not searched."""
    path, binary = tmp_path / "a.csv", tmp_path / "a.bin"
    path.write_text("a;b\n1;2\n1;\n")
    binary.write_bytes(b"\0\n;\n")
    said = "Field 1 is required but missing in record 0!"
    assert unparsed.find(said, [str(binary), str(path)]) == f"{path}:3: field 1 'b' is '', in the line '1;'"
    assert unparsed.find(said, [str(binary), str(tmp_path / "gone.csv")]) == ""
    assert unparsed.find("Label 7 is out of range", [str(path)]) == ""


def test_an_image_in_a_folder_that_the_task_lists_itself(tmp_path):
    """N28: `input_path` is the folder, which is no pattern of files."""
    (tmp_path / "cats").mkdir()
    whole = tf.io.encode_png(tf.zeros([2, 2, 1], tf.uint8)).numpy()
    for number in range(3):
        (tmp_path / "cats" / f"{number}.png").write_bytes(whole[: None if number != 1 else -20])
    paths = sorted(str(path) for path in (tmp_path / "cats").iterdir())
    images = tf.data.Dataset.from_tensor_slices(paths).map(lambda path: tf.io.decode_png(tf.io.read_file(path)))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(images)
    found = inputs.explain_data_error(caught.value, DataConfig(input_path=str(tmp_path), is_training=True))
    assert str(found).startswith(f"{paths[1]}: is no whole image; TensorFlow says: ")
    other = tf.errors.InvalidArgumentError(None, None, "Label 7 is out of range")
    assert inputs.explain_data_error(other, DataConfig(input_path=str(tmp_path), is_training=True)) is None


@pytest.mark.parametrize("cache", [False, True])
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
