"""The rehearsal of a warm standby before it leads: micro-batches that leave nothing behind."""

from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.streaming.enforce.rehearsal import rehearse
from tests.deciding_side import own_settings

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def settings(kafka_broker: str, tmp_path: Path) -> Settings:
    """Settings of a job whose checkpoint is a URI, with topics of its own."""
    settings = own_settings(kafka_broker, partitions=1)
    return replace(settings, enforce=replace(settings.enforce, checkpoint=(tmp_path / "enforce").as_uri()))


def publish(settings: Settings, count: int) -> None:
    """Requests, every tenth of which is no event."""
    with KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"]) as producer:
        for number in range(count):
            event = f'{{"api": "Produce", "user": "user-{number % 50}", "bytes": 100}}'.encode()
            producer.send(settings.topics.requests, b"no event" if number % 10 == 9 else event)


def records_in(settings: Settings, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    with KafkaConsumer(bootstrap_servers=settings.kafka["bootstrap.servers"]) as consumer:
        ends: dict[TopicPartition, int] = consumer.end_offsets([partition])
        return ends[partition]


def test_a_rehearsal_decides_two_micro_batches_and_leaves_no_trace(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    publish(settings, 1500)

    assert rehearse(spark, settings, Event()) == 2

    assert records_in(settings, settings.topics.decisions) == 0
    assert records_in(settings, settings.topics.dead_letters) == 0
    assert list(tmp_path.iterdir()) == []
    assert spark.streams.active == []


def test_a_rehearsal_ends_when_the_driver_is_to_lead(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """Also without any request, of which no micro-batch would ever come."""
    leads = Event()
    leads.set()

    assert rehearse(spark, settings, leads) == 0

    assert list(tmp_path.iterdir()) == []
    assert spark.streams.active == []
