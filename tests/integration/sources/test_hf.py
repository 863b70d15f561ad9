"""Hugging Face datasets: in hand, saved to a folder, in the cache; never from the network."""

import contextlib
import json
import os
import pickle
import shutil
import socket

import datasets
import numpy as np
import pyarrow
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.inputs.source import adopt
from official_trainer.sources.hf import HfConfig
from tests.support.source_cases import tables


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Any connection to another host fails the test."""

    def refuse(self, address):
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def evaluated(source, batch=4, **options):
    params = DataConfig(global_batch_size=batch, is_training=False)
    return list(inputs.from_source(source, params, **options).as_numpy_iterator())


def column(batches, name):
    return [value for batch in batches for value in batch[name].tolist()]


def labelled():
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "small": datasets.Value("int8"),
            "values": datasets.List(datasets.Value("float32")),
            "grid": datasets.Array2D((2, 2), "int32"),
            "inner": {"text": datasets.Value("string")},
        }
    )
    rows = {
        "label": [0, 1, 1, 0],
        "small": [1, 2, 3, 4],
        "values": [[each, 0.5] for each in range(4)],
        "grid": [[[each, 1], [2, 3]] for each in range(4)],
        "inner": [{"text": f"é{each}"} for each in range(4)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_values_keep_the_types_of_the_features():
    """N41: a ClassLabel is int64; in columns as one by one."""
    source = adopt(labelled())
    batch = source.take([2, 0])
    assert {name: (str(value.dtype), value.shape[1:]) for name, value in batch.items() if name != "inner"} == {
        "label": ("int64", ()),
        "small": ("int8", ()),
        "values": ("float32", (2,)),
        "grid": ("int32", (2, 2)),
    }
    assert batch["label"].tolist() == [1, 0] and batch["grid"][0].tolist() == [[2, 1], [2, 3]]
    assert source[3]["inner"]["text"] == "é3".encode() and source[3]["small"].dtype == np.int8
    doubled = evaluated(labelled(), transforms=[lambda row: {"small": row["small"], "text": row["inner"]["text"]}])
    assert doubled[0]["small"].dtype == np.int8


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


def test_a_part_of_a_split_of_a_folder(tmp_path):
    """N41: as of a dataset in the cache, also of a folder of one split; a name alone is the whole split."""
    parts = {name: datasets.Dataset(tables.table(10), split=name) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "parts")
    parts["train"].save_to_disk(tmp_path / "one")
    for folder in ("parts", "one"):
        for split, ids in (("train[:50%]", range(5)), ("train[-2:]", range(8, 10)), ("train", range(10))):
            section = HfConfig(path=str(tmp_path / folder), split=split)
            assert column(evaluated(section), "id") == list(ids)
            assert inputs.source.adopt(section).fingerprint() == inputs.source.adopt(section).fingerprint()
    with pytest.raises(inputs.DataError, match=r"split: 'test' is no split of .*one; there is train alone"):
        HfConfig(path=str(tmp_path / "one"), split="test").build()


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


def test_a_dataset_in_the_cache(tmp_path, monkeypatch):
    """N41: as load_dataset has prepared it, without a request."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"id": number}) for number in range(10)))
    made = datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), cache_dir=str(tmp_path / "made"))
    arrow = made["train"].cache_files[0]["filename"]
    folder = tmp_path / "cache" / "me___rows" / "default" / "0.0.0" / "0123456789abcdef"
    shutil.copytree(os.path.dirname(arrow), folder)  # as that of a dataset of the Hub is named
    os.rename(folder / "json-train.arrow", folder / "rows-train.arrow")
    about = json.loads((folder / "dataset_info.json").read_text())
    about.update(dataset_name="rows", config_name="default")
    (folder / "dataset_info.json").write_text(json.dumps(about))
    assert column(evaluated(HfConfig(name="me/rows", split="train")), "id") == list(range(10))
    assert len(HfConfig(name="me/rows", split="train[:30%]").build()) == 3
    with pytest.raises(inputs.DataError, match=r"split: 'trian' is no split of me/rows; did you mean train?"):
        HfConfig(name="me/rows", split="trian").build()
    with pytest.raises(inputs.DataError, match=r"split: 'train.:30x.' cannot be read"):
        HfConfig(name="me/rows", split="train[:30x]").build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "me/none", "split": "train"},
            "name: Couldn't find cache for me/none; prepare it once with datasets.load_dataset('me/none')",
        ),
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
            "split: is 'test', and {folder}/one holds one dataset, whose split has no name; leave out the split",
        ),
        (
            {"path": "{folder}/parts", "split": "train[:50x]"},
            "split: 'train[:50x]' cannot be read: Unrecognized instruction format: train[:50x]; there are test, train, "
            "and a part is written as train[:90%]",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path, monkeypatch, fields, message):
    """N45: with the nearest name, or the command that prepares it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
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


def test_a_missing_value_is_named():
    """N45"""
    context = inputs.InputContext()
    data = datasets.Dataset.from_dict({"id": [1, None, 3]})
    dataset = inputs.from_source(data, DataConfig(global_batch_size=3, is_training=False), context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert str(context.failure()).startswith("example 1 of Dataset: id is null")
