"""Leader epochs: decisions of a replaced driver that publishes on don't count, by Kafka's order, without a clock.

Each driver of a job has a leader epoch, a number that grows from driver to driver. Its decisions carry it in a header.
It writes a marker, a record with that header and no value, into each partition before anything else. After a record of
an epoch no record of an older epoch of the same job counts in that partition.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

HEADER = "epoch"
"""The name of the header in a record of the decisions topic."""

_MAX_JOBS = 16
"""Jobs that are kept for each partition: there is one, and those that it follows. Forged ones fill no memory."""

HEADER_PATTERN = r"([!-9;-~]{1,64}):([0-9]{1,18})"
"""The whole of the header's value: job id and number. Any other value is no epoch."""

_PATTERN = re.compile(HEADER_PATTERN.encode())


class LeaderEpoch(NamedTuple):
    """Epoch of a driver: the job that it drives, and a number from 1 on that grows from driver to driver."""

    job_id: str
    number: int

    def header(self) -> bytes:
        """The value of the header.

        >>> LeaderEpoch("3f", 2).header()
        b'3f:2'
        """
        return f"{self.job_id}:{self.number}".encode()


@lru_cache(maxsize=64)
def read_epoch(header: bytes | None) -> LeaderEpoch | None:
    """The epoch in the value of a header; None if it has none.

    >>> read_epoch(b"3f:2"), read_epoch(b"3f"), read_epoch(None)
    (LeaderEpoch(job_id='3f', number=2), None, None)
    """
    found = _PATTERN.fullmatch(header or b"")
    return LeaderEpoch(found[1].decode(), int(found[2])) if found else None


def epoch_of(headers: Iterable[tuple[str, bytes | None]] | None) -> LeaderEpoch | None:
    """The epoch in the headers of a record, as kafka-python has them; of several the last counts."""
    found = None
    for name, value in headers or ():
        if name == HEADER:
            found = value
    return read_epoch(found)


class ConsumerRecord(Protocol):
    """Fields of kafka-python's record that `Fence` needs."""

    partition: int
    headers: Iterable[tuple[str, bytes | None]] | None
    value: bytes | None


class Fence:
    """Filter of records, in the order of each partition: `fenced` counts those that a replaced driver wrote.

    >>> fence, (first, second) = Fence(), (LeaderEpoch("3f", 1), LeaderEpoch("3f", 2))
    >>> fence.passes(0, first, b"{}"), fence.passes(0, second, None), fence.passes(0, first, b"{}"), fence.fenced
    (True, False, False, 1)
    """

    def __init__(self) -> None:
        self.fenced = 0
        self._highest: dict[int, dict[str, int]] = {}

    def passes(self, partition: int, epoch: LeaderEpoch | None, value: bytes | None) -> bool:
        """True if this record counts: one without an epoch does, a marker doesn't."""
        if epoch is None:
            return True
        highest = self._highest.setdefault(partition, {})
        if epoch.number < highest.get(epoch.job_id, 0):
            self.fenced += value is not None
            return False
        _raise(highest, epoch)
        return value is not None

    def passes_record(self, record: ConsumerRecord) -> bool:
        """`passes` for a record as kafka-python has it."""
        headers = record.headers
        return not headers or self.passes(record.partition, epoch_of(headers), record.value)

    def forget(self, partition: int | None = None) -> None:
        """Forget the epochs of a partition, or of all, because it is read from an earlier offset again."""
        if partition is None:
            self._highest.clear()
        else:
            self._highest.pop(partition, None)


Highest = Mapping[int, Mapping[str, int]]
"""By partition and job the highest epoch that was read."""


class EpochSpan(NamedTuple):
    """The first and the last offset at which a partition has records of an epoch, in a part of the topic."""

    partition: int
    epoch: LeaderEpoch
    first: int
    last: int


class FencedFrom(NamedTuple):
    """Records of this epoch don't count after this offset of the partition."""

    partition: int
    epoch: LeaderEpoch
    after: int


def fenced_from(spans: Iterable[EpochSpan], before: Highest) -> tuple[list[FencedFrom], dict[int, dict[str, int]]]:
    """Records of a part of the topic that don't count, and the highest epochs after it; `before` are those before it.

    It is the rule of Fence for readers that don't go through records one by one.

    >>> first, second = LeaderEpoch("3f", 1), LeaderEpoch("3f", 2)
    >>> fenced_from([EpochSpan(0, first, 0, 9), EpochSpan(0, second, 5, 12)], {})
    ([FencedFrom(partition=0, epoch=LeaderEpoch(job_id='3f', number=1), after=5)], {0: {'3f': 2}})
    """
    spans = sorted(spans, key=lambda span: (span.partition, span.epoch.job_id, -span.epoch.number))
    highest = {partition: dict(jobs) for partition, jobs in before.items()}
    fenced = []
    newer_from: dict[tuple[int, str], int] = {}
    for span in spans:
        partition, epoch = span.partition, span.epoch
        key = (partition, epoch.job_id)
        if epoch.number < before.get(partition, {}).get(epoch.job_id, 0):
            fenced.append(FencedFrom(partition, epoch, -1))
            continue
        if newer_from.get(key, span.last) < span.last:
            fenced.append(FencedFrom(partition, epoch, newer_from[key]))
        newer_from[key] = min(span.first, newer_from.get(key, span.first))
        if epoch.number > highest.get(partition, {}).get(epoch.job_id, 0):
            _raise(highest.setdefault(partition, {}), epoch)
    return fenced, highest


def _raise(highest: dict[str, int], epoch: LeaderEpoch) -> None:
    """Note the job's epoch; of too many jobs the one that was noted first is forgotten."""
    highest[epoch.job_id] = epoch.number
    if len(highest) > _MAX_JOBS:
        del highest[next(iter(highest))]
