"""Sources of files: images, ArrayRecord, NumPy's files, TFRecord, each with examples whose `id` is their number."""

import numpy as np

from official_trainer.inputs import Source
from official_trainer.sources.array_record import ArrayRecordConfig
from official_trainer.sources.images import ImagesConfig
from official_trainer.sources.npy import NpyConfig
from official_trainer.sources.tfrecord import TfrecordConfig

_FILES = 3


class Decoded(Source):
    """Examples made of those of another source, by a function of a module."""

    def __init__(self, source, decode):
        self._source, self._decode = source, decode

    def __len__(self):
        return len(self._source)

    def __getitem__(self, index):
        return self._decode(self._source[index])

    def where(self, index):
        return self._source.where(index)

    def fingerprint(self):
        return self._source.fingerprint()


def record_of(number):
    """A record that holds its number; records differ in length."""
    return int(number).to_bytes(8, "little") + b"x" * (number % 7)


def id_of_record(record):
    return {"id": int.from_bytes(record[:8], "little")}


def id_of_image(example):
    return {"id": int.from_bytes(example["image"][0, 0].tobytes(), "little"), **example}


def write_tfrecords(folder, count, files=_FILES):
    """Writes files of records one after the other; returns their paths."""
    import tensorflow as tf

    paths = [folder / f"part-{number}.tfrecord" for number in range(files)]
    for path, numbers in zip(paths, np.array_split(range(count), files), strict=True):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in numbers:
                writer.write(record_of(number))
    return paths


def write_array_records(folder, count, files=_FILES, options="group_size:1"):
    from array_record.python import array_record_module

    paths = [folder / f"part-{number}.array_record" for number in range(files)]
    for path, numbers in zip(paths, np.array_split(range(count), files), strict=True):
        writer = array_record_module.ArrayRecordWriter(str(path), options)
        for number in numbers:
            writer.write(record_of(number))
        writer.close()
    return paths


def write_images(folder, count, classes=("cat", "dog")):
    """Writes images of 4 x 6 pixels, whose first pixel is their number, one class after the other."""
    from PIL import Image

    numbers = iter(range(count))
    for name, share in zip(classes, np.array_split(range(count), len(classes)), strict=True):
        (folder / name).mkdir()
        for _ in share:
            pixels = np.full([4, 6, 3], 128, np.uint8)
            pixels[0, 0] = np.frombuffer((number := next(numbers)).to_bytes(3, "little"), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:06}.png", compress_level=1)


def tfrecord(folder, count):
    write_tfrecords(folder, count)
    return Decoded(TfrecordConfig(files=str(folder / "part-*.tfrecord")).build(), id_of_record)


def array_record(folder, count):
    write_array_records(folder, count)
    return Decoded(ArrayRecordConfig(files=str(folder / "part-*")).build(), id_of_record)


def images(folder, count):
    write_images(folder, count)
    return Decoded(ImagesConfig(folder=str(folder)).build(), id_of_image)


def npy(folder, count):
    np.save(folder / "ids.npy", np.arange(count, dtype=np.int64))
    np.save(folder / "values.npy", np.arange(3 * count, dtype=np.float32).reshape([count, 3]))
    return NpyConfig(files={"id": str(folder / "ids.npy"), "value": str(folder / "values.npy")})


CASES = {"tfrecord": tfrecord, "array_record": array_record, "images": images, "npy": npy}
