"""Mutations of a tenant's members: its bucket and the member's are asked together, wherever it is decided."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.settings import load_settings
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.contract.records import Mutation, Request
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings, Window
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.gateway_shares import GatewayShares
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import Source
from sluice_insight.whatif.replay import ReplayedCounters
from tests.builders import member, quota
from tests.micro_batches import MicroBatches
from tests.strategies import START_MS

SETTINGS = load_settings(environment={})
MUTATIONS = QuotaKind.CONTROLLER_MUTATION_RATE
MEMBERS = member(tenant="shop", user="shop-*")
TENANT = quota(MUTATIONS, 10.0, tenant="shop")


def own(user: str, limit: float) -> QuotaEntry:
    """A limit of a member's own."""
    return quota(MUTATIONS, limit, user=user)


class Call(NamedTuple):
    """A request that creates topics with so many partitions."""

    at_ms: int
    user: str
    partitions: tuple[int, ...]
    api_version: int = 7

    def request(self) -> Request:
        mutations = [Mutation(f"t{number}", count) for number, count in enumerate(self.partitions)]
        return Request(
            "CreateTopics",
            user=self.user,
            client_id="c",
            api_version=self.api_version,
            timestamp_ms=START_MS + self.at_ms,
            mutations=mutations,
        )

    def event(self) -> bytes:
        mutations = [{"topic": f"t{number}", "partitions": count} for number, count in enumerate(self.partitions)]
        return json.dumps(
            {
                "api": "CreateTopics",
                "user": self.user,
                "client_id": "c",
                "api_version": self.api_version,
                "timestamp_ms": START_MS + self.at_ms,
                "request_time_ns": 1,
                "mutations": mutations,
            }
        ).encode()


class Refusals(NamedTuple):
    """The wait, and which topics are refused."""

    wait_ms: int
    refused: tuple[bool, ...]


def read(decision: bytes) -> Refusals:
    said = json.loads(decision)
    return Refusals(said["throttle_time_ms"], tuple(result["error_code"] == 89 for result in said["topic_results"]))


def by_the_job(entries: Sequence[QuotaEntry], calls: Sequence[Call]) -> list[Refusals]:
    simulation = Simulation(Quotas(entries, 1), SETTINGS)
    return [read(record.value) for record in simulation.decide(call.event() for call in calls)]


def by_pages(entries: Sequence[QuotaEntry], calls: Sequence[Call]) -> list[Refusals]:
    """Micro-batches with many pages."""
    job = MicroBatches(PipelineSettings.of(SETTINGS)._replace(pages=64))
    sources = [
        (call.event(), Source("quota-requests", 0, number, START_MS + call.at_ms)) for number, call in enumerate(calls)
    ]
    at_once = 7 if len(sources) < 50 else 200
    made = [
        record
        for first in range(0, len(sources), at_once)
        for record in job.run(sources[first : first + at_once], Quotas(entries, 1), decided_at_ms=START_MS)
    ]
    decisions = [record.value for record in made if record.topic == SETTINGS.topics.decisions]
    return [read(value) for value in sorted(decisions, key=_number)]


def _number(decision: bytes) -> int:
    return int(json.loads(decision)["decision_id"].rpartition("-")[2])


def inline(entries: Sequence[QuotaEntry], calls: Sequence[Call]) -> list[Refusals]:
    shares, quotas = GatewayShares("g", QuotaSettings(), 1000, 2**31 - 1), Quotas(entries)
    admissions = [shares.charge_shares(call.request(), quotas, START_MS + call.at_ms) for call in calls]
    return [
        Refusals(each.throttle_ms, each.refused or (False,) * len(c.partitions))
        for each, c in zip(admissions, calls, strict=True)
    ]


def replayed(entries: Sequence[QuotaEntry], calls: Sequence[Call]) -> list[Refusals]:
    counters, decided = ReplayedCounters(Quotas(entries), QuotaSettings(), 3_600_000), []
    for call in calls:
        outcomes = counters.charge(call.request(), START_MS + call.at_ms)
        flags = [outcome.refused for charged in outcomes.values() for outcome in charged if outcome.refused]
        answer = counters.outcome(call.request(), START_MS + call.at_ms, outcomes)
        decided.append(Refusals(answer.throttle_ms, tuple(map(any, zip(*flags, strict=True)))))
    return decided


deciders = pytest.mark.parametrize("decide", [by_the_job, by_pages, inline, replayed])
Decide = Callable[[Sequence[QuotaEntry], Sequence[Call]], list[Refusals]]


@deciders
def test_a_member_that_asks_again_and_again_for_ten_minutes_takes_nothing_from_the_others(decide: Decide) -> None:
    """It is allowed a partition in ten seconds, and asks for a hundred of them each second."""
    entries = [MEMBERS, TENANT, own("shop-a", 0.1)]
    loop = [Call(1000 * second, "shop-a", (100,)) for second in range(600)]
    others = [Call(1000 * second + 500, f"shop-{second % 7}", (9,)) for second in range(600)]

    together = decide(entries, sorted([*loop, *others]))

    of_others = [
        decided for decided, call in zip(together, sorted([*loop, *others]), strict=True) if call.user != "shop-a"
    ]
    assert of_others[20:] == decide(entries, others)[20:], "it had its burst at the first"
    assert not any(any(decided.refused) for decided in of_others[20:])


@deciders
def test_a_tenants_refusal_takes_nothing_from_the_member(decide: Decide) -> None:
    """The tenant's 110 are used up by another; alice's own 11 are still there when the tenant has tokens again."""
    entries = [MEMBERS, TENANT, own("shop-a", 1.0)]
    calls = [Call(0, "shop-b", (210,)), *(Call(100 * n, "shop-a", (5,)) for n in range(1, 100))]

    decided = decide(entries, [*calls, Call(12_000, "shop-a", (5, 5, 1))])

    assert all(each.refused == (True,) for each in decided[1:-1])
    assert decided[-1] == Refusals(0, (False, False, False))


@deciders
def test_what_either_bucket_refuses_is_refused(decide: Decide) -> None:
    """The member's limit isn't exceeded, the tenant's is."""
    entries = [MEMBERS, quota(MUTATIONS, 1.0, tenant="shop"), own("shop-a", 100.0)]

    decided = decide(entries, [Call(number, "shop-a", (10,)) for number in range(3)])

    assert decided == [Refusals(0, (False,)), Refusals(0, (False,)), Refusals(8998, (True,))]


@deciders
def test_one_request_closes_a_tenant_for_no_longer_than_its_most_partitions_take(decide: Decide) -> None:
    calls = [Call(0, "shop-a", (2**31 - 1, 2**31 - 1)), Call(0, "shop-b", (1,)), Call(989_000, "shop-b", (1,))]

    decided = decide([MEMBERS, TENANT], calls)

    assert decided[0].refused == (False, True)
    assert decided[1:] == [Refusals(989_000, (True,)), Refusals(0, (False,))]


limits = st.sampled_from([0.5, 1.0, 3.0])
calls_of = st.lists(
    st.builds(
        Call,
        st.integers(0, 60_000),
        st.sampled_from(["shop-a", "shop-b", "shop-c"]),
        st.lists(st.sampled_from([0, 1, 5, 12]), min_size=1, max_size=3).map(tuple),
        st.sampled_from([7, 7, 7, 1]),
    ),
    max_size=40,
)


@given(calls_of, limits, limits, limits)
def test_all_decide_as_two_buckets_that_are_asked_before_one_is_charged(
    calls: list[Call], of_tenant: float, of_member: float, of_users: float
) -> None:
    """Job, pages, gateways inline and replays; strict and permissive."""
    entries = [MEMBERS, quota(MUTATIONS, of_tenant, tenant="shop"), own("shop-a", of_member)]
    entries.append(quota(MUTATIONS, of_users, user=DEFAULT))
    calls.sort()
    window, buckets = Window(), dict[str, TokenBucket]()
    expected = []
    for call in calls:
        limit = of_member if call.user == "shop-a" else of_users
        asked = [(buckets.setdefault(name, TokenBucket()), of) for name, of in ((call.user, limit), ("", of_tenant))]
        flags = []
        for partitions in call.partitions:
            tokens = [bucket.measure(of, window, START_MS + call.at_ms) for bucket, of in asked]
            flags.append(call.api_version == 7 and min(tokens) < 0)
            for bucket, of in asked:
                bucket.record(0.0 if flags[-1] else partitions, of, window, START_MS + call.at_ms)
        expected.append(tuple(flags))

    for decide in (by_the_job, by_pages, inline, replayed):
        assert [decided.refused for decided in decide(entries, calls)] == expected, decide
    assert by_the_job(entries, calls) == by_pages(entries, calls) == replayed(entries, calls)
