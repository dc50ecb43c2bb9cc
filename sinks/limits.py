"""Publishes the quotas in force to the compacted limits topic, and repairs the topic when records are lost."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing

from kafka import KafkaProducer

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import (
    OWN_DECIDERS,
    VERSION_KEY,
    LimitsView,
    changed_limits,
    limit_key,
    overrides_key,
    overrides_value,
    version_end,
)
from sluice.state.quotas.overrides import are_alike, by_another_clock

log = logging.getLogger("sluice.limits")

_POLL_S = 0.25
"""Interval between two polls for a new version, and for records that others wrote or removed."""

_RETRY_S = 1.0
_SEND_TIMEOUT_S = 30.0

QuotasInForce = Callable[[], tuple[int, Iterable[QuotaEntry]]]
"""The version in force and its quotas."""

_SAY_AGAIN_MS = 20_000
"""Longest time between two records of a decider: a gateway with a wrong clock believes none from before its start."""


def limits_publisher(
    topics: TopicSettings,
    kafka: Mapping[str, str],
    in_force: QuotasInForce,
    overrides: Callable[[], Mapping[str, Overrides]] = dict,
    remember: Callable[[Mapping[str, Overrides]], None] = lambda _: None,
) -> BackgroundService:
    """A service that makes the limits topic equal to the quotas in force, whatever the topic said before.

    It reads the topic as gateways do and writes only the difference. So a start writes nothing that is there already,
    and a topic that was deleted, or that somebody else wrote to, is whole again with the next poll. When it is stopped
    the records under way are written, unless no broker answers for 10 s; the next start publishes missing ones.
    A record of `overrides` is published when gateways would do something else by it, or forget it soon, or when the
    topic has another one in its place; that of a decider which isn't the job's is removed. At the start
    `remember` is told what these had published before, with times by the clock of now.
    """

    def publish() -> Iterator[None]:
        ensure_topics(topics, kafka)
        view = LimitsView()
        published: Iterable[QuotaEntry] | None = None
        wanted: dict[bytes, QuotaEntry] = {}
        found = _Overriding(topics.limits)
        has_remembered = False
        with (
            TopicReader(kafka, topics.limits) as reader,
            closing(connect(KafkaProducer, kafka, acks="all", linger_ms=5, allow_auto_create_topics=False)) as producer,
        ):
            while True:
                version, entries = in_force()
                wanted = wanted if entries is published else {limit_key(entry): entry for entry in entries}
                changed, removed, said = False, None, overrides()
                own = set(map(overrides_key, {*OWN_DECIDERS, *said}))
                for _, record in reader.read_to_end():
                    changed |= not view.is_override(key := record.key)
                    is_readable = _apply(view, record, topics.limits)
                    if key is not None and view.is_override(key):
                        is_foreign = found.take(key, record, is_readable, own)
                    else:
                        is_foreign = not is_readable and key not in (None, VERSION_KEY) and key not in wanted
                    if is_foreign:  # at once, as there may be more than fit into memory
                        removed = producer.send(topics.limits, None, key, partition=0)
                        view.forget_unreadable(key)
                if removed is not None:
                    removed.get(_SEND_TIMEOUT_S)
                if not has_remembered:
                    known = {name: each for name, each in view.overrides.items() if overrides_key(name) in own}
                    remember(_by_own_clock(known, found, producer, topics.limits))
                    has_remembered = True
                # another table may have other quotas under the same version
                if changed or entries is not published or not _is_complete(view, version):
                    _publish_difference(view, version, wanted, producer, topics.limits)
                    published = entries
                due = found.due(said, view.overrides)
                for sent in [producer.send(topics.limits, value, key, partition=0) for key, value in due]:
                    sent.get(_SEND_TIMEOUT_S)
                yield

    return BackgroundService("limits", publish, _POLL_S, retry_s=_RETRY_S, failure="limits can't be published", log=log)


class _Overriding:
    """The keys of the job's deciders that the topic has, whoever wrote them."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._replaced: set[bytes] = set()  # by records that aren't the job's
        self._taken_ms: dict[bytes, int] = {}
        self._sent: dict[bytes, bytes] = {}
        self._has_told = False
        self._has_foreign = False  # or had, of other deciders

    def take(self, key: bytes, record: FetchedRecord, is_readable: bool, own: Collection[bytes]) -> bool:
        """Take over a record; True if it has to be removed. Another than was sent has taken the place of the job's."""
        if key not in own:
            self._has_foreign |= record.value is not None
            return record.value is not None
        self._replaced.discard(key)
        if record.value is None:
            self._taken_ms.pop(key, None)
            return False
        if is_readable:
            self._taken_ms[key] = record.timestamp_ms
        if not is_readable or record.value != self._sent.get(key, record.value):
            self._replaced.add(key)
        return False

    def written_ms(self, decider: str) -> int:
        """When the last record that was taken of it was written: a stranger sets the time of his own."""
        return self._taken_ms[overrides_key(decider)]

    def due(
        self, said: Mapping[str, Overrides], known: Mapping[str, Overrides]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The records (key, value) after which readers know what was said; None removes one of no decider."""
        values = {overrides_key(decider): (each, known.get(decider)) for decider, each in said.items()}
        foreign = (self._taken_ms.keys() | self._replaced) - values.keys()
        if said and (self._has_foreign or foreign | self._replaced) and not self._has_told:
            self._has_told = True
            told = "topic %s has overrides that aren't the job's; they are taken back; check who may write to it"
            log.warning(told, self._topic)
        for key, (each, before) in values.items():
            if key in self._replaced or _is_news(each, before):
                self._sent[key] = overrides_value(each)
                yield key, self._sent[key]
        if said:
            yield from ((key, None) for key in foreign)


def _by_own_clock(
    known: Mapping[str, Overrides], found: _Overriding, producer: KafkaProducer, topic: str
) -> dict[str, Overrides]:
    """The records of deciders with times by this clock: an earlier driver's may have been another.

    The topic has the times of its brokers. One more record, which says nothing, tells how late it is by their clock.
    """
    if not any(said.overrides for said in known.values()):
        return dict(known)
    sent = producer.send(topic, None, overrides_key("clock"), partition=0).get(_SEND_TIMEOUT_S)
    late_ms = sent.timestamp - now_ms()
    return {
        decider: by_another_clock(said, found.written_ms(decider) - late_ms - said.at_ms)
        for decider, said in known.items()
    }


def _apply(view: LimitsView, record: FetchedRecord, topic: str) -> bool:
    """Take over a record. False if nobody takes it."""
    try:
        view.take(record.key, record.value)
    except InvalidQuotaError as error:
        if view.garbage == 1:
            log.error("topic %s, offset %d: %s; further ones are not logged", topic, record.offset, error)
        return False
    return True


def _publish_difference(
    view: LimitsView, version: int, wanted: dict[bytes, QuotaEntry], producer: KafkaProducer, topic: str
) -> None:
    readable = {key: entry for key, entry in view.entries.items() if key not in view.unreadable}
    changes = changed_limits(readable, wanted, version)
    if not changes and _is_complete(view, version):
        return
    for key, value in changes:
        producer.send(topic, value, key, partition=0)
    producer.send(topic, version_end(version, len(wanted)), VERSION_KEY, partition=0).get(_SEND_TIMEOUT_S)
    log.info("limits of quotas version %d are published: %d changes", version, len(changes))


def _is_complete(view: LimitsView, version: int) -> bool:
    """True if readers of the topic know that `version` is in force."""
    known = None if view.in_force is None else view.in_force.version
    return known == version and not view.missed_removals and not view.unreadable


def _is_news(said: Overrides, known: Overrides | None) -> bool:
    """True unless readers of the topic know the record, or that there is nothing to say.

    The same is said again after a third of the time for which they believe it, as a poll may take another one, and
    within _SAY_AGAIN_MS. Figures behind it change with each poll.

    >>> from sluice.state.contract.gateway_topics import Override
    >>> tight = [Override("tighten", 0.5, gateway="b-1")]
    >>> [_is_news(Overrides(7, at_ms, 5_000, tight), Overrides(7, 9_000, 5_000, tight)) for at_ms in (10_600, 10_700)]
    [False, True]
    """
    if said.command != (0 if known is None else known.command):
        return True
    if said.is_neutral:
        return known is not None and not known.is_neutral
    if known is None or (said.fresh_ms, _bounds(said)) != (known.fresh_ms, _bounds(known)):
        return True
    if not are_alike(said.overrides, known.overrides):
        return True
    return abs(said.at_ms - known.at_ms) >= min(said.fresh_ms // 3, _SAY_AGAIN_MS)


def _bounds(said: Overrides) -> dict[str, float]:
    return {each.name: each.bound for each in said.measured}
