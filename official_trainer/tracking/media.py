"""Values that are recorded in addition to numbers: histograms, images, texts, tables.

Owns: these classes, and copying their values to the host, as NumPy arrays that do not change afterwards.
Does not own: how a tracker shows them. Importing this imports neither NumPy nor TensorFlow.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from official_trainer.errors import UserError

HISTOGRAM_BUCKETS = 64


class MediaError(UserError, TypeError):
    """A published value that cannot be shown."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of the values of an array of numbers, of any shape; those that are not finite are left out.

    Attributes:
      values: an array or tensor of numbers.

    Example:
      >>> import numpy as np
      >>> from official_trainer.tracking import Histogram
      >>> counts, edges = Histogram(np.array([0.0, 0.1, 0.9, 1.0])).buckets()
      >>> int(counts.sum()), len(edges)
      (4, 65)
    """

    values: Any

    def buckets(self) -> tuple[Any, Any]:
        """Returns how many values are in each of `HISTOGRAM_BUCKETS`, float64 `[buckets]`, and its edges, one more.

        Only for values on the host, as trackers get them.
        """
        import numpy as np

        if not self.values.size:
            return np.zeros(HISTOGRAM_BUCKETS), np.zeros(HISTOGRAM_BUCKETS + 1)
        bounds = float(self.values.min()), float(self.values.max())
        counts, edges = np.histogram(self.values, bins=HISTOGRAM_BUCKETS, range=bounds)
        return counts.astype(np.float64), edges.astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Image:
    """A picture.

    Attributes:
      pixels: `[height, width, channels]`, one to four channels; uint8, or floats from 0 (dark) to 1.

    Example:
      >>> import numpy as np
      >>> from official_trainer.tracking import Image
      >>> image = Image(np.zeros([8, 8, 3], np.uint8))
      >>> image.picture().size
      (8, 8)
    """

    pixels: Any

    def picture(self) -> Any:
        """Returns an image of Pillow's; only for pixels on the host, as trackers get them."""
        from PIL import Image as pillow  # installed with TensorBoard, which is installed with TensorFlow

        return pillow.fromarray(self.pixels[:, :, 0] if self.pixels.shape[2] == 1 else self.pixels)

    def png(self) -> bytes:
        """Returns the picture as a PNG file."""
        written = io.BytesIO()
        self.picture().save(written, "PNG")
        return written.getvalue()


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in Markdown.

    Attributes:
      markdown: the text.

    Example:
      >>> from official_trainer.tracking import Text, Tracker
      >>> text = Text("**to be or** not to be")
      >>> tracker = Tracker()  # in an action: run.tracker
      >>> tracker.publish("samples", 100, {"greedy": text})
    """

    markdown: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under the names of their columns.

    Attributes:
      columns: their names.
      rows: each as long as `columns`; cells are numbers or texts.

    Example:
      >>> from official_trainer.tracking import Table
      >>> print(Table(["word", "count"], [["a|b", 3], ["c", 1]]).markdown())
      | word | count |
      |---|---|
      | a&#124;b | 3 |
      | c | 1 |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = [[str(cell).replace("|", "&#124;").replace("\n", "<br>") for cell in line] for line in lines]
        head, rule, *rows = ["|".join(line) if line == cells[1] else " | ".join(line) for line in cells]
        return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {row} |" for row in rows)])


Media = Histogram | Image | Text | Table
"""What a tracker can show in addition to numbers."""


def on_host(name: str, thing: Any) -> Media:
    """Returns media with NumPy arrays: the finite values of a histogram as one row, pixels as uint8.

    Raises:
      MediaError: it is not media, or cannot be shown; names what is allowed.
    """
    if isinstance(thing, Histogram):
        return Histogram(_finite(name, thing.values))
    if isinstance(thing, Image):
        return Image(_pixels(name, thing.pixels))
    if isinstance(thing, Text):
        return thing
    if isinstance(thing, Table):
        columns = tuple(map(str, thing.columns))
        for row in thing.rows:
            if len(row) != len(columns):
                raise MediaError(
                    f"table {name!r} has {len(columns)} columns ({', '.join(columns)}) and a row of {len(row)} cells; "
                    "give each row one cell for each column"
                )
        return Table(columns, tuple(tuple(map(_cell, row)) for row in thing.rows))
    given = type(thing).__name__
    raise MediaError(f"{name!r} is a {given}; what is published is a Histogram, an Image, a Text or a Table")


def _cell(cell: Any) -> Any:
    cell = cell.numpy() if hasattr(cell, "numpy") else cell
    cell = cell.item() if getattr(cell, "shape", None) == () else cell  # a scalar of NumPy
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell if isinstance(cell, bool | int | float | str) else str(cell)


def _array(values: Any) -> Any:
    import numpy as np

    return np.asarray(values.numpy() if hasattr(values, "numpy") else values)


def _finite(name: str, values: Any) -> Any:
    import numpy as np

    array = _array(values).ravel()
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float32)  # NumPy has no bfloat16 and similar types
        except (TypeError, ValueError):
            raise MediaError(f"histogram {name!r} is of {array.dtype}; a histogram is of numbers") from None
    elif array.dtype == np.float16 or array.dtype == np.bool_:
        array = array.astype(np.float32)
    return array[np.isfinite(array)]


def _pixels(name: str, values: Any) -> Any:
    import numpy as np

    array = _array(values)
    if array.ndim != 3 or not 1 <= array.shape[2] <= 4 or 0 in array.shape:
        raise MediaError(
            f"image {name!r} has shape {list(array.shape)}; an image is [height, width, channels] with one to four "
            "channels: publish those of a batch one by one"
        )
    if array.dtype == np.uint8:
        return array.copy()
    if array.dtype.kind in "iu":
        raise MediaError(f"image {name!r} is of {array.dtype}; pixels are uint8, or floats between 0 and 1")
    return (np.nan_to_num(array.astype(np.float32)).clip(0, 1) * 255).round().astype(np.uint8)
