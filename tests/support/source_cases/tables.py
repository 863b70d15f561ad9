"""Tables of examples whose `id` is their number, written below a folder, and the section that reads each."""

import numpy as np

from official_trainer.sources.csv import CsvConfig
from official_trainer.sources.hf import HfConfig
from official_trainer.sources.parquet import ParquetConfig


def table(count, first=0):
    """Rows of `id`, `text`, `x` and `pair`, as a table of Arrow."""
    import pyarrow as pa

    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "text": [f"row {number}" for number in ids],
            "x": (ids / 2).astype(np.float32),
            "pair": pa.array([[number, number + 1] for number in ids], pa.list_(pa.int32())),
        }
    )


def parquet(folder, count):
    """Two files, in row groups of 16 rows."""
    import pyarrow.parquet

    for number, rows in enumerate((range(count // 2), range(count // 2, count))):
        part = table(len(rows), rows.start)
        pyarrow.parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=16)
    return ParquetConfig(files=str(folder / "part-*.parquet"))


def csv(folder, count):
    """Two files."""
    for number, rows in enumerate((range(count // 2), range(count // 2, count))):
        lines = ["id,text,x", *(f'{row},"row\n{row}",{row / 2:.1f}' for row in rows)]
        (folder / f"part-{number}.csv").write_text("\n".join(lines) + "\n")
    return CsvConfig(files=str(folder / "part-*.csv"), column_types={"id": "int64", "text": "string", "x": "float32"})


def hf(folder, count):
    """A folder of `save_to_disk`."""
    import datasets

    datasets.Dataset(table(count)).save_to_disk(folder / "dataset")
    return HfConfig(path=str(folder / "dataset"))


CASES = {"parquet": parquet, "csv": csv, "hf": hf}
