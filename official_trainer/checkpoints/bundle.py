"""TensorFlow's checkpoint files, written straight from memory to the disk; the checksums in an index.

Owns: copying values into the memory of a store, and the format of the two files (`.data-00000-of-00001`, `.index`).
They are those of `tf.train.Checkpoint.write`, to the byte.
Does not own: which values are saved, and when they count (`store.py`).

TensorFlow's own writer copies each value twice and leaves a copy in the page cache, whose pages the kernel allocates at
the save and frees when the checkpoint is deleted; and while it holds the values, each step allocates new memory for
what it changes. All of that slows the steps beside a save. Here values are copied once, into memory that is kept from
one save to the next, in the order of the file; the disk reads it from there.

The index is a table of LevelDB: blocks of sorted keys, each key without what it shares with the one before, and an
index of the blocks. A value's entry has its place in the data file and its checksum (CRC-32C), which TensorFlow
compares whenever it reads the value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.lazy import LazyModule, tf

if TYPE_CHECKING:  # a store is imported without NumPy
    import google_crc32c
    import numpy as np
else:
    google_crc32c, np = LazyModule("google_crc32c"), LazyModule("numpy")

_CHUNK_BYTES = 8 << 20
_PAGE_BYTES = 4096  # places, lengths and addresses of writes around the page cache are multiples of it
_BLOCK_BYTES = 1 << 18
_KEYS_PER_RESTART = 16
_BLOCK_TRAILER_BYTES = 5
_PLACES_BYTES = 40
_TABLE_MARK = 0xDB4775248B80FB57
_INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_DTYPES = {*_INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string"}


class Memory:
    """Memory for one data file, which is kept: allocating its pages takes longer than copying the values."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def of_bytes(self, size: int) -> np.ndarray:
        """Returns the first `size` bytes, from the start of a page. What was returned before is overwritten."""
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(self._map, np.uint8, size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Value:
    """A value in the data file.

    Attributes:
      dtype: number of the dtype.
      shape: of the value.
      start: of its bytes in the file.
      content: its bytes.
      checksum: where it is not that of the bytes; else None.
    """

    dtype: int
    shape: tuple[int, ...]
    start: int
    content: np.ndarray
    checksum: int | None


def is_writable(tensors: Mapping[str, Any]) -> bool:
    """Whether all values are tensors of dtypes whose format is known here."""
    return all(tf.is_tensor(tensor) and tensor.dtype.name in _DTYPES for tensor in tensors.values())


class Bundle:
    """The values of one checkpoint, in memory."""

    def __init__(self, tensors: Mapping[str, Any], memory: Memory) -> None:
        """Copies the values.

        Args:
          tensors: eager tensors on the host by key, for which `is_writable` holds.
          memory: where the values are until the next bundle is made with it.
        """
        self._values: dict[str, _Value] = {}
        contents = {key: _content_of(tensor) for key, tensor in tensors.items()}
        self._data, end = memory.of_bytes(sum(len(content) for content, _ in contents.values())), 0
        for key, (content, checksum) in contents.items():
            start, end = end, end + len(content)
            np.copyto(self._data[start:end], content)
            self._values[key] = _Value(
                dtype=tensors[key].dtype.as_datatype_enum,
                shape=tuple(tensors[key].shape),
                start=start,
                content=self._data[start:end],
                checksum=checksum,
            )

    def write(self, prefix: str) -> None:
        """Writes both files in place of what is there; any thread may call it.

        Raises:
          OSError: the disk is full, fails, or takes nothing.
        """
        with files.open_file(f"{prefix}.data-00000-of-00001", "wb") as file:
            _write(file.fileno(), self._data)
        with files.open_file(f"{prefix}.index", "wb") as file:
            file.write(self._index())

    def _index(self) -> bytes:
        """Returns the content of the index."""
        entries = {b"": _HEADER}
        for key, value in self._values.items():
            checksum = _checksum(value.content) if value.checksum is None else value.checksum
            entries[key.encode()] = _entry(value, checksum)
        return _table(entries)


def _write(descriptor: int, data: np.ndarray) -> None:
    """Writes to a new file: whole pages around the page cache, where the file system allows that, and then the rest."""
    start, whole = 0, len(data) // _PAGE_BYTES * _PAGE_BYTES
    is_direct = _set_direct(descriptor, on=True)
    while start < len(data):
        if is_direct and start >= whole:
            is_direct = _set_direct(descriptor, on=False)
        end = min(start + _CHUNK_BYTES, whole if is_direct else len(data))
        try:
            written = os.pwrite(descriptor, data[start:end].data, start)
        except OSError as error:
            if not is_direct or error.errno != errno.EINVAL:
                raise
            written = 0  # a disk whose blocks are larger
        progress = written // _PAGE_BYTES * _PAGE_BYTES if is_direct else written
        if not progress and not is_direct:
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # a disk that takes nothing: this would go on for ever
        is_direct = is_direct and (bool(progress) or _set_direct(descriptor, on=False))
        start += progress


def _set_direct(descriptor: int, *, on: bool) -> bool:
    """Makes writes to a file go around the page cache, or not any more; returns whether they do."""
    if not hasattr(os, "O_DIRECT"):
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False  # this file system has no such writes
    return on


def _content_of(tensor: Any) -> tuple[np.ndarray, int | None]:
    """Returns the bytes of a value, as they are stored, and their checksum if it is another than that of the bytes."""
    if tensor.dtype != tf.string:
        array = np.asarray(tensor if tensor.shape.rank else tensor.numpy())  # shares the tensor's memory
        return array.reshape(-1).view(np.uint8), None
    strings = [bytes(each) for each in np.asarray(tensor.numpy(), object).reshape(-1)]
    # In the checksum, lengths of 4 GiB and more are counted with 8 bytes.
    counted = b"".join(struct.pack("<I" if len(each) < 1 << 32 else "<Q", len(each)) for each in strings)
    after_lengths = struct.pack("<I", _masked(_checksum(counted))) + b"".join(strings)
    content = b"".join(_varint(len(each)) for each in strings) + after_lengths
    return np.frombuffer(content, np.uint8), _checksum(after_lengths, _checksum(counted))


# Protocol buffers, whose classes TensorFlow does not load: each field that is not 0, after its number and kind.

_CHECKSUM_FIELD = bytes([6 << 3 | 5])
"""What the checksum, the last field of an entry, follows; that of a value in slices has others behind it."""

_HEADER = bytes([1 << 3, 1, 3 << 3 | 2, 2, 1 << 3, 1])
"""A `BundleHeaderProto` of one shard, in the first version of the format."""


def _entry(value: _Value, checksum: int) -> bytes:
    """Returns the `BundleEntryProto` of a value."""
    shape = tf.TensorShape(value.shape).as_proto().SerializeToString()
    content = _number(1, value.dtype) + bytes([2 << 3 | 2]) + _varint(len(shape)) + shape
    content += _number(4, value.start) + _number(5, len(value.content))
    masked = _masked(checksum)
    return content + _CHECKSUM_FIELD + struct.pack("<I", masked) if masked else content


def _number(field: int, number: int) -> bytes:
    return bytes([field << 3]) + _varint(number) if number else b""


# Tables of LevelDB, uncompressed.


class _Block:
    """Keys, each but every n-th without what it shares with the one before, and their values."""

    def __init__(self, keys_per_restart: int) -> None:
        self._keys_per_restart = keys_per_restart
        self._content = bytearray()
        self._restarts = [0]
        self._count = 0
        self.last_key = b""

    def __len__(self) -> int:
        return len(self._content) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        """Adds an entry."""
        if self._count == self._keys_per_restart:
            self._restarts.append(len(self._content))
            self._count = 0
        shared = _num_shared(self.last_key, key) if self._count else 0
        self._content += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        self._count += 1
        self.last_key = key

    def to_bytes(self) -> bytes:
        """Returns the block as it is stored, with its checksum."""
        restarts = struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        content = bytes(self._content) + restarts + b"\0"  # not compressed
        return content + struct.pack("<I", _masked(_checksum(content)))


def _table(entries: Mapping[bytes, bytes]) -> bytes:
    """Returns the content of a table of entries, whose keys are put in order."""
    content = bytearray()

    def place_of(block: _Block) -> bytes:
        """Appends a block, and returns where it is."""
        start, stored = len(content), block.to_bytes()
        content.extend(stored)
        return _varint(start) + _varint(len(stored) - _BLOCK_TRAILER_BYTES)

    block, blocks = _Block(_KEYS_PER_RESTART), _Block(1)
    keys = sorted(entries)
    for number, key in enumerate(keys):
        block.add(key, entries[key])
        following = keys[number + 1] if number + 1 < len(keys) else None
        is_large = following is not None and len(following) + len(entries[following]) >= 2 * _BLOCK_BYTES
        if following is None or is_large or len(block) >= _BLOCK_BYTES:
            blocks.add(_separator(key, following), place_of(block))
            block = _Block(_KEYS_PER_RESTART)
    places = place_of(_Block(_KEYS_PER_RESTART)) + place_of(blocks)  # of an empty block, and of the index of blocks
    return bytes(content) + places.ljust(_PLACES_BYTES, b"\0") + struct.pack("<Q", _TABLE_MARK)


def _separator(key: bytes, following: bytes | None) -> bytes:
    """Returns a short key that is not below `key`, and below `following`, the first one of the next block."""
    if following is None:
        number = next((n for n, byte in enumerate(key) if byte != 0xFF), len(key))
        return key[:number] + bytes([key[number] + 1]) if number < len(key) else key
    number = _num_shared(key, following)
    if number < len(key) and key[number] + 1 < following[number]:  # so it is not 0xFF
        return key[:number] + bytes([key[number] + 1])
    return key


def _num_shared(key: bytes, other: bytes) -> int:
    """Returns how many bytes two keys begin with alike."""
    differing = (n for n, (byte, of_other) in enumerate(zip(key, other, strict=False)) if byte != of_other)
    return next(differing, min(len(key), len(other)))


def _varint(number: int) -> bytes:
    content = bytearray()
    while number >= 0x80:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


# Checksums.


def _checksum(content: bytes | np.ndarray, before: int = 0) -> int:
    """Returns the CRC-32C of `content`, following what has the checksum `before`."""
    return google_crc32c.extend(before, content)


def _masked(checksum: int) -> int:
    """Returns a checksum as it is stored, so that one can be computed of what holds others."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Reading the checksums of an index.


def checksum_of(tensor: tf.Tensor) -> int:
    """Returns the checksum of an eager tensor's value, as an index stores it."""
    content, checksum = _content_of(tensor)
    return _masked(_checksum(content) if checksum is None else checksum)


def stored_checksums(index: bytes) -> dict[str, int]:
    """Returns the checksum of each value by its key, from the content of an index; of none that is stored in slices.

    Raises:
      ValueError: it is no index of a checkpoint.
    """
    if struct.unpack("<Q", index[-8:])[0] != _TABLE_MARK:
        raise ValueError("not an index of a checkpoint")
    _, _, start, size = _read_numbers(index, len(index) - _PLACES_BYTES - 8, 4)[0]
    found: dict[str, int] = {}
    for _, place in _entries(index, start, size):
        for key, value in _entries(index, *_read_numbers(place, 0, 2)[0]):
            if key and value[-5:-4] == _CHECKSUM_FIELD:  # the first key has the header; slices come last
                found[key.decode()] = struct.unpack("<I", value[-4:])[0]
    return found


def _entries(table: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block, which is not compressed."""
    end = start + size - 4 * struct.unpack_from("<I", table, start + size - 4)[0] - 4
    key = b""
    while start < end:
        (shared, added, length), start = _read_numbers(table, start, 3)
        key, start = key[:shared] + table[start : start + added], start + added + length
        yield key, table[start - length : start]


def _read_numbers(content: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Returns the next numbers from a place on, and the place behind them."""
    numbers = []
    for _ in range(count):
        number = shift = 0
        while (byte := content[place]) >= 0x80:
            number, place, shift = number | (byte & 0x7F) << shift, place + 1, shift + 7
        numbers.append(number | byte << shift)
        place += 1
    return numbers, place
