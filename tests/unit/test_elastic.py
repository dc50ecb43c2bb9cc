"""Elastic quotas: the rule, what it does to simulated clusters, and gateways and decisions under it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from scripts.scenarios.closed_loop.elastic import (
    ElasticCluster,
    Tenants,
    equal_parts,
    idle,
    overloaded,
    random_load,
    week,
)
from scripts.scenarios.closed_loop.measures import measure
from scripts.scenarios.closed_loop.simulation import ClosedLoop
from scripts.scenarios.closed_loop.situation import Situation, Spread
from sluice import Gateway, Request, TopicPartition
from sluice.configs.settings import load_settings
from sluice.insight.reports.span import Span
from sluice.insight.whatif.elastic import RecordedElastic, recorded_elastic
from sluice.insight.whatif.replay import Decider
from sluice.sinks.tables.elastic import ElasticTable
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.records import BrokerFactor, DecidedHeartbeat, ElasticState, Sums
from sluice.state.quotas.elastic import FRESH_MS, ElasticRule, MeasuredLoad
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, ElasticKey, Membership, QuotaKind, QuotaSettings
from sluice.state.quotas.limits import ELASTIC_KEY, LimitsInForce, state_value
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import _equal_part
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.elastic import ElasticWatch
from sluice.streaming.enforce.pipeline import plan
from sluice.streaming.enforce.planning import PipelineSettings, planner
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice.streaming.enforce.wire import Source, decode_page_batch
from tests.builders import quota
from tests.gateway_loop import Clock, GatewayLoop, gateway_loop, set_limits

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE
LIMIT = 1_000.0
ELASTIC = [
    quota(PRODUCE, LIMIT, user="alice"),
    QuotaEntry(QuotaEntity(user="alice"), ElasticKey.PRODUCER_BYTE_RATE_CEILING, 3 * LIMIT),
    quota(PRODUCE, LIMIT, user="bob"),
    QuotaEntry(QuotaEntity(user="bob"), ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 0.2 * LIMIT),
    quota(PRODUCE, LIMIT, user="carol"),
]


def decide(rule: ElasticRule, at_ms: int, most_lend: float = 3.0, **loads: float) -> ElasticState:
    """The state that the rule decides from loads that were measured half a second ago."""
    measured = {name: MeasuredLoad(load, f"{name}: load {load}", at_ms - 500) for name, load in loads.items()}
    return rule.decide(measured, most_lend, at_ms)


def test_an_overloaded_broker_tightens_alone_and_recovers_by_a_twentieth_a_second() -> None:
    rule = ElasticRule()
    [tight] = decide(rule, 10_000, one=1.8, two=0.4).brokers
    assert (tight.instance, tight.factor, tight.reason) == ("one", 0.5, "one: load 1.8")

    later = [decide(rule, at_ms, one=0.5, two=0.4) for at_ms in range(11_000, 24_000, 1_000)]
    factors = [state.brokers[0].factor if state.brokers else 1.0 for state in later]
    assert factors[:3] == pytest.approx([0.55, 0.6, 0.65])
    assert factors[-1] == 1.0


def test_one_overload_is_answered_once_until_its_answer_shows() -> None:
    rule = ElasticRule()
    found = [decide(rule, at_ms, one=1.1).brokers[0].factor for at_ms in (10_000, 11_000, 12_000)]
    assert found == pytest.approx([0.8, 0.8, 0.8])


def test_what_was_lent_goes_before_any_of_the_quota_does() -> None:
    rule = ElasticRule()
    states = [decide(rule, at_ms, one=0.1) for at_ms in range(10_000, 31_000, 1_000)]
    assert states[-1].lend == 3.0

    state = decide(rule, 31_000, one=1.3)
    assert (state.lend, state.brokers) == (1.0, [])


def test_limits_hold_between_the_two_thresholds_and_nothing_is_lent_while_a_broker_is_tight() -> None:
    rule = ElasticRule()
    grown = [decide(rule, at_ms, one=0.5).lend for at_ms in (10_000, 11_000, 12_000, 13_000)]
    assert grown == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert decide(rule, 14_000, one=0.8).lend == pytest.approx(1.3)

    tight = ElasticRule()
    decide(tight, 10_000, one=1.2)
    assert decide(tight, 14_000, one=0.1).lend == 1.0


def test_growing_stops_where_the_load_is_expected_to_reach_four_fifths() -> None:
    rule = ElasticRule()
    lent = [decide(rule, at_ms, one=0.69).lend for at_ms in range(10_000, 20_000, 1_000)]
    assert max(lent[:4]) == pytest.approx(0.8 / 0.69, abs=0.001)


def test_a_broker_that_is_heard_no_more_is_not_tightened_and_nothing_is_lent_without_loads() -> None:
    rule = ElasticRule()
    decide(rule, 10_000, one=1.2)
    stale = rule.decide({"one": MeasuredLoad(1.2, "", 9_500)}, 3.0, 9_501 + FRESH_MS)
    assert stale.is_neutral


def test_numbers_count_the_changes() -> None:
    rule = ElasticRule(number=40)
    numbers = [decide(rule, at_ms, one=0.8).number for at_ms in (10_000, 11_000)]
    assert [*numbers, decide(rule, 12_000, one=1.2).number] == [40, 40, 41]


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


def test_an_idle_cluster_lends_up_to_the_ceiling_within_20_s() -> None:
    """A tenth more for a while: the gateways make up for what was left unused before."""
    assert 2.9 <= idle(20) <= 3.15
    assert 2.9 <= idle(23, before_s=0) <= 3.15, "3 s later if the job has just started"


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
    one_by_one = [_equal_part(amount, [each for each in others if each]) for amount, others in pairs]
    assert equal_parts(free, list(wanted)) == pytest.approx(one_by_one)


@pytest.fixture
def loop() -> Iterator[GatewayLoop]:
    with gateway_loop(ELASTIC) as loop:
        yield loop


def tell(gateway: Gateway, state: ElasticState) -> None:
    gateway._on_limit(ELASTIC_KEY, state_value(state))


def served(loop: GatewayLoop, user: str, seconds: int) -> float:
    """Bytes a second that a client at full speed gets of the first gateway, which hears of heartbeats all the time."""
    gateway, total, free_ms = loop.gateways[0], 0, loop.clock.ms
    for _ in range(10 * seconds):
        loop.clock.ms += 100
        gateway._on_idle()
        loop.decide()
        if loop.clock.ms >= free_ms:
            request = Request("Produce", user=user, topic_partitions=[TopicPartition("t", 0, 100)])
            free_ms = loop.clock.ms + gateway.admit(request).throttle_ms
            total += 100
    return total / seconds


def test_a_gateway_lends_what_the_job_says_and_goes_back_to_the_quota_when_it_hears_nothing(loop: GatewayLoop) -> None:
    gateway = loop.gateways[0]
    tell(gateway, ElasticState(1, loop.clock.ms, lend=2.0))
    limits = gateway._in_force.limits
    assert limits is not None
    assert limits.enforced.resolve_client(PRODUCE, "alice", "").limit == 2 * LIMIT
    assert limits.enforced.resolve_client(PRODUCE, "carol", "").limit == LIMIT

    loop.clock.ms += FRESH_MS
    gateway._on_idle()
    limits = gateway._in_force.limits
    assert limits is not None
    assert limits.enforced.resolve_client(PRODUCE, "alice", "").limit == LIMIT


def test_a_tightened_gateway_lets_its_part_through_but_not_less_than_the_reservation(loop: GatewayLoop) -> None:
    gateway = loop.gateways[0]
    rates = {}
    for user in ("bob", "carol"):
        served(loop, user, 10)  # uses the burst up
        for _ in range(3):
            tell(gateway, ElasticState(2, loop.clock.ms, brokers=[BrokerFactor("i-0", 0.3, "b-0: queue wait 34 ms")]))
            served(loop, user, 4)
        tell(gateway, ElasticState(2, loop.clock.ms, brokers=[BrokerFactor("i-0", 0.3, "b-0: queue wait 34 ms")]))
        rates[user] = served(loop, user, 4)
    assert rates["bob"] == pytest.approx(0.3 * LIMIT, rel=0.15)
    assert rates["carol"] == pytest.approx(0.5 * LIMIT, rel=0.15)


def test_a_state_that_was_in_the_topic_before_the_gateway_holds_no_more(loop: GatewayLoop) -> None:
    gateway = loop.gateways[0]
    tell(gateway, ElasticState(1, loop.clock.ms - 60_000, lend=2.0))
    assert gateway._in_force.factor("i-0") is None


def test_a_version_that_comes_while_a_loan_ends_is_in_force(loop: GatewayLoop) -> None:
    """The reader of sums ends the loan, and the reader of limits has the new version."""
    gateway, lent = loop.gateways[0], LimitsInForce.lent
    tell(gateway, ElasticState(1, loop.clock.ms, lend=2.0))
    loop.clock.ms += FRESH_MS
    newer = Thread(target=set_limits, args=(gateway, 2, [quota(PRODUCE, LIMIT, user="carol")]))

    def lent_while_newer_ones_come(limits: LimitsInForce, lend: float) -> LimitsInForce:
        newer.start()
        newer.join(0.2)  # as far as it gets meanwhile
        return lent(limits, lend)

    with patch.object(LimitsInForce, "lent", lent_while_newer_ones_come):
        gateway._on_idle()
    newer.join()
    assert gateway._in_force.limits is not None
    assert gateway._in_force.limits.version == 2


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(tmp_path: Path, clock: Clock) -> ElasticWatch:
    """A watch that lends a tenth of the quotas: an idle broker was heard of for a second."""
    table = QuotasTable(str(tmp_path / "quotas"))
    table.create(ELASTIC, "test", datetime(2026, 1, 1, tzinfo=UTC))
    quotas = QuotaWatch(table, QuotaSnapshots(Checkpoint(str(tmp_path / "checkpoint"))))
    watch = ElasticWatch(quotas, ElasticTable(str(tmp_path / "elastic"), {}), clock)
    for _ in range(2):
        clock.ms += 1_000
        heartbeat = DecidedHeartbeat("b-1-1f", "b-1-0", clock.ms, load=(0.1, "bytes in 10 % of capacity"))
        watch.on_record(msgspec.json.encode(Sums(heartbeat=heartbeat)), clock.ms)
        watch.decide(clock.ms)
    return watch


def test_the_job_goes_back_to_the_quotas_as_gateways_do_when_it_cannot_read_loads(
    watch: ElasticWatch, clock: Clock
) -> None:
    assert watch.state is not None
    assert watch.state.lend == 1.1
    clock.ms += FRESH_MS + 1
    assert watch.state is None


def test_metrics_say_how_far_limits_give_way(watch: ElasticWatch, clock: Clock) -> None:
    """Two processes of one broker, of which one has just ended, are one series."""
    registry = CollectorRegistry()
    registry.register(watch)
    lent = registry.get_sample_value("sluice_cluster_lend")
    for instance, load in (("b-2-1a", 1.8), ("b-2-1f", 1.2)):
        heartbeat = DecidedHeartbeat(instance, "x", clock.ms, load=(load, "bytes in 120 % of capacity"))
        watch.on_record(msgspec.json.encode(Sums(heartbeat=heartbeat)), clock.ms)
    watch.decide(clock.ms)

    assert lent == 1.1
    assert registry.get_sample_value("sluice_cluster_lend") == 1.0
    factor = registry.get_sample_value("sluice_broker_factor", {"gateway": "b-2"})
    assert factor is not None
    assert 0.7 < factor < 0.85
    clock.ms += FRESH_MS + 1
    assert registry.get_sample_value("sluice_broker_factor", {"gateway": "b-2"}) is None


def test_a_state_is_said_again_after_the_clock_was_set_back(watch: ElasticWatch, clock: Clock) -> None:
    """Gateways hold it no longer than FRESH_MS."""
    clock.ms -= 3_600_000
    watch.decide(clock.ms)
    assert watch.state is not None
    assert watch.state.at_ms == clock.ms


def test_the_table_says_that_limits_give_way_no_more_once_the_job_has_ended(
    watch: ElasticWatch, clock: Clock, tmp_path: Path
) -> None:
    """A job that starts with strict limits writes nothing there."""
    watch.end(clock.ms + 500)
    _, lent, ended = recorded_elastic(str(tmp_path / "elastic"), {}, Span(clock.ms, clock.ms + 1_000))
    assert (lent.lend, ended.at_ms, ended.is_neutral) == (1.1, clock.ms + 500, True)


def test_the_limits_of_many_requests_are_those_of_each() -> None:
    recorded = RecordedElastic(
        [ElasticState(1, 10_000, 1.5), ElasticState(2, 20_000, brokers=[BrokerFactor("b-1", 0.7, "queue")])]
    )
    found = [Quotas(ELASTIC).resolve_client(PRODUCE, user, "") for user in ("alice", "bob")]
    instances = ["b-0", "b-1"]
    cases = list(product(range(2), range(2), (5_000, 10_000, 19_999, 25_000)))
    of, instances_of, times_ms = (np.array(column) for column in zip(*cases, strict=True))
    limits = recorded.limits(found, of, np.full(len(cases), LIMIT), instances, instances_of, times_ms)
    assert limits.tolist() == [recorded.limit(found[one], LIMIT, instances[at], at_ms) for one, at, at_ms in cases]


def test_a_decision_says_how_far_limits_gave_way_and_why() -> None:
    settings = PipelineSettings.of(load_settings())
    quotas = Quotas(ELASTIC, version=3)
    state = ElasticState(7, 9, 1.5, [BrokerFactor("b-2-1f", 0.75, "b-2: queue wait 34 ms")], "load 0.40: lent")
    events = [b'{"api":"Produce","user":"alice","bytes":10%b}' % more for more in (b"", b',"instance":"b-2-1f"')]
    sources = [Source("requests", 0, offset, 1_000) for offset in range(2)]
    [page_batches] = plan(zip(events, sources, strict=True), quotas.lent(1.5), settings, 1_000, elastic=state)
    rows = [row for page_batch in page_batches.values() for row in decode_page_batch(page_batch).charge_rows]
    rows.sort(key=lambda row: row.offset)

    assert b'"elastic":{"number":7,"lend":1.5,"factor":1.0,"reason":"load 0.40: lent"}' in rows[0].said
    assert b'"elastic":{"number":7,"lend":1.5,"factor":0.75,"reason":"b-2: queue wait 34 ms"}' in rows[1].said


def test_a_replay_gives_way_as_the_table_says(tmp_path: Path) -> None:
    table, path = ElasticTable(str(tmp_path / "elastic"), {}), str(tmp_path / "elastic")
    loads = {"b-2-1f": MeasuredLoad(1.2, "b-2: queue wait 34 ms", 9_000)}
    states = [
        ElasticState(number, 10_000 * number, lend, brokers)
        for number, (lend, brokers) in enumerate([(1.0, []), (1.5, []), (1.0, [BrokerFactor("b-2-1f", 0.75, "wait")])])
    ]
    table.append((state, loads) for state in states[:2])
    table.append([(states[2], loads)])

    assert recorded_elastic(path, {}, Span(15_000, 30_000)) == states[1:]
    assert recorded_elastic(str(tmp_path / "none"), {}, Span(0, 1)) == []
    decider = Decider(Quotas(ELASTIC), QuotaSettings(), 3_600_000, RecordedElastic(states))
    request = Request("Produce", user="alice", bytes=100, instance="b-2-1f")
    limits = [
        outcome.charge.limit
        for at_ms in (5_000, 15_000, 25_000)
        for outcomes in decider.charge(request, at_ms).values()
        for outcome in outcomes
    ]
    assert limits == [LIMIT, 1.5 * LIMIT, 0.75 * LIMIT]


def test_requests_of_an_overloaded_broker_are_limited_as_ever_in_a_replay() -> None:
    """Bytes and request time give way: fewer group joins relieve no broker of the load that was measured."""
    assert {key.quota for key in ElasticKey} == {kind for kind in CLIENT_KINDS if kind.family.gives_way}
    quotas = Quotas([quota(QuotaKind.JOIN_GROUP_RATE, 100.0, user="alice")])
    tight = RecordedElastic([ElasticState(1, 0, brokers=[BrokerFactor("b-2-1f", 0.75, "wait")])])
    decider = Decider(quotas, QuotaSettings(), 3_600_000, tight)

    [[outcome]] = decider.charge(Request("JoinGroup", user="alice", instance="b-2-1f"), 5_000).values()

    assert outcome.charge.limit == 100.0


def test_a_client_is_planned_under_each_loan_as_by_a_worker_that_knows_no_other() -> None:
    """Also beside a tenant with a ceiling, and with topic-partitions; clients without a ceiling keep their plans."""
    tenant = QuotaEntity(tenant="shop")
    entries = [
        *ELASTIC,
        QuotaEntry(tenant, PRODUCE, LIMIT),
        QuotaEntry(tenant, ElasticKey.PRODUCER_BYTE_RATE_CEILING, 2 * LIMIT),
        QuotaEntry(QuotaEntity(tenant="shop", user="bob"), Membership.MEMBER, 1.0),
        QuotaEntry(QuotaEntity(topic="t"), QuotaKind.TOPIC_PRODUCER_BYTE_RATE, LIMIT),
    ]
    settings = PipelineSettings.of(load_settings())
    touched = b'"topic_partitions":[{"topic":"t","partition":0,"bytes":9}]'
    events = [
        (b'{"api":"Produce","user":"%b",%b}' % (user, touched), Source("requests", 0, offset, 1_000))
        for offset, user in enumerate([b"alice", b"bob", b"carol"])
    ]
    lends = [1.0, 1.5, 2.5, 1.0, 1.5]
    expected = [list(plan(events, Quotas(entries).lent(lend), settings, 1_000)) for lend in lends]

    kept = Quotas(entries)
    assert [list(plan(events, kept.lent(lend), settings, 1_000)) for lend in lends] == expected
    assert expected[0] == expected[3] != expected[1] != expected[2]
    assert planner(kept.lent(1.5), settings) is planner(kept, settings)


def test_strict_quotas_are_planned_as_ever_while_limits_give_way() -> None:
    settings, source = PipelineSettings.of(load_settings()), Source("requests", 0, 1, 1_000)
    quotas = Quotas([quota(PRODUCE, LIMIT, user="carol")], version=3)
    event = b'{"api":"Produce","user":"carol","bytes":10}'
    [before] = plan([(event, source)], quotas, settings, 1_000)
    [during] = plan([(event, source)], quotas.lent(2.0), settings, 1_000, elastic=ElasticState(1, 1))
    assert before == during


@pytest.mark.parametrize("name", ["b" * 200, "\0" * 200, "🦊" * 200], ids=["long", "escaped", "wide"])
def test_forged_heartbeats_make_no_state_that_a_record_cannot_hold_and_drive_no_known_broker_out(
    watch: ElasticWatch, clock: Clock, name: str
) -> None:
    for number in range(3_000):
        heartbeat = DecidedHeartbeat(f"{name}{number}-1f", "x", clock.ms, load=(1e30, "queue wait 1e+30 ms"))
        watch.on_record(msgspec.json.encode(Sums(heartbeat=heartbeat)), clock.ms)
    heartbeat = DecidedHeartbeat("b-1-1f", "b-1-1", clock.ms, load=(1.8, "bytes in 180 % of capacity"))
    watch.on_record(msgspec.json.encode(Sums(heartbeat=heartbeat)), clock.ms)
    watch.decide(clock.ms)

    assert watch.state is not None
    assert len(state_value(watch.state)) < 1024 * 1024
    assert "b-1-1f" in [each.instance for each in watch.state.brokers]
