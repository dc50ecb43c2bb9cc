"""Publishes the quotas in force to the compacted limits topic, and repairs the topic when records are lost."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

import msgspec
from kafka import KafkaProducer

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics
from sluice.process.background import BackgroundService
from sluice.state.contract.records import ElasticState
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.elastic import FRESH_MS as ELASTIC_FRESH_MS
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import (
    ELASTIC_KEY,
    STORAGE_KEY,
    VERSION_KEY,
    LimitsView,
    State,
    changed_limits,
    limit_key,
    state_value,
    version_end,
)
from sluice.state.shares.storage_budget import FRESH_MS as STORAGE_FRESH_MS

log = logging.getLogger("sluice.limits")

_LOOK_S = 0.25
"""Interval between two polls for a new version, and for records that others wrote or removed."""

_RETRY_S = 1.0
_SEND_TIMEOUT_S = 30.0

QuotasInForce = Callable[[], tuple[int, Iterable[QuotaEntry]]]
"""The version in force and its quotas."""

States = Callable[[], Mapping[bytes, State | None]]
"""The states to publish by their keys; None before anybody has decided one."""


def limits_publisher(
    topics: TopicSettings, kafka: Mapping[str, str], in_force: QuotasInForce, states: States = dict
) -> BackgroundService:
    """A service that makes the limits topic equal to the quotas in force, whatever the topic said before.

    It reads the topic as gateways do and writes only the difference. So a start writes nothing that is there already,
    and a topic that was deleted, or that somebody else wrote to, is whole again with the next poll. When it is stopped
    the records under way are written, unless no broker answers for 10 s; the next start publishes missing ones.
    Each state that `states` gives is published when gateways would do something else by it, or forget it soon.
    """

    def publish() -> Iterator[None]:
        ensure_topics(topics, kafka)
        view = LimitsView()
        published: Iterable[QuotaEntry] | None = None
        with (
            TopicReader(kafka, topics.limits) as reader,
            closing(connect(KafkaProducer, kafka, acks="all", linger_ms=5)) as producer,
        ):
            while True:
                version, entries = in_force()
                changed = False
                for _, record in reader.read_to_end():
                    changed |= record.key not in (ELASTIC_KEY, STORAGE_KEY)
                    _apply(view, record, topics.limits)
                # another table may have other quotas under the same version
                if changed or entries is not published or not _is_complete(view, version):
                    _publish_difference(view, version, entries, producer, topics.limits)
                    published = entries
                known = {ELASTIC_KEY: view.elastic, STORAGE_KEY: view.storage}
                for key, state in states().items():
                    if state is not None and _is_news(state, known[key]):
                        producer.send(topics.limits, state_value(state), key, partition=0).get(_SEND_TIMEOUT_S)
                yield

    return BackgroundService("limits", publish, _LOOK_S, retry_s=_RETRY_S, failure="limits can't be published", log=log)


def _apply(view: LimitsView, record: FetchedRecord, topic: str) -> None:
    try:
        view.take(record.key, record.value)
    except InvalidQuotaError as error:
        if view.garbage == 1:
            log.error("topic %s, offset %d: %s; further ones are not logged", topic, record.offset, error)


def _publish_difference(
    view: LimitsView, version: int, entries: Iterable[QuotaEntry], producer: KafkaProducer, topic: str
) -> None:
    wanted = {limit_key(entry): entry for entry in entries}
    changes = [*((key, None) for key in sorted(view.ignored)), *changed_limits(view.entries, wanted, version)]
    if not changes and _is_complete(view, version):
        return
    for key, value in changes:
        producer.send(topic, value, key, partition=0)
    producer.send(topic, version_end(version, len(wanted)), VERSION_KEY, partition=0).get(_SEND_TIMEOUT_S)
    log.info("limits of quotas version %d are published: %d changes", version, len(changes))


def _is_complete(view: LimitsView, version: int) -> bool:
    """True if readers of the topic know that `version` is in force."""
    return view.in_force is not None and view.in_force.version == version and not view.missed_removals


def _is_news(state: State, known: State | None) -> bool:
    """True unless readers of the topic know the state, or that there is nothing to say.

    The same state is said again after a third of the time for which they believe it, as a poll may take another one.

    >>> known = ElasticState(7, at_ms=9_000, lend=1.5)
    >>> [_is_news(ElasticState(7, at_ms, lend=1.5), known) for at_ms in (10_600, 10_700)]
    [False, True]
    """
    if state.is_neutral:
        return known is not None and not known.is_neutral
    if known is None or _gist(state) != _gist(known):
        return True
    fresh_ms = ELASTIC_FRESH_MS if isinstance(state, ElasticState) else STORAGE_FRESH_MS
    return abs(state.at_ms - known.at_ms) >= fresh_ms // 3


def _gist(state: State) -> object:
    """The part of a state by which gateways act. How full disks and budgets are changes with each poll."""
    if isinstance(state, ElasticState):
        return msgspec.structs.replace(state, at_ms=0)
    return {(each.tenant, each.budget_bytes, each.is_held) for each in state.tenants}, state.low_disk is None
