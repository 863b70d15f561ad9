"""What can happen to the files of a checkpoint."""

from pathlib import Path

PARTS = {"index": ".index", "data": ".data-00000-of-00001", "manifest": ".manifest.json"}


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
