"""Publishes the quotas in force to the compacted limits topic, and repairs the topic when records are lost."""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import TopicSettings, Trouble, connect
from sluice.kafka_io.topics import ensure_topics
from sluice.state.errors import InvalidQuotaError, SluiceError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import VERSION_KEY, LimitsView, changed_limits, limit_key, version_end

log = logging.getLogger("sluice.limits")

_LOOK_S = 0.25
"""How often to look for a new version, and for records that others wrote or removed."""

_RETRY_S = 1.0
_POLL_MS = 200

_OFFSETS_TIMEOUT_MS = 3_000
"""How long to ask for the topic's end. Without it the client waits 30 s for a topic that was deleted."""

_SEND_TIMEOUT_S = 30.0

_STOP_TIMEOUT_S = 10.0
"""The job's end doesn't wait longer for a broker that is away; the next start publishes what is missing."""

QuotasInForce = Callable[[], tuple[int, Iterable[QuotaEntry]]]
"""The version in force and its quotas."""


class LimitsPublisher:
    """A thread that makes the limits topic say what is in force, whatever the topic said before.

    It reads the topic as gateways do and writes only the difference. So a start writes nothing that is there already,
    and a topic that was deleted, or that somebody else wrote to, is whole again with the next look.
    """

    def __init__(self, topics: TopicSettings, kafka: dict[str, str], in_force: QuotasInForce) -> None:
        self._topics = topics
        self._kafka = kafka
        self._in_force = in_force
        self._partition = TopicPartition(topics.limits, 0)
        self._trouble = Trouble()
        self._thread = BackgroundThread(
            "limits-publisher", self._publish_while_topic_lasts, _RETRY_S, failed=self._report
        )

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it is writing is written, unless no broker answers for 10 s."""
        self._thread.stop(_STOP_TIMEOUT_S)

    def _publish_while_topic_lasts(self) -> None:
        """Keep the topic up to date until it loses records; the next call begins with an empty view."""
        ensure_topics(self._topics, self._kafka)
        view, position = LimitsView(), 0
        with (
            closing(connect(KafkaConsumer, self._kafka, enable_auto_commit=False)) as consumer,
            closing(connect(KafkaProducer, self._kafka, acks="all", linger_ms=5)) as producer,
        ):
            consumer.assign([self._partition])
            consumer.seek(
                self._partition, consumer.beginning_offsets([self._partition], _OFFSETS_TIMEOUT_MS)[self._partition]
            )
            while not self._thread.stopped.is_set():
                end = consumer.end_offsets([self._partition], _OFFSETS_TIMEOUT_MS)[self._partition]
                if end < position:
                    log.warning("topic %s has lost records; all limits are published again", self._topics.limits)
                    return
                version, entries = self._in_force()
                if end > position or not _is_complete(view, version):
                    position = self._read_to(end, consumer, view)
                    if position >= end:
                        self._publish_difference(view, version, entries, producer)
                self._trouble.ends()
                self._thread.stopped.wait(_LOOK_S)

    def _read_to(self, end: int, consumer: KafkaConsumer, view: LimitsView) -> int:
        """Feed the view the records before offset `end`; returns the offset read to.

        It ends sooner when none arrive: the topic may have been deleted, which only the next look at its end says.
        """
        position: int = consumer.position(self._partition)
        while position < end and not self._thread.stopped.is_set():
            polled = consumer.poll(timeout_ms=_POLL_MS)
            for records in polled.values():
                for record in records:
                    self._take(view, record.key, record.value, record.offset)
            position = consumer.position(self._partition)
            if not polled:
                break
        return position

    def _take(self, view: LimitsView, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            view.take(key, value)
        except InvalidQuotaError as error:
            if view.garbage == 1:
                log.error("topic %s, offset %d: %s; further ones are not logged", self._topics.limits, offset, error)

    def _publish_difference(
        self, view: LimitsView, version: int, entries: Iterable[QuotaEntry], producer: KafkaProducer
    ) -> None:
        wanted = {limit_key(entry): entry for entry in entries}
        changes = changed_limits(view.entries, wanted, version)
        if not changes and _is_complete(view, version):
            return
        for key, value in changes:
            producer.send(self._topics.limits, value, key, partition=0)
        producer.send(self._topics.limits, version_end(version, len(wanted)), VERSION_KEY, partition=0).get(
            _SEND_TIMEOUT_S
        )
        log.info("limits of quotas version %d are published: %d changes", version, len(changes))

    def _report(self, error: Exception) -> None:
        """Log a trouble once, until it changes or is over; one that nobody expected with its stack."""
        if self._trouble.is_new(error):
            unexpected = not isinstance(error, KafkaError | SluiceError | OSError)
            log.error("limits can't be published: %s; trying again", self._trouble.line, exc_info=unexpected)


def _is_complete(view: LimitsView, version: int) -> bool:
    """Whether readers of the topic know that `version` is in force."""
    return view.in_force is not None and view.in_force.version == version
