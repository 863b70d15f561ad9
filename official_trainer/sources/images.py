"""`type: images`: folders of images, one for each class, decoded by Pillow.

Owns: which file belongs to which class, decoding and resizing. Does not own: augmentation, which is a task's
(`transform_fn`).

Pillow decodes without holding the interpreter's lock, so threads decode at the same time.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from official_trainer.config import Between, Positive, SourceConfig
from official_trainer.inputs import DataError, Source
from official_trainer.nearest import did_you_mean
from official_trainer.shown import first_few
from official_trainer.sources import paths

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SPLITS = {"dev", "eval", "test", "testing", "train", "training", "val", "valid", "validation"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DEEP = ("I", "F")  # how Pillow's names of modes with more than 8 bits begin
_ENOUGH = 1.5  # times the size that is wanted: a JPEG is decoded at an eighth, a quarter or a half if that is as much
_GAP = 2.0  # times that size: what others are reduced to by averages, before they are resized

Resize = Literal["stretch", "crop", "pad"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesConfig(SourceConfig):
    """Images in folders, one folder for each class, as in `flowers/rose/1.jpg`.

    An example is `{"image": uint8 [height, width, channels], "label": int64}`.
    Hidden files, and those of other kinds, are ignored.

    Attributes:
      folder: holds the folders of the classes, in which images may lie at any depth.
      classes: names of the folders to read, in the order of the labels from 0; unset means all, sorted by name. Set it,
        in both sections alike, for validation data that may lack a class, or its folder.
      size: height and width of all images; unset means that they have one size already.
      resize: how an image gets this size. `stretch` changes its proportions, `crop` takes the largest part of its
        middle, `pad` adds black edges.
      channels: 1 for grey, 3 for red, green and blue, 4 with alpha.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("PIL",)
    INSTALL: ClassVar[str] = "official-trainer[images]"

    folder: str = ""
    classes: tuple[str, ...] = ()
    size: tuple[Positive, Positive] | None = None
    resize: Resize = "stretch"
    channels: Annotated[int, Between(1, 4)] = 3

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from paths.problems("folder", self.folder)
        if self.channels not in _MODES:
            yield "channels", "must be 1, 3 or 4"
        if twice := [name for name in self.classes if self.classes.count(name) > 1]:
            yield "classes", f"has {twice[0]!r} twice"

    def class_names(self) -> tuple[str, ...]:
        return self.classes or tuple(_folders_in(os.path.expanduser(self.folder)))

    def build(self) -> Source:
        folder = os.path.expanduser(self.folder)
        if not os.path.isdir(folder):
            raise DataError(f"{folder!r} is no folder, in the working directory {os.getcwd()}", field="folder")
        images = _listed(folder, self.classes)
        named = [f"{label} {name} ({len(files):,})" for label, (name, files) in enumerate(images.items())]
        paths.say_once(f"{folder}: images of {len(images)} classes: {first_few(named)}")
        return ImagesSource(self, images)


class ImagesSource(Source):
    """Decoded images by their number.

    Attributes:
      classes: the name of each label.
    """

    def __init__(self, section: ImagesConfig, files: Mapping[str, Sequence[str]]) -> None:
        """Takes what to do with images, and for each class the paths of its images below the folder."""
        import numpy as np

        self.classes, self._section = list(files), section
        self._folder = os.path.expanduser(section.folder)
        self._files = list(itertools.chain.from_iterable(files.values()))
        self._labels = np.repeat(np.arange(len(files)), [len(names) for names in files.values()])

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return {"image": self._image(self.where(index)), "label": self._labels[index]}

    def where(self, index: int) -> str:
        return os.path.join(self._folder, self._files[index])

    def samples(self) -> Sequence[int]:
        import numpy as np

        return [0, *(np.flatnonzero(np.diff(self._labels)) + 1).tolist()]  # one of each class

    def fingerprint(self) -> str:
        """Returns a text that changes with the names of the classes and the files, and with their sizes."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b("\0".join([*self.classes, ""]).encode(), digest_size=16)
        for index, name in enumerate(self._files):
            path = self.where(index)  # one that is gone is an example that cannot be read, when its turn comes
            digest.update(f"{name}\0{os.path.getsize(path) if os.path.exists(path) else -1}\0".encode())
        return digest.hexdigest()

    def _image(self, path: str) -> Any:
        import numpy as np
        from PIL import Image

        size, mode = self._section.size, _MODES[self._section.channels]
        with Image.open(path) as image:
            if image.mode.startswith(_DEEP):
                raise ValueError(f"has more than 8 bits in a value ({image.mode}), which uint8 cannot hold")
            if size is not None:
                image.draft(None, (round(size[1] * _ENOUGH), round(size[0] * _ENOUGH)))
            image.load()
            converted = image if image.mode == mode else image.convert(mode)
        pixels = np.asarray(converted if size is None else _resized(converted, size, self._section.resize))
        return pixels.reshape([*pixels.shape[:2], self._section.channels])


def _resized(image: Any, size: tuple[int, int], resize: Resize) -> Any:
    from PIL import Image, ImageOps

    wanted = size[1], size[0]
    if image.size == wanted:
        return image
    if resize == "stretch":
        return image.resize(wanted, Image.Resampling.BILINEAR, reducing_gap=_GAP)
    return (ImageOps.fit if resize == "crop" else ImageOps.pad)(image, wanted, Image.Resampling.BILINEAR)


def _listed(folder: str, classes: Sequence[str]) -> dict[str, list[str]]:
    """Returns for each class the paths of its images below `folder`, sorted; hidden files are left out.

    Raises:
      DataError: a class has no folder or no image, or an image is in no class.
    """
    folders = _folders_in(folder)
    if stray := sorted(filter(_is_image, {*glob.glob("*", root_dir=folder)} - {*folders})):
        what = f"has images that lie in {folder!r} itself: {first_few(stray)}"
        raise DataError(f"{what}; move each into the folder of its class", field="folder")
    if not classes and folders and _SPLITS.issuperset(name.lower() for name in folders):
        what = f"{folder!r} has no folders of classes but of splits: {first_few(folders)}"
        fix = f"name one of them, {os.path.join(folder, folders[0])}; or, if they are classes, name them in `classes`"
        raise DataError(f"{what}; {fix}", field="folder")
    images: dict[str, list[str]] = {}
    for name in classes or folders:
        if name not in folders and not set(classes).issuperset(folders):
            hint = did_you_mean(name, folders, otherwise=f"; it has {first_few(folders) or 'none'}")
            raise DataError(f"{name!r} is no folder in {folder!r}{hint}", field="classes")
        below = glob.glob("**", root_dir=os.path.join(folder, name), recursive=True)
        images[name] = [os.path.join(name, path) for path in sorted(below) if _is_image(path)]
        if not images[name] and not classes:
            what = f"the class {name!r} has no image in {folder!r}"
            raise DataError(f"{what}; remove its folder, or name all classes in `classes`", field="folder")
    if not any(images.values()):
        raise DataError(f"{folder!r} has no image in a folder of a class, as in rose/1.jpg", field="folder")
    return images


def _folders_in(folder: str) -> list[str]:
    return sorted(os.path.dirname(path) for path in glob.glob("*/", root_dir=folder))


def _is_image(path: str) -> bool:
    return path.lower().endswith(_ENDINGS)
