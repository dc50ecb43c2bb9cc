"""The lease of a checkpoint, as records of a Kafka topic: every reader of the topic comes to the same leader.

Kafka gives each record of a partition an offset of its own, and the offset of an acquisition names the lease that it
acquires. An acquisition names the lease that it replaces, and counts unless another one has replaced that lease before.
So of two drivers that acquire at the same time one wins, whatever their clocks say.
"""

import msgspec

from sluice.state.errors import UNREADABLE


class Driver(msgspec.Struct, frozen=True):
    """One process that may lead: a random id, and where it runs, for people."""

    driver_id: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"the driver with process {self.pid} on {self.host[:100]}"


class Acquisition(msgspec.Struct, frozen=True, tag="acquire"):
    """A driver wants to lead in place of the holder of the lease `replaced`, NO_LEASE for none."""

    driver: Driver
    replaced: int


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The holder of this lease lives. `number` counts the heartbeats of its driver."""

    driver: Driver
    lease: int
    number: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """The holder of this lease has ended."""

    driver: Driver
    lease: int


Record = Acquisition | Heartbeat | Release

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)

NO_LEASE = -1
"""The lease before the first one."""


def encode(record: Record) -> bytes:
    """The value of a record of the lease topic."""
    return msgspec.json.encode(record)


class LeaseLog:
    """The records of one key, applied in the order of their offsets.

    `leader` is the driver that leads, None if none does; `lease` is the offset of its acquisition. `last_number` is the
    number of its last heartbeat, 0 before the first. `records` counts the leader's records, so that a change shows that
    it lives. `garbage` counts unreadable records.
    """

    def __init__(self, key: bytes) -> None:
        self.leader: Driver | None = None
        self.lease = NO_LEASE
        self.last_number = 0
        self.records = 0
        self.garbage = 0
        self._key = key
        self._replaced = NO_LEASE  # by the present lease

    def read_record(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record.

        >>> log, (first, second) = LeaseLog(b"k"), [Driver(name, "host", 1) for name in ("first", "second")]
        >>> log.read_record(0, b"k", encode(Acquisition(first, NO_LEASE)))
        >>> log.read_record(1, b"k", encode(Acquisition(second, NO_LEASE)))
        >>> log.leader.driver_id, log.lease
        ('first', 0)
        """
        if key != self._key:
            return
        try:
            record = _DECODER.decode(value or b"")
        except UNREADABLE:
            self.garbage += 1
            return
        if isinstance(record, Acquisition):
            self._apply_acquisition(offset, record)
        elif offset > record.lease and (record.lease >= self.lease or record.lease > self._replaced):
            self._apply_of_holder(record)

    def _apply_acquisition(self, offset: int, acquisition: Acquisition) -> None:
        if offset > acquisition.replaced >= self.lease:
            self.leader, self.lease, self._replaced = acquisition.driver, offset, acquisition.replaced
            self.last_number = 0
            self.records += 1

    def _apply_of_holder(self, record: Heartbeat | Release) -> None:
        """Apply a heartbeat or a release.

        If it names a lease between the present one and the one that this replaced, the present lease is invalid:
        another driver had acquired it before. A reader of a topic without its first records learns this only here.
        """
        if record.lease == self.lease and record.driver != self.leader:
            return
        self.lease = self._replaced = record.lease
        self.records += 1
        if isinstance(record, Heartbeat):
            self.leader, self.last_number = record.driver, record.number
        else:
            self.leader, self.last_number = None, 0
