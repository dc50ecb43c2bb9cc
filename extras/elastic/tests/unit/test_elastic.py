"""Elastic quotas: the rule, what it does to simulated clusters, and gateways and decisions under it."""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sluice import Request, TopicPartition
from sluice.configs.settings import load_settings
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Override, Overrides, Sums
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, ElasticKey, QuotaKind, QuotaSettings
from sluice.state.quotas.limits import overrides_value
from sluice.state.quotas.overrides import factor_of
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import equal_part
from sluice.streaming.enforce.pipeline import plan
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source, decode_page_batch
from sluice.streaming.overrides.watch import OverridesWatch
from sluice_elastic.tighten import FRESH_MS, ElasticLimits, ElasticRule, MeasuredLoad
from sluice_insight.reports.span import Span
from sluice_insight.whatif.overrides import RecordedOverrides, recorded_overrides
from sluice_insight.whatif.replay import ReplayedCounters
from sluice_lab.scenarios.closed_loop.elastic import ElasticCluster, Tenants, equal_parts, overloaded, random_load, week
from sluice_lab.scenarios.closed_loop.measures import measure
from sluice_lab.scenarios.closed_loop.simulation import ClosedLoop
from sluice_lab.scenarios.closed_loop.situation import Situation, Spread
from tests.builders import quota
from tests.gateway_loop import Clock, GatewayLoop, gateway_loop

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE
LIMIT = 1_000.0
ELASTIC = [
    quota(PRODUCE, LIMIT, user="alice"),
    quota(PRODUCE, LIMIT, user="bob"),
    QuotaEntry(QuotaEntity(user="bob"), ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 0.2 * LIMIT),
    quota(PRODUCE, LIMIT, user="carol"),
]


OF_ALL = [quota(kind, 1e9, user=DEFAULT) for kind in (PRODUCE, QuotaKind.CONSUMER_BYTE_RATE)]
"""Without them limits are strict."""

NO_FACTORS: Mapping[str, float] = {}


def said(at_ms: int, number: int = 1, factors: Mapping[str, float] = NO_FACTORS) -> Overrides:
    """The record of elastic quotas of a time."""
    tight = [Override("tighten", each, gateway=name, reason=f"{name}: wait 34 ms") for name, each in factors.items()]
    return Overrides(number, at_ms, FRESH_MS, tight)


def decide(rule: ElasticRule, at_ms: int, **loads: float) -> list[Override]:
    """The overrides that the rule decides from loads that were measured half a second ago."""
    measured = {name: MeasuredLoad(load, f"{name}: load {load}", at_ms - 500) for name, load in loads.items()}
    return rule.decide(measured, at_ms)


def test_an_overloaded_broker_tightens_alone_and_recovers_by_a_twentieth_a_second() -> None:
    rule = ElasticRule()
    [tight] = decide(rule, 10_000, one=1.8, two=0.4)
    assert (tight.kind, tight.gateway, tight.factor, tight.reason) == ("tighten", "one", 0.5, "one: load 1.8")

    later = [decide(rule, at_ms, one=0.5, two=0.4) for at_ms in range(11_000, 24_000, 1_000)]
    factors = [factor_of(overrides, "one") for overrides in later]
    assert factors[:3] == pytest.approx([0.55, 0.6, 0.65])
    assert factors[-1] == 1.0


def test_the_reason_is_what_lowered_the_factor_until_it_is_1_again() -> None:
    rule = ElasticRule()
    decide(rule, 10_000, one=1.8)
    reasons = [each.reason for at_ms in range(11_000, 26_000, 1_000) for each in decide(rule, at_ms, one=0.1)]
    assert reasons[0] == "one: load 1.8"
    assert set(reasons[2:]) == {"one: load 1.8 at 00:00:09, recovering"}
    assert 8 <= len(reasons) < 14
    [again] = decide(rule, 30_000, one=1.2)
    assert again.reason == "one: load 1.2"


def test_one_overload_is_answered_once_until_its_answer_shows() -> None:
    rule = ElasticRule()
    found = [factor_of(decide(rule, at_ms, one=1.1), "one") for at_ms in (10_000, 11_000, 12_000)]
    assert found == pytest.approx([0.8, 0.8, 0.8])


def test_a_broker_that_is_heard_no_more_is_not_tightened() -> None:
    rule = ElasticRule()
    assert decide(rule, 10_000, one=1.2)
    assert rule.decide({"one": MeasuredLoad(1.2, "", 9_500)}, 9_501 + FRESH_MS) == []


def test_the_same_loads_decide_the_same() -> None:
    loads = [0.3, 1.5, 1.1, 0.95, 0.6, 0.6, 0.2]
    one, two = ElasticRule(), ElasticRule()
    for number, load in enumerate(loads):
        at_ms = 10_000 + 1_000 * number
        assert decide(one, at_ms, a=load) == decide(two, at_ms, a=load)


def test_a_broker_asked_for_more_than_it_can_take_is_relieved_in_5_s_in_proportion_to_the_quotas() -> None:
    traffic, of_reservation, off_proportion = overloaded()
    assert traffic <= 0.95
    assert of_reservation >= 1.0
    assert off_proportion <= 0.05


@pytest.mark.parametrize("seed", range(4))
def test_a_random_load_is_settled_after_15_s(seed: int) -> None:
    assert random_load(seed) <= 0.05


def test_tenants_that_dont_hop_are_seldom_below_their_quota_in_a_simulated_hour() -> None:
    found = week(tenants=200, minutes=60, mean_demand=0.5)
    assert min(found.within_by_shares[spread] for spread in (Spread.EVEN, Spread.SKEW, Spread.MOVE)) >= 0.96


@pytest.mark.parametrize("spread", [Spread.SKEW, Spread.MOVE, Spread.HOP])
def test_a_flow_of_traffic_gets_what_simulated_requests_get(spread: Spread) -> None:
    wanted = Situation(PRODUCE, 1e6, 50e6, 1e5, gateways=3, latency_ms=1_000, seconds=300, spread=spread)
    cluster = ElasticCluster(Tenants(np.array([1e6])), [1e12] * 3, delay_s=1.0, burst_s=5.0)

    flow = cluster.run(300, lambda time_s: np.array([wanted.parts(3, time_s * 1000)]) * 50e6)

    mean = np.array(flow.by_broker)[100:].sum(axis=1).mean() / 1e6
    assert mean == pytest.approx(measure(wanted, ClosedLoop(wanted).run()).mean_after, abs=0.04)


def test_equal_parts_of_many_counters_are_those_of_each() -> None:
    random = np.random.default_rng(3)
    free, wanted = random.uniform(1, 100, 99), random.choice([0.0, 5.0, 20.0, 70.0], (3, 99))
    pairs = zip(free.tolist(), wanted.T.tolist(), strict=True)
    one_by_one = [equal_part(amount, [each for each in others if each]) for amount, others in pairs]
    assert equal_parts(free, list(wanted)) == pytest.approx(one_by_one)


@pytest.fixture
def loop() -> Iterator[GatewayLoop]:
    with gateway_loop(ELASTIC) as loop:
        yield loop


def served(loop: GatewayLoop, user: str, seconds: int) -> float:
    """Bytes a second that a client at full speed gets of the first gateway, which hears of heartbeats all the time."""
    gateway, total, free_ms = loop.gateways[0], 0, loop.clock.ms
    for _ in range(10 * seconds):
        loop.clock.ms += 100
        gateway.idle()
        loop.decide()
        if loop.clock.ms >= free_ms:
            request = Request("Produce", user=user, topic_partitions=[TopicPartition("t", 0, 100)])
            free_ms = loop.clock.ms + gateway.admit(request).throttle_ms
            total += 100
    return total / seconds


def test_a_tightened_gateway_lets_its_part_through_but_not_less_than_the_reservation(loop: GatewayLoop) -> None:
    gateway = loop.gateways[0]
    rates = {}
    for user in ("bob", "carol"):
        served(loop, user, 10)  # uses the burst up
        for _ in range(3):
            gateway.override("elastic", said(loop.clock.ms, factors={"i-0": 0.3}))
            served(loop, user, 4)
        gateway.override("elastic", said(loop.clock.ms, factors={"i-0": 0.3}))
        rates[user] = served(loop, user, 4)
    assert rates["bob"] == pytest.approx(0.3 * LIMIT, rel=0.15)
    assert rates["carol"] == pytest.approx(0.5 * LIMIT, rel=0.15)


def test_a_state_that_was_in_the_topic_before_the_gateway_holds_no_more(loop: GatewayLoop) -> None:
    served(loop, "bob", 10)  # uses the burst up
    loop.gateways[0].override("elastic", said(loop.clock.ms - 60_000, factors={"i-0": 0.3}))
    assert served(loop, "bob", 4) == pytest.approx(LIMIT, rel=0.15)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(tmp_path: Path, clock: Clock) -> OverridesWatch:
    """A watch that has heard of an idle broker for two seconds."""
    table = OverridesTable(str(tmp_path / "overrides"), {})
    watch = OverridesWatch([ElasticLimits(lambda: Quotas([*ELASTIC, *OF_ALL]))], table, 20, clock)
    watch.remember({})
    for _ in range(2):
        clock.ms += 1_000
        hear(watch, clock, "b-1-1f", 0.1)
        watch.decide(clock.ms)
    return watch


def hear(watch: OverridesWatch, clock: Clock, instance: str, load: float) -> None:
    """Let the watch read a heartbeat."""
    reason = f"bytes in {load * 100:.0f} % of capacity"
    heartbeat = DecidedHeartbeat(instance, "x", clock.ms, load=(load, reason), load_is_of_bytes=True)
    watch.on_record(msgspec.json.encode(Sums(heartbeat=heartbeat)), clock.ms)


def tighten(watch: OverridesWatch, clock: Clock) -> None:
    """Let the watch hear of three seconds of overload, and decide."""
    for _ in range(3):
        clock.ms += 1_000
        hear(watch, clock, "b-1-1f", 1.8)
    watch.decide(clock.ms)


def test_the_job_goes_back_to_the_quotas_as_gateways_do_when_it_cannot_read_loads(
    watch: OverridesWatch, clock: Clock
) -> None:
    tighten(watch, clock)
    assert watch.limits_now() is not None
    clock.ms += FRESH_MS + 1
    assert watch.limits_now() is None, "nor when it can't decide"
    watch.decide(clock.ms)
    assert watch.said["elastic"].overrides == []


def test_one_large_request_tightens_no_broker_and_two_busy_seconds_do(watch: OverridesWatch, clock: Clock) -> None:
    found = []
    for load in (1.24, 0.0, 0.0, 1.24, 0.0, 1.24, 1.24):
        clock.ms += 1_000
        hear(watch, clock, "b-1-1f", load)
        watch.decide(clock.ms)
        found.append(any(each.kind == "tighten" for each in watch.said["elastic"].overrides))
    assert found == [False, False, False, False, False, False, False]
    clock.ms += 1_000
    hear(watch, clock, "b-1-1f", 1.24)
    watch.decide(clock.ms)
    [tight] = watch.said["elastic"].overrides
    assert tight.kind == "tighten"


@pytest.mark.parametrize("of_all", [[], OF_ALL[:1], OF_ALL[1:], [*OF_ALL[:1], quota(OF_ALL[1].kind, 1e9, user="x")]])
def test_limits_are_strict_while_a_client_may_have_no_limit_and_the_log_says_so_once(
    tmp_path: Path, clock: Clock, of_all: list[QuotaEntry], caplog: pytest.LogCaptureFixture
) -> None:
    """It couldn't be tightened, and those with a limit would make way for it."""
    quotas = Quotas([*ELASTIC, *of_all])
    watch = OverridesWatch([ElasticLimits(lambda: quotas)], OverridesTable(str(tmp_path / "o"), {}), 20, clock)
    watch.remember({})
    for _ in range(4):
        clock.ms += 1_000
        hear(watch, clock, "b-1-1f", 1.8)
        watch.decide(clock.ms)
    assert watch.said["elastic"].overrides == []
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" of ")[0] for line in said] == [
        "elastic: limits are strict: no default user or client-id has a quota"
    ]
    quotas = Quotas([*ELASTIC, *OF_ALL])
    watch.decide(clock.ms)
    assert [each.kind for each in watch.said["elastic"].overrides] == ["tighten"]


def test_numbers_count_the_changes_and_a_reason_is_none(watch: OverridesWatch, clock: Clock) -> None:
    numbers = []
    for load in (0.75, 0.8, 2.2):
        clock.ms += 1_000
        hear(watch, clock, "b-1-1f", load)
        watch.decide(clock.ms)
        numbers.append(watch.said["elastic"].number)
    assert numbers == [numbers[0], numbers[0], numbers[0] + 1]


def test_metrics_say_how_far_limits_give_way(watch: OverridesWatch, clock: Clock) -> None:
    """Two processes of one broker, of which one has just ended, are one series. Its label is the gateway of events."""
    registry = CollectorRegistry()
    registry.register(watch)

    def factor(kind: str, gateway: str = "") -> float | None:
        names = dict.fromkeys(("tenant", "user", "client_id"), "")
        return registry.get_sample_value(
            "sluice_override", {"decider": "elastic", "kind": kind, "gateway": gateway} | names
        )

    assert factor("tighten", "b-2") is None
    for instance, load in (("b-2-8-1a", 1.8), ("b-2-8-1f", 1.2)):
        for _ in range(3):
            hear(watch, clock, instance, load)
    watch.decide(clock.ms)

    found = factor("tighten", "b-2")
    assert found is not None
    assert found == 0.5, "the least counts"
    clock.ms += FRESH_MS + 1
    assert factor("tighten", "b-2") is None


def test_a_record_is_said_again_after_the_clock_was_set_back(watch: OverridesWatch, clock: Clock) -> None:
    """Gateways believe it no longer than FRESH_MS."""
    clock.ms -= 3_600_000
    watch.decide(clock.ms)
    assert watch.said["elastic"].at_ms == clock.ms


def recorded(tmp_path: Path, span: Span) -> list[Overrides]:
    return recorded_overrides(str(tmp_path / "overrides"), {}, span)


def test_the_table_says_that_limits_give_way_no_more_once_the_job_has_ended(
    watch: OverridesWatch, clock: Clock, tmp_path: Path
) -> None:
    """A job that starts with strict limits writes nothing there."""
    tighten(watch, clock)
    watch.end(clock.ms + 500)
    *_, while_it_ran, ended = recorded(tmp_path, Span(clock.ms, clock.ms + 1_000))
    assert (factor_of(while_it_ran.overrides, "b-1-1f"), ended.at_ms, ended.overrides) == (0.5, clock.ms + 500, [])


def test_the_limits_of_many_requests_are_those_of_each() -> None:
    recorded = RecordedOverrides([said(10_000, factors={"b-0": 0.9}), said(20_000, factors={"b-1": 0.7})])
    found = [Quotas(ELASTIC).resolve_client(PRODUCE, user, "") for user in ("alice", "bob")]
    instances = ["b-0", "b-1"]
    cases = list(product(range(2), range(2), (5_000, 10_000, 19_999, 25_000)))
    of, instances_of, times_ms = (np.array(column) for column in zip(*cases, strict=True))
    limits = recorded.limits(found, of, np.full(len(cases), LIMIT), instances, instances_of, times_ms)
    assert limits.tolist() == [recorded.limit(found[one], LIMIT, instances[at], at_ms) for one, at, at_ms in cases]


def test_a_decision_says_how_far_limits_gave_way_and_why() -> None:
    settings = PipelineSettings.of(load_settings())
    quotas = Quotas(ELASTIC, version=3)
    present = said(9, 7, factors={"b-2-1f": 0.75})
    events = [b'{"api":"Produce","user":"alice","bytes":10%b}' % more for more in (b"", b',"instance":"b-2-1f"')]
    sources = [Source("requests", 0, offset, 1_000) for offset in range(2)]
    [page_batches] = plan(zip(events, sources, strict=True), quotas, settings, 1_000, overrides=present)
    rows = [row for page_batch in page_batches.values() for row in decode_page_batch(page_batch).charge_rows]
    rows.sort(key=lambda row: row.offset)

    assert b'"elastic"' not in rows[0].decision, "its gateway isn't tightened"
    assert b'"elastic":{"number":7,"factor":0.75,"reason":"b-2-1f: wait 34 ms"}' in rows[1].decision


def test_a_replay_gives_way_as_the_table_says(tmp_path: Path) -> None:
    table = OverridesTable(str(tmp_path / "overrides"), {})
    records = [said(0), said(10_000, 2, factors={"b-2-1f": 0.6}), said(20_000, 3, factors={"b-2-1f": 0.75})]
    held = Overrides(4, 12_000, 60_000, [Override("hold", reason="a disk is low")])
    table.append(("elastic", record) for record in records[:2])
    table.append([("disk_guard", held), ("elastic", records[2])])

    found = recorded(tmp_path, Span(15_000, 30_000))
    assert [(each.at_ms, [override.factor for override in each.overrides]) for each in found] == [
        (12_000, [0.6]),
        (20_000, [0.75]),
    ]
    assert recorded(tmp_path / "none", Span(0, 1)) == []
    counters = ReplayedCounters(Quotas(ELASTIC), QuotaSettings(), 3_600_000, RecordedOverrides([*records, *found]))
    request = Request("Produce", user="alice", bytes=100, instance="b-2-1f")
    limits = [
        outcome.charge.limit
        for at_ms in (5_000, 15_000, 25_000)
        for outcomes in counters.charge(request, at_ms).values()
        for outcome in outcomes
    ]
    assert limits == [LIMIT, 0.6 * LIMIT, 0.75 * LIMIT]


def test_requests_of_an_overloaded_broker_are_limited_as_ever_in_a_replay() -> None:
    """Bytes and request time give way: fewer connections relieve no broker of the load that was measured."""
    assert {key.quota for key in ElasticKey} == {kind for kind in CLIENT_KINDS if kind.family.gives_way}
    quotas = Quotas([quota(QuotaKind.CONNECTION_RATE, 100.0, user="alice")])
    tight = RecordedOverrides([said(0, factors={"b-2-1f": 0.75})])
    counters = ReplayedCounters(quotas, QuotaSettings(), 3_600_000, tight)

    [[outcome]] = counters.charge(Request("Connect", user="alice", instance="b-2-1f"), 5_000).values()

    assert outcome.charge.limit == 100.0


@pytest.mark.parametrize("name", ["b" * 200, "\0" * 200, "🦊" * 200], ids=["long", "escaped", "wide"])
def test_forged_heartbeats_make_no_state_that_a_record_cannot_hold_and_drive_no_known_broker_out(
    watch: OverridesWatch, clock: Clock, name: str
) -> None:
    for number in range(3_000):
        hear(watch, clock, f"{name}{number}-1f", 1e30)
    for _ in range(3):
        hear(watch, clock, "b-1-1f", 1.8)
    watch.decide(clock.ms)

    record = watch.said["elastic"]
    assert len(overrides_value(record)) < 1024 * 1024
    assert "b-1-1f" in [each.gateway for each in record.overrides]
