"""Columns of Arrow as arrays of numpy, and back, by memory.

Arrow's `to_numpy`, and its functions with Python's numbers, import pandas, which takes longer than a short report.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluice_insight.arrays import Flags, Integers


class Texts(NamedTuple):
    """Distinct values of some columns of texts, "" for null, and the place of those of each row: (n,)."""

    texts: list[tuple[str, ...]]
    text_of: Integers


def field(events: pa.RecordBatch, path: str) -> pa.Array:
    """A column, or a field in it, such as `amounts.bytes`."""
    name, _, inner = path.partition(".")
    return pc.struct_field(events[name], inner.split(".")) if inner else events[name]


def numbers(column: pa.Array, default: int = 0) -> Integers:
    """The numbers of a column, or its flags as numbers, with the default for null: (n,).

    >>> numbers(pa.array([7, None]), default=1).tolist(), numbers(pa.array([True, False])).tolist()
    ([7, 1], [1, 0])
    """
    if not column.null_count:
        return plain(column.cast(pa.int64()))
    found = np.full(len(column), default, np.int64)
    if column.null_count < len(column):
        found[is_valid(column)] = plain(column.drop_null().cast(pa.int64()))
    return found


def is_valid(column: pa.Array) -> Flags:
    """True where a column isn't null: (n,)."""
    return plain(column.is_valid().cast(pa.int8())).astype(np.bool_)


def is_empty(column: pa.Array) -> Flags:
    """True where the text of a column is empty, and not null: (n,)."""
    texts, text_of = coded(column)
    flags: Flags = np.array([*(text == "" for text in texts[:-1]), False])[text_of]
    return flags


def list_sums(lists: pa.Array, name: str) -> tuple[Integers, Integers]:
    """The sum of a field of the items of each of n lists, and their number; 0 for null: (n,) each.

    >>> lists = pa.array([[{"bytes": 5}, {"bytes": 2}], None, []])
    >>> [found.tolist() for found in list_sums(lists, "bytes")]
    [[7, 0, 0], [2, 0, 0]]
    """
    lengths = numbers(pc.list_value_length(lists))
    if not lengths.any():
        return lengths, lengths
    ends = np.cumsum(lengths)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers(pc.struct_field(lists.flatten(), name)))])
    return sums[ends] - sums[ends - lengths], lengths


def distinct(events: pa.RecordBatch, columns: Sequence[str]) -> Texts:
    """The distinct values of some columns of texts."""
    found: list[tuple[str, ...]] = [()]
    place = np.zeros(len(events), np.int64)
    for name in columns:
        texts, text_of = coded(events[name])
        codes, place = distinct_codes(place * len(texts) + text_of)
        firsts, lasts = np.divmod(codes, len(texts))
        found = [(*found[first], texts[last]) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    return Texts(found, place)


def coded(column: pa.Array) -> tuple[list[str], Integers]:
    """The texts of a column, the last one "" for null, and the place of that of each row: (n,)."""
    encoded = column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
    texts = [*encoded.dictionary.to_pylist(), ""]
    return texts, numbers(encoded.indices, default=len(texts) - 1)


def distinct_codes(codes: Integers) -> tuple[Integers, Integers]:
    """The distinct ones of n codes, from 0 up, and the place of each: `np.unique`, without a sort if they are dense.

    >>> [found.tolist() for found in distinct_codes(np.array([4, 0, 4]))]
    [[0, 4], [1, 0, 1]]
    """
    most = int(codes.max(initial=-1)) + 1
    if most > _MOST_TIMES * len(codes):
        return np.unique(codes, return_inverse=True)
    is_there = np.zeros(most, np.bool_)
    is_there[codes] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[codes]


_MOST_TIMES = 4
"""Possible codes for each one that is there up to which it costs less to look at all of them than to sort."""


def column_of(values: NDArray[Any]) -> pa.Array:
    """A column of numbers, or of flags."""
    if values.dtype == np.bool_:
        return column_of(values.view(np.int8)).cast(pa.bool_())
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts_of(texts: Iterable[str]) -> pa.StringArray:
    """A column of texts."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def plain(column: pa.Array) -> NDArray[Any]:
    """The numbers of a column without nulls; they can't be written to."""
    return np.from_dlpack(column)
