"""`sluice slo --below-quota`: minutes in which clients waited although what they waited for was below its limit."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.live import NEAR_LIMIT
from sluice_insight.reports.below_quota import full_minutes
from sluice_insight.reports.slo import slo
from sluice_insight.reports.span import Span
from tests.builders import member, quota
from tests.commands import invoke
from tests.recorded import START_MS, event, simulated, write_decisions, write_tables

START = datetime.fromtimestamp(START_MS / 1000, UTC)
SPAN = Span(START_MS, START_MS + 3_600_000)
MINUTE_MS = 60_000
LIMIT = 100.0
PRODUCE, FETCH = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
QUOTAS = [quota(kind, LIMIT, user="alice") for kind in (PRODUCE, FETCH)]


def waits(at_ms: int, wait_ms: int, size: int, kind: QuotaKind = PRODUCE, **more: Any) -> bytes:
    """A request of alice of this many bytes, which her gateway made wait inline."""
    applied = [{"quota": kind.value, "entity": {"user": "alice"}, "ms": wait_ms}] if wait_ms else []
    api = "Fetch" if kind is FETCH else "Produce"
    return event(at_ms, api=api, bytes=size, instance="i-0", throttled_by=applied, **more)


def minutes(folder: Path, *events: bytes) -> tuple[int, int]:
    """Minutes in which alice waited: all, and those below her quota."""
    tables = write_tables(folder, QUOTAS, events, START)
    every, below = (slo(tables, SPAN, 5, 10, is_below_quota).worst for is_below_quota in (False, True))
    return sum(client.minutes for client in every), sum(client.minutes for client in below)


@pytest.mark.parametrize(
    ("used", "below"), [(NEAR_LIMIT * 60 * LIMIT, 0), (NEAR_LIMIT * 60 * LIMIT - 1, 1)], ids=["at limit", "below"]
)
def test_a_minute_counts_if_the_whole_cluster_used_less_than_nine_tenths_of_the_limit(
    tmp_path: Path, used: float, below: int
) -> None:
    """Two clients of one user on two gateways share a counter: what the other one used counts too."""
    other = event(0, client_id="other", bytes=int(used) - 100, instance="i-1", throttled_by=[])

    assert minutes(tmp_path, waits(0, 500, 100), other) == (1, below)


def test_a_wait_for_another_tenants_limit_is_none_for_ones_own(tmp_path: Path) -> None:
    """Alice waits for shop, which is below its limit; bank is at its own."""
    entries = [member(tenant=tenant, user=user) for tenant, user in (("shop", "alice"), ("bank", "bob"))]
    entries += [quota(PRODUCE, LIMIT, tenant=tenant) for tenant in ("shop", "bank")]

    def waited(user: str, tenant: str, size: int) -> bytes:
        applied = [{"quota": PRODUCE.value, "entity": {"tenant": tenant}, "ms": 500}]
        return event(0, user=user, bytes=size, instance="i-0", throttled_by=applied)

    tables = write_tables(tmp_path, entries, [waited("alice", "shop", 10), waited("bob", "bank", 6000)], START)

    assert [client.user for client in slo(tables, SPAN, 5, 10, is_below_quota=True).worst] == ["alice"]


def test_a_wait_for_more_than_the_limit_of_earlier_minutes_is_no_wait_below_it(tmp_path: Path) -> None:
    """2.5 minutes of the limit at once are made up for in the minutes 1 and 2, and not in 3."""
    burst = waits(0, 150_000, int(2.5 * 60 * LIMIT))

    assert minutes(tmp_path, burst, waits(3 * MINUTE_MS, 500, 1)) == (4, 1)


def test_what_a_fetch_took_back_is_no_use(tmp_path: Path) -> None:
    assert minutes(tmp_path, waits(0, 500, int(100 * LIMIT), FETCH, withheld=True)) == (1, 1)


@pytest.mark.parametrize("guard", ["disk_guard", "stored_bytes"])
def test_a_wait_because_of_disks_is_none_below_the_quota(tmp_path: Path, guard: str) -> None:
    held = [{"quota": guard, "entity": {"user": "alice"}, "ms": 10_000}]
    assert minutes(tmp_path, event(0, bytes=100, instance="i-0", throttled_by=held)) == (1, 0)


def test_one_counter_at_its_limit_explains_a_minute(tmp_path: Path) -> None:
    """The produce quota is used up, the fetch quota isn't, and alice waits for both in minute 0, for fetches in 1."""
    events = (waits(0, 500, int(60 * LIMIT)), waits(100, 500, 1, FETCH), waits(MINUTE_MS, 500, 1, FETCH))

    assert minutes(tmp_path, *events) == (2, 1)


def test_a_decided_wait_counts_where_nothing_is_charged_inline(tmp_path: Path) -> None:
    """Kafka's windows of 10 s hold a client that sends 20 s of its quota at once, and then nothing."""
    assert minutes(tmp_path, event(0, bytes=int(20 * LIMIT))) == (1, 1)


def test_a_lowered_limit_is_the_one_of_its_minute(tmp_path: Path) -> None:
    halved = [quota(PRODUCE, LIMIT / 2, user="alice")]
    tables = write_tables(tmp_path, QUOTAS, [event(0, bytes=int(30 * LIMIT), instance="i-0", throttled_by=[])], START)
    write_decisions(tables.decisions, simulated([waits(1, 500, 1)], halved))

    assert not slo(tables, SPAN, 5, 10, is_below_quota=True).worst


def test_the_command_says_what_it_counts(here: Path) -> None:
    write_tables(here, QUOTAS, [waits(0, 500, 100)], START)
    span = ["slo", "--below-quota", "--from", START.isoformat(), "--to", "2027-01-15T09:00"]

    shown = invoke(*span).output
    found = json.loads(invoke(*span, "--json").output)

    assert shown.splitlines()[0] == "0 of 1 clients (0.00 %) were throttled below their quota 5 minutes a week or less"
    assert (found["below_quota"], found["worst"][0]["minutes"]) == (True, 1)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 300)), unique_by=lambda each: each[0]).map(sorted))
def test_a_counter_owes_what_a_bucket_without_burst_lacks(used: list[tuple[int, float]]) -> None:
    charged, owed, full = dict(used), 0.0, set()
    for minute in range(30):
        value = charged.get(minute, 0.0)
        if owed > 0.0 or value >= NEAR_LIMIT * 60.0:
            full.add(minute)
        owed = max(0.0, owed + value - 60.0)

    assert full_minutes([(minute, value, 1.0) for minute, value in used], end=30) == full
