"""The console's reader, where records can't be decoded: no broker stores such, so the consumer is a double."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from sluice.insight import feed
from sluice.insight.feed import FAILED_POLLS, TopicFeed

TOPIC = "decisions"


class Record:
    """What a poll gives."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.key = None
        self.value = b"%d" % offset
        self.headers = list[tuple[str, bytes]]()


class Consumer:
    """A partition of ten records, of which that at offset 4 can't be decoded; more come while `grown` is set."""

    polls_that_failed = 0

    def __init__(self, grown: Event) -> None:
        self._grown = grown
        self._at = 0

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    @property
    def _cluster(self) -> Any:
        return SimpleNamespace(topic_id=lambda _: 1)

    def assignment(self) -> set[TopicPartition]:
        return set()

    def beginning_offsets(self, partitions: Any, _: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Any, _: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    def assign(self, _: Any) -> None: ...

    def seek(self, _: TopicPartition, offset: int) -> None:
        self._at = offset

    def poll(self, **_: Any) -> dict[TopicPartition, list[Record]]:
        if self._at == 4:
            Consumer.polls_that_failed += 1
            raise ValueError("unknown codec")
        if self._at < 10:
            self._at = 4
            return {TopicPartition(TOPIC, 0): [Record(offset) for offset in range(4)]}
        self._grown.wait(5)
        self._at += 1
        return {TopicPartition(TOPIC, 0): [Record(self._at - 1)]}

    def close(self) -> None: ...


def test_what_can_not_be_decoded_is_passed_over_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After FAILED_POLLS failures it goes on at the end of the topic, and misses nothing that comes then."""
    grown, read, last = Event(), list[bytes | None](), Event()

    def take(records: Any) -> None:
        read.extend(value for _, value in records)
        if read[-1] == b"12":
            last.set()

    monkeypatch.setattr(feed, "RETRY_S", 0.01)
    monkeypatch.setattr(feed, "connect", lambda *_, **__: Consumer(grown))
    monkeypatch.setattr(Consumer, "polls_that_failed", 0)
    topic = TopicFeed({}, TOPIC, take)
    grown.set()
    topic.start()
    try:
        assert last.wait(20)
    finally:
        topic.stop()

    assert read[:4] == [b"0", b"1", b"2", b"3"]
    assert read[4:7] == [b"10", b"11", b"12"]
    assert (topic.skipped, Consumer.polls_that_failed) == (1, FAILED_POLLS)
    assert topic.trouble.line is None
