"""Which driver leads, as the claims topic says it: every reader of the log comes to the same answer.

Kafka gives each record of a partition an offset of its own. A claim names the claim that it takes the place of, and
counts unless another one has taken that place before. So of two drivers that claim at the same time one wins, whatever
their clocks say.
"""

import msgspec


class Driver(msgspec.Struct, frozen=True):
    """One process that may lead: a random id, and where it runs, for people."""

    driver_id: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"the driver with process {self.pid} on {self.host[:100]}"


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """A driver wants to lead in place of the claim at the offset `replaced`, -1 for none."""

    driver: Driver
    replaced: int


class Sign(msgspec.Struct, frozen=True, tag="sign"):
    """A sign of life of the driver whose claim has the offset `epoch`. `number` counts the signs of this driver."""

    driver: Driver
    epoch: int
    number: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """The driver whose claim has the offset `epoch` has ended."""

    driver: Driver
    epoch: int


Record = Claim | Sign | Release

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)

NO_EPOCH = -1
"""The epoch before the first claim."""


def encode(record: Record) -> bytes:
    """The value of a record of the claims topic."""
    return msgspec.json.encode(record)


class ClaimLog:
    """What the records of one key say, taken in the order of their offsets.

    `leader` is the driver that leads, None if none does; `epoch` is the offset of its claim. `last_number` is the
    number of its last sign, 0 before the first. `records` counts the leader's records, so that a change shows that it
    lives. `garbage` counts the records that are none.
    """

    def __init__(self, key: bytes) -> None:
        self.leader: Driver | None = None
        self.epoch = NO_EPOCH
        self.last_number = 0
        self.records = 0
        self.garbage = 0
        self._key = key
        self._replaced = NO_EPOCH  # by the claim of the epoch

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the next record.

        >>> log, (first, second) = ClaimLog(b"k"), [Driver(name, "host", 1) for name in ("first", "second")]
        >>> log.take(0, b"k", encode(Claim(first, NO_EPOCH)))
        >>> log.take(1, b"k", encode(Claim(second, NO_EPOCH)))
        >>> log.leader.driver_id, log.epoch
        ('first', 0)
        """
        if key != self._key:
            return
        try:
            record = _DECODER.decode(value or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.garbage += 1
            return
        if isinstance(record, Claim):
            self._take_claim(offset, record)
        elif offset > record.epoch and (record.epoch >= self.epoch or record.epoch > self._replaced):
            self._take_word(record)

    def _take_claim(self, offset: int, claim: Claim) -> None:
        if offset > claim.replaced >= self.epoch:
            self.leader, self.epoch, self._replaced, self.last_number = claim.driver, offset, claim.replaced, 0
            self.records += 1

    def _take_word(self, word: Sign | Release) -> None:
        """A word of the leader, or of one whose claim the topic no longer has.

        An epoch between the present one and what that one replaced shows that the present one's claim came too late,
        which a reader of a topic without its first records can't know before.
        """
        if word.epoch == self.epoch and word.driver != self.leader:
            return
        self.epoch = self._replaced = word.epoch
        self.records += 1
        if isinstance(word, Sign):
            self.leader, self.last_number = word.driver, word.number
        else:
            self.leader, self.last_number = None, 0
