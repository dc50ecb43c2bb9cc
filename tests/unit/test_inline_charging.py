"""Inline charging: the answers and events of `admit`, and the decisions that come later."""

import json
import re
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import Answer, InvalidRequestError, Mutation, Request, StalePolicy, TopicPartition
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import quota
from tests.gateway_loop import (
    NOW_MS,
    GatewayLoop,
    OfflineGateway,
    PublishedEvent,
    counter,
    gateway_loop,
    set_limits,
    tell,
    touched,
    wait_ms,
)

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE
FETCH = QuotaKind.CONSUMER_BYTE_RATE
TIME = QuotaKind.REQUEST_PERCENTAGE
MUTATIONS = QuotaKind.CONTROLLER_MUTATION_RATE

BYTES_PER_S = 1_000.0
QUOTAS = [
    quota(PRODUCE, BYTES_PER_S, user=DEFAULT),
    quota(FETCH, BYTES_PER_S, user=DEFAULT),
    quota(MUTATIONS, 1.0, user=DEFAULT),  # burst: 11 partitions
]


def produce(size: int, user: str = "alice", **fields: Any) -> Request:
    return Request("Produce", user=user, topic_partitions=[TopicPartition("orders", 0, size)], **fields)


def fetch(size: int, user: str = "alice") -> Request:
    return Request("Fetch", user=user, topic_partitions=[TopicPartition("orders", 0, size)])


def create(*partitions: int, user: str = "alice", **fields: Any) -> Request:
    mutations = [Mutation(f"topic-{number}", count) for number, count in enumerate(partitions)]
    return Request("CreateTopics", user=user, mutations=mutations, **fields)


def uncharged(gateway: OfflineGateway, request: Request) -> bytes:
    """The event of a request at this gateway that is not charged inline, as before the limits are known."""
    return msgspec.json.encode(msgspec.structs.replace(request, instance=gateway.instance, timestamp_ms=NOW_MS))


def decide_at_once(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    """Let every event of this gateway be decided while it is sent."""

    def decided(event: PublishedEvent) -> None:
        loop.decide_events([event.value])
        event.end()

    gateway.producer.taken = decided


@pytest.fixture
def loop() -> Iterator[GatewayLoop]:
    """One gateway, which gives up waiting for a decision at once."""
    with gateway_loop(QUOTAS, decide_timeout_ms=1) as loop:
        yield loop


@pytest.fixture
def gateway(loop: GatewayLoop) -> OfflineGateway:
    return loop.gateways[0]


def test_a_request_within_the_limit_needn_t_wait_and_its_event_says_that_it_was_charged(
    loop: GatewayLoop, gateway: OfflineGateway
) -> None:
    answer = gateway.admit(produce(5_000))

    [event] = loop.events()
    assert answer == Answer(request_id=event["request_id"])
    assert (event["throttled_by"], event["instance"], event["gateway"]) == ([], "i-0", "gateway-0")
    assert "withheld" not in event
    assert gateway.stats().charged_inline == 1


def test_a_gateway_alone_asks_for_the_wait_of_a_broker(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    """15 000 bytes in a window of 10 s are 1 500 a second: (1 500 - 1 000) / 1 000 * 10 s."""
    answer = gateway.admit(produce(15_000))
    loop.decide()

    assert (answer.throttle_ms, answer.quota, answer.limit, answer.share) == (5_000, PRODUCE, BYTES_PER_S, BYTES_PER_S)
    [decision] = loop.decisions
    assert decision["throttle_time_ms"] == 5_000
    assert decision["throttled_by"] == [{"quota": PRODUCE, "entity": {"user": "alice"}, "ms": 5_000}]
    stats = gateway.stats()
    assert (stats.throttled_inline, stats.throttled_inline_ms) == (1, 5_000)


def test_a_front_end_without_connections_to_mute_sees_the_wait_at_once(
    loop: GatewayLoop, gateway: OfflineGateway
) -> None:
    gateway.admit(produce(15_000))

    assert wait_ms(gateway, "alice", "app", "Produce") == 5_000
    assert wait_ms(gateway, "alice", "app") == 5_000
    assert wait_ms(gateway, "alice", "app", "Fetch") == 0
    assert wait_ms(gateway, "bob", "app") == 0
    throttle = gateway.throttle_of("alice", "app")
    assert (throttle.quota, throttle.limit) == (PRODUCE, BYTES_PER_S)
    loop.clock.ms += 5_000
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_fetch_that_waits_goes_out_empty_and_is_charged_nothing(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    answer = gateway.admit(fetch(15_000))
    loop.decide()

    assert (answer.throttle_ms, answer.withhold) == (5_000, True)
    assert loop.decisions[0]["amounts"]["withheld"] is True
    assert counter(gateway, FETCH, user="alice").own_charged == 0.0
    loop.clock.ms += 5_000
    assert gateway.admit(fetch(9_000)).throttle_ms == 0


def test_a_fetch_that_was_delivered_stays_charged(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    answer = gateway.admit(fetch(15_000), delivered=True)

    assert (answer.throttle_ms, answer.withhold) == (5_000, False)
    assert "withheld" not in loop.events()[0]
    assert counter(gateway, FETCH, user="alice").own_charged == 15_000.0


def test_a_wait_of_centuries_counts_as_the_longest_allowed(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    answer = gateway.admit(produce(2**53))

    assert answer.throttle_ms == 3_600_000
    assert loop.events()[0]["throttled_by"][0]["ms"] == 3_600_000
    assert wait_ms(gateway, "alice", "app") == 3_600_000


@pytest.mark.parametrize(
    "event",
    [
        {"user": "\udc80"},
        {"user": "alice", "client_id": "\udc80"},
        {"user": "alice", "request_id": "\udc80"},
        {"user": "alice", "bytes": None, "topic_partitions": [{"topic": "\udc80", "partition": 0, "bytes": 5}]},
    ],
)
def test_a_name_that_is_no_unicode_is_refused_before_anything_is_charged(
    loop: GatewayLoop, gateway: OfflineGateway, event: dict[str, Any]
) -> None:
    """A proxy may have decoded a client-id with `surrogateescape`."""
    for call in (gateway.admit, gateway.admit_mutations):
        with pytest.raises(InvalidRequestError, match="Unicode"):
            call({"api": "Produce", "bytes": 5} | event)

    assert (gateway.stats().charged_inline, gateway.stats().counters, loop.events()) == (0, 0, [])


def test_the_callers_event_stays_as_it_was(gateway: OfflineGateway) -> None:
    event = produce(15_000)
    gateway.admit(event)

    assert event == produce(15_000)


def test_a_hundred_waits_of_partitions_fit_into_the_event() -> None:
    quotas = [quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1.0, topic="orders")]
    partitions = [TopicPartition("orders", number, 100 + number) for number in range(100)]
    with gateway_loop(quotas) as loop:
        answer = loop.gateways[0].admit(Request("Produce", topic_partitions=partitions))
        loop.decide()

    waits = loop.decisions[0]["throttled_by"]
    assert len(waits) == 64
    assert waits[0]["ms"] == answer.throttle_ms == max(wait["ms"] for wait in waits)


class TestWaitsOfDecisions:
    """Waits of decisions count in `admit` if no gateway has applied them inline."""

    def test_one_on_an_event_that_wasn_t_charged_inline_counts_if_it_is_longer(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        loop.decide_events([b'{"api": "Produce", "user": "alice", "bytes": 15000, "timestamp_ms": %d}' % NOW_MS])

        answer = gateway.admit(produce(1))
        assert (answer.throttle_ms, answer.quota, answer.limit) == (5_000, PRODUCE, BYTES_PER_S)
        assert wait_ms(gateway, "alice", "app") == 5_000

    def test_one_on_an_event_that_was_charged_inline_doesn_t_count_a_second_time(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        waits = [{"quota": PRODUCE, "entity": {"user": "alice"}, "ms": 70}]
        event = {"api": "Produce", "user": "alice", "bytes": 15000, "timestamp_ms": NOW_MS, "throttled_by": waits}
        loop.decide_events([json.dumps(event | {"instance": "another"}).encode()])

        assert gateway.admit(produce(1)).throttle_ms == 0
        assert wait_ms(gateway, "alice", "app") == 0

    def test_a_later_decision_on_an_event_charged_inline_makes_it_no_longer(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        """By that decision alice waits 1 ms longer, of which her gateway found nothing inline."""
        loop.decide_events([b'{"api": "Produce", "user": "alice", "bytes": 15000, "timestamp_ms": %d}' % NOW_MS])
        loop.clock.ms += 1
        assert gateway.admit(produce(1)).throttle_ms == 4_999
        loop.decide()

        assert wait_ms(gateway, "alice", "app") == 4_999

    def test_a_later_decision_on_an_event_charged_inline_that_asks_for_no_wait_ends_it(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        loop.decide_events([b'{"api": "Produce", "user": "alice", "bytes": 15000, "timestamp_ms": %d}' % NOW_MS])
        later = {"timestamp_ms": NOW_MS + 1, "instance": "another", "throttled_by": []}
        charge = {"quota": PRODUCE, "entity": {"user": "alice"}, "limit": BYTES_PER_S, "value": 1.0}
        tell(gateway, later | {"charges": [charge]})

        assert wait_ms(gateway, "alice", "app") == 0


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"usr": "alice"}, "usr: is no field of an event; expected user"),
        ({"topic_partitions": [{"topic": "a", "partition": 0, "byte": 9}]}, "byte: is no field of an event"),
        ({"mutations": [{"topic": "a", "partitions": 1, "partition": 0}]}, "expected partitions"),
        ({"?": 1}, "?: is no field of an event; expected api, api_version, "),
    ],
)
def test_a_misspelt_field_is_refused_before_anything_is_charged(
    gateway: OfflineGateway, event: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        gateway.admit({"api": "Produce"} | event)
    assert gateway.stats().charged_inline == 0
    assert gateway.stats().unsent == 0


def test_own_traffic_that_wasn_t_charged_inline_is_charged_when_it_is_decided(
    loop: GatewayLoop, gateway: OfflineGateway
) -> None:
    loop.decide_events([uncharged(gateway, produce(15_000))])

    assert counter(gateway, PRODUCE, user="alice").own_charged == 15_000.0
    assert gateway.admit(produce(1)).share == BYTES_PER_S


def test_a_raised_limit_shortens_the_wait_inline(gateway: OfflineGateway) -> None:
    gateway.admit(produce(15_000))

    set_limits(gateway, 2, [quota(PRODUCE, 2 * BYTES_PER_S, user=DEFAULT)])
    assert wait_ms(gateway, "alice", "app") == 2_500
    set_limits(gateway, 3, [])
    assert wait_ms(gateway, "alice", "app") == 0


def test_a_reset_by_an_operator_ends_the_wait_inline_and_the_charges_behind_it_and_no_heartbeat(
    loop: GatewayLoop, gateway: OfflineGateway
) -> None:
    gateway.admit(produce(15_000))
    loop.decide()
    loop.decide_events([b'{"control": "unmute", "entity": {"user": "alice"}}'])

    assert wait_ms(gateway, "alice", "app") == 0
    loop.beat()
    assert (loop.decisions[-1]["api"], gateway.stats().gateways) == ("GatewayHeartbeat", 1)
    assert gateway.admit(produce(10_000)).throttle_ms == 0


def test_a_reset_ends_the_wait_of_a_counter_that_was_forgotten() -> None:
    """There was no room for it, but its client waits on."""
    with gateway_loop(QUOTAS, max_counters=1) as loop:
        gateway = loop.gateways[0]
        gateway.admit(produce(15_000))
        gateway.admit(produce(15_000, user="bob"))
        loop.decide_events([b'{"control": "unmute", "entity": {"user": "alice"}}'])

        assert (wait_ms(gateway, "alice", "app"), wait_ms(gateway, "bob", "app")) == (0, 5_000)


def test_a_topic_of_sums_that_begins_again_takes_the_shares_with_it(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    gateway.admit(produce(15_000))
    loop.decide()

    gateway.sums.reading.on_restart()
    assert gateway.stats().counters == 0


@pytest.mark.parametrize("size", [1, 2**53], ids=["none waits", "all wait"])
def test_no_more_counters_are_kept_than_the_option_says(size: int) -> None:
    with gateway_loop(QUOTAS, max_counters=10) as loop:
        for number in range(25):
            loop.gateways[0].admit(produce(size, user=f"user-{number}"))

        assert (loop.gateways[0].stats().counters, loop.gateways[0].stats().forgotten) == (10, 15)


def test_touching_many_counters_ends_no_wait_and_forgets_no_debt() -> None:
    """A client that has to wait asks for new client-ids, or for partitions that don't exist, on other connections."""
    quotas = [
        *QUOTAS,
        quota(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, BYTES_PER_S, topic="orders"),
        quota(TIME, 10.0, client_id=DEFAULT),
    ]
    with gateway_loop(quotas, max_counters=10) as loop:
        gateway = loop.gateways[0]
        assert gateway.admit(produce(15_000)).throttle_ms == 5_000
        for number in range(25):
            gateway.admit(Request("Metadata", user="alice", client_id=f"id-{number}", request_time_ns=1))
            gateway.admit(Request("Fetch", topic_partitions=[TopicPartition("orders", number, 0)]))

        assert gateway.admit(produce(1_000)).throttle_ms == 6_000


def test_counters_that_nothing_is_charged_to_take_no_place() -> None:
    quotas = [quota(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, BYTES_PER_S, topic="orders")]
    with gateway_loop(quotas, max_counters=10) as loop:
        gateway = loop.gateways[0]
        gateway.admit(fetch(1))
        partitions = [TopicPartition("orders", number, 0) for number in range(1_000)]
        gateway.admit(Request("Fetch", topic_partitions=partitions))

        assert (gateway.stats().counters, gateway.stats().forgotten) == (1, 0)


def test_of_counters_that_own_clients_dont_use_the_newest_sums_are_kept() -> None:
    with gateway_loop(QUOTAS, max_counters=10) as loop:
        for number in range(25):
            for user in ("alice", f"user-{number}"):
                event = {"api": "Produce", "user": user, "bytes": 1, "timestamp_ms": NOW_MS}
                loop.decide_events([json.dumps(event).encode()])
        loop.gateways[0].admit(produce(1))

        assert 10 <= counter(loop.gateways[0], PRODUCE, user="alice").others_decided < 25


def test_sums_of_the_last_ten_seconds_count_for_a_client_that_comes(loop: GatewayLoop, gateway: OfflineGateway) -> None:
    for second in range(60):
        event = {"api": "Produce", "user": "alice", "bytes": 1, "timestamp_ms": NOW_MS + 1_000 * second}
        loop.clock.ms = NOW_MS + 1_000 * second
        loop.decide_events([json.dumps(event).encode()])
    gateway.admit(produce(1))

    assert 10 <= counter(gateway, PRODUCE, user="alice").others_decided <= 20


def test_a_clock_that_is_an_hour_ahead_for_a_while_changes_nothing_for_long() -> None:
    with gateway_loop(QUOTAS, count=2) as loop:
        gateway = loop.gateways[0]
        loop.beat(3)
        loop.clock.ms += 3_600_000
        gateway.admit(produce(20_000))
        loop.beat(2)
        loop.clock.ms -= 3_600_000
        loop.beat(1)

        assert wait_ms(gateway, "alice", "app") == 0
        for _ in range(20):
            assert gateway.admit(produce(450)).throttle_ms == 0
            loop.beat(1)
        loop.gateways = loop.gateways[:1]
        loop.beat(5)
        assert gateway.stats().gateways == 1


class TestMutations:
    """Strict mutations are decided by the job, and inline when no decision comes."""

    def test_inline_the_bucket_decides_and_what_is_executed_is_published(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        answer = gateway.admit(create(8, 8, 8))
        loop.decide()

        assert (answer.refused, answer.throttle_ms, answer.quota) == ((False, False, True), 5_000, MUTATIONS)
        assert loop.decisions[0]["amounts"]["mutations_charged"] == 16
        assert counter(gateway, MUTATIONS, user="alice").own_charged == 16.0

    def test_a_permissive_request_is_never_refused(self, loop: GatewayLoop, gateway: OfflineGateway) -> None:
        answer = gateway.admit_mutations(create(8, 8, 8, api_version=4))
        loop.decide()

        assert (answer.refused, answer.throttle_ms) == ((False, False, False), 13_000)
        assert [mutation["partitions"] for mutation in loop.decisions[0]["amounts"]["mutations"]] == [8, 8, 8]

    def test_the_decision_is_the_answer_when_it_comes_in_time(self) -> None:
        with gateway_loop(QUOTAS, decide_timeout_ms=60_000) as loop:
            gateway = loop.gateways[0]
            decide_at_once(loop, gateway)
            answer = gateway.admit_mutations(create(8, 8, 8))

            assert (answer.refused, answer.throttle_ms) == ((False, False, True), 5_000)
            assert (answer.quota, answer.limit) == (MUTATIONS, 1.0)
            assert wait_ms(gateway, "alice", "app", "CreateTopics") == 5_000
            assert counter(gateway, MUTATIONS, user="alice").own_charged == 16.0

    def test_a_client_without_a_limit_has_its_decision_as_soon_as_others(self) -> None:
        """There are no sums of it: without an answer each of its requests would wait for `decide_timeout_ms`."""
        with gateway_loop([], decide_timeout_ms=60_000) as loop:
            decide_at_once(loop, loop.gateways[0])

            assert loop.gateways[0].admit_mutations(create(8, 8)).refused == (False, False)

    def test_without_a_decision_the_bucket_decides_and_the_late_decision_puts_the_books_right(
        self, loop: GatewayLoop, gateway: OfflineGateway
    ) -> None:
        """Executed inline: 16 partitions. Decided after another gateway's 11: 8, so the other 8 are charged after."""
        answer = gateway.admit_mutations(create(8, 8, 8))
        assert answer.refused == (False, False, True)
        late = list(loop.published())

        others = {"api": "CreateTopics", "user": "alice", "mutations_charged": 11, "timestamp_ms": NOW_MS}
        loop.decide_events([json.dumps(others).encode()])
        loop.decide_events(late)
        loop.decide()

        refused = [result["error_code"] for result in loop.decisions[1]["topic_results"]]
        assert refused == [0, 89, 89]
        assert loop.decisions[2]["amounts"] == {"mutations_charged": 8}
        told = [(wait["entity"], wait["ms"]) for wait in loop.decisions[2]["throttled_by"]]
        assert told == [({"user": "alice"}, answer.throttle_ms)]  # its client waits still
        assert counter(gateway, MUTATIONS, user="alice").own_charged == 16.0

    def test_while_decisions_are_stale_no_request_waits_for_one(self) -> None:
        with gateway_loop(QUOTAS, decide_timeout_ms=3_600_000, stale_after_s=1) as loop:
            loop.gateways[0].admit(produce(1))
            loop.clock.ms += 1_001

            assert loop.gateways[0].admit_mutations(create(12, 1)).refused == (False, True)

    def test_fail_closed_refuses_what_can_t_be_decided(self) -> None:
        with gateway_loop(QUOTAS, policy="fail_closed", decide_timeout_ms=1) as loop:
            assert loop.gateways[0].admit_mutations(create(1)).refused == (True,)

    def test_a_decision_on_a_request_of_the_same_id_at_another_gateway_is_no_answer(self) -> None:
        """Gateways may number requests as their clients do. The first one would take back what bob was charged."""
        with gateway_loop(QUOTAS, count=2, decide_timeout_ms=1) as loop:
            first, second = loop.gateways
            assert first.admit_mutations(create(8, 8, 8, request_id="7")).refused == (False, False, True)
            loop.events()
            second.admit_mutations(create(8, 8, 8, user="bob", request_id="7"))
            loop.decide()

            assert loop.decisions[0]["instance"] == "i-1"
            assert touched(first, MUTATIONS, user="bob") is None

    def test_an_id_that_is_awaited_is_refused(self, loop: GatewayLoop, gateway: OfflineGateway) -> None:
        """Its decision would be the answer to both: a small request would let a large one through."""
        gateway.admit_mutations(create(1, request_id="7"))

        with pytest.raises(InvalidRequestError, match="request_id"):
            gateway.admit_mutations(create(50, request_id="7"))
        assert len(loop.events()) == 1

    def test_a_decided_wait_of_centuries_counts_as_the_longest_allowed(self) -> None:
        with gateway_loop(QUOTAS, decide_timeout_ms=60_000, max_wait_ms=5_000) as loop:
            gateway = loop.gateways[0]
            decide_at_once(loop, gateway)

            assert gateway.admit_mutations(create(2**31 - 1, 1)) == Answer(
                5_000, False, (False, True), MUTATIONS, 1.0, None, loop.decisions[0]["request_id"]
            )

    def test_a_wait_that_is_cut_short_by_the_option_leaves_the_debt(self) -> None:
        with gateway_loop(QUOTAS, max_wait_ms=5_000) as loop:
            gateway = loop.gateways[0]
            assert gateway.admit(produce(100_000)).throttle_ms == 5_000
            loop.clock.ms += 5_000
            assert gateway.throttle_of("alice", None).throttle_ms == 0
            assert gateway.admit(produce(1)).throttle_ms == 5_000

    def test_what_is_only_validated_is_charged_nothing(self, loop: GatewayLoop, gateway: OfflineGateway) -> None:
        gateway.admit(create(8, validate_only=True))
        loop.decide()

        assert loop.decisions[0]["charges"] == []

    def test_a_request_that_is_published_in_parts_says_what_was_executed_once(self) -> None:
        partitions = [TopicPartition("orders", number, 0) for number in range(3)]
        with gateway_loop(QUOTAS, max_charges_per_event=2) as loop:
            loop.gateways[0].admit(create(8, 8, topic_partitions=partitions))
            events = loop.events()

        assert [event.get("mutations_charged") for event in events] == [16, None]
        assert [event.get("mutations") for event in events] == [None, None]

    def test_a_forged_decision_refuses_nothing(self, loop: GatewayLoop, gateway: OfflineGateway) -> None:
        """It has another number of topics than the request."""
        gateway.admit_mutations(create(1, 1))
        [event] = loop.events()
        result = {"topic": "topic-0", "error_code": 89, "error_message": None}
        forged = {"request_id": event["request_id"], "timestamp_ms": NOW_MS, "topic_results": [result]}
        forged |= {"decision_id": "r-0-0", "instance": event["instance"]}
        gateway.sums.give(None, json.dumps({"answer": forged}).encode())

        assert loop.events() == []


class TestStalePolicies:
    """Inline charging while an event may be without a decision for too long."""

    @pytest.mark.parametrize(
        ("policy", "throttle_ms", "left_ms", "charged"),
        [("keep_shares", 5_000, 5_000, True), ("fail_open", 0, 0, False), ("fail_closed", 5_000, 5_000, True)],
    )
    def test_what_admit_answers(self, policy: str, throttle_ms: int, left_ms: int, charged: bool) -> None:
        with gateway_loop(QUOTAS, policy=policy, stale_after_s=1) as loop:
            gateway = loop.gateways[0]
            gateway.admit(produce(1, user="bob"))
            loop.clock.ms += 1_001

            assert gateway.admit(produce(15_000)).throttle_ms == throttle_ms
            assert wait_ms(gateway, "alice", "app") == left_ms
            assert ("throttled_by" in loop.events()[1]) is charged
            assert gateway.refuses_all() is (policy == "fail_closed")

    def test_fail_closed_throttles_clients_that_the_share_would_let_go(self) -> None:
        with gateway_loop(QUOTAS, policy=StalePolicy.FAIL_CLOSED, stale_after_s=1) as loop:
            gateway = loop.gateways[0]
            gateway.admit(produce(1))
            loop.clock.ms += 1_001

            assert gateway.admit(produce(1)).throttle_ms == 1_000
            assert gateway.admit(create(1)) == Answer(1_000, refused=(True,))
            assert wait_ms(gateway, "bob", "app") == 1_000


class TestHeartbeats:
    """Gateways know of each other by their heartbeats, and divide the limit among them."""

    def test_one_is_published_each_second_and_says_what_the_gateway_does(self, loop: GatewayLoop) -> None:
        gateway = loop.gateways[0]
        gateway.admit(produce(15_000))
        for _ in range(10):
            loop.clock.ms += 200
            gateway.idle()
        beats = [json.loads(value) for value in loop.published()][1:]

        assert [beat["timestamp_ms"] - NOW_MS for beat in beats] == [200, 1_200]
        assert {beat["instance"] for beat in beats} == {"i-0"}
        [share] = beats[1]["heartbeat"]["shares"]
        assert share["entity"] == {"user": "alice"}
        assert (share["limit"], share["share"], share["throttle_ms"]) == (BYTES_PER_S, BYTES_PER_S, 3_800)
        assert beats[1]["heartbeat"]["counters"] == 1
        assert beats[1]["heartbeat"]["staleness_ms"] == 1_200
        assert [beat["heartbeat"]["load"]["bytes_in_per_s"] for beat in beats] == [75_000, 0]

    def test_one_is_decided_though_a_limit_is_as_large_as_a_number_can_be(self) -> None:
        with gateway_loop([quota(TIME, 1.7e308, user=DEFAULT)], count=2) as loop:
            for _ in range(4):
                loop.gateways[0].admit(Request("Metadata", user="alice", request_time_ns=2**53))
                loop.beat()

            assert loop.decisions[-1]["instance"] == "i-1"
            assert loop.gateways[0].stats().gateways == 2

    def test_those_of_another_process_under_this_ones_instance_are_seen(self, loop: GatewayLoop) -> None:
        with gateway_loop(QUOTAS) as other:
            other.beat()
            for _ in range(2):
                other.gateways[0].idle()
                other.clock.ms += 1_000
                loop.decide_events(list(other.published()))
            loop.beat()

        assert loop.gateways[0].stats().gateways == 2

    def test_one_that_finds_the_buffer_full_blocks_no_thread(self) -> None:
        with gateway_loop(QUOTAS, max_unsent=1) as loop:
            gateway = loop.gateways[0]
            gateway.admit(produce(1))
            loop.clock.ms += 1_000
            gateway.idle()

            assert gateway.stats().dropped == 1

    def test_giant_names_of_clients_don_t_keep_a_heartbeat_from_its_record(self, loop: GatewayLoop) -> None:
        gateway = loop.gateways[0]
        for number in range(100):
            gateway.admit(produce(1, user=f"{number}" + "x" * 32_000))
        loop.clock.ms += 1_000
        gateway.idle()

        assert len(list(loop.published())[-1]) < 100_000


@pytest.mark.parametrize(
    "forged",
    [
        {"limit": -1.0},
        {"charged": [0, -5.0]},
        {"charged": [0, 1e31]},
        {"charged": [0, 1.0, -1]},
        {"charged": [0, 1.0, 3_600_001]},
        {"charged": [0, 1.0, 0, -1]},
        {"charged": [0, 1.0, 0, 0, -1.0]},
        {"charged": [-1, 1.0]},
        {"charged": [1, 1.0]},
        {"gateways": [7]},
        {"until_ms": -1},
        {"fetches": [0, 5.0]},
        {"limit": "NaN"},
    ],
)
def test_forged_sums_are_passed_over(gateway: OfflineGateway, forged: dict[str, Any]) -> None:
    """Those of a counter that isn't in use are left out when a client comes to use it."""
    good = {"limit": 1.0, "until_ms": 0, "charged": [0, 1.0], "fetches": None, "gateways": [["i-1", True, 0]]}
    told = good | forged
    summed = [0, told["limit"], 0, told["until_ms"], [told["charged"]], None, told["fetches"]]
    record = {"batch": 0, "base_ms": NOW_MS, "quotas": [PRODUCE], "gateways": told["gateways"]}
    sums = [[{"user": "alice"}, [summed]]]
    text = json.dumps(record | {"sums": sums}, separators=(",", ":")).replace('"NaN"', "NaN")
    gateway.sums.give(None, text.encode())
    gateway.admit(produce(1))
    gateway.sums.give(None, text.encode())

    assert gateway.stats().unreadable_records == (2 if forged == {"gateways": [7]} or "NaN" in text else 1)
    assert counter(gateway, PRODUCE, user="alice").others_decided == 0.0


def test_quotas_of_a_later_release_are_left_alone(gateway: OfflineGateway) -> None:
    summed = [0, 1.0, 0, 0, [[0, 5.0]], [70, 70, 5.0, 0, 0, True]]
    record = {"batch": 0, "base_ms": NOW_MS, "quotas": ["new.quota"], "gateways": [[None, False, 0]]}
    gateway.sums.give(None, json.dumps(record | {"sums": [[{"user": "alice"}, [summed], True]]}).encode())

    assert gateway.stats().sums == 1
    assert gateway.stats().decided_waits == 0


def test_a_micro_batch_that_is_repeated_counts_once(gateway: OfflineGateway) -> None:
    """The next one, and another job, go on."""
    charge = {"quota": PRODUCE, "entity": {"user": "alice"}, "limit": BYTES_PER_S, "value": 1.0}
    decision = {"timestamp_ms": NOW_MS, "instance": "another", "charges": [charge]}
    for job_id, batch in (("3f", 7), ("3f", 7)):
        tell(gateway, decision, job_id=job_id, batch=batch)
    gateway.admit(produce(1))
    for job_id, batch in (("3f", 7), ("3f", 6), ("3f", 8), ("4a", 0)):
        tell(gateway, decision, job_id=job_id, batch=batch)

    assert counter(gateway, PRODUCE, user="alice").others_decided == 3.0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="what C reads is as deep wherever it is called from Python")
def test_a_record_that_nests_too_deep_ends_no_request(gateway: OfflineGateway) -> None:
    """The reader can pass over it, but not a request whose thread has called deeper."""
    nested = "[" * 900 + "]" * 900
    record = {"batch": 0, "base_ms": NOW_MS, "quotas": [PRODUCE], "gateways": [["i-1", True, 0]]}
    sums = [[{"user": "alice"}, [[0, 1.0, 0, 0, [[0, 5.0]], None, None, False, "nested"]]]]
    text = json.dumps(record | {"sums": sums}, separators=(",", ":")).replace('"nested"', nested)
    gateway.sums.give(None, text.encode())

    def admit(depth: int) -> int:
        return admit(depth - 1) if depth else gateway.admit(produce(1)).throttle_ms

    assert gateway.stats().unreadable_records == 0
    assert admit(120) == 0
    assert counter(gateway, PRODUCE, user="alice").others_decided == 0.0


def test_a_wait_of_hours_inline_counts_as_the_longest_allowed() -> None:
    """Another gateway that says so is hungry for `max_wait_ms` and no longer."""
    with gateway_loop(QUOTAS, count=2, max_wait_ms=20_000) as loop:
        loop.beat(3)
        loop.gateways[0].admit(produce(1))
        wait = {"quota": PRODUCE, "entity": {"user": "alice"}, "ms": 3_600_000}
        event = {"api": "Produce", "user": "alice", "bytes": 1, "instance": "i-1", "throttled_by": [wait]}
        loop.decide_events([json.dumps(event | {"timestamp_ms": loop.clock.ms}).encode()])
        known = counter(loop.gateways[0], PRODUCE, user="alice")

        assert known.others["i-1"].hungry_until_ms == loop.clock.ms + 20_000


@pytest.fixture(scope="module")
def two_gateways() -> Iterator[GatewayLoop]:
    """Two gateways that publish wide requests in parts, and give up waiting for a decision at once."""
    with gateway_loop(QUOTAS, count=2, max_charges_per_event=2, decide_timeout_ms=1) as loop:
        loop.beat(3)
        yield loop


NUMBERS = count()

STEP = st.tuples(
    st.integers(0, 1),
    st.sampled_from(
        ("produce", "wide", "fetch", "delivered", "uncharged", "strict", "awaited", "permissive", "decide")
    ),
    st.integers(0, 30_000),
    st.integers(0, 300),  # of counters that its clients don't use yet, a gateway keeps ten seconds
)


@given(st.lists(STEP, max_size=25))
def test_once_all_is_decided_gateways_agree_on_what_was_charged(
    two_gateways: GatewayLoop, steps: list[tuple[int, str, int, int]]
) -> None:
    """To the byte, own charges and those of others together; it is what the decisions say."""
    user, loop = f"user-{next(NUMBERS)}", two_gateways
    decided_before = len(loop.decisions)
    for number, kind, size, pause_ms in steps:
        loop.clock.ms += pause_ms
        act(loop, loop.gateways[number], kind, size, user)
        if kind == "decide":
            loop.decide()
    for _ in range(2):  # what was executed before its decision may be published after it
        loop.decide()

    for quota_kind in (PRODUCE, FETCH, MUTATIONS):
        decided = sum(charged(decision, quota_kind) for decision in loop.decisions[decided_before:])
        for gateway in loop.gateways:
            known = touched(gateway, quota_kind, user=user)
            assert known is None or known.own_charged + known.others_decided == decided


def act(loop: GatewayLoop, gateway: OfflineGateway, kind: str, size: int, user: str) -> None:
    partitions = [TopicPartition("orders", number, size // 5) for number in range(5)]
    if kind == "produce":
        gateway.admit(produce(size, user))
    elif kind == "wide":
        gateway.admit(Request("Produce", user=user, topic_partitions=partitions))
    elif kind in ("fetch", "delivered"):
        gateway.admit(fetch(size, user), delivered=kind == "delivered")
    elif kind == "uncharged":
        loop.others.append(uncharged(gateway, produce(size, user)))
    elif kind == "strict":
        gateway.admit(create(size % 9, size % 5, user=user))
    elif kind == "awaited":
        gateway.admit_mutations(create(size % 9, size % 5, user=user))
    elif kind == "permissive":
        gateway.admit(create(size % 9, user=user, api_version=1))


def charged(decision: dict[str, Any], kind: QuotaKind) -> float:
    """The amount that a decision leaves on the counter of this kind."""
    if kind.consumer and decision.get("amounts", {}).get("withheld"):
        return 0.0
    return float(sum(charge["value"] for charge in decision["charges"] if charge["quota"] == kind))
