"""Records that Spark's Kafka source can read: producers choose more than the value of a record."""

from collections.abc import Iterator

import pytest
from kafka import KafkaProducer
from kafka.errors import InvalidTimestampError, MessageSizeTooLargeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.kafka_io.client import TopicSettings
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from tests.deciding_side import own_settings

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NONE_MS = -1
"""Kafka's time of a record that has none."""

LEAST_TOO_LARGE_MS = 2**63 // 1000 + 1
TIMES = [
    -(2**63),
    -9 * 10**18,
    -LEAST_TOO_LARGE_MS,
    -MAX_TIMESTAMP_MS,
    NONE_MS,
    0,
    MAX_TIMESTAMP_MS,
    LEAST_TOO_LARGE_MS,
    9 * 10**18,
    2**63 - 1,
]


@pytest.fixture
def topics(kafka_broker: str) -> TopicSettings:
    """Topics as the job creates them."""
    return own_settings(kafka_broker, partitions=1).topics


def accepted(servers: str, topic: str) -> Iterator[int]:
    """The times with which the broker takes a record, each sent by a producer of its own."""
    for at_ms in TIMES:
        with KafkaProducer(bootstrap_servers=servers, enable_idempotence=False) as producer:
            try:
                producer.send(topic, b"{}", timestamp_ms=at_ms).get(120)
            except InvalidTimestampError:
                continue
            yield at_ms


@pytest.mark.parametrize("name", ["requests", "decisions", "dead_letters"])
def test_a_records_time_ends_no_query(spark: SparkSession, kafka_broker: str, topics: TopicSettings, name: str) -> None:
    """Spark keeps microseconds, and fails at every attempt to read a record whose time has none that fit 64 bits."""
    topic = getattr(topics, name)
    sent = list(accepted(kafka_broker, topic))

    options = {"kafka.bootstrap.servers": kafka_broker, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.read.format("kafka").options(**options).load()
    times = [row[0] for row in records.orderBy("offset").select(F.unix_millis("timestamp")).collect()]

    assert times == sent
    assert {NONE_MS, 0} <= set(sent)


def test_a_record_that_only_compression_makes_small_is_refused(kafka_broker: str, topics: TopicSettings) -> None:
    """Java ran out of memory at every start of the job on 800 MiB of zeros, which are 1 MiB on the wire."""
    large, small = bytes(16 * 1024 * 1024), b"{}"
    with KafkaProducer(
        bootstrap_servers=kafka_broker,
        compression_type="gzip",
        max_request_size=2 * len(large),
        enable_idempotence=False,
    ) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topics.requests, large).get(120)

        assert producer.send(topics.requests, small).get(120).offset == 0
