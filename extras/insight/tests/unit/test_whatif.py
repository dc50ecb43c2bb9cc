"""`sluice whatif`: recorded decisions under other quotas, with the closed loop."""

import json
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from recorded import SETTINGS, START_MS, event, simulated, write_decisions
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.arithmetic.counter import Outcome
from sluice.state.contract.records import Request, Verdict
from sluice.state.decisions.decision import ALLOWED, RequestOutcome, clamp_throttle_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice_insight.commands.whatif import client_json
from sluice_insight.reports.span import Span
from sluice_insight.whatif import replay as replay_module
from sluice_insight.whatif import run
from sluice_insight.whatif.recording import Recording, decided_order, independent_by
from sluice_insight.whatif.replay import ClientReplay, Outcomes, Recorded, Replay, ReplayedCounters
from sluice_insight.whatif.run import Task, replay, replay_share, stepped
from sluice_insight.whatif.whose import Part
from tests import strategies
from tests.builders import Json, member
from tests.commands import invoke, with_values

pytestmark = pytest.mark.usefixtures("small_clients")

ALICE = QuotaEntity(user="alice")
EVERYBODY = QuotaEntity(user=DEFAULT)
MINUTE_MS = 60_000
SPAN = Span(START_MS, START_MS + 10 * MINUTE_MS)


def limit(value: float, entity: QuotaEntity = ALICE, kind: QuotaKind = QuotaKind.PRODUCER_BYTE_RATE) -> QuotaEntry:
    return QuotaEntry(entity, kind, value)


def recorded(at_ms: int, size: int = 1000, wait_ms: int = 0, user: str = "alice", client_id: str = "app") -> Recorded:
    request = Request("Produce", user=user, client_id=client_id, bytes=size)
    return Recorded(START_MS + at_ms, request, wait_ms)


def replayed(requests: list[Recorded], *limits: QuotaEntry, end_ms: int = SPAN.end_ms) -> dict[str, ClientReplay]:
    """The clients' requests under these limits, by user."""
    loop = Replay(ReplayedCounters(Quotas(limits), QuotaSettings(), 3_600_000).decide, Span(START_MS, end_ms))
    for each in requests:
        loop.replay_request(each)
    return {user: client for (user, _), client in loop.finish().items()}


def sent_at(requests: list[Recorded], *limits: QuotaEntry) -> list[int]:
    """When each request is sent now, in ms after the start."""
    counters, times_ms = ReplayedCounters(Quotas(limits), QuotaSettings(), 3_600_000), []

    def decide(request: Request, now_ms: int) -> RequestOutcome:
        times_ms.append(now_ms - START_MS)
        return counters.decide(request, now_ms)

    loop = Replay(decide, SPAN)
    for each in requests:
        loop.replay_request(each)
    loop.finish()
    return times_ms


def task(path: Path, *scenarios: list[QuotaEntry], **other: Any) -> Task:
    return Task(str(path), {}, SPAN, list(scenarios), QuotaSettings(), 3_600_000, **other)


def charges_of(decision: Json) -> list[Json]:
    """The charges of a decision that can make somebody wait, by their counters."""
    found = (charge for charge in decision["charges"] if charge["limit"] is not None and "mode" not in charge)
    kept = ("entity", "quota", "value", "rate", "throttle_ms", "violated")
    return sorted(({name: charge[name] for name in kept} for charge in found), key=str)


def reported(outcomes: Outcomes) -> list[Json]:
    """The same of charges with a limit that a replay made.

    A decision has a counter where its first charge is, with a limit or without one. The replay leaves those without
    one out, so it may come to another counter first.
    """
    found = [
        {
            "entity": msgspec.to_builtins(tags.entity()),
            "quota": outcome.charge.kind.value,
            "value": outcome.value,
            "rate": outcome.rate,
            "throttle_ms": reported_ms(outcome),
            "violated": outcome.violated,
        }
        for tags, charged in outcomes.items()
        for outcome in charged
    ]
    return sorted(found, key=str)


def reported_ms(outcome: Outcome) -> int:
    """The wait that a decision says of a charge."""
    return max(clamp_throttle_ms(outcome.wait_ms), 1 if any(outcome.refused) else 0) if outcome.violated else 0


# --- what is decided ---------------------------------------------------------------------------------------------


@given(
    stream=st.lists(strategies.events(), min_size=1, max_size=20),
    entries=strategies.quota_entries,
    quota=strategies.quota_settings,
)
@example(  # alice's bytes have no limit and her request time has one, so a decision has her counter before the topic's
    stream=[
        json.dumps(
            {
                "api": "Produce",
                "timestamp_ms": strategies.START_MS,
                "user": "alice",
                "request_time_ns": 1,
                "topic_partitions": [{"topic": "orders", "partition": 0, "bytes": 1}],
            }
        ).encode()
    ],
    entries=[
        QuotaEntry(QuotaEntity(user="bob|x"), QuotaKind.PRODUCER_BYTE_RATE, 1.0),
        QuotaEntry(QuotaEntity(topic="orders"), QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1.0),
        QuotaEntry(ALICE, QuotaKind.REQUEST_PERCENTAGE, 1.0),
    ],
    quota=QuotaSettings(),
)
def test_each_decision_is_that_of_simulate_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, stream: list[bytes], entries: list[QuotaEntry], quota: QuotaSettings
) -> None:
    """Verdict, wait, and every charge with a limit, of what was recorded under no quotas at all."""
    path = tmp_path_factory.mktemp("decisions")
    chosen = replace(SETTINGS, quota=quota)
    expected = [answer for answer in simulated(stream, entries, chosen) if answer["api"] != "GatewayHeartbeat"]
    # Kafka's bucket without a quota runs dry too, if the clock steps back by more than the window.
    assume(not any(each["limit"] is None and each["violated"] for answer in expected for each in answer["charges"]))
    known = [
        answer | {name: answer[name] or None for name in ("user", "client_id")}
        for answer in simulated(stream, [], chosen)
    ]
    write_decisions(path, [answer | {"decided_at_ms": 1} for answer in known])  # "" would be one that isn't known
    span = Span(strategies.START_MS - 1000, strategies.START_MS + 10_000)
    counters = ReplayedCounters(Quotas(entries), quota, 3_600_000)

    found = []
    for each in Recording(str(path), {}, span):
        outcomes = counters.charge(each.request, each.timestamp_ms)
        answer = counters.outcome(each.request, each.timestamp_ms, outcomes)
        found.append((each.timestamp_ms, answer.verdict, answer.throttle_ms, answer.decided_by, reported(outcomes)))

    assert json.loads(json.dumps([row[:4] for row in found])) == [
        [each["timestamp_ms"], each["verdict"], each["throttle_time_ms"], each["decided_by"]] for each in expected
    ]
    assert [charges for *_, charges in found] == [charges_of(each) for each in expected]


def test_counters_at_rest_are_forgotten_and_others_are_not() -> None:
    counters = ReplayedCounters(Quotas([limit(1000.0, EVERYBODY)]), QuotaSettings(), idle_expiry_ms=3_600_000)
    for user, at_ms in (("idle", 0), ("busy", 3_500_000), ("late", 4_300_000)):
        counters.charge(Request("Produce", user=user, bytes=1), START_MS + at_ms)

    assert sorted(tags.user for tags in counters._counters) == ["busy", "late"]


# --- the closed loop ---------------------------------------------------------------------------------------------


WAITED = recorded(0, 20_000, wait_ms=10_000)
AND_COMES_AGAIN = [WAITED, recorded(11_000), recorded(30_000, 20_000), recorded(31_000)]
IN_SPITE_OF_A_WAIT = [WAITED, recorded(9_000, 1), recorded(11_000)]


@pytest.mark.parametrize(
    ("requests", "value", "times_ms"),
    [
        # 20 000 bytes are 2 000/s over 10 s, twice the limit: 10 s of wait, for which what comes by itself queues.
        ([recorded(0, 20_000), recorded(1000)], 1000.0, [0, 10_000]),
        # A wait that was recorded counts but once: under the same limit it comes when it came; of half of the limit
        # it waits 30 s, and the second that it took to come.
        ([WAITED, recorded(11_000), recorded(13_000)], 1000.0, [0, 11_000, 13_000]),
        ([WAITED, recorded(11_000)], 500.0, [0, 31_000]),
        # One that waited for its turn comes before its time if the wait is shorter; one that came by itself doesn't.
        (AND_COMES_AGAIN, 1900.0, [0, 526 + 1_000, 30_000, 31_000]),
        (AND_COMES_AGAIN, 1e9, [0, 1_000, 30_000, 31_000]),
        # Another connection of the client that came in spite of a wait comes as long before its end.
        (IN_SPITE_OF_A_WAIT, 1000.0, [0, 9_000]),
        (IN_SPITE_OF_A_WAIT, 500.0, [0, 29_000]),
    ],
)
def test_a_client_sends_its_next_request_once_it_has_waited_as_then(
    requests: list[Recorded], value: float, times_ms: list[int]
) -> None:
    assert sent_at(requests, limit(value))[: len(times_ms)] == times_ms


def test_where_nobody_waits_requests_are_decided_at_their_recorded_times() -> None:
    """Those of one line in their order, whatever their times are."""
    requests = [
        recorded(at_ms, user=user) for at_ms, user in ((0, "alice"), (500, "bob"), (400, "alice"), (400, "bob"))
    ]

    assert sent_at(requests, limit(1e9, EVERYBODY)) == [0, 400, 500, 500]


def test_a_greedy_client_is_held_to_its_limit() -> None:
    """2 000 bytes/s for ten minutes under 1 000: about 600 of 1 200 requests, the others queue."""
    client = replayed([recorded(at_ms) for at_ms in range(0, 600_000, 500)], limit(1000.0))["alice"]

    assert client.then.requests == 1200
    assert 570 <= client.now.requests <= 612
    assert client.unsent == 1200 - client.now.requests
    assert client.waits == {"producer_byte_rate": client.now.throttled}
    assert client.now.waited_ms == pytest.approx(590_000, abs=6000)  # all but the first burst


def test_what_it_was_is_what_it_would_be_under_the_same_quotas() -> None:
    """An obedient client, recorded while it was throttled: the replay throttles the same requests at the same times."""
    counters, at_ms, requests = ReplayedCounters(Quotas([limit(1000.0)]), QuotaSettings(), 3_600_000), 0, []
    while at_ms < 600_000:
        answer = counters.decide(Request("Produce", user="alice", client_id="app", bytes=1000), START_MS + at_ms)
        requests.append(recorded(at_ms, wait_ms=answer.throttle_ms))
        at_ms += answer.throttle_ms + 200

    client = replayed(requests, limit(1000.0))["alice"]

    assert client.now == client.then
    assert client.now.throttled > 100


def test_clients_of_one_counter_wait_for_each_other() -> None:
    """Another app of bob's throttles his app."""
    requests = [recorded(0, 20_000, user="bob", client_id="a"), recorded(100, 1, user="bob", client_id="b")]
    requests.append(recorded(200, 1, user="bob", client_id="b"))

    assert sent_at(requests, limit(1000.0, EVERYBODY))[:2] == [0, 100]
    assert sent_at(requests, limit(1000.0, EVERYBODY))[2] > 10_000


def test_members_of_a_tenant_wait_for_each_other_and_no_share_of_them_is_replayed_apart() -> None:
    """The tenant's limit is 1 000 bytes/s; each member sends 6 000 of the 10 000 that pass at once."""
    shop = [
        member(tenant="shop", user="shop-*"),
        limit(1000.0, QuotaEntity(tenant="shop")),
    ]
    requests = [recorded(at_ms, 6000, user=f"shop-{at_ms % 2}") for at_ms in range(4)]

    clients = replayed([*requests, recorded(4, 6000, user="eve")], *shop)

    assert clients["shop-0"].now.waited_ms > 0
    assert clients["shop-1"].now.waited_ms > 0
    assert clients["eve"].now.waited_ms == 0
    assert independent_by([*shop, limit(1.0)]) is None


def test_what_comes_after_the_end_is_not_sent_and_waits_end_with_it() -> None:
    client = replayed([recorded(0, 20_000), recorded(1000)], limit(1000.0), end_ms=START_MS + 5000)["alice"]

    assert (client.now.requests, client.unsent, client.now.waited_ms) == (1, 1, 5000)


def test_a_full_backlog_gives_up_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, whatever the limit."""
    monkeypatch.setattr(replay_module, "MAX_BACKLOG", 3)
    loop = Replay(lambda _, __: RequestOutcome(Verdict.THROTTLE, 60_000, "producer_byte_rate"), SPAN)
    for number in range(10):
        loop.replay_request(recorded(number))
    [client] = loop.finish().values()

    assert (loop.given_up, client.now.requests, client.unsent) == (6, 4, 6)


def test_a_wait_of_more_than_an_hour_counts_as_an_hour() -> None:
    """No gateway mutes longer."""
    loop = Replay(
        lambda request, _: ALLOWED if request.bytes else RequestOutcome(Verdict.THROTTLE, 2**31, "x"),
        Span(START_MS, START_MS * 2),
    )
    loop.replay_request(recorded(0, 0))
    loop.replay_request(recorded(5))
    [client] = loop.finish().values()

    assert (client.now.waited_ms, client.now.requests) == (3_600_000, 2)


# --- foretold, and then so -----------------------------------------------------------------------------------------

CONSUMER, TIME = QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE


def at_full_speed(entries: list[QuotaEntry], apis: dict[str, Json]) -> list[Recorded]:
    """Ten minutes of a client with a connection for each of these requests, repeated 20 ms after each answer."""
    counters, requests = ReplayedCounters(Quotas(entries), QuotaSettings(), 3_600_000), []
    due = [(START_MS - MINUTE_MS, api) for api in apis]
    while (at_ms := min(due)[0]) < SPAN.end_ms:
        (_, api) = due.pop(due.index(min(due)))
        request = Request(api, user="alice", client_id="app", **apis[api])
        wait_ms = counters.decide(request, at_ms).throttle_ms
        requests.append(Recorded(at_ms, request, wait_ms, lane=f"{api}|b-1"))
        due.append((at_ms + wait_ms + 20, api))
    return requests


PRODUCE: Json = {"bytes": 400_000}
FETCH: Json = {"bytes": 500_000}
FEW_BYTES: Json = {"bytes": 1000}
WORK: Json = {"request_time_ns": 30_000_000}
LIMITS = [limit(1e6), limit(2e6, kind=CONSUMER)]


@pytest.mark.parametrize(
    ("apis", "then", "now"),
    [
        ({"Produce": PRODUCE}, [limit(1e6)], [limit(5e5)]),
        ({"Fetch": FETCH}, [limit(1e6, kind=CONSUMER)], [limit(2e6, kind=CONSUMER)]),
        ({"Produce": PRODUCE, "Fetch": FETCH}, LIMITS, [limit(5e5), LIMITS[1]]),
        ({"Produce": PRODUCE, "Fetch": FETCH}, LIMITS, [LIMITS[0], limit(1e6, kind=CONSUMER)]),
        ({"Metadata": WORK}, [limit(10.0, kind=TIME)], [limit(5.0, kind=TIME)]),
        ({"Metadata": WORK}, [limit(5.0, kind=TIME)], [limit(10.0, EVERYBODY, TIME)]),
    ],
    ids=["halved", "doubled", "producer of two", "consumer of two", "request time", "default"],
)
def test_a_client_at_full_speed_gets_what_was_foretold(
    apis: dict[str, Json], then: list[QuotaEntry], now: list[QuotaEntry]
) -> None:
    recorded_then, recorded_now = at_full_speed(then, apis), at_full_speed(now, apis)

    found = replayed(recorded_then, *now)["alice"]
    same, became = (
        replayed(requests, *entries)["alice"] for requests, entries in ((recorded_then, then), (recorded_now, now))
    )

    assert (same.now.bytes, same.now.waited_ms) == pytest.approx((same.then.bytes, same.then.waited_ms), rel=0.02)
    assert found.now.bytes == pytest.approx(became.then.bytes, rel=0.05)
    assert found.now.waited_ms == pytest.approx(became.then.waited_ms, rel=0.05)
    assert found.now.requests == pytest.approx(became.then.requests, rel=0.05)


def test_a_producers_limit_takes_nothing_from_the_consumer_of_its_client_id() -> None:
    """Each has a connection of its own."""
    requests = at_full_speed(LIMITS, {"Produce": PRODUCE, "Fetch": FETCH})
    counters, fetched = ReplayedCounters(Quotas([limit(5e5), LIMITS[1]]), QuotaSettings(), 3_600_000), []

    def decide(request: Request, now_ms: int) -> RequestOutcome:
        fetched.append(request.api == "Fetch" and now_ms >= START_MS)
        return counters.decide(request, now_ms)

    loop = Replay(decide, SPAN)
    for each in requests:
        loop.replay_request(each)
    loop.finish()

    then = sum(each.request.api == "Fetch" and each.timestamp_ms >= START_MS for each in requests)
    assert sum(fetched) == pytest.approx(then, rel=0.02)


def test_the_waits_for_request_time_hold_up_all_connections_of_a_client() -> None:
    """A broker sums up the time of all of them in events of their own."""
    halved, requests = limit(5.0, kind=TIME), []
    for number in range(1200):
        at_ms = number * 500
        for api, said in {"Produce": FEW_BYTES, "Fetch": FEW_BYTES, "Requests": WORK}.items():
            request = Request(api, user="alice", client_id="app", **said)
            requests.append(Recorded(START_MS + at_ms, request, lane=f"{api}|b-1"))

    found = replayed(requests, halved)["alice"]

    assert found.then.bytes == 1200 * 2000
    assert found.now.bytes == pytest.approx(found.then.bytes * 5 / 6, rel=0.05)  # 30 ms each half a second are 6 %


def test_each_of_the_requests_that_a_sum_of_request_time_stands_for_waits_its_second() -> None:
    """Kafka throttles for a second at most, after each request; a broker says the number of produce requests alone."""
    summed: dict[str, Json] = {
        "Produce": {"bytes": 4000, "requests": 4},
        "Requests": {"request_time_ns": 40_000_000},
    }
    requests = []
    for second in range(600):
        for api, said in summed.items():
            request = Request(api, user="alice", client_id="app", **said)
            requests.append(Recorded(START_MS + 1000 * second, request, lane=f"{api}|b-1"))

    found = replayed(requests, limit(0.01, kind=TIME))["alice"]

    assert found.now.bytes == pytest.approx(found.then.bytes / 4, rel=0.05)


def test_a_burst_is_no_wish_for_more_and_a_client_that_is_not_throttled_any_more_has_an_unknown_one() -> None:
    requests = at_full_speed([limit(1e6)], {"Produce": PRODUCE})
    in_burst = [each for each in requests if each.timestamp_ms > SPAN.end_ms - MINUTE_MS]
    steady = [
        Recorded(START_MS + at_ms, Request("Produce", user="alice", client_id="app"), lane="Produce|b-1")
        for at_ms in range(0, 540_000, 500)
    ]

    doubled, unlimited = replayed([*steady, *in_burst], limit(2e6))["alice"], replayed(requests, limit(1e9))["alice"]

    assert (doubled.repeated, doubled.wants_more) == (0, False)
    assert unlimited.wants_more
    assert unlimited.now.waited_ms == 0


def test_an_event_of_several_requests_is_as_many_that_can_wait() -> None:
    summed = Recorded(START_MS, Request("Produce", user="alice", bytes=40_000, requests=4))

    client = replayed([summed], limit(1000.0))["alice"]

    assert (client.then.requests, client.now.requests, client.now.bytes) == (4, 4, 40_000)
    assert client.waits == {"producer_byte_rate": 2}  # between one that fills the burst, and one after the window


# --- reading -----------------------------------------------------------------------------------------------------


def test_rows_are_read_in_the_order_in_which_they_were_decided(tmp_path: Path) -> None:
    """Files come in any order, and compaction joins them in any."""
    events = [event(second * 1000, bytes=second) for second in range(40)]
    decisions = [
        answer | {"decided_at_ms": START_MS + number // 5 * 5000} for number, answer in enumerate(simulated(events, []))
    ]
    random = np.random.default_rng(1)
    shuffled = [decisions[number] for number in random.permutation(40)]
    for start in range(0, 40, 8):
        write_decisions(tmp_path, shuffled[start : start + 8])

    found = [each.request.bytes for each in Recording(str(tmp_path), {}, SPAN)]

    assert found == list(range(40))


def test_partitions_are_merged_by_time_and_each_keeps_its_order() -> None:
    decided, partitions = np.array([1, 1, 1, 1]), np.array([0, 0, 1, 1])
    offsets, times_ms = np.array([0, 1, 0, 1]), np.array([50, 10, 20, 60])

    assert decided_order(decided, partitions, offsets, times_ms).tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("applied", "expected_ms"),
    [(None, 10_000), ([], 0), ([("request_percentage", 70), ("producer_byte_rate", 90)], 90)],
)
def test_the_wait_of_then_is_the_one_applied_in_line(
    tmp_path: Path, applied: list[tuple[str, int]] | None, expected_ms: int
) -> None:
    """A gateway that charges in line doesn't apply the decision's."""
    said: Json = {"bytes": 20_000}
    if applied is not None:
        said["throttled_by"] = [{"quota": quota, "entity": {"user": "alice"}, "ms": ms} for quota, ms in applied]
    write_decisions(tmp_path, simulated([event(0, **said)], [limit(1000.0)]))

    assert [each.wait_ms for each in Recording(str(tmp_path), {}, SPAN)] == [expected_ms]


# --- processes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def busy_table(tmp_path: Path) -> Path:
    """Ten users with two client-ids each, for a minute, two of the users busier than the others."""
    random = np.random.default_rng(7)
    events = [
        event(number * 30, f"user-{min(random.integers(14), 9)}", f"app-{random.integers(2)}", bytes=2000)
        for number in range(2000)
    ]
    write_decisions(tmp_path / "decisions", simulated(events, []))
    return tmp_path / "decisions"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the pools of processes; a table of 100 rows is worth two of them."""
    monkeypatch.setattr(run, "LEAST_ROWS", 100)
    pool = Mock(wraps=ProcessPoolExecutor)
    monkeypatch.setattr(run, "ProcessPoolExecutor", pool)
    return pool


def test_a_table_of_few_rows_is_replayed_in_one_process(
    busy_table: Path, pools: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LEAST_ROWS", 2001)
    assert replay(task(busy_table, [limit(5000.0, EVERYBODY)]), 2).rows == 2000
    pools.assert_not_called()


def test_two_processes_find_what_one_finds(busy_table: Path, pools: Mock) -> None:
    limits = [limit(5000.0, EVERYBODY), limit(9000.0, QuotaEntity(user="user-9", client_id="app-1"))]
    one, two = (replay(task(busy_table, limits, []), processes) for processes in (1, 2))

    assert pools.call_count == 1
    assert one.clients == two.clients
    assert one.rows == two.rows == 2000
    assert max(client.now.throttled for client in one.clients[0].values()) > 10
    assert max(client.now.throttled for client in one.clients[1].values()) == 0


def test_a_client_alone_fares_as_among_all(busy_table: Path) -> None:
    """Clients that share a counter with it are replayed too, and not shown."""
    limits = [limit(5000.0, EVERYBODY)]
    everybody = replay(task(busy_table, limits), 1).clients[0]

    alone = replay(task(busy_table, limits, only=[("user-9", "app-0")]), 1)

    assert alone.clients == [{("user-9", "app-0"): everybody["user-9", "app-0"]}]
    assert alone.rows < 2000


@given(data=st.data())
def test_clients_that_would_not_wait_are_counted_as_a_replay_has_them(data: st.DataObject) -> None:
    """Counts and replays together are those of a replay of all: with waits of then, fetches, time and mutations."""
    sizes = data.draw(st.lists(st.integers(0, 20_000), min_size=1, max_size=60))
    events = [
        data.draw(
            st.sampled_from(
                [
                    event(at_ms, user, client_id, bytes=size),
                    event(at_ms, user, client_id, api="Fetch", bytes=size, withheld=size % 2 == 0),
                    event(at_ms, user, client_id, topic_partitions=[{"topic": "t", "partition": 0, "bytes": size}]),
                    event(at_ms, user, client_id, api="Metadata", request_time_ns=size * 50_000, requests=3),
                    event(at_ms, user, client_id, bytes=9, instance="one", throttled_by=[waits(user, size)]),
                    event(at_ms, user, client_id, api="CreateTopics", mutations=[{"topic": "t", "partitions": 2}]),
                ]
            )
        )
        for number, size in enumerate(sizes)
        for at_ms, user, client_id in [(number * 700, f"user-{number * size % 3}", f"app-{size % 2}")]
    ]
    then = [limit(data.draw(st.sampled_from([100.0, 5_000.0])), EVERYBODY)]
    now = [limit(data.draw(st.sampled_from([300.0, 1e9])), EVERYBODY, kind) for kind in CLIENT_KINDS]
    now.append(limit(500.0, QuotaEntity(user="user-1")))
    with TemporaryDirectory() as folder:
        write_decisions(folder, simulated(events, then))
        of_all = task(Path(folder), now)
        counted, replayed = (replay_share(of_all, part) for part in (Part.USER, None))

    found, expected = (
        {name: client_json(name, each.clients[0], client) for name, client in each.clients[0].items()}
        for each in (counted, replayed)
    )
    assert found == expected
    assert (counted.rows, counted.given_up) == (replayed.rows, replayed.given_up)


def waits(user: str, ms: int) -> Json:
    return {"quota": "producer_byte_rate", "entity": {"user": user}, "ms": ms}


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`whatif` on a table in which alice sends 2 000 bytes/s for a minute, and a hostile name sends once."""
    events = [event(at_ms, bytes=1000) for at_ms in range(0, 60_000, 500)]
    events.append(event(60_000, "\x1b[2Jbob", bytes=50_000))
    write_decisions(tmp_path / "decisions", simulated(events, []))
    (tmp_path / "quotas.yaml").write_text("- {entity: {user: null}, quotas: {producer_byte_rate: 1000}}\n")
    (tmp_path / "settings.yaml").write_text(
        f"delta: {{decisions: {tmp_path / 'decisions'}, quotas: {tmp_path / 'quotas'}}}\n"
    )
    times = ["--from", "2027-01-15T08:00Z", "--to", "2027-01-15T08:02Z", "--processes", "1"]
    return ["whatif", "--quotas", str(tmp_path / "quotas.yaml"), "--config", str(tmp_path / "settings.yaml"), *times]


def test_the_command_shows_clients_by_how_much_their_waits_change(command: list[str]) -> None:
    found = json.loads(invoke(*command, "--json").output)

    assert [(client["user"], client["requests"], client["not_sent"]) for client in found["clients"]] == [
        ("alice", 120, 0),
        ("\x1b[2Jbob", 1, 0),
    ]
    assert found["clients"][1]["minutes_waited_now"] == round(40 / 60, 3)  # 5 000 bytes/s over 10 s: 4 times 10 s
    assert found["total"]["requests"] == 121
    assert found["total"]["throttled_then"] == 0
    assert found["steps"] == []


def test_hostile_names_are_escaped_in_the_table(command: list[str]) -> None:
    out = invoke(*command).output

    assert "\x1b" not in out
    assert r"\x1b[2Jbob / client-id app" in out


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_quota_on_users_is_tried_on_a_client_whose_user_is_not_known(
    command: list[str], tmp_path: Path, processes: str, pools: Mock
) -> None:
    """A gateway that sums up requests of several users says "": as one they would wait for each other."""
    events = [event(at_ms, "", f"app-{at_ms % 3}", bytes=9000) for at_ms in range(0, 60_000, 500)]
    write_decisions(tmp_path / "decisions", simulated(events, []))

    printed = invoke(*with_values(command, "--processes", processes)).output
    found = {client["user"]: client for client in json.loads(invoke(*command, "--json").output)["clients"]}

    assert pools.called is (processes == "2")
    assert "120 of 241 decisions have no user, as a gateway sums up several users: no quota on users" in printed
    assert (found[""]["throttled_now"], found["\x1b[2Jbob"]["throttled_now"]) == (0, 1)


def test_a_client_without_a_user_is_tried_as_the_job_decides_it(command: list[str], tmp_path: Path) -> None:
    """Null is the empty name, which default quotas match."""
    events = [event(at_ms, client_id="nobody", user=None, bytes=9000) for at_ms in range(0, 60_000, 500)]
    write_decisions(tmp_path / "decisions", simulated(events, []))

    printed = invoke(*command).output

    assert "have no user" not in printed
    assert "client-id nobody" in printed


@pytest.mark.parametrize("on", [{"client_id": None}, {"user": "alice", "client_id": None}])
def test_no_quota_on_client_ids_is_tried_where_the_client_id_is_not_known(
    command: list[str], tmp_path: Path, on: Json
) -> None:
    events = [event(at_ms, client_id="", bytes=9000) for at_ms in range(0, 60_000, 500)]
    write_decisions(tmp_path / "decisions", simulated(events, []))
    (tmp_path / "quotas.yaml").write_text(json.dumps([{"entity": on, "quotas": {"producer_byte_rate": 1000}}]))

    printed = invoke(*command).output
    found = {client["client_id"]: client for client in json.loads(invoke(*command, "--json").output)["clients"]}

    assert "120 of 241 decisions have no client-id, as a gateway sums up several client-ids" in printed
    assert found[""]["throttled_now"] == 0


def test_a_span_without_decisions_has_no_clients(command: list[str]) -> None:
    shown = invoke(*with_values(command, "--from", "2026-01-01", "--to", "2026-01-02")).output

    assert shown.splitlines()[-1].split() == ["all", "0", "clients", *"0000", *["0.0"] * 3, *["0", "B"] * 3, "0"]


def test_a_client_can_be_asked_for_and_one_that_sent_nothing_is_said(command: list[str]) -> None:
    found = json.loads(invoke(*command, "--json", "--client", "alice").output)
    said = invoke(*command, "--client", "app").error

    assert [client["user"] for client in found["clients"]] == ["alice"]
    assert "sluice: nobody of these names sent anything; --client /NAME is a client-id without a user" in said


def test_steps_go_from_the_limits_in_force_to_those_of_the_file(command: list[str], tmp_path: Path) -> None:
    """Each step throttles more."""
    QuotasTable(str(tmp_path / "quotas")).create([limit(4000.0, EVERYBODY)], "test", datetime.now(UTC))

    found = json.loads(invoke(*command, "--json", "--steps", "3").output)

    assert [step["limits"] for step in found["steps"]] == [
        [f"the default user-principal: producer_byte_rate {value}.0"] for value in (3000, 2000, 1000)
    ]
    waited = [step["total"]["minutes_waited_now"] for step in found["steps"]]
    assert waited == sorted(waited)
    assert len(set(waited)) == 3
    assert found["total"] == found["steps"][-1]["total"]


def test_steps_are_a_narrow_table_however_many_quotas_the_file_has(command: list[str], tmp_path: Path) -> None:
    """The limits have a table of their own, of those that change."""
    QuotasTable(str(tmp_path / "quotas")).create([limit(4000.0, EVERYBODY)], "test", datetime.now(UTC))

    lines = invoke(*command, "--steps", "3").output.splitlines()

    heading = next(number for number, line in enumerate(lines) if line.startswith("step"))
    assert re.split(" {2,}", lines[heading]) == ["step", "throttled", "minutes waited", "clients throttled"]
    assert [re.split(" {2,}", line) for line in lines[heading + 5 :]] == [
        ["limit", "step 1", "step 3"],
        ["the default user-principal: producer_byte_rate", "3000.0", "1000.0"],
    ]


def test_a_quota_that_is_not_in_force_yet_is_not_stepped() -> None:
    new = limit(500.0, QuotaEntity(user="bob"))

    assert stepped([limit(1000.0)], [limit(2000.0), new], 2) == [[limit(1500.0), new], [limit(2000.0), new]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "someday"], "expected one such as"),
        (["--from", "2027-01-15T09:00Z"], "is empty; give --from before --to"),
        (["--client", ""], "--client is empty"),
    ],
)
def test_wrong_options_are_one_line(command: list[str], arguments: list[str], said: str) -> None:
    ended = invoke(*with_values(command, *arguments), code=2)

    assert said in ended.error_line


def test_a_file_that_another_process_finds_damaged_is_one_line(command: list[str], tmp_path: Path, pools: Mock) -> None:
    write_decisions(tmp_path / "decisions", simulated([event(at_ms, "alice") for at_ms in range(200)], []))
    for file in (tmp_path / "decisions").rglob("*.parquet"):
        file.write_bytes(b"PAR1 no parquet PAR1")

    assert "decisions can't be read: " in invoke(*with_values(command, "--processes", "2"), code=1).error
    assert pools.called
