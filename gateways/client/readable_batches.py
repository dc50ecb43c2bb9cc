"""Lets a kafka-python consumer go on after a batch that it can't decode, such as one compressed with zstd.

By itself such a consumer fails at the same offset for ever, so that one forged record would keep a gateway from all
records that come after it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher

OnUnreadable = Callable[[int, int, int, Exception], None]
"""Called with partition, first offset, number of records and error of a batch that is passed over."""


def pass_over_unreadable_batches(consumer: KafkaConsumer, on_unreadable: OnUnreadable) -> None:
    """Makes the consumer pass over what it can't decode. kafka-python has no public way for that."""
    consumer._fetcher.PartitionRecords = partial(_PartitionRecords, on_unreadable)  # noqa: SLF001


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc] # kafka-python has no types
    """What was fetched of one partition."""

    def __init__(self, on_unreadable: OnUnreadable, *args: Any, **options: Any) -> None:
        self._on_unreadable = on_unreadable
        super().__init__(*args, **options)

    def _unpack_records(self, partition: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        batches = _Batches(records, partial(self._on_unreadable, partition.partition))
        unpacked: Iterator[Any] = super()._unpack_records(partition, batches, *deserializers)
        return unpacked


class _Batches:
    """The batches that were fetched, decoded; one that can't be is empty, so that the consumer moves on to its end."""

    def __init__(self, records: Any, on_unreadable: Callable[[int, int, Exception], None]) -> None:
        self._records = records
        self._on_unreadable = on_unreadable

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if batch is None or batch.magic < 2 or batch.is_control_batch:
            return batch
        try:
            return _Batch(batch, list(batch))
        except Exception as error:  # whatever a producer has put there
            self._on_unreadable(batch.base_offset, batch.last_offset_delta + 1, error)
            return _Batch(batch, [])


class _Batch:
    """A batch whose records are decoded."""

    def __init__(self, batch: Any, records: list[Any]) -> None:
        self._batch = batch
        self._records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)
