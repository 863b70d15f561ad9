"""Hugging Face datasets: in hand, and saved to a folder."""

import contextlib
import pickle

import datasets
import numpy as np
import pyarrow
import pytest

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.inputs.source import adopt
from official_trainer.sources.hf import HfConfig
from tests.support.source_cases import tables


def evaluated(source, batch=4, **options):
    params = DataConfig(global_batch_size=batch, is_training=False)
    return list(inputs.from_source(source, params, **options).as_numpy_iterator())


def column(batches, name):
    return [value for batch in batches for value in batch[name].tolist()]


def test_values_become_tensors():
    """N41: whole numbers and a ClassLabel are int64, others float32; lists are arrays."""
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "small": datasets.Value("int8"),
            "values": datasets.List(datasets.Value("float64")),
            "inner": {"text": datasets.Value("string")},
        }
    )
    rows = {"label": [0, 1], "small": [1, 2], "values": [[0, 0.5], [1, 1.5]], "inner": [{"text": "é"}, {"text": "b"}]}
    (batch,) = evaluated(datasets.Dataset.from_dict(rows, features=features))
    assert {name: (str(value.dtype), value.shape[1:]) for name, value in batch.items() if name != "inner"} == {
        "label": ("int64", ()),
        "small": ("int64", ()),
        "values": ("float32", (2,)),
    }
    assert batch["label"].tolist() == [0, 1] and batch["inner"]["text"][0] == "é".encode()


def test_selections_formats_and_transforms_are_respected():
    """N41: what the dataset yields is what is read."""
    data = datasets.Dataset(tables.table(8))
    assert column(evaluated(data.select([5, 3, 1])), "id") == [5, 3, 1]
    assert evaluated(data.with_format("numpy", columns=["id"]))[0].keys() == {"id"}
    changed = data.with_transform(lambda rows: {"id": [value + 100 for value in rows["id"]]})
    assert column(evaluated(changed), "id") == list(range(100, 108))
    assert adopt(data).fingerprint() != adopt(data.select([5, 3, 1])).fingerprint()


def test_a_folder_of_save_to_disk(tmp_path):
    """N41: of one split, or of several; also after pickling."""
    assert column(evaluated(tables.hf(tmp_path, 9)), "id") == list(range(9))
    source = adopt(pickle.loads(pickle.dumps(tables.hf(tmp_path / "..", 9).build())))
    assert source.take([8, 2])["id"].tolist() == [8, 2]
    parts = datasets.DatasetDict(
        {"train": datasets.Dataset(tables.table(3)), "test": datasets.Dataset(tables.table(2))}
    )
    parts.save_to_disk(tmp_path / "parts")
    chosen = HfConfig(path=str(tmp_path / "parts"), split="test", columns=("x", "id")).build()
    assert evaluated(chosen)[0].keys() == {"x", "id"} and len(chosen) == 2


def test_a_file_that_was_cut_is_named(tmp_path):
    """N45: between two blocks of rows, too, where its format has no other sign."""
    datasets.Dataset.from_dict({"id": range(3000)}).save_to_disk(tmp_path / "rows")
    (path,) = (tmp_path / "rows").glob("*.arrow")
    content, cuts = path.read_bytes(), []
    for cut in range(8, len(content), 8):
        with contextlib.suppress(pyarrow.ArrowException, OSError):
            cuts += [cut] if pyarrow.ipc.open_stream(content[:cut]).read_all() else []
    assert len(cuts) > 2
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(inputs.DataError, match=f"{path} is cut off; write or copy it again"):
            HfConfig(path=str(tmp_path / "rows")).build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"path": "{folder}/parst"},
            "path: {folder}/parst is no whole folder that save_to_disk wrote: Directory {folder}/parst not found; did",
        ),
        ({"path": "{folder}"}, "path: {folder} is no whole folder that save_to_disk wrote"),
        (
            {"path": "{folder}/parts", "split": "tran"},
            "split: 'tran' is no split of {folder}/parts; did you mean train?",
        ),
        (
            {"path": "{folder}/parts", "split": "train", "columns": ("idd",)},
            "{folder}/parts has no column 'idd'; did you",
        ),
        (
            {"path": "{folder}/one", "split": "test"},
            "split: is 'test', and {folder}/one holds one dataset; leave it out",
        ),
        ({"path": "{folder}/parts"}, "split: '' is no split of {folder}/parts; there are test, train"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, fields, message):
    """N45: with the nearest name."""
    parts = {name: datasets.Dataset(tables.table(3)) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "parts")
    datasets.Dataset(tables.table(3)).save_to_disk(tmp_path / "one")
    given = {key: value.format(folder=tmp_path) if isinstance(value, str) else value for key, value in fields.items()}
    with pytest.raises(inputs.DataError) as caught:
        HfConfig(**given).build()
    assert message.format(folder=tmp_path) in str(caught.value)


def test_images_are_pixels(tmp_path):
    """N41"""
    from PIL import Image

    files = []
    for number in range(3):
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(np.full([4, 5, 3], number, np.uint8)).save(files[-1])
    data = datasets.Dataset.from_dict({"image": files}).cast_column("image", datasets.Image())
    pixels = evaluated(data)[0]["image"]
    assert pixels.dtype == np.uint8 and pixels.shape == (3, 4, 5, 3) and pixels[2].max() == 2
