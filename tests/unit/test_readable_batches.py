"""Batches that kafka-python can't decode, out of bytes as a broker sends them."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch

from sluice.kafka_io.kafka_python import pass_over_unreadable_batches, records_of

GZIP, ZSTD = 1, 4


def batch(first_offset: int, *values: bytes, header: bytes = b"name", codec: int = 0) -> bytes:
    """A batch with these values; with another codec the bytes are none that it can decompress."""
    builder = MemoryRecordsBuilder(2, 0, 100_000)
    for value in values:
        builder.append(timestamp=0, key=None, value=value, headers=[("name", b"x")])
    builder.close()
    raw = bytearray(bytes(builder.buffer()).replace(b"name", header))
    raw[:8] = first_offset.to_bytes(8, "big")
    raw[DefaultRecordBatch.ATTRIBUTES_OFFSET + 1] |= codec
    return bytes(raw)


def read(fetched: bytes, fetch_offset: int = 0) -> tuple[list[tuple[int, bytes]], list[tuple[int, int, int, str]], int]:
    """Records (offset, value) that are handed over, batches that are passed over, and the offset to fetch next."""
    passed_over: list[tuple[int, int, int, str]] = []
    consumer = SimpleNamespace(_fetcher=SimpleNamespace())
    pass_over_unreadable_batches(
        consumer,
        lambda partition, offset, count, error: passed_over.append((partition, offset, count, type(error).__name__)),
    )
    records: Any = consumer._fetcher.PartitionRecords(
        fetch_offset, TopicPartition("decisions", 3), MemoryRecords(fetched), check_crcs=False
    )
    values = [(record.offset, record.value) for record in records.take(100)]
    return values, passed_over, records.next_fetch_offset


def test_batches_before_and_after_one_that_cant_be_decompressed_are_read() -> None:
    fetched = batch(0, b"a", b"b") + batch(2, b"?", b"?", b"?", codec=ZSTD) + batch(5, b"c")

    assert read(fetched) == ([(0, b"a"), (1, b"b"), (5, b"c")], [(3, 2, 3, "UnsupportedCodecError")], 6)


def test_a_consumer_moves_on_when_the_last_batch_cant_be_decoded() -> None:
    """Its value is longer than the record here."""
    values, passed_over, next_offset = read(batch(0, b"a") + batch(1, b"b").replace(b"\x02b", b"\x7eb"))

    assert values == [(0, b"a")]
    assert passed_over == [(3, 1, 1, "CorruptRecordError")]
    assert next_offset == 2


def test_headers_are_of_no_interest() -> None:
    """The name of this one is no text."""
    assert read(batch(0, b"a", header=b"\xff\xff\xff\xff")) == ([(0, b"a")], [], 1)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=20_000)), min_size=1),
    st.integers(0, 2**40),
    st.sampled_from([0, GZIP]),
)
def test_records_are_read_as_the_client_library_reads_them(
    pairs: list[tuple[bytes | None, bytes | None]], first_offset: int, codec: int
) -> None:
    builder = MemoryRecordsBuilder(2, codec, 10_000_000)
    for number, (key, value) in enumerate(pairs):
        builder.append(timestamp=number * 1_000, key=key, value=value, headers=[("name", value)])
    builder.close()
    raw = bytearray(builder.buffer())
    raw[:8] = first_offset.to_bytes(8, "big")

    theirs = [(record.offset, record.key, record.value) for record in DefaultRecordBatch(raw)]
    assert [(record.offset, record.key, record.value) for record in records_of(DefaultRecordBatch(raw))] == theirs


@given(st.binary(max_size=200), st.integers(1, 2**31 - 1))
def test_no_bytes_make_it_read_on_for_ever(garbage: bytes, count: int) -> None:
    raw = bytearray(batch(0, b"a"))
    raw[57:61] = count.to_bytes(4, "big")
    with suppress(CorruptRecordError, IndexError):
        records_of(DefaultRecordBatch(raw[:61] + garbage))


def test_records_before_the_fetched_offset_are_not_handed_over_again() -> None:
    assert read(batch(0, b"a", b"b", b"c"), fetch_offset=2) == ([(2, b"c")], [], 3)
