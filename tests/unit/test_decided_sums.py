"""Sums of decisions: gateways compute from them the shares that they would compute from each decision."""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import Mutation, Request, TopicPartition
from sluice.configs.settings import load_settings
from sluice.state.contract.records import AppliedWait, CountedEntity
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.alive import AliveGateways
from sluice.state.shares.counter_share import CORRECTION_S, CounterShare, Metering
from sluice.state.shares.read_sums import ReadSums, read_sums
from sluice.state.shares.sums import MAX_RECORD_BYTES, DecidedSums, SummedCharge, gateway_text
from sluice.state.store.pages import Page
from sluice.streaming.enforce.pipeline import combine, decide, plan
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import Source
from tests.builders import quota
from tests.decided_sums import sums_of

METERING = Metering.of(QuotaSettings())
LIMIT = 1_000.0
START_MS = 1_760_000_000_000
ALICE = b'{"user":"alice"}'
PRODUCE, FETCH = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
MUTATIONS = QuotaKind.CONTROLLER_MUTATION_RATE
DECISIONS = "quota-decisions"


def charge(
    at_ms: int,
    value: float = 1.0,
    kind: QuotaKind = PRODUCE,
    instance: str | None = "a",
    inline: bool = True,
    **more: Any,
) -> SummedCharge:
    return SummedCharge(kind, LIMIT, value, at_ms, 7, gateway_text(instance, inline), **more)


def summed(*charges: SummedCharge, batch: int = 0) -> list[ReadSums]:
    """The records of a micro-batch with these charges on alice."""
    sums = DecidedSums(METERING.span_ms, min(made.timestamp_ms for made in charges))
    for made in charges:
        sums.add(ALICE, made)
    return [read_sums(record) for record in sums.records("3f", batch, 1)]


class Reader:
    """A counter of gateway `me`, which is alive beside a, b and c."""

    def __init__(self) -> None:
        self.counter = CounterShare()
        self.gateways = AliveGateways("me")

    def read(self, now_ms: int, *records: ReadSums) -> None:
        for instance in "abc", "me":
            for each in instance if instance != "me" else [instance]:
                self.gateways.on_heartbeat(each, now_ms, now_ms)
        for record in records:
            for entity in record.sums:
                for _, decided in record.counters(entity):
                    self.counter.on_sum(decided, record, self.gateways, METERING, now_ms)

    def share(self, now_ms: int) -> float:
        return self.counter.share(LIMIT, self.gateways, METERING, now_ms)


CHARGED = st.tuples(
    st.sampled_from([None, "me", "a", "b", "c", "gone"]),
    st.integers(0, 800),
    st.floats(0, 2_000),
    st.sampled_from([None, 0, 0, 200, 20_000]),
)
"""Gateway, milliseconds since the charge before, value, and the wait that was applied inline."""


@given(st.lists(st.lists(CHARGED, min_size=1, max_size=8), min_size=1, max_size=12), st.sampled_from([PRODUCE, FETCH]))
def test_shares_from_sums_are_those_from_each_decision(
    batches: Sequence[Sequence[tuple[str | None, int, float, int | None]]], kind: QuotaKind
) -> None:
    """But for what a micro-batch charged while the bucket of all was full: one by one, it would fill up in between."""
    by_sums, by_decisions, now_ms, most = Reader(), Reader(), START_MS, 0.0
    for number, batch in enumerate(batches):
        made = []
        for instance, pause_ms, value, applied_ms in batch:
            now_ms += pause_ms
            inline, applied_ms = applied_ms is not None, applied_ms or 0
            value = 50.0 if kind is FETCH else value
            made.append(charge(now_ms, value, kind, instance, inline, applied_ms=applied_ms))
        most = max(most, sum(each.value for each in made))
        by_sums.read(now_ms, *summed(*made, batch=number))
        by_decisions.read(now_ms, *(record for each in made for record in summed(each)))

        assert by_sums.counter.others_decided == pytest.approx(by_decisions.counter.others_decided)
        assert by_sums.counter.own_decided_ms == by_decisions.counter.own_decided_ms
        assert by_sums.counter.others.keys() == by_decisions.counter.others.keys()
        for instance, other in by_sums.counter.others.items():
            alone = by_decisions.counter.others[instance]
            assert other.hungry_until_ms == alone.hungry_until_ms
            assert other.charged_ms == alone.charged_ms
            assert other.charged == pytest.approx(alone.charged, rel=1e-9, abs=1e-9)
        assert by_sums.share(now_ms) == pytest.approx(by_decisions.share(now_ms), abs=most / CORRECTION_S + 1e-6)


def test_a_micro_batch_says_who_charged_how_much_until_when() -> None:
    [record] = summed(
        charge(START_MS, 100.0),
        charge(START_MS + 500, 50.0, instance="b"),
        charge(START_MS + 1_000, 200.0, applied_ms=70),
    )

    [(_, decided)] = record.counters(record.sums[0])
    assert (record.job_id, record.batch, record.base_ms) == ("3f", 0, START_MS)
    assert (decided.limit, decided.from_ms, decided.until_ms) == (LIMIT, 0, 1_000)
    a, b = decided.by_gateway
    assert (a.value, a.applied_ms, a.age_ms) == (300.0, 70, 0)
    assert a.faded == pytest.approx(290.48, abs=0.01)
    assert (b.value, b.applied_ms, b.age_ms, b.faded) == (50.0, 0, 500, None)
    assert record.decided_until_ms("b") == START_MS + 500


def test_what_was_not_charged_inline_is_apart() -> None:
    [record] = summed(charge(START_MS, 1.0), charge(START_MS, 2.0, inline=False))

    assert record.uncharged("a") == 1
    assert [(each.instance, each.charges_inline) for each in record.gateways] == [("a", True), ("a", False)]


def test_a_withheld_fetch_counts_for_the_size_alone() -> None:
    [record] = summed(charge(START_MS, 70.0, FETCH, withheld=True))

    [(_, decided)] = record.counters(record.sums[0])
    assert decided.by_gateway[0].value == 0.0
    assert decided.fetches is not None
    assert (decided.fetches.count, decided.fetches.bytes) == (1, 70.0)


@pytest.mark.parametrize(
    ("charges", "wait"),
    [
        ([(False, 700)], (700, 700, True)),
        ([(False, 700), (False, 0)], (0, 100, True)),
        ([(False, 700), (True, 5_000)], (5_000, 700, True)),
        ([(False, 700), (True, 0)], (0, 100, True)),
        ([(True, 700)], (700, 700, False)),
        ([(True, 700), (True, 300)], (300, 400, False)),
        ([(True, 700), (False, 900)], (900, 1_000, True)),
        ([(True, 0)], None),
        ([(False, 0)], None),
    ],
)
def test_the_last_wait_counts_and_one_on_an_event_charged_inline_only_shortens(
    charges: list[tuple[bool, int]], wait: tuple[int, int, bool] | None
) -> None:
    """The wait that was asked for, its end, and whether a gateway has to apply it."""
    made = [
        charge(START_MS + 100 * number, inline=inline, wait_ms=wait_ms)
        for number, (inline, wait_ms) in enumerate(charges)
    ]
    [record] = summed(*made)

    [(_, decided)] = record.counters(record.sums[0])
    found = decided.wait and (decided.wait.wait_ms, decided.wait.until_ms, decided.wait.is_new)
    assert found == wait


def test_a_reset_comes_before_what_is_charged_after_it() -> None:
    made = [charge(START_MS, 5.0), charge(START_MS, 0.0, is_reset=True), charge(START_MS, 3.0)]
    [record] = summed(*made)

    [(_, decided)] = record.counters(record.sums[0])
    assert decided.is_reset
    assert sum(each.value for each in decided.by_gateway) == 3.0


def test_names_that_are_forged_fill_no_record() -> None:
    sums = DecidedSums(METERING.span_ms)
    for number in range(3_000):
        sums.add(ALICE, charge(START_MS, instance=f"{number}-" + "x" * (240 if number % 2 else 30_000)))
    records = list(sums.records("3f", 0, 1))

    [(_, decided)] = (read := read_sums(records[0])).counters(read.sums[0])
    assert len(decided.by_gateway) <= 1_001
    assert sum(each.value for each in decided.by_gateway) == 3_000.0
    assert max(map(len, records)) < 1_000_000


def test_sums_go_on_in_another_record() -> None:
    sums = DecidedSums(METERING.span_ms)
    for number in range(20_000):
        sums.add(b'{"user":"user-%d"}' % number, charge(START_MS))
    records = list(sums.records("3f", 0, 1))

    assert sum(len(read_sums(record).sums) for record in records) == 20_000
    assert all(len(record) < MAX_RECORD_BYTES + 1_000 for record in records)


QUOTAS = Quotas(
    [
        quota(PRODUCE, LIMIT, user=DEFAULT),
        quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, client_id=DEFAULT),
        quota(QuotaKind.REQUEST_PERCENTAGE, 10.0, user=DEFAULT),
        quota(FETCH, 1.0, user="tried", shadow=True),
    ],
    version=3,
)


def told(*requests: Request) -> list[dict[str, Any]]:
    """The records by which the job tells gateways of these requests."""
    simulation = Simulation(QUOTAS, load_settings(environment={}))
    records = simulation.records(msgspec.json.encode(request) for request in requests)
    return [json.loads(record.value) for record in records if record.topic == "quota-sums"]


def produce(**fields: Any) -> Request:
    touched = [TopicPartition("orders", 0, 70)]
    return Request("Produce", timestamp_ms=START_MS, user="alice", topic_partitions=touched, **fields)


def test_the_job_sums_up_what_has_an_enforced_limit() -> None:
    waits = [AppliedWait(PRODUCE, CountedEntity(user=user), wait_ms) for user, wait_ms in (("alice", 9), ("bob", 80))]
    [sums] = told(produce(instance="i-0", throttled_by=waits, request_time_ns=1))

    assert (sums["quota_version"], sums["base_ms"]) == (3, START_MS)
    assert sums["gateways"] == [["i-0", True, 0]]
    [[entity, counters]] = sums["sums"]
    assert entity == {"user": "alice"}
    assert [sums["quotas"][counter[0]] for counter in counters] == ["producer_byte_rate", "request_percentage"]
    assert counters[0][:5] == [0, LIMIT, 0, 0, [[0, 70.0, 9, 0, None]]]

    assert (
        told(Request("Fetch", timestamp_ms=START_MS, user="tried", topic_partitions=[TopicPartition("o", 0, 1)])) == []
    )


def test_gateways_are_told_of_heartbeats() -> None:
    beat = Request("GatewayHeartbeat", request_id="r", timestamp_ms=START_MS, instance="i-0")

    assert told(beat) == [{"heartbeat": {"instance": "i-0", "request_id": "r", "timestamp_ms": START_MS}}]


def test_a_gateway_is_answered_that_waits_to_execute_mutations() -> None:
    """Also of several counters. One that has charged them inline, or gives no instance, waits for nothing."""
    fields: dict[str, Any] = {"request_time_ns": 1, "timestamp_ms": START_MS, "user": "alice", "client_id": "app"}
    create = Request("CreateTopics", mutations=[Mutation("a", 20), Mutation("b", 1)], **fields)
    asked = msgspec.structs.replace(create, instance="i-0")
    [answer] = [each["answer"] for each in told(asked) if "answer" in each]

    assert answer["instance"] == "i-0"
    assert [result["error_code"] for result in answer["topic_results"]] == [0, 89]
    for other in (create, msgspec.structs.replace(asked, throttled_by=[])):
        assert not any("answer" in each for each in told(other))


def test_time_in_purgatory_is_no_longer_waited_for_mutations_alone() -> None:
    create = Request("CreateTopics", api_version=1, timestamp_ms=START_MS, user="alice", client_id="app")
    create.mutations, create.purgatory_ms, create.request_time_ns = [Mutation("a", 21)], 4_000, 2_000_000_000
    [sums] = told(create)

    waits = {sums["quotas"][each[0]]: each[5][:2] for _, counters, *_ in sums["sums"] for each in counters}
    assert waits[MUTATIONS] == [6_000, 6_000]  # of 10 s, as 11 of 21 tokens were there
    assert waits[QuotaKind.REQUEST_PERCENTAGE] == [1_000, 1_000]


def random_request(draw: random.Random, at_ms: int, users: int) -> Request:
    """A request of one of some users through one of some gateways, of any kind that sums tell apart."""
    user = f"user-{draw.randrange(users)}"
    waits = [AppliedWait(draw.choice([PRODUCE, FETCH]), CountedEntity(user=user), draw.randrange(500))]
    made = Request(
        draw.choice(["Produce", "Produce", "Fetch", "CreateTopics"]),
        timestamp_ms=at_ms,
        user=user,
        client_id=draw.choice(["app", "batch"]),
        instance=draw.choice([None, "a", "b"]),
        throttled_by=draw.choice([None, [], [], waits]),
        request_time_ns=draw.choice([None, 1_000_000, 400_000_000]),
    )
    size = draw.choice([0, 1, 700, 3_000])
    if made.api == "CreateTopics":
        made.mutations, made.api_version = [Mutation(f"t-{n}", 3) for n in range(draw.choice([1, 1, 2]))], 7
    elif draw.random() < 0.2:
        made.bytes = size
    else:
        made.topic_partitions, made.withheld = [TopicPartition("orders", 0, size)], draw.random() < 0.2
    return made


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 20, 200]), st.sampled_from([1, 40, 200]))
def test_the_sums_of_the_job_are_those_of_its_decisions(seed: int, users: int, requests: int) -> None:
    """For one counter and for many, of any gateways."""
    draw = random.Random(seed)
    pipeline = PipelineSettings.of(load_settings(environment={}), pages=1)
    page, at_ms = Page(), START_MS
    for batch in range(3):
        events = []
        for offset in range(batch * requests, (batch + 1) * requests):
            at_ms += draw.choice([0, 1, 40, -30])
            value = msgspec.json.encode(random_request(draw, at_ms, users))
            events.append((value, Source("quota-requests", 0, offset, at_ms)))
        page_batches = [each for made in plan(events, QUOTAS, pipeline, at_ms) for each in made.values()]
        outputs, partial, sums = decide(page, page_batches, pipeline)
        made = [*outputs.records(), *combine(partial, pipeline).records()]
        decisions = [json.loads(each.value) for each in made if each.topic == DECISIONS]
        decisions.sort(key=lambda decision: int(decision["decision_id"].rpartition("-")[2]))

        assert by_counter(sums.records("test", batch, 3)) == by_counter(sums_of(decisions, batch))


def by_counter(records: Iterable[bytes]) -> dict[tuple[Any, ...], Any]:
    """The sums by counter, without the places and times that depend on the record."""
    found: dict[tuple[Any, ...], Any] = {}
    for record in map(read_sums, records):
        for entity in record.sums:
            for kind, decided in record.counters(entity):
                made = msgspec.to_builtins(decided)
                _, limit, from_ms, until_ms, by_gateway, wait, *more = made
                named = {
                    (record.gateways[place].instance, record.gateways[place].charges_inline): of_gateway
                    for place, *of_gateway in by_gateway
                }
                if wait is not None:
                    wait = [wait[0], wait[1] + record.base_ms, wait[2], wait[3] + record.base_ms, *wait[4:]]
                counter = (entity.tags(), kind)
                assert counter not in found
                found[counter] = limit, from_ms + record.base_ms, until_ms + record.base_ms, named, wait, more
    return found
