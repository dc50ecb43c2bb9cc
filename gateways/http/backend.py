"""The Kafka cluster behind the HTTP service."""

import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Annotated, Any, NamedTuple

import msgspec
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError
from msgspec import Meta

from sluice.gateways.client.event_sender import PRODUCER_OPTIONS
from sluice.kafka_io.client import TopicName, connect

PRODUCE_TIMEOUT_S = 30.0
"""Longest wait for Kafka to acknowledge the records of a request."""

MAX_PARTITIONS = 100_000


class NewTopic(msgspec.Struct):
    """One topic to create."""

    name: TopicName
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)] = 1
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] = 1


class Record(msgspec.Struct):
    """One record to produce."""

    value: str
    key: str | None = None
    partition: Annotated[int, Meta(ge=0, le=MAX_PARTITIONS)] | None = None


class TopicOutcome(msgspec.Struct):
    """The result for one topic, in Kafka's error codes; 0 is success."""

    name: str
    error_code: int = 0
    error_message: str | None = None


class Produced(NamedTuple):
    """kafka-python's metadata of the records that were written: partition, offset and sizes; and the first error."""

    written: list[Any]
    error: KafkaError | None


class KafkaBackend:
    """Admin and produce calls. Each blocks until Kafka has answered. Thread-safe.

    Raises KafkaError as kafka-python does, and KafkaUnavailableError from the constructor if no broker answers.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._admin = connect(KafkaAdminClient, kafka)
        self._producer = connect(KafkaProducer, kafka, **{**PRODUCER_OPTIONS, "linger_ms": 0})
        self._admin_lock = Lock()  # kafka-python doesn't document its admin client as thread-safe

    def close(self) -> None:
        """Closes both clients. Every record has been acknowledged, so there is nothing to wait for."""
        self._producer.close(1)
        self._admin.close()

    def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> list[TopicOutcome]:
        """Creates the topics; with `validate_only` only reports what the outcomes would be."""
        wanted = {
            topic.name: {"num_partitions": topic.partitions, "replication_factor": topic.replication_factor}
            for topic in topics
        }
        with self._admin_lock:
            answer = self._admin.create_topics(wanted, validate_only=validate_only, raise_errors=False)
            outcomes = _outcomes(answer["topics"])
            if not validate_only:  # Kafka answers before every broker knows the topics
                self._admin.wait_for_topics([outcome.name for outcome in outcomes if outcome.error_code == 0])
        return outcomes

    def delete_topic(self, name: str) -> list[TopicOutcome]:
        """Deletes one topic."""
        with self._admin_lock:
            return _outcomes(self._admin.delete_topics([name], raise_errors=False)["topics"])

    def create_partitions(self, name: str, count: int, validate_only: bool) -> list[TopicOutcome]:
        """Raises the topic's number of partitions to `count`; with `validate_only` only reports the outcome."""
        with self._admin_lock:
            answer = self._admin.create_partitions({name: count}, validate_only=validate_only, raise_errors=False)
        return _outcomes(answer.to_dict()["results"])

    def partition_count(self, name: str) -> int:
        """The number of the topic's partitions; 0 if the topic does not exist."""
        with self._admin_lock:
            described = self._admin.describe_topics([name])[0]
        return len(described["partitions"]) if described["error_code"] == 0 else 0

    def produce(self, topic: str, records: Sequence[Record]) -> Produced:
        """Writes the records; what Kafka refuses keeps it from none of the others. Raises no KafkaError."""
        deadline_s = time.monotonic() + PRODUCE_TIMEOUT_S
        futures, written, error = [], [], None
        for record in records:
            key = record.key.encode() if record.key is not None else None
            try:
                futures.append(self._producer.send(topic, record.value.encode(), key, partition=record.partition))
            except KafkaError as refused:
                error = error or refused
        for future in futures:
            try:
                written.append(future.get(timeout=max(0.0, deadline_s - time.monotonic())))
            except KafkaError as refused:
                error = error or refused
        return Produced(written, error)


def _outcomes(results: Sequence[Mapping[str, Any]]) -> list[TopicOutcome]:
    return [TopicOutcome(result["name"], result["error_code"], result.get("error_message")) for result in results]
