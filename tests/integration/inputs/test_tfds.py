import itertools

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from tests.support.cases import cases


def section(data_dir, training=True, **settings):
    settings = {"tfds_name": "tiny_numbers", "tfds_split": "train"} | settings
    return DataConfig(global_batch_size=4, is_training=training, tfds_data_dir=data_dir, **settings)


def numbers(params, count, context=None):
    dataset = inputs.from_tfds(params, context)
    return [element["number"] for element in itertools.islice(dataset.as_numpy_iterator(), count)]


SPLITS = {
    "train": range(23),
    "test": range(23, 28),
    "train[:4]": range(4),
    "train[10:14]+test[:1]": [*range(10, 14), 23],
}


@pytest.mark.parametrize("split", cases(SPLITS, "train[10:14]+test[:1]"))
def test_evaluation_reads_the_split_once(data_dir, split):
    """N17"""
    params = section(data_dir, training=False, tfds_split=split)
    assert sorted(np.concatenate(numbers(params, None))) == list(SPLITS[split])


def test_training_starts_at_any_step(data_dir):
    """N1"""
    params = section(data_dir, tfds_split="train[1:]")
    context = inputs.InputContext()
    whole = numbers(params, 14, context)
    assert context.examples_per_epoch == 22
    assert sorted(np.concatenate(whole)[:22]) == list(range(1, 23))
    np.testing.assert_array_equal(numbers(params, 5, inputs.InputContext(start_step=9)), whole[9:])


def test_supervised_pairs(data_dir):
    (inputs_, labels), *_ = inputs.from_tfds(section(data_dir, training=False, tfds_as_supervised=True))
    np.testing.assert_array_equal(inputs_ % 3, labels)


def problem(params):
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_tfds(params)
    assert caught.value.exit_code == ExitCode.DATA
    return str(caught.value)


def test_not_prepared_names_the_nearest_and_the_command(data_dir, tmp_path):
    text = problem(section(data_dir, tfds_name="tiny_number"))
    assert (
        f"tfds_name: 'tiny_number': no prepared dataset of this name in {data_dir}; did you mean tiny_numbers?" in text
    )
    assert f"tfds build tiny_number --data_dir={data_dir} (training never downloads)" in text
    assert "prepared there: plain_numbers, tiny_numbers." in problem(section(data_dir, tfds_name="mnist"))
    assert "nothing is prepared there" in problem(section(str(tmp_path), tfds_name="mnist"))


def test_wrong_names(data_dir):
    assert "tfds_name: is empty" in problem(section(data_dir, tfds_name="", tfds_split=""))
    assert "tfds_name: 'a b'" in problem(section(data_dir, tfds_name="a b"))


def test_unknown_split(data_dir):
    text = problem(section(data_dir, tfds_split="tran[:50%]"))
    assert "tfds_split: 'tran[:50%]'" in text and "did you mean train?" in text and "It has: test, train" in text
    assert "It has: test, train; parts are written test[:90%]" in problem(section(data_dir, tfds_split="train[:x]"))


def test_split_without_examples(data_dir):
    assert "selects no example" in problem(section(data_dir, tfds_split="train[:0]"))


def test_no_supervised_keys(data_dir):
    text = problem(section(data_dir, tfds_name="plain_numbers", tfds_as_supervised=True))
    assert "plain_numbers declares no (input, label) pair; its features are label, number" in text


def test_damaged_file_is_named(data_dir, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(data_dir, copy)
    path = sorted((copy / "tiny_numbers" / "1.0.0").glob("*train*"))[1]
    content = bytearray(path.read_bytes())
    content[-2] ^= 255
    path.write_bytes(content)
    params = section(str(copy))
    with pytest.raises(tf.errors.DataLossError) as caught:
        numbers(params, 9)
    assert str(inputs.explain_data_error(caught.value, params)).startswith(f"{path}: corrupted record at offset")


def test_other_file_formats_are_refused(data_dir, monkeypatch):
    from tensorflow_datasets.core import dataset_info, file_adapters

    monkeypatch.setattr(dataset_info.DatasetInfo, "file_format", file_adapters.FileFormat.ARRAY_RECORD)
    text = problem(section(data_dir))
    assert "holds array_record files; only tfrecord is read" in text
    assert "tfds build tiny_numbers --file_format=tfrecord" in text
