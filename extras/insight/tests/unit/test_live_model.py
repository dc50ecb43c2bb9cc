"""The console's model of what clients do now: figures as decided, moved on by Kafka's arithmetic, in bounded memory."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.contract.records import RELEASE, UNMUTE_API
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings, Window
from sluice.state.troubles import troubles_of
from sluice_insight.live import MINUTE_MS, POINT_MS, POINTS, STEPS, Bounds, CounterId, CounterState, LiveModel
from tests.builders import AT_MS, decision

ALICE = CounterId(QuotaKind.PRODUCER_BYTE_RATE, False, "alice", "", None, -1)


LIMITS = (("alice", 10.0), ("bob", None))


def fed(*decisions: dict[str, Any], now_ms: int = AT_MS, model: LiveModel | None = None) -> LiveModel:
    model = model or LiveModel()
    model.on_records([json.dumps(each).encode() for each in decisions], now_ms)
    return model


def counter_of(model: LiveModel, key: CounterId = ALICE) -> CounterState:
    counter = model.counter(key)
    assert counter is not None
    return counter


@given(
    pauses_ms=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
    later_ms=st.integers(0, 30_000),
    window=st.builds(Window, st.integers(2, 11), st.sampled_from([100, 1_000])),
)
def test_a_rate_is_0_as_soon_as_the_sampled_rate_is(pauses_ms: list[int], later_ms: int, window: Window) -> None:
    rate, now_ms = SampledRate(), AT_MS - sum(pauses_ms)
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        rate.record(100.0, window, now_ms)
    model = fed(
        decision(charge={"rate": rate.peek(window, AT_MS)}), model=LiveModel(QuotaSettings(client_window=window))
    )

    shown = model.usage.rate(counter_of(model), AT_MS + later_ms)

    assert (shown == 0.0) == (rate.peek(window, AT_MS + later_ms) == 0.0)


def test_a_counter_that_is_reset_without_a_limit_is_no_row() -> None:
    reset = [decision(api=UNMUTE_API, charge={"entity": {"user": user}, "limit": limit}) for user, limit in LIMITS]
    assert [counter.key.user for counter in fed(*reset).counters()] == ["alice"]


def test_tokens_come_back_at_the_limit_up_to_the_burst() -> None:
    charge = {"quota": "controller_mutation_rate", "limit": 5.0, "tokens": -60.0, "rate": 18.0}
    model = fed(decision(charge=charge), model=LiveModel(QuotaSettings(controller_window=Window(100, 1000))))
    mutations = counter_of(model, ALICE._replace(kind=QuotaKind.CONTROLLER_MUTATION_RATE))
    assert model.usage.tokens(mutations, AT_MS) == -60.0
    assert model.usage.tokens(mutations, AT_MS + 12_000) == 0.0
    assert model.usage.remaining(mutations, AT_MS + 1_000_000) == 500.0


def test_a_bucket_is_used_up_by_its_tokens_not_by_a_rate_above_the_limit() -> None:
    """At 116 % of its rate with 35 of 55 tokens no request waits; KIP-599 has a burst for that."""
    key = ALICE._replace(kind=QuotaKind.CONTROLLER_MUTATION_RATE)
    charge = {"quota": "controller_mutation_rate", "limit": 5.0, "rate": 5.8}
    shares = []
    for tokens in (55.0, 35.0, 0.0, -11.0):
        model = fed(decision(charge=charge | {"tokens": tokens}))
        mutations = counter_of(model, key)
        shares.append(model.usage.share(mutations, AT_MS))
        assert model.usage.shares([mutations], AT_MS) == shares[-1:]

    assert shares == pytest.approx([0.0, 20 / 55, 1.0, 1.2])


@pytest.mark.parametrize(
    ("decisions", "shown"),
    [
        ([decision()], (800.0, 1000.0, "user", 0.8, 200.0)),
        # An older decision changes no figures.
        ([decision(), decision(AT_MS - 5_000, charge={"rate": 1.0})], (800.0, 1000.0, "user", 0.8, 200.0)),
        # Without a limit there is no share and nothing remains.
        ([decision(charge={"limit": None, "matched": "none"})], (800.0, None, "none", None, None)),
    ],
)
def test_rate_limit_and_level_are_those_of_the_newest_decision(
    decisions: list[dict[str, Any]], shown: tuple[object, ...]
) -> None:
    model = fed(*decisions)
    alice = counter_of(model)
    figures = (model.usage.share(alice, AT_MS), model.usage.remaining(alice, AT_MS))
    assert (alice.rate, alice.limit, alice.matched, *figures) == shown


def test_a_decided_wait_runs_from_the_event_and_a_later_one_replaces_it() -> None:
    model = fed(decision(wait_ms=30_000))
    assert counter_of(model).wait_ms(AT_MS + 10_000) == 20_000
    fed(decision(AT_MS + 10_000, wait_ms=1_000), model=model)
    assert counter_of(model).wait_ms(AT_MS + 10_000) == 1_000


def test_what_a_gateway_applied_in_line_counts_instead_of_what_was_decided() -> None:
    applied = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 700}]
    model = fed(decision(wait_ms=30_000, throttled_by=applied))
    assert counter_of(model).wait_ms(AT_MS) == 700
    [wait] = model.waits([ALICE])
    assert (wait.wait_ms, wait.inline) == (700, True)


def test_a_wait_that_is_over_when_its_decision_is_read_counts_in_the_last_minute() -> None:
    """Decisions come seconds after the events, and most waits are shorter."""
    applied = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 2_500}]
    counter = counter_of(fed(decision(throttled_by=applied), now_ms=AT_MS + 9_000))
    assert (counter.wait_ms(AT_MS + 9_000), counter.waited_ms(AT_MS + 9_000)) == (0, 2_500)
    assert counter.throttled(AT_MS + 9_000)
    assert (counter.throttled(AT_MS + 63_000), counter.waited_ms(AT_MS + 63_000)) == (False, 0)


def test_a_wait_of_a_gateway_ends_at_its_next_request() -> None:
    applied = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 3_400_000}]
    model = fed(*(decision(AT_MS + at_ms, throttled_by=applied, instance="b-1") for at_ms in (0, 1_000)))
    fed(decision(AT_MS + 1_500, throttled_by=[], instance="b-2"), model=model)
    assert counter_of(model).wait_ms(AT_MS + 2_000) > 0
    fed(decision(AT_MS + 2_000, throttled_by=[], instance="b-1"), model=model)
    assert (counter_of(model).wait_ms(AT_MS + 2_000), counter_of(model).waited_ms(AT_MS + 9_000)) == (0, 2_000)


@given(
    st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 20_000)), min_size=1, max_size=20), st.integers(0, 999)
)
def test_the_last_minute_has_the_union_of_its_waits(waits: list[tuple[int, int]], start_ms: int) -> None:
    counter, waits = CounterState(ALICE), sorted(waits)
    for lane, (at_ms, wait_ms) in enumerate(waits):
        counter.note_wait(str(lane), AT_MS + start_ms + at_ms, wait_ms)
    now_ms = AT_MS + start_ms + waits[-1][0] + 3_000
    first_ms = (now_ms // 1000 - 59) * 1000
    union = {ms for at_ms, wait_ms in waits for ms in range(at_ms, at_ms + wait_ms)}
    assert counter.waited_ms(now_ms) == sum(first_ms <= AT_MS + start_ms + ms < now_ms for ms in union)


def test_a_shadow_quota_is_a_counter_of_its_own_and_waits_for_nothing() -> None:
    model = fed(decision(wait_ms=5_000, charge={"mode": "shadow"}))
    shadow = counter_of(model, ALICE._replace(shadow=True))
    assert (shadow.rate, shadow.wait_ms(AT_MS)) == (800.0, 0)
    assert model.counter(ALICE) is None


def test_minutes_of_a_week_are_never_fewer_than_those_of_its_last_hour() -> None:
    """The tables follow the decisions by a minute and more."""
    model = fed(decision(wait_ms=100_000))
    weeks = [model.row(counter_of(model), AT_MS + 100_000, minutes).week_minutes for minutes in (None, 0, 60)]

    hour = counter_of(model).throttled_minutes(AT_MS + 100_000)
    assert hour >= 2
    assert weeks == [None, hour, 60]


@given(st.lists(st.tuples(st.integers(0, 3 * 60 * MINUTE_MS), st.integers(1, 20 * MINUTE_MS)), min_size=1, max_size=20))
def test_minutes_throttled_are_those_touched_by_the_union_of_the_waits(waits: list[tuple[int, int]]) -> None:
    counter, waits = CounterState(ALICE), sorted(waits)
    for lane, (start_ms, wait_ms) in enumerate(waits):
        counter.note_wait(str(lane), AT_MS + start_ms, wait_ms)
    now_ms = AT_MS + waits[-1][0] + 1
    this_minute = now_ms // MINUTE_MS
    touched = {
        minute
        for start_ms, wait_ms in waits
        for minute in range(
            (AT_MS + start_ms) // MINUTE_MS, (min(AT_MS + start_ms + wait_ms, now_ms) - 1) // MINUTE_MS + 1
        )
    }
    expected = sum(this_minute - STEPS < minute <= this_minute for minute in touched)
    assert counter.throttled_minutes(now_ms) == expected


@given(
    st.lists(st.tuples(st.integers(0, 3 * POINTS * POINT_MS), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.integers(0, 90_000),
)
def test_charts_and_the_mean_of_a_minute_have_what_was_charged_by_the_time(
    charges: list[tuple[int, int]], later_ms: int
) -> None:
    """Not the sampled rate, which a charge of a second of the limit takes above the limit."""
    charges = sorted(charges)
    now_ms = AT_MS + charges[-1][0] + later_ms
    model = fed(*(decision(AT_MS + at_ms, charge={"value": float(value)}) for at_ms, value in charges), now_ms=now_ms)
    sums: dict[int, float] = {}
    for at_ms, value in charges:
        number = (AT_MS + at_ms) // POINT_MS
        sums[number] = sums.get(number, 0.0) + value
    newest = now_ms // POINT_MS

    points = [-1.0 if math.isnan(point) else point for point in counter_of(model).points(now_ms)]
    expected = [sums[number] / 10 if number in sums else -1.0 for number in range(newest - POINTS + 1, newest + 1)]
    assert points == pytest.approx(expected)

    mean = counter_of(model).mean(now_ms)[0]
    times_ms = [-MINUTE_MS, *(at_ms for at_ms, _ in charges)]
    begun_ms = max(at_ms for before_ms, at_ms in pairwise(times_ms) if at_ms - before_ms >= MINUTE_MS)
    minute = range(max(newest - 6, (AT_MS + begun_ms) // POINT_MS + 2), newest)
    if minute:
        assert mean == pytest.approx(sum(sums.get(number, 0.0) for number in minute) / 10 / len(minute))
    else:
        assert math.isnan(mean)


def sends(from_s: int, to_s: int, rate: float, limit: float) -> list[dict[str, Any]]:
    """A charge each second; the sampled rate is a fifth higher."""
    charge = {"value": rate, "rate": rate * 1.2, "limit": limit}
    return [decision(AT_MS + second * 1_000, charge=charge) for second in range(from_s, to_s)]


@pytest.mark.parametrize(
    ("decisions", "used", "over"),
    [
        # At its limit; a fresh counter takes ten seconds of it at once, which is no fault.
        ([decision(AT_MS, charge={"value": 10_000.0, "rate": 2_000.0}), *sends(10, 90, 1000.0, 1000.0)], 1.0, 0),
        # Until there is a mean, the sampled rate is the limit at most.
        (sends(75, 90, 1000.0, 1000.0), 1.0, 0),
        # A limit that was lowered is over from then on alone, and the share is of both.
        ([*sends(0, 60, 1000.0, 1000.0), *sends(60, 90, 800.0, 100.0)], 5_400.0 / 4_200.0, 2),
        # A limit that was lowered, of which all was used before.
        ([*sends(0, 60, 3000.0, 3000.0), *sends(60, 90, 1000.0, 1000.0)], 12.0 / 14.0, 0),
        (sends(0, 90, 2000.0, 1000.0), 2.0, 9),
    ],
)
def test_usage_is_the_mean_of_a_minute_against_the_limits_of_their_time(
    decisions: list[dict[str, Any]], used: float, over: int
) -> None:
    now_ms = AT_MS + 90_000
    model = fed(*decisions, now_ms=now_ms)

    row = model.row(counter_of(model), now_ms)

    assert row.used == pytest.approx(used)
    assert model.usage.shares([counter_of(model)], now_ms) == [row.used]
    assert sum(row.over()) == over
    assert [limit for limit in row.limits if not math.isnan(limit)][-1] == decisions[-1]["charges"][0]["limit"]


def test_what_was_waited_is_kept_by_time_however_many_waits_there_were() -> None:
    """Each wait ends at the next request, as that of a client which goes on at its limit."""
    applied = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 400}]
    events = [decision(AT_MS + at_ms, throttled_by=applied, instance="b-1") for at_ms in range(0, 300_000, 500)]

    points = counter_of(fed(*events, now_ms=AT_MS + 300_000)).waited_points(AT_MS + 300_000)

    assert points == [0] * 29 + [8_000] * 30 + [0]


def test_a_wait_has_its_client_and_why_its_gateway_was_tightened() -> None:
    note = {"number": 7, "factor": 0.5, "reason": "broker-2: queue wait 34 ms" + "x" * 1_000}
    model = fed(decision(wait_ms=5, elastic=note), decision(AT_MS + 1, wait_ms=5, elastic=note | {"factor": 1.0}))

    untightened, tightened = model.waits()

    assert (tightened.user, tightened.client_id, untightened.tightened) == ("alice", "app", None)
    assert (tightened.tightened or "").startswith("broker-2: queue wait 34 ms")
    assert len(tightened.tightened or "") == 300


@pytest.mark.parametrize(
    ("bounds", "users", "kept", "evicted"),
    [
        (Bounds(counters=2), ["a", "b", "a", "c"], {"a", "c"}, 1),
        # Long names count by their characters.
        (
            Bounds(name_characters=100_000),
            [f"{n}" * 30_000 for n in range(10)],
            {f"{n}" * 30_000 for n in (7, 8, 9)},
            7,
        ),
    ],
    ids=["counters", "characters"],
)
def test_of_too_many_counters_the_least_recently_charged_are_forgotten_and_counted(
    bounds: Bounds, users: list[str], kept: set[str], evicted: int
) -> None:
    model = fed(*(decision(user=user) for user in users), model=LiveModel(bounds=bounds))
    assert {counter.key.user for counter in model.counters()} == kept
    assert (model.known, model.evicted) == (len(kept), evicted)


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"\xff", b"{}", b"[" * 100_000, b'{"decision_id": 1}'),
        json.dumps(decision(-5)).encode(),
        # Otherwise a writer to the topic could fill the memory with verdicts.
        json.dumps(decision() | {"verdict": "x" * 1_000}).encode(),
    ],
    ids=range(8),
)
def test_records_that_hold_no_decision_are_counted_and_change_nothing(value: bytes | None) -> None:
    model = LiveModel()
    model.on_record(value, AT_MS)
    assert (model.unreadable, model.known, sum(model.total.values())) == (1, 0, 0)


def test_long_words_of_forged_records_are_not_kept() -> None:
    """Thousands of waits and counters would keep a megabyte each."""
    long = "x" * 1_000_000
    forged = decision(wait_ms=1, decision_id=long, api=long, gateway=long, charge={"matched": long})
    model = fed(forged)
    (wait,), counter = model.waits(), counter_of(model)

    kept = (wait.decision_id, wait.api, wait.server, counter.matched, counter.decision_id)
    assert max(map(len, kept)) == 300


def test_a_quota_that_nobody_knows_makes_no_counter() -> None:
    assert fed(decision(charge={"quota": "exempt-request-time"})).known == 0


def test_verdicts_and_the_greatest_age_are_counted_by_the_second_of_reading() -> None:
    model = fed(decision(AT_MS - 700), decision(AT_MS - 200, wait_ms=5), now_ms=AT_MS)
    *_, last = model.seconds(AT_MS + 1_000)
    assert (last.decisions, last.verdicts, last.lag_ms) == (2, {"ALLOW": 1, "THROTTLE": 1}, 700)


def test_of_a_gateway_the_newest_heartbeat_is_shown_in_whatever_order_they_come() -> None:
    """Tasks of a micro-batch write at the same time; only a clock that was set back brings a much older one."""
    model = LiveModel()

    def counters_after(at_ms: int, counters: int) -> int:
        heartbeat = {"staleness_ms": 40, "counters": counters, "shares": []}
        beat = _beat("g1", "i1", heartbeat) | {"timestamp_ms": at_ms}
        model.on_record(json.dumps(beat).encode(), AT_MS)
        (seen,) = model.gateways.all()
        return seen.heartbeat.counters

    assert counters_after(AT_MS - 1_000, 1) == 1
    assert counters_after(AT_MS - 9_000, 2) == 1
    assert counters_after(AT_MS - 100_000, 3) == 3


def _beat(gateway: str, instance: str, heartbeat: dict[str, object]) -> dict[str, Any]:
    return decision(api="GatewayHeartbeat", gateway=gateway, instance=instance, heartbeat=heartbeat, charges=[])


def test_a_heartbeat_tells_of_its_gateway_and_is_no_decision() -> None:
    share = {"quota": "producer_byte_rate", "entity": {"user": "a"}, "limit": 9.0, "share": 3.0, "charged": 2.0}
    heartbeat = {"staleness_ms": 40, "counters": 7, "shares": [share], "release": RELEASE}
    names = ("host-1-0a1b2c3d", "host-2-0a1b2c3d", "host-2-1a1b2c3d")  # the second one was started again
    model = fed(*(_beat("host", name, heartbeat) for name in names), _beat("edge-3", "edge-3-0a1b2c3d", heartbeat))
    assert {(seen.heartbeat.counters, seen.heartbeat.shares[0].share) for seen in model.gateways.all()} == {(7, 3.0)}
    newest = {name: (seen.instance[-8:], seen.text) for name, seen in model.gateways.newest().items()}
    brokers = {"host-1": ("0a1b2c3d", "broker 1"), "host-2": ("1a1b2c3d", "broker 2")}
    assert newest == brokers | {"edge-3": ("0a1b2c3d", "edge-3")}
    facts = replace(model.gateways.facts(AT_MS), plugins=dict.fromkeys((1, 2, 3), "there"))
    assert [trouble.text for trouble in troubles_of(facts, AT_MS)] == [
        "broker 3 of 3 with the plugin: no heartbeat in 60 s"
    ]
    assert not model.total


def test_the_last_decisions_that_made_wait_are_kept_whole_within_their_bounds() -> None:
    model = LiveModel(bounds=Bounds(recent=2))
    fed(*(decision(decision_id=f"r-0-{number}", wait_ms=1) for number in range(3)), model=model)
    fed(decision(decision_id="r-0-9"), model=model)
    assert [model.recent(f"r-0-{number}") is not None for number in (0, 1, 2, 9)] == [False, True, True, False]


def test_nothing_of_a_topic_that_was_made_again_is_left() -> None:
    """Its offsets begin at 0 again, so that an id names another decision."""
    beat = {"staleness_ms": 40, "counters": 7, "shares": []}
    model = fed(
        decision(wait_ms=1_000),
        _beat("g1", "i1", beat),
        model=LiveModel(bounds=Bounds(counters=1)),
    )
    model.on_record(b"no decision", AT_MS)
    changes = model.changes

    model.forget()

    assert model.recent("requests-0-1") is None
    assert (list(model.waits()), model.gateways.all(), model.known) == ([], [], 0)
    assert (sum(model.total.values()), model.evicted, model.unreadable) == (0, 0, 0)
    assert not any(second.decisions or second.heartbeats for second in model.seconds(AT_MS + 1_000))
    assert model.changes == changes  # who looks for changes since then
    fed(decision(wait_ms=700), model=model)
    assert [wait.wait_ms for wait in model.waits()] == [700]
