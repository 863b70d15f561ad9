"""Sequences packed into rows of one length, and how long the sequences of a source are.

Owns: `Packed`, its plan of which example is in which row, `lengths_of`, `Mapped`. Does not own: the order of rows
(`order.py`, `grouped.py`).

The plan is made once, from the lengths alone: the longest first, each into the fullest row that has space for it. That
takes about a second for a million examples.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer.inputs.context import DataError
from official_trainer.inputs.source import Batched, Source, adopt, as_array
from official_trainer.nearest import no_choice

_logger = logging.getLogger(__name__)

TOKENS: Mapping[str, Any] = types.MappingProxyType({"tokens": 0})
_READ = 1024  # examples in one call


class Mapped(Source):
    """The examples of a source, changed by a function: what has to happen before packing, or before mixing.

    Example:
      >>> from official_trainer.inputs import Mapped
      >>> Mapped(["a b", "c"], lambda text: {"tokens": text.split()})[1]
      {'tokens': ['c']}
    """

    def __init__(self, source: Any, function: Callable[[Any], Any]) -> None:
        """Takes the source and `function(example) -> example`."""
        self._source, self._function = without_weights(source, "Mapped"), function
        self.groups = self._source.groups

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._function(self._source[index])

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        return [self._function(example) for example in self._source.__getitems__(indices)]

    def where(self, index: int) -> str:
        return self._source.where(index)

    def fingerprint(self) -> str:
        return self._source.fingerprint()


class Packed(Batched):
    """Rows of one length, each of several whole examples, one after the other, then padding.

    A row is a dict: each packed field `[length, …]`; `segment_ids`, int32, which number the examples of a row from 1,
    with 0 for padding; and `positions`, int32, which begin at 0 with each example. Other fields are left out. Which
    examples share a row depends on the lengths and the seed alone; with a source in groups, each group is packed by
    itself. A shuffle then permutes rows.

    Attributes:
      lengths: of each example, `[examples]` int64; give it to the next start, which then reads no example to learn it.
      padding_share: how much of all rows is padding.

    Example:
      >>> from official_trainer import inputs
      >>> packed = inputs.Packed([{"tokens": [5, 6, 7]}, {"tokens": [8] * 4}, {"tokens": [9]}], 4)
      >>> packed[0]["tokens"].tolist(), packed[0]["segment_ids"].tolist(), packed[0]["positions"].tolist()
      ([5, 6, 7, 9], [1, 1, 1, 2], [0, 1, 2, 0])
    """

    def __init__(
        self,
        source: Any,
        length: int,
        *,
        fields: Mapping[str, Any] = TOKENS,
        lengths: Any = None,
        too_long: Literal["error", "split"] = "error",
        seed: int = 0,
    ) -> None:
        """Plans the rows.

        Args:
          source: as for `from_source`; its examples are dicts. Of a mixture pack the parts.
          length: of a row.
          fields: what is packed, each with its value for padding. In an example all have the same length.
          lengths: of each example, `[examples]` integers; None has all examples read once, which is logged.
          too_long: whether longer examples are refused, or split into rows of their own and a rest.
          seed: of which examples share a row.

        Raises:
          DataError: an example is too long or cannot be read, no example has a token, the lengths are of other data, or
            `too_long` is another word.
        """
        import numpy as np

        if wrong := no_choice(too_long, ("error", "split")):
            raise DataError(f"Packed(): too_long: {wrong}; to leave examples out, cut or filter the source before")
        if clash := [name for name in ("segment_ids", "positions") if name in fields]:
            raise DataError(f"Packed(): '{clash[0]}' is a field that packing adds; give yours another name")
        self._source, self._length, self._fields = without_weights(source, "Packed"), length, dict(fields)
        self.lengths = _checked_lengths(self._source, next(iter(fields)), lengths)
        if too_long == "error":
            _refuse_longer(self._source, next(iter(fields)), self.lengths, length, "set too_long='split'")
        pieces = -(-self.lengths // length)
        examples = np.repeat(np.arange(len(pieces)), pieces)
        begins = (np.arange(len(examples)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
        sizes = np.minimum(self.lengths[examples] - begins, length)
        random = np.random.RandomState(np.frombuffer(hashlib.sha256(b"packing/%d" % seed).digest(), np.uint32))
        spans = np.cumsum(pieces)[np.cumsum(self._source.groups or [len(pieces)]) - 1]
        packed = [_rows_of(part, length, random) for part in np.split(sizes, spans[:-1])]
        self._starts = np.cumsum([0, *(count for _, counts in packed for count in counts)])
        firsts = np.cumsum([0, *(len(order) for order, _ in packed)])
        order = np.concatenate([order + first for (order, _), first in zip(packed, firsts[:-1], strict=True)])
        if len(order) == 0:
            raise DataError(f"Packed(): no example of {type(source).__name__} has a token in {next(iter(fields))}")
        small = np.int32 if len(pieces) < 2**31 else np.int64
        self._examples, self._begins = examples[order].astype(small), begins[order].astype(np.int32)
        self.groups = [len(counts) for _, counts in packed if len(counts)] if self._source.groups else ()
        self.padding_share = 1 - float(sizes.sum()) / (len(self) * length)
        text = "packed %s examples into %s rows of %d; %.1f %% of them is padding"
        _logger.info(text, f"{len(pieces):,}", f"{len(self):,}", length, 100 * self.padding_share)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def take(self, indices: Sequence[int]) -> Any:
        import numpy as np

        spans = [slice(self._starts[row], self._starts[row + 1]) for row in indices]
        needed = [index for span in spans for index in self._examples[span].tolist()]
        read = named_examples(self._source, needed)
        shape = [len(indices), self._length]
        batch = {"segment_ids": np.zeros(shape, np.int32), "positions": np.zeros(shape, np.int32)}
        for row, span in enumerate(spans):
            first = 0
            for segment, begin in enumerate(self._begins[span].tolist(), 1):
                index, example = next(read)
                stop = first + min(int(self.lengths[index]) - begin, self._length)
                for name, padding in self._fields.items():
                    values = self._values(index, example, name)
                    if name not in batch:
                        batch[name] = np.full([*shape, *values.shape[1:]], padding, values.dtype)
                    expected = batch[name].dtype, (int(self.lengths[index]), *batch[name].shape[2:])
                    if (actual := (values.dtype, values.shape)) != expected:
                        has, needs = (f"{spec[0]} {list(spec[1])}" for spec in (actual, expected))
                        raise ValueError(f"{self._source.where(index)}: {name} is {has}, and {needs} is expected")
                    batch[name][row, first:stop] = values[begin : begin + stop - first]
                batch["segment_ids"][row, first:stop] = segment
                batch["positions"][row, first:stop] = np.arange(stop - first)
                first = stop
        return batch

    def where(self, index: int) -> str:
        return f"row {index} of {len(self):,} packed ones"

    def fingerprint(self) -> str:
        plan = hashlib.sha256(str(self._length).encode())
        for part in (self.lengths, self._examples, self._begins, self._starts):
            plan.update(part.tobytes())
        return f"{self._source.fingerprint()} {plan.hexdigest()[:16]}".strip()

    def _values(self, index: int, example: Any, name: str) -> Any:
        try:
            return as_array(_field(example, name), name)
        except ValueError as error:
            raise ValueError(f"{self._source.where(index)}: {error}") from error


def lengths_of(source: Any, field: str = "tokens") -> Any:
    """Returns the length of a field of each example, `[examples]` int64; it reads all of them once.

    Args:
      source: as for `from_source`; its examples are dicts.
      field: the name of the field.

    Raises:
      DataError: an example cannot be read, or has no such field; the message names it.

    Example:
      >>> from official_trainer import inputs
      >>> inputs.lengths_of([{"tokens": [5, 6, 7]}, {"tokens": [8]}]).tolist()
      [3, 1]
    """
    import numpy as np

    adopted = adopt(source)
    hint = "keep them with numpy.save, and pass lengths=numpy.load(…) at the next start"
    _logger.info("reading %s examples to learn the lengths of '%s'; %s", f"{len(adopted):,}", field, hint)
    lengths = np.zeros(len(adopted), np.int64)
    for first in range(0, len(adopted), _READ):
        for index, example in named_examples(adopted, range(first, min(first + _READ, len(adopted)))):
            try:
                lengths[index] = len(_field(example, field))
            except (TypeError, ValueError) as error:
                raise DataError(f"{adopted.where(index)}: {error}") from error
    return lengths


def _checked_lengths(source: Source, field: str, lengths: Any) -> Any:
    """Returns the lengths that were given, `[examples]` int64, or measures them.

    Raises:
      DataError: they are of other data, or no lengths.
    """
    import numpy as np

    if lengths is None:
        return lengths_of(source, field)
    given = np.asarray(lengths)
    if given.shape != (len(source),) or given.dtype.kind not in "iu" or (given < 0).any():
        what = f"lengths must be {len(source):,} whole numbers from 0, got {given.dtype} {list(given.shape)}"
        raise DataError(f"{what}; measure them again with inputs.lengths_of(source, '{field}')")
    return given.astype(np.int64)


def _refuse_longer(source: Source, field: str, lengths: Any, most: int, fix: str) -> None:
    """Refuses examples that are longer than `most`.

    Raises:
      DataError: names the first of them, and how many there are.
    """
    longer = (lengths > most).nonzero()[0]
    if len(longer):
        first, others = int(longer[0]), f", as have {len(longer) - 1:,} others" if len(longer) > 1 else ""
        what = f"{field} has {int(lengths[first]):,} items, more than {most:,}{others}"
        raise DataError(f"{source.where(first)}: {what}; cut them, or {fix}")


def named_examples(source: Source, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Returns examples with their numbers.

    Raises:
      DataError: one cannot be read; the message has its place.
    """
    try:
        return zip(indices, source.__getitems__(indices), strict=True)
    except Exception:
        for index in indices:
            try:
                source[index]
            except Exception as error:
                raise DataError(f"{source.where(index)}: {error}") from error
        raise


def without_weights(source: Any, what: str) -> Source:
    """Returns a source whose examples may be taken in any order.

    Raises:
      DataError: it is a mixture, whose weights would be lost.
    """
    adopted = adopt(source)
    if type(adopted).training_order is not Source.training_order:
        raise DataError(f"{what}() of a mixture would lose its weights; use it for each part, and mix those")
    return adopted


def _field(example: Any, name: str) -> Any:
    if not isinstance(example, Mapping):
        raise ValueError(f"it is a {type(example).__name__}, and no dict with a field '{name}'")
    if name not in example:
        raise ValueError(f"it has no field '{name}', only {', '.join(map(str, example))}")
    return example[name]


def _rows_of(sizes: Any, length: int, random: Any) -> tuple[Any, Any]:
    """Returns pieces row by row, and how many each row has; rows are in the order of their first piece."""
    import numpy as np

    shuffled = random.permutation(len(sizes))
    longest_first = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    row_of, num_rows = np.zeros(len(sizes), np.int64), 0
    rows_with: dict[int, list[int]] = {}  # of a space
    spaces: list[int] = []  # rising, of the rows that have some
    for piece, size in zip(longest_first.tolist(), sizes[longest_first].tolist(), strict=True):
        at = bisect.bisect_left(spaces, size)
        if at < len(spaces):
            space = spaces[at]
            row = rows_with[space].pop()
            if not rows_with[space]:
                del spaces[at], rows_with[space]
        else:
            space, row, num_rows = length, num_rows, num_rows + 1
        row_of[piece] = row
        if (left := space - size) and left not in rows_with:
            rows_with[left] = []
            bisect.insort(spaces, left)
        if left:
            rows_with[left].append(row)
    _, first_of = np.unique(row_of, return_index=True)
    rank = np.argsort(np.argsort(first_of))[row_of]
    return np.argsort(rank, kind="stable"), np.bincount(rank, minlength=num_rows)
