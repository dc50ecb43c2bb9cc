"""The waits topic on a real broker: the records of waits that ended long ago go, and no other one."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kafka import KafkaProducer

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks import waits
from sluice.sinks.waits import remove_ended_waits
from sluice.state.contract.gateway_topics import WaitRecord
from sluice.state.decisions.leader_epochs import HEADER, LeaderEpoch
from sluice.state.decisions.wait_records import wait_key, wait_value
from sluice.state.quotas.entity import Tags
from tests.deciding_side import own_topics

pytestmark = pytest.mark.kafka

NOW_MS = 1_800_000_000_000


class Topic:
    """The waits topic, with one partition."""

    def __init__(self, topics: TopicSettings, servers: str) -> None:
        self.name, self.kafka = topics.waits, {"bootstrap.servers": servers}
        ensure_topics(topics, self.kafka)

    def write(self, client_id: str, ended_ms: int | None, epoch: int | None = None) -> None:
        """A wait of a client that ended before NOW_MS, or began then if that is negative; None for that of a reset."""
        value = None if ended_ms is None else wait_value(wait_until(NOW_MS - ended_ms))
        with closing(KafkaProducer(bootstrap_servers=self.kafka["bootstrap.servers"])) as producer:
            headers = [(HEADER, LeaderEpoch("job", epoch).header())] if epoch else []
            producer.send(self.name, value, key(client_id), headers)

    def remove(self, max_keys: int = 100) -> int:
        return remove_ended_waits(self.name, self.kafka, NOW_MS, max_keys)

    def waiting(self) -> dict[bytes, bytes]:
        """The waits by key that a compacted topic has."""
        with TopicReader(self.kafka, self.name) as reader:
            last = {record.key or b"": record.value for _, record in reader.read_to_end()}
        return {key: value for key, value in last.items() if value is not None}


def wait_until(until_ms: int) -> WaitRecord:
    return WaitRecord(until_ms, 8_000, 1024.0, 2048.5, until_ms - 8_000, 7)


def key(client_id: str) -> bytes:
    return wait_key(("producer_byte_rate", Tags("alice", client_id)))


@pytest.fixture
def topic(kafka_broker: str) -> Topic:
    return Topic(own_topics(partitions=1), kafka_broker)


def test_waits_that_ended_before_the_time_are_removed_and_all_others_stay(topic: Topic) -> None:
    for client_id, ended_ms in (("a", 1), ("b", 0), ("c", -5_000), ("d", 1), ("e", 1), ("e", -5_000)):
        topic.write(client_id, ended_ms)
    topic.write("d", None)

    assert [topic.remove(), topic.remove()] == [1, 0]
    assert topic.waiting().keys() == {key("b"), key("c"), key("e")}


def test_of_very_many_ended_waits_few_are_in_memory_at_a_time_and_all_are_removed(topic: Topic) -> None:
    """A flood of client-ids doesn't fill the driver's memory."""
    for client_id in "abcdefghij":
        topic.write(client_id, 1)

    assert topic.remove(max_keys=2) == 10
    assert topic.waiting() == {}


@pytest.fixture
def written_meanwhile(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Let a wait of "a" be written, of a driver with this epoch, after those that have ended were looked for."""
    found = waits._ended

    def write(epoch: int | None) -> None:
        def meanwhile(*arguments: object) -> dict[bytes, int] | None:
            ended = found(*arguments)  # type: ignore[arg-type] # those of the function
            topic.write("a", -5_000, epoch=epoch)
            return ended

        monkeypatch.setattr(waits, "_ended", meanwhile)

    return write


def test_a_wait_that_the_job_writes_meanwhile_stays(
    topic: Topic, written_meanwhile: Callable[[int | None], None]
) -> None:
    topic.write("a", 1)
    topic.write("b", 1)
    written_meanwhile(None)
    topic.remove()

    assert topic.waiting() == {key("a"): wait_value(wait_until(NOW_MS + 5_000))}


def test_a_wait_that_the_job_ends_after_it_was_removed_stays_ended(
    topic: Topic, written_meanwhile: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before, which was written while others were removed, never takes the place of what came later."""
    topic.write("a", 1)
    read, looks = TopicReader.read_to_end, iter(["ended", "later"])

    def after_the_removal(reader: TopicReader) -> Iterator[tuple[int, FetchedRecord]]:
        if next(looks, None) == "later":
            topic.write("a", None)
        return read(reader)

    written_meanwhile(None)
    monkeypatch.setattr(TopicReader, "read_to_end", after_the_removal)
    topic.remove()

    assert topic.waiting() == {}


def test_a_wait_of_a_driver_that_was_replaced_is_not_made_genuine(
    topic: Topic, written_meanwhile: Callable[[int | None], None]
) -> None:
    topic.write("a", 1, epoch=2)
    written_meanwhile(1)
    topic.remove()

    assert topic.waiting() == {}


def test_records_that_are_no_waits_are_left_alone(topic: Topic) -> None:
    with closing(KafkaProducer(bootstrap_servers=topic.kafka["bootstrap.servers"])) as producer:
        producer.send(topic.name, b"garbage", key("a"))
        producer.send(topic.name, b"garbage", b"garbage")
    topic.write("b", 1)

    assert topic.remove() == 1
    assert topic.waiting().keys() == {key("a"), b"garbage"}
