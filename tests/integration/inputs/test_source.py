"""What is a source, and the tensors that values of Python become."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from official_trainer.sources.array_record import ArrayRecordConfig
from official_trainer.sources.csv import CsvConfig
from official_trainer.sources.hf import HfConfig
from official_trainer.sources.images import ImagesConfig
from official_trainer.sources.npy import NpyConfig
from official_trainer.sources.parquet import ParquetConfig
from official_trainer.sources.tfrecord import TfrecordConfig
from tests.support.source_cases import files, tables


def evaluation(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=False, **fields)


IN_HOME = {
    "parquet": (tables.parquet, ParquetConfig(files="~/part-*.parquet")),
    "csv": (tables.csv, CsvConfig(files=("~/part-0.csv", "~/part-1.csv"))),
    "hf": (tables.hf, HfConfig(path="~/dataset")),
    "npy": (files.CASES["npy"], NpyConfig(files={"id": "~/ids.npy"})),
    "images": (files.write_images, ImagesConfig(folder="~")),
    "tfrecord": (files.write_tfrecords, TfrecordConfig(files="~/part-*", index_folder="~/index")),
    "array_record": (files.write_array_records, ArrayRecordConfig(files="~/part-*")),
}


@pytest.mark.parametrize("kind", IN_HOME)
def test_a_home_is_expanded(kind, tmp_path, monkeypatch):
    """N41: in each field that names files; in YAML no shell does it."""
    write, section = IN_HOME[kind]
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, 6)
    source = inputs.source.adopt(section)
    assert len(source) == 6 and source.where(0).startswith(str(tmp_path)) == (kind != "hf")
    assert source.fingerprint()


def test_values_become_tensors_with_the_types_of_python():
    """N41: numbers are int64 and float32, text is string, arrays keep their type, lists are arrays."""
    example = {"i": 1, "f": 0.5, "t": "é", "b": True, "a": np.zeros([2], np.float64), "l": [1, 2], "p": (1, "x")}
    spec = inputs.from_source([example] * 3, evaluation(2)).element_spec
    found = {key: (value.dtype.name, value.shape.as_list()) for key, value in spec.items() if key != "p"}
    assert found == {
        "i": ("int64", [None]),
        "f": ("float32", [None]),
        "t": ("string", [None]),
        "b": ("bool", [None]),
        "a": ("float64", [None, 2]),
        "l": ("int64", [None, 2]),
    }
    assert [part.dtype for part in spec["p"]] == [tf.int64, tf.string]


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (iter([1]), "__len__ and __getitem__, got a list_iterator; an iterable has no order to start in the middle of"),
        ({"id": 1}, "__len__ and __getitem__, got a dict"),
        (None, "source: is not set, and from_source() needs it"),
        ([], "from_source(): the evaluation data are empty: list has no example"),
        ([{}], "example 0 of list: it has no field"),
        ([{"id": None}], "example 0 of list: id is None, which no tensor holds; fill in"),
        ([{"id": object()}], "example 0 of list: id is <object object at"),
        ([{"id": [[1], [2, 3]]}], "example 0 of list: id is no array, because its parts differ in length"),
        ([{"id": np.datetime64("2026-01-01")}], "id is np.datetime64('2026-01-01'), which no tensor holds"),
    ],
)
def test_what_is_no_source_is_refused(thing, message):
    """N45"""
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_source(thing, evaluation())
    assert message in str(caught.value)
    assert caught.value.exit_code == ExitCode.DATA


class Tensor:
    """What a tensor of torch offers to NumPy."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._values, dtype)


class TorchStyle:
    """A map dataset as PyTorch has it: no sequence, pairs of tensors."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return Tensor(np.full([2], index, np.float32)), index


class TorchStyleBatched(TorchStyle):
    """The same; several are read in one call."""

    def __getitems__(self, indices):
        self.asked = indices
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [TorchStyle, TorchStyleBatched])
def test_a_map_dataset_of_torch_serves_as_it_is(kind):
    """N41: its tensors are arrays, `__getitems__` is used where it is."""
    source = kind()
    batches = [(x.numpy(), y.numpy()) for x, y in inputs.from_source(source, evaluation(4))]
    assert [y.tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6]]
    assert batches[1][0].tolist() == [[4, 4], [5, 5], [6, 6]] and batches[0][0].dtype == np.float32
    assert kind is TorchStyle or source.asked


def test_a_data_source_of_tfds_serves_as_it_is(tmp_path):
    """N41: prepared as ArrayRecord; its examples are those of the split, in its order."""
    import tensorflow_datasets as tfds

    numbers = tf.data.Dataset.range(9).map(lambda number: {"id": number, "name": tf.strings.as_string(number)})
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name="numbers",
        version="1.0.0",
        data_dir=str(tmp_path),
        features=tfds.features.FeaturesDict({"id": np.int64, "name": tfds.features.Text()}),
        split_datasets={"train": numbers},
        disable_shuffling=True,
        file_format="array_record",
    )
    source = builder.as_data_source("train")
    batches = [*inputs.from_source(source, evaluation(6, workers=2)).as_numpy_iterator()]
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    assert batches[1]["name"].tolist() == [b"6", b"7", b"8"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: inputs.Packed([{"tokens": [1]}], 4, too_long="drop"),
            "Packed(): too_long: not one of the choices, got 'drop'; allowed: error, split; to leave examples out, cut",
        ),
        (
            lambda: inputs.Packed([{"tokens": [1]}], 4, too_long="splt"),
            "got 'splt'; allowed: error, split; did you mean split?",
        ),
        (
            lambda: inputs.from_source(ImagesConfig(folder="none", resize="strech"), evaluation()),
            "source.resize: must be 'stretch', 'crop' or 'pad', got 'strech'; did you mean 'stretch'?",
        ),
        (
            lambda: inputs.from_source(CsvConfig(files="none", column_types={"a": "flot32"}), evaluation()),
            "source.column_types.a: must be ",
        ),
        (
            lambda: inputs.from_source(NpyConfig(), evaluation()),
            "source.files: is not set; write the file of each field",
        ),
    ],
)
def test_a_word_that_is_not_allowed_is_refused_in_code_too(call, message):
    """N41, N45: with those that are; a file of the config has its own message."""
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
