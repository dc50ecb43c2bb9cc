"""Faults of the records of the answer topics, looked for in many records at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.state.contract.records import MAX_INT32

Mask = npt.NDArray[np.bool_]
"""True or false for each of some records."""


class Fault(NamedTuple):
    """The field of a record that is wrong, and why."""

    field: str
    reason: str


class Faults:
    """The first fault of each of some records, in the order in which faults are looked for."""

    def __init__(self, count: int) -> None:
        self._found: dict[Fault | None, int] = {None: 0}
        self._numbers = np.zeros(count, np.int32)

    def add(self, wrong: Mask, field: str, reason: str) -> None:
        """Give this fault to the records that are wrong and have none yet."""
        if wrong.any():
            number = self._found.setdefault(Fault(field, reason), len(self._found))
            self._numbers[wrong & self.good] = number

    def add_one(self, record: int, fault: Fault) -> None:
        """Give a fault to one record, unless it has one."""
        if not self._numbers[record]:
            self._numbers[record] = self._found.setdefault(fault, len(self._found))

    @property
    def good(self) -> Mask:
        """The records without a fault."""
        good: Mask = self._numbers == 0
        return good

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Field and reason of each record with a fault."""
        found, numbers = list(self._found), self._numbers[self._numbers > 0]
        fields, reasons = ([fault and fault[part] for fault in found] for part in (0, 1))
        return pa.array(fields, pa.string()).take(numbers), pa.array(reasons, pa.string()).take(numbers)


_NO_END = 2**63 - 1
"""Above every offset."""


class TimeBounds(NamedTuple):
    """Largest distance of a time in a record, before and after the time of reading, in milliseconds.

    Each day of a table is a folder, and each time outside of years 1 to 9999 one that Python can't read.
    """

    past_ms: int
    future_ms: int

    def broken_by(self, times_ms: pa.ChunkedArray, read_at_ms: int) -> Mask:
        """True where a time is missing or out of bounds."""
        first_ms, last_ms = read_at_ms - self.past_ms, read_at_ms + self.future_ms
        return ~as_mask(pc.and_(pc.greater_equal(times_ms, first_ms), pc.less_equal(times_ms, last_ms)))


class RequestsTopic(NamedTuple):
    """The requests topic, and by partition the offset after the newest event that an answer may be of.

    `topic_id` is Kafka's, or empty. `former` are the ids of topics of this name before it; their ends aren't known, as
    events may have come after the last poll. An answer without an id is of the one that is `unnamed`.
    """

    name: str
    ends: Sequence[int]
    topic_id: str = ""
    former: Sequence[str] = ()
    unnamed: str = ""

    def ids(self, said: pa.ChunkedArray) -> pa.ChunkedArray:
        """The ids of the topics whose events answers are of, which say these."""
        return pc.fill_null(said, self.unnamed)

    def lacks(
        self, topics: pa.ChunkedArray, ids: pa.ChunkedArray, partitions: pa.ChunkedArray, offsets: pa.ChunkedArray
    ) -> Mask:
        """True for each source record that is no event of the topic, or of one before it."""
        numbers, positions = (pc.fill_null(column, 0).to_numpy().astype(np.uint64) for column in (partitions, offsets))
        # As unsigned numbers, of which those below 0 are the greatest. A partition that isn't there ends at 0.
        ends = np.asarray([*self.ends, 0], np.uint64)
        is_there = as_mask(pc.equal(ids, self.topic_id)) & (positions < ends[np.minimum(numbers, len(self.ends))])
        was_there = as_mask(pc.is_in(ids, pa.array(self.former, pa.string())))
        lacks: Mask = ~(is_there | was_there & (numbers <= MAX_INT32) & (positions < _NO_END))
        return lacks | ~as_mask(pc.equal(topics, self.name))


def as_mask(condition: pa.ChunkedArray) -> Mask:
    """True where a condition is true, neither false nor null."""
    true: Mask = pc.fill_null(condition, False).to_numpy()
    return true


def where(mask: Mask, records: pa.Table) -> pa.Table:
    """The records for which the mask is true; all of them take no time."""
    return records if mask.all() else records.filter(pa.array(mask))
