"""Cutting a stream into micro-batches, pages and orders never changes a decision."""

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.settings import Settings
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline import in_charge_order
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import ChargeRow, OutputRecord, Source
from tests import strategies
from tests.builders import DEFAULTS
from tests.micro_batches import MicroBatches

RECORD_MS = strategies.START_MS


def with_quota(quota: QuotaSettings) -> Settings:
    return replace(DEFAULTS, quota=quota)


def by_id(records: list[OutputRecord]) -> dict[Any, Any]:
    """Decisions and dead letters by the event they answer; when they were decided is nobody's business here."""
    answers = {}
    for record in records:
        answer = json.loads(record.value)
        answer.pop("decided_at_ms", None)
        answers[answer.get("decision_id") or str(answer["source"]["offset"])] = (record.topic, record.key, answer)
    return answers


@given(
    stream=st.lists(strategies.events(), max_size=30),
    cuts=st.sets(st.integers(0, 30)),
    pages=st.sampled_from([1, 2, 7]),
    seed=st.integers(0, 2**16),
    entries=strategies.quota_entries,
    quota=strategies.quota_settings,
)
def test_batches_pages_and_row_orders_never_change_a_decision(
    stream: list[bytes], cuts: set[int], pages: int, seed: int, entries: list[QuotaEntry], quota: QuotaSettings
) -> None:
    """Any cut of the stream, any number of pages and any order of a page's rows: what `simulate` decides."""
    quotas = Quotas(entries, version=3)
    chosen = with_quota(quota)
    expected = by_id(list(Simulation(quotas, chosen).decide(stream)))
    random_order = random.Random(seed)

    def shuffled(rows: list[ChargeRow | OutputRecord]) -> list[ChargeRow | OutputRecord]:
        return random_order.sample(rows, len(rows))

    plan = PipelineSettings.of(chosen)._replace(pages=pages)
    job = MicroBatches(plan)
    sources = [(value, Source(plan.requests_topic, 0, offset, RECORD_MS)) for offset, value in enumerate(stream)]
    ends = [*sorted(cut for cut in cuts if cut < len(sources)), len(sources)]
    starts = [0, *ends[:-1]]
    records = [
        record
        for start, end in zip(starts, ends, strict=True)
        for record in job.run(sources[start:end], quotas, shuffled)
    ]

    assert len(records) == len(stream)
    assert by_id(records) == expected


@given(stream=st.lists(strategies.events(), max_size=30), entries=strategies.quota_entries)
def test_forgetting_idle_entities_never_changes_a_decision(stream: list[bytes], entries: list[QuotaEntry]) -> None:
    """With the shortest expiry every entity at rest is dropped at once, and nobody can tell.

    As long as events come in the order of time: one that is later than the expiry may find its entity forgotten.
    """
    quotas = Quotas(entries)
    plan = PipelineSettings.of(DEFAULTS)._replace(pages=2)
    spread = [
        (re.sub(rb'"timestamp_ms": \d+', b'"timestamp_ms": %d' % (RECORD_MS + offset * 15_000), value), offset)
        for offset, value in enumerate(stream)
    ]
    events = [(value, Source(plan.requests_topic, 0, offset, 2**42)) for value, offset in spread]
    keeping, forgetting = MicroBatches(plan, idle_expiry_ms=2**40), MicroBatches(plan, idle_expiry_ms=0)

    kept = [record for event in events for record in keeping.run([event], quotas)]
    forgot = [record for event in events for record in forgetting.run([event], quotas)]

    assert by_id(forgot) == by_id(kept)


def test_two_source_partitions_are_merged_by_event_time() -> None:
    """The earlier of one counter's events is decided first, whatever partition it came from."""
    entries = [QuotaEntry(QuotaEntity(user="u"), QuotaKind.CONTROLLER_MUTATION_RATE, 1.0)]
    plan = PipelineSettings.of(DEFAULTS)
    late, early = (
        json.dumps(
            {
                "api": "CreateTopics",
                "user": "u",
                "timestamp_ms": RECORD_MS + at_ms,
                "mutations": [{"topic": "t", "partitions": 12}],
            }
        ).encode()
        for at_ms in (10, 0)
    )

    records = MicroBatches(plan).run(
        [(late, Source("q", 0, 0, RECORD_MS)), (early, Source("q", 1, 0, RECORD_MS))], Quotas(entries)
    )

    verdicts = {answer["decision_id"]: answer["verdict"] for _, _, answer in by_id(records).values()}
    assert verdicts == {"q-1-0": "ALLOW", "q-0-0": "REJECT"}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=40), st.randoms())
def test_the_rows_of_a_counter_are_put_in_order(rows: list[tuple[int, int]], order: random.Random) -> None:
    """By offset in a partition; partitions are merged by the newest time so far, and at one time by their number."""
    made = [
        ChargeRow(partition, offset, RECORD_MS + at_ms, "k", b"", b"", [], None, b"")
        for offset, (partition, at_ms) in order.sample([*enumerate(rows)], len(rows))
    ]

    newest_ms, placed = dict.fromkeys(range(3), 0), []
    for row in sorted(made, key=lambda row: (row.partition, row.offset)):
        newest_ms[row.partition] = max(row.timestamp_ms, newest_ms[row.partition])
        placed.append((newest_ms[row.partition], row.partition, row.offset, row))

    assert in_charge_order(made) == [row for *_, row in sorted(placed, key=lambda each: each[:3])]


@given(
    stream=st.lists(strategies.events(), max_size=20),
    clock_ms=st.lists(st.integers(0, 2**41), min_size=20, max_size=20),
    entries=strategies.quota_entries,
)
def test_a_wall_clock_that_jumps_never_changes_a_decision(
    stream: list[bytes], clock_ms: list[int], entries: list[QuotaEntry]
) -> None:
    """Back or forth between micro-batches: only `decided_at_ms` shows it."""
    quotas = Quotas(entries)
    job = MicroBatches(PipelineSettings.of(DEFAULTS)._replace(pages=2))
    records = [
        record
        for offset, value in enumerate(stream)
        for record in job.run(
            [(value, Source("quota-requests", 0, offset, RECORD_MS))], quotas, decided_at_ms=clock_ms[offset]
        )
    ]

    assert by_id(records) == by_id(list(Simulation(quotas, DEFAULTS).decide(stream)))


@given(
    users=st.lists(st.booleans(), min_size=1, max_size=30),
    jumps_ms=st.lists(st.sampled_from([60_000, 1, -1, -5_000, -3_600_000, -864_000_000]), min_size=30, max_size=30),
)
def test_a_clock_that_goes_wrong_is_nobody_elses_business(users: list[bool], jumps_ms: list[int]) -> None:
    """A gateway's times leap back by days and ahead as far as they may: other users' decisions stay as they were."""
    entries = [QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.CONTROLLER_MUTATION_RATE, 1.0)]
    stream = []
    for offset, is_steady in enumerate(users):
        record_ms = RECORD_MS + offset * 1000
        user, at_ms = ("steady", record_ms) if is_steady else ("leaping", record_ms + jumps_ms[offset])
        stream.append((creation(user, at_ms), Source("quota-requests", 0, offset, record_ms)))
    plan = PipelineSettings.of(DEFAULTS)._replace(pages=1)
    steady = [event for event, is_steady in zip(stream, users, strict=True) if is_steady]
    mixed, alone = MicroBatches(plan), MicroBatches(plan)

    together = by_id([record for event in stream for record in mixed.run([event], Quotas(entries))])
    apart = by_id([record for event in steady for record in alone.run([event], Quotas(entries))])

    assert {key: together[key] for key in apart} == apart


@pytest.mark.parametrize("late_ms", [1, 5_000, 3_600_000])
def test_a_late_event_neither_freezes_nor_fills_its_bucket(late_ms: int) -> None:
    """Afterwards only its own charge is missing."""
    entries = [QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.CONTROLLER_MUTATION_RATE, 1.0)]
    times_ms = [RECORD_MS, RECORD_MS - late_ms, RECORD_MS + 1]
    on_time_ms = [RECORD_MS, RECORD_MS, RECORD_MS + 1]

    late, on_time = (
        [
            json.loads(record.value)
            for record in Simulation(Quotas(entries), DEFAULTS).decide(creation("u", at_ms) for at_ms in times)
        ]
        for times in (times_ms, on_time_ms)
    )

    assert [each["verdict"] for each in late] == ["ALLOW"] * 3
    assert [each["charges"][0]["tokens"] for each in late] == [each["charges"][0]["tokens"] for each in on_time]


def creation(user: str, at_ms: int) -> bytes:
    """A request for two new partitions."""
    mutations = [{"topic": "t", "partitions": 2}]
    return json.dumps({"api": "CreateTopics", "user": user, "timestamp_ms": at_ms, "mutations": mutations}).encode()
