"""What the HTTP service charges when Kafka fails: all that was done."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pytest
from kafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError
from starlette.exceptions import HTTPException

from sluice.gateways.client.middleware import Caller
from sluice.gateways.http.backend import KafkaBackend, Produced, Record, TopicOutcome
from sluice.gateways.http.service import Call, KafkaService
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from tests.gateway_loop import GatewayLoop, gateway_loop, quota

QUOTAS = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1_000.0, user=DEFAULT)]


class Written(NamedTuple):
    """kafka-python's metadata of a record."""

    partition: int
    offset: int
    serialized_key_size: int
    serialized_value_size: int


class FailingBackend(KafkaBackend):
    """A cluster with one topic, that refuses records of more than 100 bytes and to delete the topic."""

    def __init__(self) -> None:
        self.topics = {"orders": 2}

    def partition_count(self, name: str) -> int:
        return self.topics.get(name, 0)

    def produce(self, topic: str, records: Sequence[Record]) -> Produced:
        assert topic in self.topics
        small = [record for record in records if len(record.value) <= 100]
        written = [Written(0, offset, -1, len(record.value)) for offset, record in enumerate(small)]
        return Produced(written, MessageSizeTooLargeError() if len(small) < len(records) else None)

    def delete_topic(self, name: str) -> list[TopicOutcome]:
        raise UnknownTopicOrPartitionError(name)


@pytest.fixture
def loop() -> Iterator[GatewayLoop]:
    with gateway_loop(QUOTAS, decide_timeout_ms=1) as loop:
        yield loop


@pytest.fixture
def service(loop: GatewayLoop) -> KafkaService:
    return KafkaService(loop.gateways[0], FailingBackend())


def call(topic: str, body: object = None) -> Call:
    return Call(Caller("alice", "app"), None, topic, msgspec.json.encode(body))


def test_records_beside_a_refused_one_are_charged(loop: GatewayLoop, service: KafkaService) -> None:
    """Else one record that is too large would make all others free."""
    records = [{"value": "x" * 100}] * 3 + [{"value": "x" * 101}]
    with pytest.raises(MessageSizeTooLargeError):
        service.produce(call("orders", {"records": records}))

    [event] = loop.events()
    assert event["topic_partitions"] == [{"topic": "orders", "partition": 0, "bytes": 300}]
    assert event["request_time_ns"] > 0


def test_the_time_of_mutations_that_kafka_refuses_is_charged(loop: GatewayLoop, service: KafkaService) -> None:
    with pytest.raises(KafkaError):
        service.delete_topic(call("orders"))

    assert loop.events()[-1]["request_time_ns"] > 0


def test_the_time_of_requests_for_topics_that_don_t_exist_is_charged(loop: GatewayLoop, service: KafkaService) -> None:
    with pytest.raises(HTTPException):
        service.delete_topic(call("unknown"))

    [event] = loop.events()
    assert event["api"] == "Metadata"
    assert event["request_time_ns"] > 0
