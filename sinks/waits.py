"""Removes the records of waits that ended long ago from the waits topic, which each new gateway reads."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from zlib import crc32

from kafka import KafkaProducer

from sluice.kafka_io.client import connect
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.decisions.wait_records import InvalidWaitError, read_wait

log = logging.getLogger("sluice.waits")

ENDED_MS = 3_600_000
"""Time after the end of a wait at which its record goes: for gateways whose clocks are behind it still lasts."""

_POLL_S = 600.0
_RETRY_S = 60.0
_SEND_TIMEOUT_S = 30.0

_MAX_KEYS = 100_000
"""Most keys in memory: clients invent client-ids. Of more waits the topic is read several times."""


def ended_waits_remover(topic: str, kafka: Mapping[str, str]) -> BackgroundService:
    """The service that removes them: those of earlier starts with the first poll."""

    def remove() -> None:
        remove_ended_waits(topic, kafka, now_ms() - ENDED_MS)

    failure = "records of ended waits can't be removed"
    return BackgroundService("waits", remove, _POLL_S, retry_s=_RETRY_S, failure=failure, log=log)


def remove_ended_waits(topic: str, kafka: Mapping[str, str], before_ms: int, max_keys: int = _MAX_KEYS) -> int:
    """Remove the records of waits that ended before a time in epoch milliseconds; returns how many.

    The topic is compacted, so a record goes when one without a value follows it. Raises KafkaError,
    KafkaUnavailableError and TopicLostError.
    """
    with closing(connect(KafkaProducer, kafka, acks="all", linger_ms=5, allow_auto_create_topics=False)) as producer:
        return _remove_part(topic, kafka, producer, before_ms, max_keys, 0, 1)


def _remove_part(
    topic: str, kafka: Mapping[str, str], producer: KafkaProducer, before_ms: int, max_keys: int, part: int, parts: int
) -> int:
    """Remove those of one part of the keys; in two halves if it has too many."""
    with TopicReader(kafka, topic, fenced=True) as reader:
        of_part = (each for each in reader.read_to_end() if crc32(each[1].key or b"") % parts == part)
        ended = _ended(of_part, before_ms, max_keys)
        if ended is not None:
            sent = [(key, producer.send(topic, None, key, partition=partition)) for key, partition in ended.items()]
            removed_at = {key: future.get(_SEND_TIMEOUT_S).offset for key, future in sent}
            # The job may have written a wait of one of these counters in between, and after that another one.
            between = dict[bytes, FetchedRecord]()
            for _, record in reader.read_to_end() if ended else ():
                key = record.key or b""
                if record.offset < removed_at.get(key, 0):
                    between[key] = record
                elif record.offset > removed_at.get(key, record.offset):
                    between.pop(key, None)
            for key, record in between.items():
                if record.value is not None:
                    producer.send(topic, record.value, key, partition=ended[key]).get(_SEND_TIMEOUT_S)
            return len(ended)
    halves = (part, part + parts)
    return sum(_remove_part(topic, kafka, producer, before_ms, max_keys, half, 2 * parts) for half in halves)


def _ended(records: Iterable[tuple[int, FetchedRecord]], before_ms: int, max_keys: int) -> dict[bytes, int] | None:
    """The keys whose last record is a wait that ended before a time, each with its partition; None if they are many."""
    ended: dict[bytes, int] = {}
    for partition, record in records:
        key = record.key or b""
        try:
            _, wait = read_wait(key, record.value)
        except InvalidWaitError:
            continue
        if wait is None or wait.until_ms >= before_ms:
            ended.pop(key, None)
        else:
            ended[key] = partition
            if len(ended) > max_keys:
                return None
    return ended
