"""What can happen to the files of a checkpoint, and to any file or folder of a run directory."""

import os
import shutil
from pathlib import Path

PARTS = {"index": ".index", "data": ".data-00000-of-00001", "manifest": ".manifest.json"}


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
    }


def flip(position, mask=1):
    def flipped(path):
        data = bytearray(path.read_bytes())
        data[int(position * (len(data) - 1))] ^= mask
        path.write_bytes(data)

    return flipped


def cut(keep):
    return lambda path: path.write_bytes(path.read_bytes()[:keep] if keep < 0 else b"x" * keep)


flipped, truncate = flip(1 / 2), cut(-1)


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut_by_two": cut(-2),
    "cut_in_half": cut_in_half,
    "flipped_first": flip(0),
    "flipped_third": flip(1 / 3, mask=0x20),
    "flipped_middle": flip(1 / 2, mask=0x80),
    "flipped_late": flip(0.97),
}


def _instead(make):
    """Returns a harm that removes what is at a path, and then makes something else there."""

    def replace(path, *_):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return replace


def _flipped(path, *_):
    if path.stat().st_size:
        flip(1 / 2, mask=0x40)(path)


def _swapped(path, *_):
    """Exchanges the contents of a file and its neighbour in the directory."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    if others:
        other = others[0]
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)


def _foreign(path, run, other_run):
    """Puts the file of another run of the same config there."""
    theirs = other_run / path.relative_to(run)
    if not theirs.is_file():  # the name has a time in it
        theirs = next(theirs.parent.glob("*.tfevents.*"))
    shutil.copyfile(theirs, path)


FILE_HARMS = {
    "truncated": lambda path, *_: cut_in_half(path),
    "flipped": _flipped,
    "deleted": lambda path, *_: path.unlink(),
    "zeroed": lambda path, *_: path.write_bytes(bytes(path.stat().st_size)),
    "swapped": _swapped,
    "directory": _instead(Path.mkdir),
    "link": _instead(lambda path: path.symlink_to(path.parent / "nothing" / "here")),
    "foreign": _foreign,
    "empty": lambda path, *_: path.write_bytes(b""),
    "nested": lambda path, *_: path.write_text("[" * 100_000),
    "pipe": _instead(os.mkfifo),
}
"""What is done to one file: each takes its path, the run directory, and that of another run."""

FOLDER_HARMS = {
    "deleted": lambda path, *_: shutil.rmtree(path),
    "file": _instead(Path.touch),
    "link": _instead(lambda path: path.symlink_to(path.parent / "nothing" / "here")),
    "pipe": _instead(os.mkfifo),
}
"""What is done to one folder."""
