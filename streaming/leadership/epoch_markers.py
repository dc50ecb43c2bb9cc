"""Markers in the decisions topic: from there on no decision of an older driver counts."""

from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from sluice.kafka_io.client import connect, error_line
from sluice.sinks.errors import EpochMarkerError
from sluice.state.decisions.epochs import HEADER, Epoch

_SEND_TIMEOUT_S = 30.0

_KEY = HEADER.encode()
"""kafka-python sends nothing without key and value."""


def write_markers(topic: str, kafka: Mapping[str, str], epoch: Epoch) -> None:
    """Write the epoch into each partition; returns once the brokers have it. Raises EpochMarkerError."""
    try:
        with (
            closing(connect(KafkaConsumer, kafka, enable_auto_commit=False)) as consumer,
            closing(connect(KafkaProducer, kafka, acks="all")) as producer,
        ):
            headers = [(HEADER, epoch.header())]
            sent = [
                producer.send(topic, None, _KEY, headers, partition)
                for partition in sorted(consumer.partitions_for_topic(topic) or ())
            ]
            for each in sent:
                each.get(_SEND_TIMEOUT_S)
    except (KafkaError, OSError) as error:
        raise EpochMarkerError(
            f"topic {topic} can't be written ({error_line(error)}), so what a driver that led before publishes could"
            " still count; see that its brokers are up and this login may write to it"
        ) from error
