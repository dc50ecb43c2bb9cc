"""The private names of kafka-python that Sluice uses are there, in the release they were tried with."""

import inspect
from importlib.metadata import version

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.producer.sender import Sender
from kafka.record.default_records import DefaultRecordBatch

TRIED_WITH = "3.0.12"


def attributes(kind: type) -> str:
    return inspect.getsource(kind)


def test_the_release_is_the_one_that_private_names_were_tried_with() -> None:
    """With another one run the integration tests, look at the names below, and change TRIED_WITH."""
    assert version("kafka-python") == TRIED_WITH


def test_readers_find_what_they_replace_and_ask() -> None:
    """All of it is used in kafka_io/kafka_python.py alone."""
    assert "self._fetcher = " in attributes(KafkaConsumer)
    assert "self._cluster = " in attributes(KafkaConsumer)
    assert callable(ClusterMetadata.topic_id)
    assert "self.PartitionRecords(" in attributes(Fetcher)
    assert "def _unpack_records(self, " in attributes(Fetcher.PartitionRecords)
    assert "self._buffer = " in attributes(DefaultRecordBatch)
    assert "self._pos = " in attributes(DefaultRecordBatch)
    assert "self._manager = " in attributes(KafkaAdminClient)


def test_the_sender_finds_what_ends_a_producer() -> None:
    """It is used in gateways/client/publisher.py alone."""
    assert "self._sender = " in attributes(KafkaProducer)
    assert callable(Sender.force_close)
