"""Notices of limits that are nearly used up, and of a client's first throttled minute. Pure but for their topic.

A notice comes once for each crossing: after one a counter is quiet until it has been REARM below the level, or has had
a minute without a wait, and for QUIET_MS in any case. Of several levels that are crossed at once only the highest is
told.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from sluice.kafka_io.client import connect
from sluice.kafka_io.topic_reader import TopicReader
from sluice.state.contract.records import CountedEntity
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import Tags
from sluice_insight.live import CounterId, LiveModel

LEVELS = {"50": 0.5, "90": 0.9, "100": 1.0}
"""The thresholds by name, in percent of a limit."""

THROTTLED = "throttled"
"""The threshold of the first throttled minute."""

REARM = 0.05
QUIET_MS = 600_000


class NoticeKey(NamedTuple):
    """A counter and a threshold, of which one record stays in the compacted topic."""

    counter: Tags
    quota: str
    threshold: str

    def encode(self) -> bytes:
        """The key of the record: JSON, the same for the same counter and threshold."""
        return _ENCODER.encode(_Key(self.counter.entity(), self.quota, self.threshold))

    @classmethod
    def read(cls, key: bytes | None) -> Self:
        """Read the key of a record. Raises msgspec's errors."""
        read = _KEY.decode(key or b"")
        return cls(Tags.of(read.entity), read.quota, read.threshold)


class _Key(msgspec.Struct):
    entity: CountedEntity
    quota: str
    threshold: str


class Notice(msgspec.Struct, frozen=True):
    """A crossing: `used` is the mean of a minute as a share of the limit, `limit` in the unit of its quota."""

    at_ms: int
    used: float | None
    limit: float | None
    waited_ms: int = 0


class Usage(NamedTuple):
    """The use of a counter in the last minute, and how long its clients waited."""

    counter: Tags
    quota: str
    used: float | None
    limit: float | None
    waited_ms: int


class Crossed(NamedTuple):
    """The time of the last notice, and whether the counter has been above the threshold since."""

    noticed_ms: int
    above: bool


State = dict[NoticeKey, Crossed]


def notices(
    previous: Mapping[NoticeKey, Crossed], usages: Iterable[Usage], now_ms: int
) -> tuple[dict[NoticeKey, Notice], State]:
    """The notices of now, and the state for the next call, which has nobody that is quiet and below.

    >>> alice = Tags(user="alice")
    >>> state, told = State(), list[str]()
    >>> for minute, used in enumerate([0.4, 0.93, 0.99, 0.7, 0.95, 0.4, 0.96]):
    ...     found, state = notices(state, [Usage(alice, "producer_byte_rate", used, 1e6, 0)], minute * 120_000)
    ...     told += [f"{minute}: {key.threshold}" for key in found]
    >>> told
    ['1: 90', '6: 90']
    """
    found = dict[NoticeKey, Notice]()
    state = {key: each for key, each in previous.items() if now_ms - each.noticed_ms < QUIET_MS}
    for usage in usages:
        crossed = list[NoticeKey]()
        for name, is_above, is_below in _levels(usage):
            key = NoticeKey(usage.counter, usage.quota, name)
            noticed_ms, was_above = previous.get(key, _NEVER)
            above = is_above or (was_above and not is_below)
            if above and not was_above and now_ms - noticed_ms >= QUIET_MS:
                crossed.append(key)
            if above or key in state:
                state[key] = Crossed(noticed_ms, above)
        levels = [key for key in crossed if key.threshold != THROTTLED]
        for key in (*levels[-1:], *(key for key in crossed if key.threshold == THROTTLED)):
            found[key] = Notice(now_ms, usage.used, usage.limit, usage.waited_ms)
            state[key] = Crossed(now_ms, above=True)
    return found, state


_NEVER = Crossed(-QUIET_MS, False)


def _levels(usage: Usage) -> Iterator[tuple[str, bool, bool]]:
    """Each threshold, and whether the usage is at it or above, or clearly below."""
    for name, level in LEVELS.items():
        used = usage.used or 0.0
        yield name, used >= level, used < level - REARM
    yield THROTTLED, usage.waited_ms > 0, usage.waited_ms == 0


def restored(told: Mapping[NoticeKey, Notice]) -> State:
    """The state after these notices, of which nobody knows what came since: a level has the lower ones below it."""
    state = {key: Crossed(notice.at_ms, above=True) for key, notice in told.items()}
    for key in told:
        for name in list(LEVELS)[: list(LEVELS).index(key.threshold)] if key.threshold in LEVELS else ():
            state.setdefault(key._replace(threshold=name), Crossed(-QUIET_MS, above=True))
    return state


def usages_of(model: LiveModel, now_ms: int) -> list[Usage]:
    """The use of each enforced limit, by the decisions that the model has read."""
    with model.lock:
        counters = [each for each in model.counters() if each.limit is not None and not each.key.shadow]
        return [
            Usage(_tags(each.key), each.key.kind, model.usage.used(each, now_ms), each.limit, each.waited_ms(now_ms))
            for each in counters
        ]


def _tags(key: CounterId) -> Tags:
    return Tags(key.user, key.client_id, key.topic, key.partition, key.tenant)


class NoticesTopic:
    """The compacted topic of notices."""

    def __init__(self, kafka: Mapping[str, str], topic: str, replication_factor: int) -> None:
        self._kafka, self._topic, self._replication_factor = kafka, topic, replication_factor

    def made(self) -> State:
        """Make the topic if it isn't there, and read what was told before. Raises KafkaUnavailableError, KafkaError."""
        configs = {"cleanup.policy": "compact", "compression.type": "uncompressed"}
        wanted = {"num_partitions": 1, "replication_factor": self._replication_factor, "configs": configs}
        with connect(KafkaAdminClient, self._kafka) as admin:
            if self._topic not in admin.list_topics():
                with suppress(TopicAlreadyExistsError):
                    admin.create_topics({self._topic: wanted})
            admin.wait_for_topics([self._topic])
        told = dict[NoticeKey, Notice]()
        with TopicReader(self._kafka, self._topic) as reader:
            for _, record in reader.read_to_end():
                with suppress(*UNREADABLE):
                    told[NoticeKey.read(record.key)] = _NOTICE.decode(record.value or b"")
        return restored(told)

    def publish(self, found: Mapping[NoticeKey, Notice]) -> None:
        """Write notices; returns when brokers have them. Raises KafkaUnavailableError, KafkaError."""
        with connect(KafkaProducer, self._kafka) as producer:
            sent = [producer.send(self._topic, _ENCODER.encode(notice), key.encode()) for key, notice in found.items()]
            for each in sent:
                each.get(_SEND_S)


_SEND_S = 10
_KEY, _NOTICE = msgspec.json.Decoder(_Key), msgspec.json.Decoder(Notice)
_ENCODER = msgspec.json.Encoder()
