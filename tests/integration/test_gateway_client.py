"""The gateway client against a real broker; the deciding side is the job's arithmetic alone."""

import threading
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from sluice import Gateway, Request, StalePolicy, WhenFull
from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.sinks.limits import limits_publisher
from sluice.state.contract.gateway_topics import WaitRecord
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.decisions.wait_records import wait_key, wait_value
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.gateways import gateway_options
from tests.builders import quota
from tests.decided_sums import sums_of
from tests.deciding_side import deciding_side, own_settings, read_events, read_records
from tests.gateway_loop import wait_ms
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

QUOTAS = (
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user="alice"),  # burst: 11 partitions
)


def decision(user: str, until_ms: int | None, timestamp_ms: int | None = None) -> bytes:
    """A record of sums with one decided charge on the counter of the user's client app, which waits until then."""
    at_ms = now_ms() if timestamp_ms is None else timestamp_ms
    charge = {"quota": "producer_byte_rate", "entity": {"user": user, "client_id": "app"}, "limit": 1024.0}
    wait_ms = 0 if until_ms is None else until_ms - at_ms
    [record] = sums_of([{"timestamp_ms": at_ms, "charges": [charge | {"throttle_ms": wait_ms}]}])
    return record


def write(settings: Settings, *values: bytes | None, timestamp_ms: int | None = None) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"])
    for value in values:
        producer.send(settings.topics.sums, value, key=b"key", timestamp_ms=timestamp_ms).get(timeout=120)
    producer.close()


def write_to(settings: Settings, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"], linger_ms=5)
    for key, value in records:
        producer.send(topic, value, key=key)
    producer.flush(60)
    producer.close()


def test_a_record_that_no_decoder_can_follow_ends_no_reader(kafka_broker: str) -> None:
    """Neither in a gateway that runs nor in one that starts later."""
    settings, now = own_settings(kafka_broker), now_ms()
    deep = decision("mallory", now + 60_000)[:-1] + b', "new": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    with Gateway(settings.kafka, gateway_options(settings)) as running:
        assert running.wait_until_ready(120)
        write(settings, deep, decision("alice", now + 60_000))
        with Gateway(settings.kafka, gateway_options(settings)) as later:
            for gateway in (running, later):
                eventually(lambda gateway=gateway: wait_ms(gateway, "alice", "app") > 0)  # type: ignore[misc]
                assert (gateway.stats().unreadable_records, gateway.stats().reader_restarts) == (1, 0)


class NoText(str):
    """The name of a header that the producer sends as bytes which are no UTF-8."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfe"


def test_a_batch_that_the_consumer_cant_decode_is_passed_over(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    with Gateway(settings.kafka, gateway_options(settings)) as gateway:
        assert gateway.wait_until_ready(120)
        producer = KafkaProducer(bootstrap_servers=kafka_broker, linger_ms=0)
        for partition in range(settings.topics.partitions):
            headers = [(NoText("name"), b"x")]
            producer.send(settings.topics.sums, b"x", partition=partition, headers=headers).get(120)
        producer.close()
        write(settings, *(decision(f"user-{number}", now + 60_000) for number in range(20)))

        eventually(lambda: gateway.stats().sums == 20)
        assert gateway.stats().unreadable_records == settings.topics.partitions
        assert gateway.stats().reader_restarts == 0


def test_a_gateway_follows_the_limits_in_force_also_when_their_topic_is_made_again(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    in_force: list[tuple[int, tuple[QuotaEntry, ...]]] = [(1, (bytes_limit("alice"),))]
    publisher = limits_publisher(settings.topics, settings.kafka, lambda: in_force[0])
    with Gateway(settings.kafka, gateway_options(settings, before_limits="hold")) as gateway:
        assert wait_ms(gateway, "bob", "app") == 1_000
        publisher.start()
        try:
            eventually(lambda: gateway.stats().limits_version == 1)
            assert wait_ms(gateway, "bob", "app") == 0
            write(settings, decision("alice", now + 60_000))
            write_to(settings, settings.topics.limits, (b"key", b"garbage"))
            eventually(lambda: gateway.stats().unreadable_records == 1)

            in_force[0] = (2, (bytes_limit("alice"), bytes_limit("bob")))
            eventually(lambda: gateway.stats().limits_version == 2)
            with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
                admin.delete_topics([settings.topics.limits])
            in_force[0] = (3, (bytes_limit("carol"),))
            eventually(lambda: gateway.stats().limits_version == 3)
            assert wait_ms(gateway, "alice", "app") == 0  # the limit is gone, and its wait with it
        finally:
            publisher.stop()


def bytes_limit(user: str) -> QuotaEntry:
    return quota(QuotaKind.PRODUCER_BYTE_RATE, 1024.0, user=user, client_id="app")


def test_a_new_gateway_knows_ten_thousand_kept_waits_when_it_is_ready(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    records: list[tuple[bytes, bytes | None]] = []
    for number in range(10_000):
        wait = WaitRecord(now + 600_000 + number, 1_200_000, 1024.0, 9999.0, now - 600_000, number)
        records.append((wait_key(("producer_byte_rate", Tags(f"user-{number}"))), wait_value(wait)))
    records.append((wait_key(("producer_byte_rate", Tags("user-0"))), None))
    write_to(settings, settings.topics.waits, *records)

    with Gateway(settings.kafka, gateway_options(settings, before_current="hold"), clock_ms=lambda: now) as gateway:
        assert wait_ms(gateway, "nobody", "app") == 1_000
        assert gateway.wait_until_ready(120)
        assert wait_ms(gateway, "nobody", "app") == 0
        assert wait_ms(gateway, "user-0", "app") == 0
        assert [wait_ms(gateway, f"user-{number}", "any") for number in (1, 9_999)] == [600_001, 609_999]


def test_a_new_gateway_starts_from_the_recent_past_of_the_topic(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    write(settings, decision("long ago", now + 60_000), timestamp_ms=now - 120_000)
    write(settings, decision("lately", now + 60_000), timestamp_ms=now - 30_000)

    with Gateway(settings.kafka, gateway_options(settings, lookback_s=60)) as gateway:
        assert gateway.wait_until_ready(120)
        assert wait_ms(gateway, "lately", "app") > 0
        assert wait_ms(gateway, "long ago", "app") == 0


def test_a_published_event_has_id_time_and_gateway_filled_in(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with Gateway(
        settings.kafka, gateway_options(settings, name="front"), clock_ms=lambda: 1_760_000_000_000
    ) as gateway:
        first = gateway.admit({"api": "Produce", "user": "alice"}).request_id
        gateway.admit(Request("Fetch", request_id="mine", timestamp_ms=5, gateway="other"))

    one, other = sorted(read_events(settings), key=lambda event: event["api"], reverse=True)
    assert (one["request_id"], one["timestamp_ms"], one["gateway"]) == (first, 1_760_000_000_000, "front")
    assert (other["request_id"], other["timestamp_ms"], other["gateway"]) == ("mine", 5, "other")


def test_an_awaited_decision_comes_to_the_one_who_waits(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with deciding_side(settings, QUOTAS), Gateway(settings.kafka, gateway_options(settings)) as gateway:
        topics = [{"topic": name, "partitions": 8} for name in ("a", "b", "c")]
        answer = gateway.admit_mutations({"api": "CreateTopics", "user": "alice", "mutations": topics})

        assert (answer.refused, answer.throttle_ms) == ((False, False, True), 5_000)
        eventually(lambda: 0 < wait_ms(gateway, "alice", None) <= 5_000)  # the sums are a record of their own
        assert answer.share is None  # the decision's answer, not that of the gateway's share


def test_a_broker_that_dies_and_returns_loses_no_event_and_holds_up_no_request(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = own_settings(broker.bootstrap_servers)
        with Gateway(settings.kafka, gateway_options(settings, close_timeout_s=60)) as gateway:
            published = [gateway.admit({"api": "Produce", "user": f"user-{n % 20}"}).request_id for n in range(500)]
            eventually(lambda: gateway.stats().unsent == 0)
            write(settings, decision("before", now_ms() + 600_000))
            eventually(lambda: wait_ms(gateway, "before", "app") > 0)

            broker.kill()
            longest_s = 0.0
            for number in range(5_000):
                start_s = time.perf_counter()
                assert wait_ms(gateway, "before", "app") > 0
                assert wait_ms(gateway, "nobody", "app") == 0
                published.append(gateway.admit({"api": "Produce", "user": f"user-{number % 20}"}).request_id)
                longest_s = max(longest_s, time.perf_counter() - start_s)
            assert (
                longest_s < 10.0
            )  # a thread that waited for Kafka would wait to the end of the outage, which is later
            assert gateway.stats().unsent > 0
            broker.start()
            eventually(lambda: gateway.stats().unsent == 0)
            write(settings, decision("after", now_ms() + 600_000))
            eventually(lambda: wait_ms(gateway, "after", "app") > 0)
            assert wait_ms(gateway, "before", "app") > 0

        assert {event["request_id"] for event in read_events(settings)} == set(published)
        assert gateway.stats().failed == 0


def test_a_gateway_may_start_before_its_broker_and_its_topics(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        broker.stop()
        with Gateway(settings.kafka, gateway_options(settings)) as gateway:
            gateway.admit({"api": "Produce"})
            assert wait_ms(gateway, "alice", "app") == 0
            broker.start()
            ensure_topics(settings.topics, settings.kafka)
            eventually(lambda: gateway.stats().unsent == 0)
            write(settings, decision("alice", now_ms() + 60_000))
            eventually(lambda: wait_ms(gateway, "alice", "app") > 0)


def test_fail_closed_refuses_everybody_while_nothing_is_decided(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    closed = gateway_options(settings, policy=StalePolicy.FAIL_CLOSED, stale_after_s=1.5)
    with Gateway(settings.kafka, closed) as gateway:
        assert wait_ms(gateway, "alice", "app") == 0
        eventually(lambda: wait_ms(gateway, "alice", "app") >= 1_000)
        assert gateway.refuses_all()
        with deciding_side(settings, QUOTAS):
            eventually(
                lambda: wait_ms(gateway, "alice", "app") == 0
            )  # by the heartbeats: all other requests are refused

    assert {record["api"] for record in read_records(settings)} == {HEARTBEAT_API}


def test_a_closed_gateway_leaves_no_thread_behind(kafka_broker: str) -> None:
    settings, before = own_settings(kafka_broker), set(threading.enumerate())
    gateway = Gateway(settings.kafka, gateway_options(settings))
    published = gateway.admit({"api": "Produce"}).request_id
    gateway.wait_until_ready(120)

    gateway.close()
    gateway.close()

    eventually(lambda: set(threading.enumerate()) <= before)
    assert [event["request_id"] for event in read_events(settings)] == [published]


def test_many_threads_publish_and_check_at_once(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    crowded = gateway_options(settings, max_unsent=100, when_full=WhenFull.BLOCK, close_timeout_s=60)
    with Gateway(settings.kafka, crowded) as gateway:

        def work(thread: int) -> None:
            for number in range(300):
                gateway.admit(Request("Produce", request_id=f"{thread}-{number}", user=f"user-{thread}"))
                wait_ms(gateway, "alice", "app")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = read_events(settings)
    for thread_number in range(8):  # nothing lost, and each client's events in order
        mine = [event["request_id"] for event in events if event["user"] == f"user-{thread_number}"]
        assert mine == [f"{thread_number}-{number}" for number in range(300)]
    assert len(events) == 2_400
