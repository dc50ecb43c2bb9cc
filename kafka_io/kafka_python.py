"""Reading beyond kafka-python's public calls. No other module that reads has its private names.

tests/unit/test_kafka_python.py names the release that they were tried with.

1. A consumer goes on after a batch that it can't decode, such as one compressed with zstd. By itself it fails at the
   same offset for ever, so that one forged record would keep a gateway from all records that come after it. Records
   are decoded here too, without the parts that no reader needs: a third of the time.
2. The id of a topic shows that it was deleted and made again.
3. The admin client tries a topic's config.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError

from sluice.state.decisions.leader_epochs import LeaderEpoch, epoch_of

OnUnreadable = Callable[[int, int, int, Exception], None]
"""Called with partition, first offset, number of records and error of a batch that is passed over."""


class FetchedRecord(msgspec.Struct, gc=False):
    """The parts of a record that readers need; headers as the broker stores them, empty without any.

    `timestamp_ms` is the time of the newest record that was sent together with it.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    stored_headers: bytes = b""
    timestamp_ms: int = 0


@lru_cache(maxsize=64)
def epoch_in(stored_headers: bytes) -> LeaderEpoch | None:
    """The epoch in the headers of a FetchedRecord. Nearly all records have the same, so each is decoded once.

    Raises IndexError, and UnicodeDecodeError, where they are damaged.
    """
    headers = []
    count, position = _varint(stored_headers, 0)
    for _ in range(count):
        name, position = _bytes(stored_headers, position)
        value, position = _bytes(stored_headers, position)
        headers.append(((name or b"").decode(), value))
    return epoch_of(headers)


def pass_over_unreadable_batches(consumer: KafkaConsumer, on_unreadable: OnUnreadable) -> None:
    """Make the consumer return FetchedRecords and pass over batches that it can't decode."""
    consumer._fetcher.PartitionRecords = partial(_PartitionRecords, on_unreadable)  # noqa: SLF001


def topic_id(consumer: KafkaConsumer, topic: str) -> str | None:
    """The id that the broker gave the topic when it was made; None if the broker's metadata has none."""
    return topic_id_text(consumer._cluster.topic_id(topic))  # noqa: SLF001


def topic_id_text(found: UUID | None) -> str | None:
    """The id of a topic as Kafka's tools show it; None if the broker gave none.

    >>> topic_id_text(UUID("b7a5f9ee-7e6e-4d2b-9dc6-2f0f3f4f5a01")), topic_id_text(UUID(int=0)), topic_id_text(None)
    ('t6X57n5uTSudxi8PP09aAQ', None, None)
    """
    return urlsafe_b64encode(found.bytes).decode().rstrip("=") if found and found.int else None


class ConfigsAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python ships no type hints
    """kafka-python's admin client with the code of an answer to AlterConfigs, of which its own has the words."""

    def tried_config(self, topic: str, config: str, value: str) -> int:
        """The error code of the cluster for this config of a topic, which isn't changed. Raises KafkaError."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {config: value})
        request = self._alter_configs_request([resource], validate_only=True, incremental=True)
        [answer] = self._manager.run(self._manager.send, request).responses
        return int(answer.error_code)


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc] # kafka-python has no types
    """The records fetched of one partition."""

    def __init__(self, on_unreadable: OnUnreadable, *args: Any, **options: Any) -> None:
        self._on_unreadable = on_unreadable
        super().__init__(*args, **options)

    def _unpack_records(self, partition: Any, records: Any, *_deserializers: Any) -> Iterator[FetchedRecord]:
        while (batch := records.next_batch()) is not None:
            for record in self._decode(partition.partition, batch):
                self.next_fetch_offset = record.offset + 1
                yield record
            if batch.magic == 2:  # where compaction has removed the last records, none comes before the batch's end
                self.next_fetch_offset = batch.next_offset
        self.drain()

    def _decode(self, partition: int, batch: Any) -> list[FetchedRecord]:
        """The records of a batch; none if it can't be decoded, so that the consumer moves on to its end."""
        if batch.magic < 2:
            return [FetchedRecord(record.offset, record.key, record.value) for record in batch]
        if batch.is_control_batch:
            return []
        try:
            return records_of(batch)
        except Exception as error:  # of any class: a producer chooses the bytes
            self._on_unreadable(partition, batch.base_offset, batch.last_offset_delta + 1, error)
            return []


def records_of(batch: Any) -> list[FetchedRecord]:
    """The records of a batch in Kafka's format 2: varints, key, value and headers.

    Raises what kafka-python does, CorruptRecordError, and IndexError where a batch ends too early.
    """
    iter(batch)  # decompresses it
    content, base_offset = bytes(batch._buffer), batch.base_offset  # noqa: SLF001 # bytes: the fastest to index
    end, records, time_ms = batch._pos, [], batch.max_timestamp  # noqa: SLF001
    for _ in range(batch.records_count):
        length, position = _varint(content, end)
        end = position + length
        position += 1  # the attributes
        while content[position] & 0x80:
            position += 1  # its own time, which no reader needs
        delta, position = _varint(content, position + 1)
        key, position = _bytes(content, position)
        value, position = _bytes(content, position)
        if not position < end <= len(content):
            raise CorruptRecordError(f"a record ends at {end} of {len(content)} bytes, its value at {position}")
        headers = content[position:end] if content[position] else b""
        records.append(FetchedRecord(base_offset + delta, key, value, headers, time_ms))
    return records


def _bytes(content: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes after their length, of which -1 is null, and where they end."""
    length, position = _varint(content, position)
    if length < 0:
        return None, position
    return content[position : position + length], position + length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """A number in zigzag encoding, seven bits a byte, and where it ends."""
    byte = content[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        position += 1
        byte = content[position]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), position + 1
