"""Leader epochs: decisions of a replaced driver that publishes on don't count, by Kafka's order, without a clock.

Each driver of a job has a leader epoch, a number that grows from driver to driver. Its decisions carry it in a header,
and so do its dead letters, sums and waits.
It writes a marker, a record with that header and no value, into each partition before anything else. After a record of
an epoch no record of an older epoch of the same job counts in that partition.

An epoch more than MAX_STEP above the highest known of its job is forged, and its record unreadable: else one record
with an epoch that no driver will ever reach would fence the job for good.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, Protocol

from sluice.state.errors import FarEpochError

HEADER = "epoch"
"""The name of the header in a record that a driver writes."""

MARKER_KEY = HEADER.encode()
"""The key of a marker. In a compacted topic a record without a value and another key removes what the key had, and a
marker has an empty value: else it would go itself."""

MAX_STEP = 1_000
"""Largest step from one epoch of a job to the next. Each start of a driver takes one, and a reader misses none of those
that wrote anything."""

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
    key: bytes | None
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
        self.highest: dict[int, dict[str, int]] = {}  # by partition and job, of those that were read

    def passes(
        self, partition: int, epoch: LeaderEpoch | None, value: bytes | None, key: bytes | None = MARKER_KEY
    ) -> bool:
        """True if this record counts: one without an epoch does, a marker doesn't.

        Raises FarEpochError for an epoch that no driver can have; what is known stays as it is.
        """
        if epoch is None:
            return True
        is_marker = key == MARKER_KEY and not value
        highest = self.highest.setdefault(partition, {})
        known = highest.get(epoch.job_id) or _highest_of(self.highest, epoch.job_id)
        if is_far(epoch, known):
            raise FarEpochError(f"epoch {epoch.number} is more than {MAX_STEP} above {known}, the highest of its job")
        if epoch.number < highest.get(epoch.job_id, 0):
            self.fenced += not is_marker
            return False
        _raise(highest, epoch)
        return not is_marker

    def passes_record(self, record: ConsumerRecord) -> bool:
        """`passes` for a record as kafka-python has it."""
        headers = record.headers
        return not headers or self.passes(record.partition, epoch_of(headers), record.value, record.key)

    def forget(self, partition: int | None = None) -> None:
        """Forget the epochs of a partition, or of all, because it is read from an earlier offset again."""
        if partition is None:
            self.highest.clear()
        else:
            self.highest.pop(partition, None)


Highest = Mapping[int, Mapping[str, int]]
"""By partition and job the highest epoch that was read."""


class EpochSpan(NamedTuple):
    """The first and the last offset at which a partition has records of an epoch, in a part of the topic."""

    partition: int
    epoch: LeaderEpoch
    first: int
    last: int


class FencedFrom(NamedTuple):
    """Records of this epoch don't count after this offset of the partition; `is_far` if no driver can have it."""

    partition: int
    epoch: LeaderEpoch
    after: int
    is_far: bool = False


def fenced_from(spans: Iterable[EpochSpan], before: Highest) -> tuple[list[FencedFrom], dict[int, dict[str, int]]]:
    """Records of a part of the topic that don't count, and the highest epochs after it; `before` are those before it.

    It is the rule of Fence for readers that don't go through records one by one. Of another partition they know what it
    had before the part, and an epoch that is too far at its first record is too far in the whole part.

    >>> first, second = LeaderEpoch("3f", 1), LeaderEpoch("3f", 2)
    >>> fenced, highest = fenced_from([EpochSpan(0, first, 0, 9), EpochSpan(0, second, 5, 12)], {})
    >>> fenced == [FencedFrom(0, first, after=5)], highest
    (True, {0: {'3f': 2}})
    """
    highest = {partition: dict(jobs) for partition, jobs in before.items()}
    fenced = []
    for (partition, job), of_job in groupby(sorted(spans, key=_by_job), key=lambda span: _by_job(span)[:2]):
        known = before.get(partition, {}).get(job, 0)
        near, far = _without_far(of_job, known or _highest_of(before, job))
        fenced += [FencedFrom(partition, span.epoch, -1, is_far=True) for span in far]
        fenced += _overtaken(near, known)
        newest = max((span.epoch for span in near), default=None)
        if newest is not None and newest.number > known:
            _raise(highest.setdefault(partition, {}), newest)
    return fenced, highest


def is_far(epoch: LeaderEpoch, known: int) -> bool:
    """True if the epoch is too far above the highest known of its job; 0 if none is known: then it may be any.

    >>> is_far(LeaderEpoch("3f", 1_005), 5), is_far(LeaderEpoch("3f", 1_006), 5), is_far(LeaderEpoch("3f", 9_999), 0)
    (False, True, False)
    """
    return 0 < known < epoch.number - MAX_STEP


def _by_job(span: EpochSpan) -> tuple[int, str, int]:
    return span.partition, span.epoch.job_id, span.first


def _without_far(spans: Iterable[EpochSpan], known: int) -> tuple[list[EpochSpan], list[EpochSpan]]:
    """The spans of a job, in the order of their first records, and those of them that are too far."""
    near, far = list[EpochSpan](), list[EpochSpan]()
    for span in spans:
        if is_far(span.epoch, known):
            far.append(span)
        else:
            near.append(span)
            known = max(known, span.epoch.number)
    return near, far


def _overtaken(spans: Iterable[EpochSpan], known: int) -> Iterator[FencedFrom]:
    """The records of a job's spans that come after one of a newer epoch; `known` was the highest before them."""
    newer_from: int | None = None
    for span in sorted(spans, key=lambda span: -span.epoch.number):
        if span.epoch.number < known:
            yield FencedFrom(span.partition, span.epoch, -1)
            continue
        if newer_from is not None and newer_from < span.last:
            yield FencedFrom(span.partition, span.epoch, newer_from)
        newer_from = span.first if newer_from is None else min(span.first, newer_from)


def _highest_of(highest: Highest, job_id: str) -> int:
    """The highest epoch of a job in any partition; 0 if none is known."""
    return max((jobs.get(job_id, 0) for jobs in highest.values()), default=0)


def _raise(highest: dict[str, int], epoch: LeaderEpoch) -> None:
    """Note the job's epoch; of too many jobs the one that was noted first is forgotten."""
    highest[epoch.job_id] = epoch.number
    if len(highest) > _MAX_JOBS:
        del highest[next(iter(highest))]
