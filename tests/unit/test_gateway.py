"""The gateway client where no broker answers: its imports, refusals, waits and buffer."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from prometheus_client import CollectorRegistry, generate_latest

from sluice import (
    BeforeKnown,
    Gateway,
    GatewayClosedError,
    GatewayCollector,
    GatewayOptions,
    InvalidOptionError,
    InvalidRequestError,
    Mutation,
    Request,
    StalePolicy,
    TopicPartition,
    UnsupportedPropertyError,
    WhenFull,
)
from sluice.gateways.client.in_force import InForce
from sluice.state.contract.gateway_topics import WaitRecord
from sluice.state.decisions.leader_epochs import MARKER_KEY
from sluice.state.decisions.wait_records import wait_key, wait_value
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from tests.decided_sums import sums_of
from tests.gateway_loop import NOBODY, NOW_MS, Clock, GatewayLoop, OfflineGateway, set_limits, tell, wait_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gateway(clock: Clock) -> Iterator[OfflineGateway]:
    """A gateway that keeps two events and drops the others."""
    options = GatewayOptions(name="gateway", max_unsent=2, when_full=WhenFull.DROP, close_timeout_s=0)
    with OfflineGateway(options, clock) as gateway:
        yield gateway


def test_the_client_needs_no_spark_pandas_or_pyarrow() -> None:
    heavy = "{'pyspark', 'pandas', 'pyarrow', 'deltalake', 'numpy'}"
    script = f"import sys, sluice; print({heavy} & set(sys.modules))"

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "set()"


def charge(throttle_ms: int, quota: str = "producer_byte_rate", **changes: Any) -> dict[str, Any]:
    """A charge on the counter of alice's client app."""
    entity = {"user": "alice", "client_id": "app"}
    return {"quota": quota, "entity": entity, "limit": 1024.0, "rate": 2048.0, "throttle_ms": throttle_ms} | changes


def decide(
    gateway: OfflineGateway, *charges: dict[str, Any], at_ms: int = NOW_MS, offset: int = 0, quota_version: int = 1
) -> None:
    """Let the gateway know of a decision on an event that no gateway has charged inline."""
    decision = {"decision_id": f"quota-requests-0-{offset}", "timestamp_ms": at_ms, "charges": charges}
    tell(gateway, decision, quota_version=quota_version)


def bytes_limit(value: float = 1024.0, **entity: str) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(**entity), QuotaKind.PRODUCER_BYTE_RATE, value)


@pytest.mark.parametrize("knows_limits", [True, False])
def test_a_quota_on_a_user_is_no_way_around_with_new_client_ids(gateway: OfflineGateway, knows_limits: bool) -> None:
    if knows_limits:
        of_fetches = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.CONSUMER_BYTE_RATE, 1024.0)
        set_limits(gateway, 1, [bytes_limit(user="alice"), of_fetches])

    decide(gateway, charge(700, entity={"user": "alice"}))

    assert {wait_ms(gateway, "alice", f"app-{number}") for number in range(50)} == {700}
    assert wait_ms(gateway, "alice", "app", "Produce", [("orders", 0)]) == 700
    assert wait_ms(gateway, "alice", "app", "Fetch") == 0
    assert wait_ms(gateway, "bob", "app-1") == 0
    found = gateway.throttle_of("alice", "app-7", "Produce")
    assert (found.quota, found.limit) == ("producer_byte_rate", 1024.0)


def test_a_partition_that_has_to_wait_throttles_its_writers(gateway: OfflineGateway) -> None:
    decide(gateway, charge(700, "producer.byte.rate", entity={"topic": "orders", "partition": 3}))

    assert wait_ms(gateway, "bob", "app", "Produce", [("orders", 2), ("orders", 3)]) == 700
    assert wait_ms(gateway, "bob", "app", "Produce", [("orders", 2)]) == 0
    assert wait_ms(gateway, "bob", "app", "Fetch", [("orders", 3)]) == 0
    assert wait_ms(gateway, "bob", "app", None, [("orders", 3)]) == 700


def test_each_counter_waits_for_what_it_asked_and_no_other_client_does(gateway: OfflineGateway) -> None:
    assert wait_ms(gateway, "alice", "app") == 0
    byte_wait, time_wait = charge(600), charge(300, "request_percentage")
    decide(gateway, byte_wait, time_wait)

    assert wait_ms(gateway, "alice", "app", "Produce") == 600
    assert wait_ms(gateway, "alice", "app", "Metadata") == 300
    assert wait_ms(gateway, "alice", "other") == 0


def test_a_shadow_quota_throttles_no_client(gateway: OfflineGateway) -> None:
    decide(gateway, charge(0), charge(60_000, mode="shadow"))

    assert wait_ms(gateway, "alice", "app") == 0


def test_a_later_decision_ends_a_wait_and_an_earlier_one_that_comes_late_does_not(gateway: OfflineGateway) -> None:
    decide(gateway, charge(60_000), offset=5)
    decide(gateway, charge(0), at_ms=NOW_MS - 1, offset=4)
    assert wait_ms(gateway, "alice", "app") == 60_000

    decide(gateway, charge(0), offset=6)
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_wait_of_weeks_counts_as_the_longest_allowed(
    gateway: OfflineGateway, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in range(2):
        decide(gateway, charge(2**31 - 1), offset=offset)
        gateway.idle()

    assert wait_ms(gateway, "alice", "app") == 3_600_000
    assert gateway.stats().capped_waits == 2
    assert sum("max_wait_ms (3600000 ms)" in record.getMessage() for record in caplog.records) == 1
    decide(gateway, charge(0), offset=2)
    assert wait_ms(gateway, "alice", "app") == 0


def test_an_event_from_the_future_hides_no_stale_decisions(clock: Clock) -> None:
    options = GatewayOptions(policy=StalePolicy.FAIL_CLOSED, stale_after_s=1.0, close_timeout_s=0.0)
    with OfflineGateway(options, clock) as gateway:
        gateway.admit({"api": "Metadata", "timestamp_ms": clock.ms + 7_200_000})
        clock.ms += 3_000

        assert gateway.is_stale()
        assert gateway.stats().stale_s == 3.0


def test_a_record_has_no_time_from_the_future(gateway: OfflineGateway, clock: Clock) -> None:
    """The broker would refuse it, and with it every event in its batch."""
    for timestamp_ms in (clock.ms + 7_200_000, clock.ms - 5):
        gateway.admit({"api": "Metadata", "timestamp_ms": timestamp_ms})

    assert [event.timestamp_ms for event in gateway.take(2)] == [clock.ms, clock.ms - 5]


def test_a_decision_from_the_future_is_outranked_by_the_next_one(gateway: OfflineGateway, clock: Clock) -> None:
    decide(gateway, charge(1_000), at_ms=NOW_MS + 86_400_000)
    clock.ms += 10
    decide(gateway, charge(0), at_ms=NOW_MS + 5, offset=1)

    assert wait_ms(gateway, "alice", "app") == 0


def sums_record(changes: dict[str, Any] | None = None, **wrong: Any) -> bytes:
    """A record of sums with a wait of 700 ms; `wrong` are fields of its only counter by their place."""
    [record] = sums_of([{"timestamp_ms": NOW_MS, "charges": [charge(700)]}])
    fields = json.loads(record) | (changes or {})
    for place, value in wrong.items():
        fields["sums"][0][1][0][int(place[1:])] = value
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "record",
    [
        None,
        b"",
        b"[1]",
        b"\xff\xfe",
        b'{"heartbeat": 7}',
        sums_record()[:-1] + b', "new": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        sums_record({"gateways": []}),
        sums_record({"quotas": []}),
        sums_record({"sums": "none"}),
        sums_record({"batch": -1}),
        sums_record(_3=900_000_000_000_000_000),
        sums_record(_1=0.0),
        sums_record(_4=[[0, -1.0]]),
        sums_record(_5=[2**31, 0, None, 0, 0, True]),
    ],
    ids=range(14),
)
def test_a_record_that_is_none_of_sums_changes_nothing(gateway: OfflineGateway, record: bytes | None) -> None:
    gateway.sums.give(None, record)

    assert gateway.stats().unreadable_records == 1
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_raised_or_removed_limit_shortens_or_ends_waits_at_once(gateway: OfflineGateway) -> None:
    mine = {"user": "alice", "client_id": "app"}
    set_limits(gateway, 1, [bytes_limit(2000.0, **mine)])
    decide(gateway, charge(3_750, limit=2000.0, rate=2750.0))

    set_limits(gateway, 2, [bytes_limit(2500.0, **mine)])
    assert wait_ms(gateway, "alice", "app") == 1_000

    set_limits(gateway, 3, [])
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_wait_for_tokens_follows_the_limit_alone(gateway: OfflineGateway) -> None:
    """The rate that the decision reports beside the tokens has no part in the wait."""
    kind = QuotaKind.CONTROLLER_MUTATION_RATE
    mine = QuotaEntity(user="alice", client_id="app")
    set_limits(gateway, 1, [QuotaEntry(mine, kind, 5.0)])
    decide(gateway, charge(12_000, kind, limit=5.0, rate=0.5, tokens=-60.0))

    set_limits(gateway, 2, [QuotaEntry(mine, kind, 10.0)])
    assert wait_ms(gateway, "alice", "app", "CreateTopics") == 6_000


def test_a_forged_wait_keeps_no_other_from_being_relaxed(gateway: OfflineGateway) -> None:
    for quota in ("unknown", "producer_byte_rate"):
        record = sums_record({"quotas": [quota]}, _1=1e308, _5=[1, 1, 1.7e308, 0, 0, True])
        gateway.sums.give(None, record)
    decide(gateway, charge(3_750))

    set_limits(gateway, 2, [])
    assert wait_ms(gateway, "alice", "app") == 0
    assert gateway.stats().limits_version == 2


def test_a_decision_under_older_limits_that_comes_late_brings_the_wait_not_back(gateway: OfflineGateway) -> None:
    mine = {"user": "alice", "client_id": "app"}
    set_limits(gateway, 2, [bytes_limit(2500.0, **mine)])

    decide(gateway, charge(3_750, limit=2000.0, rate=2750.0), quota_version=1)
    assert wait_ms(gateway, "alice", "app") == 1_000
    decide(gateway, charge(3_750, limit=2500.0, rate=2750.0), quota_version=2, offset=1)
    assert wait_ms(gateway, "alice", "app") == 3_750


def test_limits_stay_in_force_while_the_topic_is_read_again(gateway: OfflineGateway) -> None:
    set_limits(gateway, 4, [bytes_limit(user="alice")])

    gateway.limits.reading.on_restart()
    assert gateway.stats().limits_version == 4
    gateway.limits.give(VERSION_KEY, version_end(5, 1))  # one limit is still to come
    assert gateway.stats().limits_version == 4
    set_limits(gateway, 5, [bytes_limit(user="bob")])
    assert gateway.stats().limits_version == 5


def test_garbage_among_the_limits_is_counted_and_ignored(gateway: OfflineGateway) -> None:
    set_limits(gateway, 1, [bytes_limit(user="alice")])
    entry = bytes_limit(user="bob")
    for value in (b"garbage", b"[" * 5_000, limit_value(entry, 2).replace(b"1024.0", b"0")):
        gateway.limits.give(limit_key(entry), value)

    assert gateway.stats().unreadable_records == 3
    assert gateway.stats().limits_version == 1


def test_requests_before_the_limits_are_known_are_let_through_and_counted(gateway: OfflineGateway) -> None:
    gateway.be_current()
    assert gateway.stats().is_current
    assert gateway.wait_until_ready(0)
    assert [gateway.admit(Request("Produce", user="alice", bytes=15_000)).throttle_ms for _ in range(3)] == [0, 0, 0]
    assert gateway.stats().allowed_before_limits == 3
    assert "throttled_by" not in json.loads(next(gateway.published()))

    set_limits(gateway, 1, [])
    gateway.admit(Request("Produce"))
    assert gateway.stats().allowed_before_limits == 3
    assert gateway.stats().allowed_before_current == 0


@pytest.mark.parametrize("option", ["before_limits", "before_current"])
def test_requests_may_be_refused_until_the_limits_or_all_earlier_waits_are_known(clock: Clock, option: str) -> None:
    options = GatewayOptions(close_timeout_s=0, **{option: "hold"})  # type: ignore[arg-type] # of that option
    with OfflineGateway(options, clock) as gateway:
        if option == "before_current":
            set_limits(gateway, 1, [])
        assert (wait_ms(gateway, "alice", "app"), gateway.refuses_all()) == (1_000, True)
        set_limits(gateway, 1, []) if option == "before_limits" else gateway.be_current()
        assert (wait_ms(gateway, "alice", "app"), gateway.refuses_all()) == (0, False)


def kept_wait(gateway: OfflineGateway, wait: WaitRecord | None) -> None:
    key = wait_key(("producer_byte_rate", Tags("alice", "app")))
    gateway.waits.give(key, None if wait is None else wait_value(wait))


def test_a_new_gateway_knows_the_waits_that_are_kept(gateway: OfflineGateway) -> None:
    kept_wait(gateway, WaitRecord(NOW_MS + 7_000, 60_000, 1024.0, 2048.0, NOW_MS - 53_000, 7))
    assert wait_ms(gateway, "alice", "app") == 7_000

    kept_wait(gateway, None)
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_kept_wait_that_ended_ends_no_later_one(gateway: OfflineGateway) -> None:
    kept_wait(gateway, WaitRecord(NOW_MS + 7_000, 60_000, 1024.0, 2048.0, NOW_MS - 53_000, 7))
    decide(gateway, charge(9_000), at_ms=NOW_MS, offset=8)
    kept_wait(gateway, None)

    assert wait_ms(gateway, "alice", "app") == 9_000


@pytest.mark.parametrize(("left_ms", "noted"), [(-1, 0), (9, 10)], ids=["those that have ended", "too many"])
def test_kept_waits_take_little_memory(clock: Clock, left_ms: int, noted: int) -> None:
    """The waits topic keeps those of every client-id that ever had to wait."""
    in_force = InForce("i-0", GatewayOptions(max_waits=10), clock)
    for number in range(100):
        key = wait_key(("producer_byte_rate", Tags("alice", f"app-{number}")))
        kept = WaitRecord(NOW_MS + left_ms, 60_000, 1024.0, 2048.0, NOW_MS - 60_001, number)
        in_force.on_kept_wait(key, wait_value(kept))

    assert len(in_force._kept_orders) == noted


def test_kept_waits_are_relaxed_by_the_limits_in_force(gateway: OfflineGateway) -> None:
    set_limits(gateway, 9, [])
    kept_wait(gateway, WaitRecord(NOW_MS + 7_000, 60_000, 10.0, 2048.0, NOW_MS - 53_000, 7))
    gateway.be_current()

    assert gateway.stats().decided_waits <= 1
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_request_wider_than_an_event_may_be_becomes_several_of_which_the_first_has_its_sums() -> None:
    """Each further one counts as one request, the least that an event may say."""
    touched = [TopicPartition("orders", number, 120) for number in range(125)]
    with OfflineGateway(GatewayOptions(close_timeout_s=0)) as gateway:
        set_limits(gateway, 1, [bytes_limit(1_000.0, user="alice")])
        request = Request("Produce", "wide", user="alice", topic_partitions=touched)
        request.requests, request.request_time_ns, request.mutations_charged = 7, 5, 3
        answer = gateway.admit(request)
        events = [json.loads(value) for value in gateway.published()]

    assert (answer.request_id, answer.throttle_ms) == ("wide-3", 5_000)
    assert [event["request_id"] for event in events] == ["wide-1", "wide-2", "wide-3"]
    summed = ("requests", "request_time_ns", "mutations_charged")
    assert [[event.get(name) for name in summed] for event in events] == [[7, 5, 3], [None] * 3, [None] * 3]
    assert {(event["api"], event["user"], event["timestamp_ms"]) for event in events} == {
        ("Produce", "alice", events[0]["timestamp_ms"])
    }
    assert {event["throttled_by"][0]["ms"] for event in events} == {5_000}, "it is charged once"
    partitions = [entry["partition"] for event in events for entry in event["topic_partitions"]]
    assert partitions == list(range(125))


def test_a_request_of_the_greatest_width_stays_one_event() -> None:
    touched = [TopicPartition("orders", number, 1) for number in range(50)]
    with OfflineGateway(GatewayOptions(close_timeout_s=0)) as gateway:
        assert gateway.admit(Request("Produce", "whole", topic_partitions=touched)).request_id == "whole"
        gateway.admit(Request("CreateTopics", mutations=[Mutation("a", 1)] * 1_000))
        with pytest.raises(InvalidRequestError, match="mutations"):
            gateway.admit(Request("CreateTopics", mutations=[Mutation("a", 1)] * 1_001))


@pytest.mark.parametrize(
    ("option", "value", "member"),
    [
        ("policy", "fail_closed", StalePolicy.FAIL_CLOSED),
        ("when_full", "block", WhenFull.BLOCK),
        ("before_limits", "hold", BeforeKnown.HOLD),
        ("before_current", "allow", BeforeKnown.ALLOW),
    ],
)
def test_a_string_is_taken_for_what_it_says(option: str, value: str, member: object) -> None:
    assert getattr(GatewayOptions(**{option: value}), option) is member  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("policy", "fail-closed"),
        ("when_full", None),
        ("before_limits", True),
        ("before_current", ["hold"]),
        ("name", ""),
        ("name", "x" * 40_000),
        ("requests_topic", "quota requests"),
        ("limits_topic", None),
        ("stale_after_s", 0),
        ("stale_after_s", float("nan")),
        ("stale_after_s", "30"),
        ("lookback_s", -1),
        ("lookback_s", float("inf")),
        ("close_timeout_s", None),
        ("max_waits", 0),
        ("max_waits", 1.5),
        ("max_unsent", True),
        ("max_wait_ms", -5),
        ("max_charges_per_event", 0),
        ("max_charges_per_event", 20_000),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidOptionError, match=f"option {option} is .*; expected ") as refused:
        GatewayOptions(**{option: value})  # type: ignore[arg-type]

    assert isinstance(refused.value, ValueError)


def test_events_beyond_the_limit_are_dropped_and_counted_by_choice(gateway: OfflineGateway) -> None:
    accepted = [gateway.admit(Request("Produce")).request_id is not None for _ in range(5)]

    assert accepted == [True, True, False, False, False]
    assert (gateway.stats().unsent, gateway.stats().dropped) == (2, 3)


def test_of_events_with_long_names_fewer_are_kept_while_no_broker_answers(gateway: OfflineGateway) -> None:
    """Its option is two events, which have 4 KiB together."""
    names = [str(number) + "x" * 4_096 for number in range(3)]
    accepted = [gateway.admit(Request("Produce", client_id=name)).request_id is not None for name in names]

    assert accepted == [True, False, False]
    assert (gateway.stats().unsent, gateway.stats().dropped) == (1, 2)


def test_the_events_of_a_request_are_taken_together_or_dropped_together(gateway: OfflineGateway) -> None:
    touched = [TopicPartition("orders", number, 1) for number in range(125)]
    accepted = [gateway.admit(Request("Produce", topic_partitions=touched)).request_id is not None for _ in range(2)]

    assert accepted == [True, False]
    assert (gateway.stats().unsent, gateway.stats().dropped) == (3, 3)


def test_a_dropped_event_is_not_waited_for(gateway: OfflineGateway) -> None:
    for _ in range(2):
        gateway.admit(Request("Produce"))

    assert gateway.admit_mutations(Request("CreateTopics", mutations=[Mutation("a", 1)])).request_id is None


def test_a_gateway_that_has_nothing_to_publish_does_not_wait_for_a_broker_at_its_end() -> None:
    OfflineGateway(GatewayOptions(close_timeout_s=3600)).close()


def test_a_full_gateway_blocks_by_default_and_close_lets_go() -> None:
    gateway = OfflineGateway(GatewayOptions(max_unsent=1, close_timeout_s=0))
    gateway.admit(Request("Produce"))
    outcomes: list[str] = []
    started = threading.Event()

    def publish() -> None:
        started.set()
        try:
            gateway.admit(Request("Produce"))
            outcomes.append("published")
        except GatewayClosedError:
            outcomes.append("closed")

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    assert outcomes == []

    gateway.close()
    for thread in threads:
        thread.join(120)

    assert outcomes == ["closed"] * 3
    assert gateway.stats().failed == 1


def test_events_that_are_given_up_make_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR and is_own(record)]

    def is_own(record: logging.LogRecord) -> bool:
        return record.name == "sluice.gateways.client.publisher"

    with OfflineGateway(GatewayOptions(close_timeout_s=0)) as gateway:
        for _ in range(5):
            gateway.admit(Request("Produce"))
        events = gateway.take(5)
        for event in events[:2]:
            event.end(KafkaTimeoutError())
        assert len(said()) == 1

    events[2].end(KafkaTimeoutError())  # those of the producer come late
    assert said()[1:] == ["request events given up because Kafka hadn't taken them when the gateway was closed: 3"]
    assert (gateway.stats().failed, gateway.stats().unsent) == (5, 0)


def test_an_event_that_the_producer_refuses_counts_as_failed_and_the_next_one_is_sent(gateway: OfflineGateway) -> None:
    gateway.producer.refusals.append(MessageSizeTooLargeError())
    for name in ("large", "small"):
        gateway.admit(Request("Produce", name))

    [event] = gateway.take(1)
    assert json.loads(event.value)["request_id"] == "small"
    assert (gateway.stats().failed, gateway.stats().unsent) == (1, 1)


@pytest.mark.parametrize(
    "event",
    [
        {"api": ""},
        {"user": "alice"},
        {"api": "Produce", "user": 7},
        {"api": "Produce", "user": "alice", "topic_partitions": [{"topic": "t", "partition": 0, "bytes": -1}]},
        Request("Produce", request_time_ns=-1),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused_at_once(gateway: OfflineGateway, event: Request) -> None:
    set_limits(gateway, 1, [bytes_limit(user="alice")])
    with pytest.raises(InvalidRequestError):
        gateway.admit(event)

    stats = gateway.stats()
    assert (stats.unsent, stats.charged_inline, stats.counters) == (0, 0, 0)


def test_fail_closed_refuses_when_the_first_unanswered_event_is_too_old(clock: Clock) -> None:
    options = GatewayOptions(policy=StalePolicy.FAIL_CLOSED, stale_after_s=30, close_timeout_s=0)
    with OfflineGateway(options, clock) as gateway:
        gateway.admit(Request("Produce"))
        clock.ms += 30_000
        assert wait_ms(gateway, "alice", "app") == 0
        clock.ms += 1
        assert wait_ms(gateway, "alice", "app") == 1_000

        tell(  # an earlier event: that one is still unanswered
            gateway, {"timestamp_ms": NOW_MS - 1, "instance": gateway.instance, "charges": [charge(35_001)]}
        )
        assert wait_ms(gateway, "alice", "app") == 4_999


def test_a_late_decision_leaves_the_later_events_unanswered(gateway: OfflineGateway, clock: Clock) -> None:
    """Published at 0 s and 10 s, the first decided at 40 s: the oldest unanswered one is at most 40 s old."""
    gateway.admit(Request("Produce"))
    clock.ms += 10_000
    gateway.admit(Request("Produce"))
    clock.ms += 30_000

    for at_ms, stale_s in ((NOW_MS + 5_000, 35), (NOW_MS + 10_000, 0)):
        tell(gateway, {"timestamp_ms": at_ms, "instance": gateway.instance, "charges": [charge(0)]})
        assert gateway.stats().stale_s == stale_s


def test_the_age_of_decisions_is_that_of_all_gateways_heartbeats(gateway: OfflineGateway, clock: Clock) -> None:
    clock.ms += 40_000
    for instance, age_ms in (("another", 30_000), (gateway.instance, 35_000)):
        beat = {"api": "GatewayHeartbeat", "instance": instance, "request_id": "r", "timestamp_ms": clock.ms - age_ms}
        tell(gateway, beat)

    assert gateway.stats().decision_age_p50_ms == gateway.stats().decision_age_p99_ms == 35_000


def test_a_login_that_the_client_cant_use_is_told_at_once() -> None:
    kafka = NOBODY | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}

    with pytest.raises(UnsupportedPropertyError, match="OAUTHBEARER"):
        Gateway(kafka)


def test_a_gateway_without_an_address_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedPropertyError, match=r"bootstrap\.servers is missing"):
        Gateway({"client.id": "gateway"})


def test_prometheus_sees_every_number(gateway: OfflineGateway, clock: Clock) -> None:
    decide(gateway, charge(60_000))
    for _ in range(3):
        gateway.admit(Request("Produce"))
    clock.ms += 2_500
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))

    text = generate_latest(registry).decode()

    for line in (
        'sluice_gateway_decided_waits{gateway="gateway"} 1.0',
        'sluice_gateway_is_current{gateway="gateway"} 0.0',
        'sluice_gateway_limits_version{gateway="gateway"} -1.0',
        'sluice_gateway_allowed_before_limits_total{gateway="gateway"} 3.0',
        'sluice_gateway_unreadable_records_total{gateway="gateway"} 0.0',
        'sluice_gateway_reader_restarts_total{gateway="gateway"} 0.0',
        'sluice_gateway_unsent_events{gateway="gateway"} 2.0',
        'sluice_gateway_dropped_events_total{gateway="gateway"} 1.0',
        'sluice_gateway_stale_seconds{gateway="gateway"} 2.5',
        'sluice_gateway_decision_age_seconds{gateway="gateway",quantile="0.5"} 0.0',
    ):
        assert line in text


def headers(number: int) -> bytes:
    """The headers of a record by the driver with this epoch."""
    value = b"job:%d" % number
    return b"\x02\x0aepoch" + bytes([2 * len(value)]) + value


def test_waits_of_a_driver_that_was_replaced_are_left_out_and_those_that_have_ended_are_not(
    gateway: OfflineGateway,
) -> None:
    """A marker has a key of its own: a record without a value removes a wait."""
    bytes_of = {user: wait_key((QuotaKind.PRODUCER_BYTE_RATE, Tags(user))) for user in ("alice", "bob", "carol")}
    waits = wait_value(WaitRecord(NOW_MS + 60_000, 60_000, 1024.0, None, NOW_MS, 7))
    read = [
        (1, bytes_of["alice"], waits),
        (1, bytes_of["bob"], waits),
        (2, MARKER_KEY, b""),
        (1, bytes_of["carol"], waits),
        (2, bytes_of["bob"], None),
        (1, bytes_of["alice"], None),
    ]
    for number, key, value in read:
        gateway.waits.give(key, value, headers(number))

    assert [gateway.throttle_of(user, "app").throttle_ms > 0 for user in bytes_of] == [True, False, False]
    assert (gateway.stats().fenced_records, gateway.stats().unreadable_records) == (2, 0)


def test_sums_of_a_driver_that_was_replaced_are_left_out_and_counted(gateway: OfflineGateway) -> None:
    """And the marker of the one that took over is no record of sums."""
    first, second = sums_record(), sums_record()
    for number, content in ((1, first), (2, None), (1, second), (2, second)):
        gateway.sums.give(MARKER_KEY, content, headers(number))

    stats = gateway.stats()
    assert (stats.sums, stats.fenced_records, stats.unreadable_records) == (2, 1, 0)


def test_two_processes_of_one_name_know_each_other_and_divide_the_limit() -> None:
    clock, options = Clock(), GatewayOptions(name="edge", close_timeout_s=0)
    with OfflineGateway(options, clock) as one, OfflineGateway(options, clock) as other:
        entry = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1_000.0)
        loop = GatewayLoop([one, other], [entry], clock)
        loop.beat(3)

        assert (one.stats().instances, other.stats().instances) == ((other.instance,), (one.instance,))
        request = Request("Produce", user="alice", topic_partitions=[TopicPartition("orders", 0, 99_000)])
        assert [each.admit(request).share for each in (one, other)] == [500.0, 500.0]
