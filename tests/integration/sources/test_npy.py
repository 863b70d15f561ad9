"""NumPy's files by the number of a row."""

import pickle

import numpy as np
import pytest

from official_trainer import inputs
from official_trainer.config import DataConfig
from official_trainer.sources.npy import NpyConfig


def build(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return NpyConfig(files={name: str(folder / f"{name}.npy") for name in arrays}).build()


def test_rows_by_their_number(tmp_path):
    """N41: one by one, many at once, after pickling; of any type and order of bytes; the file stays a map."""
    arrays = {
        "id": np.arange(9),
        "value": np.arange(54, dtype=">f4").reshape([9, 2, 3]),
        "flag": np.arange(9) % 2 == 0,
        "text": np.array([f"é{number}" for number in range(9)]),
        "column": np.asfortranarray(np.arange(18).reshape([9, 2])),
    }
    source = build(tmp_path, **arrays)
    for read in (source, pickle.loads(pickle.dumps(source))):
        batch = read.take([8, 0, 3, 3])
        for name, array in arrays.items():
            np.testing.assert_array_equal(batch[name], array[[8, 0, 3, 3]])
            np.testing.assert_array_equal(read[5][name], array[5])
    assert all(isinstance(array, np.memmap) for array in source.arrays.values())
    assert len(pickle.dumps(source)) < 1000
    assert source.where(3).endswith("row 3")
    found = next(iter(inputs.from_source(source, DataConfig(is_training=False, global_batch_size=9))))
    assert found["value"].dtype.name == "float32" and found["value"].numpy().tolist() == arrays["value"].tolist()
    assert found["text"].numpy()[1].decode() == "é1"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, "source.files: the arrays differ in length: a has 3, b has 4 rows"),
        ({"a": np.float32(1)}, "source.files.a: .*a.npy holds no array of rows: len"),
        ({"a": np.array([{}], object)}, "a.npy holds no array of rows: .*Python objects"),
        ({"a": np.zeros(3, "i4,f4")}, "a.npy: row 0: a is .*, which no tensor holds"),
    ],
)
def test_arrays_that_do_not_serve_are_refused(tmp_path, arrays, message):
    """N45"""
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    section = NpyConfig(files={name: str(tmp_path / f"{name}.npy") for name in arrays})
    with pytest.raises(inputs.DataError, match=message):
        inputs.from_source(section, DataConfig(is_training=False))


@pytest.mark.parametrize("cut", [1, 400, 4000])
def test_a_file_that_was_cut_is_refused(tmp_path, cut):
    """N45: in its values or its header."""
    np.save(tmp_path / "a.npy", np.arange(500))
    path = tmp_path / "a.npy"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(inputs.DataError, match=f"{path} holds no array of rows"):
        NpyConfig(files={"a": str(path)}).build()
