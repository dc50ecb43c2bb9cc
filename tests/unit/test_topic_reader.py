"""The reader of topics against a consumer that hands over what the test says."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError

from sluice.kafka_io import topic_follower, topic_reader
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_follower import Reading, TopicFollower

PARTITION = TopicPartition("decisions", 0)
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}

Step = list[tuple[int, bytes]] | BaseException | str
"""The result of one poll: records (offset, value), an error, or the new id of a topic that was made again."""


class ScriptedConsumer:
    """One partition that had no records at first. Polls give the steps of a script, which all consumers share."""

    def __init__(self, script: Iterator[Step], topic_id: list[str], seeks: list[int]) -> None:
        self._script, self._topic_id, self._seeks = script, topic_id, seeks
        self._assigned: set[TopicPartition] = set()
        self._fetcher = SimpleNamespace()
        self._cluster = SimpleNamespace(topic_id=lambda _: uuid5(NAMESPACE_OID, self._topic_id[0]))

    def close(self) -> None:
        pass

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    def end_offsets(self, partitions: set[TopicPartition], _: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    beginning_offsets = end_offsets

    def assignment(self) -> set[TopicPartition]:
        return self._assigned

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._assigned = set(partitions)

    def seek(self, _: TopicPartition, offset: int) -> None:
        self._seeks.append(offset)

    def position(self, _: TopicPartition, __: int) -> int:
        return 0

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        step = next(self._script, [])
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, str):
            self._topic_id[0] = step
            return {}
        if not step:
            Event().wait(timeout_ms / 1000)
        return {PARTITION: [FetchedRecord(at, None, value) for at, value in step]} if step else {}


class LeaderlessConsumer(ScriptedConsumer):
    """As kafka-python's consumer is when the only broker that has the partition is away."""

    def end_offsets(self, partitions: set[TopicPartition], _: int) -> dict[TopicPartition, int]:
        raise KeyError(*partitions)

    beginning_offsets = end_offsets


def test_a_partition_without_a_leader_is_an_error_of_kafka_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "connect", lambda *_, **__: LeaderlessConsumer(iter([]), ["id"], []))
    reader = topic_reader.TopicReader(NOBODY, "decisions")

    for ask in (reader.unread, reader.offsets):
        with pytest.raises(KafkaError, match="partition 0 of topic decisions has no leader"):
            ask()


Run = Callable[..., tuple[TopicFollower, list[bytes], list[int]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Reads a script to its last record, `last`, and returns the reader, the values it handed over and its seeks."""
    readers: list[TopicFollower] = []
    monkeypatch.setattr(topic_follower, "REJOIN_S", 0.0)

    def read(script: list[Step], reading: Reading | None = None) -> tuple[TopicFollower, list[bytes], list[int]]:
        topic_id, seeks, seen, done = ["first"], list[int](), list[bytes](), Event()
        steps = iter([*script, [(99, b"last")]])
        monkeypatch.setattr(topic_reader, "connect", lambda *_, **__: ScriptedConsumer(steps, topic_id, seeks))
        given = reading or Reading("decisions", lambda *_: None)

        def on_record(key: bytes | None, value: bytes | None) -> None:
            seen.append(value or b"")
            if value == b"last":
                done.set()
            given.on_record(key, value)

        reader = TopicFollower(NOBODY, replace(given, on_record=on_record))
        readers.append(reader)
        reader.start()
        assert done.wait(120)
        return reader, seen, seeks

    yield read
    for reader in readers:
        reader.stop()


def fail_on(*errors: BaseException) -> Callable[[bytes | None, bytes | None], None]:
    """A handler that raises the error with the number that a record's value is."""

    def on_record(_: bytes | None, value: bytes | None) -> None:
        if value is not None and value.isdigit():
            raise errors[int(value)]

    return on_record


def test_no_record_ends_a_reader_and_each_kind_of_failure_is_said_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading("decisions", fail_on(RecursionError("too deep"), KeyError("the caller's mistake")))
    with caplog.at_level(logging.ERROR):
        reader, seen, _ = run([[(3, b"0"), (4, b"fine"), (5, b"0")], [(6, b"1"), (7, b"0")]], reading)

    assert seen == [b"0", b"fine", b"0", b"1", b"0", b"last"]
    assert (reader.unreadable, reader.crashes) == (4, 0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "topic decisions, partition 0, offset 3" in said[0]
    assert "RecursionError" in said[0]
    assert "topic decisions, partition 0, offset 6" in said[1]


def test_a_reader_that_fails_is_started_again_after_the_last_record_it_took(run: Run) -> None:
    """SystemExit is what sys.exit raises in a callback."""
    reading = Reading("decisions", fail_on(SystemExit(1)))

    reader, seen, seeks = run([[(0, b"a"), (1, b"0"), (2, b"b")], [(2, b"b")], RuntimeError("a bug"), []], reading)

    assert seen == [b"a", b"0", b"b", b"last"]
    assert reader.crashes == 2
    assert seeks == [0, 2, 3]


def test_an_outage_is_no_restart(run: Run) -> None:
    reader, seen, seeks = run([[(0, b"a")], KafkaConnectionError("away")])

    assert seen == [b"a", b"last"]
    assert (reader.crashes, seeks) == (0, [0, 1])


@pytest.mark.parametrize(
    ("script", "begun"),
    [
        # The new topic has as many records as the old one had, so that the offsets show nothing.
        ([[(0, b"a"), (1, b"b")], "second", [(0, b"c"), (1, b"d")]], [0, 0]),
        # A topic that has lost records is read again by the consumer.
        ([[(7, b"a"), (8, b"b")], [(0, b"c"), (1, b"d")]], [0]),
    ],
    ids=["made again", "lost records"],
)
def test_a_topic_that_is_made_again_is_read_from_its_beginning(run: Run, script: list[Step], begun: list[int]) -> None:
    restarts: list[str] = []
    reading = Reading("decisions", lambda *_: None, on_restart=lambda: restarts.append("again"))

    _, seen, seeks = run(script, reading)

    assert seen == [b"a", b"b", b"c", b"d", b"last"]
    assert (restarts, seeks[: len(begun)]) == (["again"], begun)
