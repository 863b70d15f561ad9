"""`type: tfrecord`: TFRecord files whose records are read by their number, with an index that is made once.

Owns: the index of a file, reading a record with its checksums, what is wrong with either. Does not own: TFRecord files
that are read from their beginning (`inputs/records.py`).

An index is a cache: where it is missing, does not fit its file or cannot be kept, it is made. Several processes may
make it at the same time, because each writes a file of its own, which then replaces the index.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent import futures
from hashlib import blake2b

from official_trainer import files
from official_trainer.config import SourceConfig
from official_trainer.inputs import DataError, Source
from official_trainer.sources import paths
from official_trainer.sources.records import RecordFiles

_HEADER = struct.Struct("<QI")  # of a record: its length, and the checksum of that; then the data, and their checksum
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_AROUND_DATA_BYTES = _HEADER.size + _CHECKSUM.size
_INDEX = struct.Struct("=8sQqQI")  # a word, size and time of the file, number of offsets, their checksum
_WORD = b"tfrindx1"
_THREADS = 16
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfrecordConfig(SourceConfig):
    """TFRecord files, read by the number of a record: shuffled fully, in the same order on any number of hosts.

    An example is a serialized record. `inputs.from_tfrecords(params, …, parse_fn=…)` parses them with TensorFlow, and
    so does `inputs.from_source`.

    Attributes:
      files: path or pattern of local files without compression, or a list of them.
      index_folder: folder for the indexes, 8 bytes a record; unset means beside the files, as `.NAME.index`.
    """

    files: str | tuple[str, ...] = ()
    index_folder: str = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from paths.problems("files", self.files)
        if self.index_folder:
            yield from paths.problems("index_folder", self.index_folder)

    def build(self) -> Source:
        names = paths.find(self.files)
        index_paths = [_index_path(path, self.index_folder) for path in names]
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            indexed = list(pool.map(_index, names, index_paths))
        if unkept := [reason for _, reason in indexed if reason]:
            what = (
                f"the index of {len(unkept)} TFRecord files cannot be kept ({unkept[0]}), so each start makes it anew"
            )
            paths.say_once(f"{what}; set index_folder to a folder that can be written", is_warning=True)
        return TfrecordSource(names, [starts for starts, _ in indexed])


class TfrecordSource(RecordFiles):
    """Records by their number."""

    def __init__(self, names: Sequence[str], starts: Sequence[array.array[int]]) -> None:
        """Takes the paths, and for each where its records begin, and the last one ends."""
        counts = [len(starts_of_file) - 1 for starts_of_file in starts]
        super().__init__(names, counts, functools.partial(open, mode="rb", buffering=0))
        self._starts = starts

    def location(self, number: int, record: int) -> str:
        return _location(self.files[number], record, self._starts[number][record])

    def read(self, number: int, records: Sequence[int]) -> Sequence[bytes]:
        import google_crc32c

        file, starts = self.opened(self.files[number]), self._starts[number]  # the name keeps the file open meanwhile
        descriptor = file.fileno()
        serialized: list[bytes] = []
        read, header, checksum_of, packed = os.pread, _header, google_crc32c.value, _CHECKSUM.pack
        before, after = _HEADER.size, -_CHECKSUM.size
        for record in records:  # a tenth of a microsecond counts here, so all of this is in hand
            start = starts[record]
            size = starts[record + 1] - start
            content = read(descriptor, size, start)
            data = content[before:after]
            if len(content) < size:
                raise self._damage(number, record, "the file ends within it;")
            if not content.startswith(header(len(data))):
                what = "its length is damaged, or the file was changed after its index was made; remove the index, or"
                raise self._damage(number, record, what)
            if not content.endswith(packed(_masked(checksum_of(data)))):
                raise self._damage(number, record, "its data do not fit their checksum;")
            serialized.append(data)
        return serialized

    def _damage(self, number: int, record: int, reason: str) -> DataError:
        return DataError(f"{self.location(number, record)}: {reason} write or copy the file again")


def _location(path: str, record: int, start: int) -> str:
    return f"{path}: record {record}, offset {start}"


def _masked(checksum: int) -> int:
    """Returns a checksum as TFRecord has it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _checksum_of(content: bytes) -> int:
    import google_crc32c

    return _masked(google_crc32c.value(content))


@functools.lru_cache(maxsize=1 << 16)
def _header(length: int) -> bytes:
    """Returns what is before the data of a record: their length, and its checksum."""
    return _HEADER.pack(length, _checksum_of(_LENGTH.pack(length)))


def _index_path(path: str, folder: str) -> str:
    above, name = os.path.split(path)
    if not folder:
        return os.path.join(above, f".{name}.index")
    key = blake2b(os.path.abspath(path).encode(), digest_size=6).hexdigest()
    return os.path.join(os.path.expanduser(folder), f"{name}-{key}.index")


def _index(path: str, index_path: str) -> tuple[array.array[int], str]:
    """Returns where the records of a file begin, and why its index cannot be kept, if that is so."""
    stat = os.stat(path)
    if (kept := _kept(index_path, stat)) is not None:
        return kept, ""
    starts = _starts(path)
    content = starts.tobytes()
    try:
        files.make_dirs(os.path.dirname(index_path) or ".")
        files.write_bytes_atomically(index_path, _INDEX.pack(*_index_header(stat, content)) + content, durable=False)
    except OSError as error:
        return starts, f"{index_path}: {files.reason_of(error)}"
    return starts, ""


def _kept(index_path: str, stat: os.stat_result) -> array.array[int] | None:
    """Returns what an index says; None if it is missing, damaged, or of another state of its file."""
    try:
        index = files.read_bytes(index_path)
    except OSError:
        return None
    if len(index) < _INDEX.size:
        return None
    content = index[_INDEX.size :]
    is_current = _INDEX.unpack_from(index) == _index_header(stat, content)
    return array.array("q", content) if is_current else None


def _index_header(stat: os.stat_result, content: bytes) -> tuple[bytes, int, int, int, int]:
    return _WORD, stat.st_size, stat.st_mtime_ns, len(content) // _LENGTH.size, _checksum_of(content)


def _starts(path: str) -> array.array[int]:
    """Returns where the records of a file begin, and the last one ends; reads their headers.

    Raises:
      DataError: a header is damaged, or the file ends within a record.
    """
    starts, end = array.array("q", [0]), 0
    with open(path, "rb", buffering=0) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        while end < size:
            header = os.pread(descriptor, _HEADER.size, end)
            has_header = len(header) == _HEADER.size
            if has_header and header != _header(_HEADER.unpack(header)[0]):
                what = "its length does not fit its checksum"
                hint = "this may not be a TFRecord file at all" if len(starts) == 1 else "write or copy the file again"
                if header.startswith(_GZIP) and len(starts) == 1:
                    hint = "it is compressed by gzip; write it without compression"
                where = _location(path, len(starts) - 1, end)
                raise DataError(f"{where}: {what}; {hint}", field="files")
            after = end + _AROUND_DATA_BYTES + _HEADER.unpack(header)[0] if has_header else size + 1
            if after > size:
                where = _location(path, len(starts) - 1, end)
                raise DataError(f"{where}: the file ends within it; write or copy the file again", field="files")
            starts.append(end := after)
    return starts
