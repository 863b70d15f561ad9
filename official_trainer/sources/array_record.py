"""`type: array_record`: ArrayRecord files, whose records are read by their number.

Owns: reading them with the library `array_record`, and what it says about damage. Does not own: parsing records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, ClassVar

from official_trainer.config import SourceConfig
from official_trainer.errors import first_line
from official_trainer.inputs import DataError, Source
from official_trainer.sources import paths
from official_trainer.sources.records import RecordFiles

_THREADS = 16
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # for random access


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayRecordConfig(SourceConfig):
    """ArrayRecord files, read by the number of a record.

    An example is a record, bytes. `parse_fn` of `inputs.from_source` parses them with TensorFlow, such as a
    `tf.train.Example`; `transforms` in Python, such as JSON.

    Attributes:
      files: path or pattern of local files, or a list of them; written with `group_size:1`, or else reading a record
        decodes the whole group that it is in.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("array_record",)
    INSTALL: ClassVar[str] = "official-trainer[array_record]"

    files: str | tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from paths.problems("files", self.files)

    def build(self) -> Source:
        files = paths.find(self.files)
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            return ArrayRecordSource(files, list(pool.map(_count, files)), _reader)


class ArrayRecordSource(RecordFiles):
    """Records by their number."""

    def read(self, number: int, records: Sequence[int]) -> Sequence[bytes]:
        try:
            return self.opened(self.files[number]).read(records)
        except RuntimeError as error:
            if len(records) > 1:  # it does not say which
                return [self.read(number, [record])[0] for record in records]
            raise DataError(f"{self.location(number, records[0])}: {first_line(error)}") from error


def _reader(path: str) -> Any:
    from array_record.python import array_record_module

    return array_record_module.ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=32 << 10)


def _count(path: str) -> int:
    """Returns the number of records in a file.

    Raises:
      DataError: it is damaged. The library then says that it has no record.
    """
    try:
        reader = _reader(path)
        if not reader.ok():
            reader.read([0])
            raise RuntimeError("the file is not ok")  # without a reason, where it was cut to exactly 64 KiB
        count: int = reader.num_records()
        return count
    except RuntimeError as error:
        what = "its end, which says where records are, cannot be read; it is damaged, or no ArrayRecord file"
        message = f"{path}: {what}; write or copy it again. array_record says: {first_line(error)}"
        raise DataError(message, field="files") from error
