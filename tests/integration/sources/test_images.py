"""Folders of images: labels, sizes, what cannot be decoded, what lies in the wrong place."""

import logging
import pickle

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from official_trainer import inputs
from official_trainer.config import DataConfig
from official_trainer.sources.images import ImagesConfig
from tests.support.source_cases.files import id_of_image, write_images


def build(folder, **fields):
    return ImagesConfig(folder=str(folder), **fields).build()


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)


def halves(height, width):
    """An image that is black on the left and white on the right."""
    pixels = np.zeros([height, width, 3])
    pixels[:, width // 2 :] = 255
    return pixels


def test_labels_are_the_classes_in_order(tmp_path, caplog):
    """N41: the classes are said with their counts; after pickling it reads the same."""
    write_images(tmp_path, 9)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_text("")
    with caplog.at_level(logging.INFO):
        source = build(tmp_path)
    assert source.classes == ["cat", "dog"] and "0 cat (5), 1 dog (4)" in caplog.text and ".DS" not in caplog.text
    for read in (source, pickle.loads(pickle.dumps(source))):
        examples = [id_of_image(read[number]) for number in range(9)]
        assert [example["id"] for example in examples] == list(range(9))
        assert [int(example["label"]) for example in examples] == [0] * 5 + [1] * 4
    assert source.where(6) == str(tmp_path / "dog" / "000006.png")
    batch = next(iter(inputs.from_source(source, DataConfig(is_training=False, global_batch_size=4))))
    assert batch["image"].shape == [4, 4, 6, 3] and batch["image"].dtype.name == "uint8"
    assert batch["label"].dtype.name == "int64"


def test_images_may_lie_deeper_in_their_class(tmp_path):
    """N41: in the order of their paths."""
    for name in ("b/x/1.png", "b/2.JPG", "a/3.webp"):
        save(tmp_path / name, halves(4, 4))
    source = build(tmp_path)
    assert [source.where(number) for number in range(3)] == [
        f"{tmp_path}/{name}" for name in ("a/3.webp", "b/2.JPG", "b/x/1.png")
    ]


def test_named_classes_have_the_labels_of_their_order(tmp_path):
    """N41: also one that validation data lack."""
    save(tmp_path / "cat" / "1.png", halves(2, 2))
    save(tmp_path / "other" / "1.png", halves(2, 2))
    (tmp_path / "dog").mkdir()
    source = build(tmp_path, classes=("dog", "cat"))
    assert len(source) == 1 and source[0]["label"] == 1 and source.classes == ["dog", "cat"]


def test_a_size_is_reached_in_three_ways(tmp_path):
    """N41: an image twice as wide as high becomes a square."""
    save(tmp_path / "a" / "1.png", halves(40, 80))
    images = {name: build(tmp_path, size=(20, 20), resize=name)[0]["image"] for name in ("stretch", "crop", "pad")}
    assert all(image.shape == (20, 20, 3) for image in images.values())
    assert [int(images["stretch"][10, x, 0] > 127) for x in (2, 8, 11, 17)] == [0, 0, 1, 1]
    assert images["crop"].mean() == pytest.approx(127, abs=3)
    assert images["pad"][2].max() == 0 and images["pad"][10, 15, 0] == 255 and images["pad"][17].max() == 0
    assert build(tmp_path, size=(20, 30))[0]["image"].shape == (20, 30, 3)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_a_large_jpeg_is_close_to_what_a_whole_decode_gives(tmp_path, resize):
    """N41: it is decoded at a part of its size."""
    y, x = np.mgrid[:600, :800]
    pixels = np.stack([x * 255 / 800, y * 255 / 600, np.full([600, 800], 90)], axis=-1).astype(np.uint8)
    save(tmp_path / "jpeg" / "a" / "1.jpg", pixels, quality=95)
    save(tmp_path / "png" / "a" / "1.png", pixels)
    folders = (tmp_path / "jpeg", tmp_path / "png")
    reduced, decoded = (build(folder, size=(64, 64), resize=resize)[0]["image"] for folder in folders)
    assert np.abs(reduced.astype(int) - decoded.astype(int)).mean() < 2


@pytest.mark.parametrize(("channels", "expected"), [(1, [76]), (3, [255, 0, 0]), (4, [255, 0, 0, 255])])
def test_channels(tmp_path, channels, expected):
    """N41"""
    save(tmp_path / "a" / "1.png", np.broadcast_to(np.uint8([255, 0, 0]), [3, 2, 3]))
    image = build(tmp_path, channels=channels)[0]["image"]
    assert image.shape == (3, 2, channels) and image[1, 1].tolist() == expected


def test_a_palette_is_decoded(tmp_path):
    """N41: GIF, the first of its images."""
    (tmp_path / "a").mkdir()
    frames = [Image.new("RGB", (3, 3), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a" / "1.gif", save_all=True, append_images=frames[1:])
    assert build(tmp_path)[0]["image"][0, 0].tolist() == [255, 0, 0]


def evaluated(source):
    return list(inputs.from_source(source, DataConfig(is_training=False, global_batch_size=4)))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[: len(content) // 2], "truncated"),
        (lambda content: b"not an image", "cannot identify image file"),
    ],
)
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, damage, reason):
    """N45: its header or its data."""
    write_images(tmp_path, 9)
    path = tmp_path / "cat" / "000002.png"
    save(path, np.random.default_rng(0).integers(0, 255, [64, 64, 3]))
    path.write_bytes(damage(path.read_bytes()))
    source = build(tmp_path)
    with pytest.raises(OSError) as caught:
        source[2]
    assert reason in str(caught.value)
    context = inputs.InputContext()
    dataset = inputs.from_source(source, DataConfig(is_training=False, global_batch_size=4), context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert str(context.failure()).startswith(f"{path}: ") and reason in str(context.failure())


def test_an_image_of_16_bits_is_refused(tmp_path):
    """N45: half of each value would be lost."""
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full([3, 3], 40000, np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(inputs.DataError, match=r"1.png: has more than 8 bits in a value \(I;16\)"):
        evaluated(build(tmp_path))


def test_files_that_are_no_images_are_not_read(tmp_path):
    """N41: nor are hidden ones."""
    write_images(tmp_path, 4)
    for name in ("cat/notes.txt", "list.csv", "cat/.hidden.png"):
        (tmp_path / name).write_text("")
    assert len(build(tmp_path)) == 4


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (
            lambda f: save(f / "1.png", halves(2, 2)),
            {},
            r"has images that lie in .* itself: 1.png; move each into the folder",
        ),
        (lambda f: (f / "empty").mkdir(), {}, "the class 'empty' has no image in .*; remove its folder, or name all"),
        (lambda f: None, {"classes": ("cot",)}, "source.classes: 'cot' is no folder in .*; did you mean cat"),
        (lambda f: None, {"classes": ("zebra",)}, "source.classes: 'zebra' is no folder in .*; it has cat, dog"),
    ],
)
def test_folders_that_are_not_as_they_should_be(tmp_path, make, fields, message):
    """N45"""
    write_images(tmp_path, 4)
    make(tmp_path)
    with pytest.raises(inputs.DataError, match=message):
        inputs.from_source(ImagesConfig(folder=str(tmp_path), **fields), DataConfig(is_training=False))


def test_folders_that_are_named_as_splits_are_no_classes(tmp_path):
    """N45: the folder is one too high; who means it names them."""
    for name in ("Train/cat/1.png", "val/cat/2.png"):
        save(tmp_path / name, halves(4, 4))
    with pytest.raises(inputs.DataError) as refused:
        inputs.from_source(ImagesConfig(folder=str(tmp_path)), DataConfig(is_training=False))
    assert str(refused.value) == (
        f"source.folder: '{tmp_path}' has no folders of classes but of splits: Train, val; name one of them, "
        f"{tmp_path}/Train; or, if they are classes, name them in `classes`"
    )
    assert len(build(tmp_path, classes=("Train", "val"))) == 2
    save(tmp_path / "bus" / "3.png", halves(4, 4))
    assert build(tmp_path).classes == ["Train", "bus", "val"]


def test_the_folder_of_a_class_may_be_missing(tmp_path):
    """N41: where all others are named, so that the name is no wrong one."""
    write_images(tmp_path, 4)
    assert [int(example["label"]) for example in build(tmp_path, classes=("ape", "cat", "dog"))] == [1, 1, 2, 2]


def test_a_folder_without_classes_or_none_at_all(tmp_path):
    """N45"""
    with pytest.raises(inputs.DataError, match=r"has no image in a folder of a class, as in rose/1\.jpg"):
        build(tmp_path)
    with pytest.raises(inputs.DataError, match="nowhere' is no folder, in the working directory"):
        build(tmp_path / "nowhere")


def test_the_fingerprint_changes_with_the_files(tmp_path):
    """N45: another image, another class, another size of a file, not another place of the folder."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_images(tmp_path / name, 4)
    before = build(tmp_path / "a").fingerprint()
    assert build(tmp_path / "b").fingerprint() == before
    (tmp_path / "b" / "cat" / "000000.png").rename(tmp_path / "b" / "dog" / "000000.png")
    assert build(tmp_path / "b").fingerprint() != before
    save(tmp_path / "a" / "dog" / "000003.png", np.random.default_rng(0).integers(0, 255, [4, 6, 3]))
    changed = build(tmp_path / "a").fingerprint()
    assert changed != before
    (tmp_path / "a" / "dog" / "000003.png").unlink()
    (tmp_path / "a" / "dog" / "000003.png").symlink_to("nowhere")
    assert build(tmp_path / "a").fingerprint() not in (before, changed)  # an example that cannot be read
