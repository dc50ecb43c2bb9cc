"""The time for which clients waited: one union of the waits that their events report, for all reports."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import event, report_tables, write_tables
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.tenants import Tenants
from sluice_insight.console.tables import WeekMinutes
from sluice_insight.reports.recorded_waits import union_of_waits
from sluice_insight.reports.slo import slo
from sluice_insight.reports.span import By, Per, Span
from sluice_insight.reports.usage import usage
from sluice_insight.waits import Waited
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import quota

START = datetime(2027, 1, 15, 8, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
SPAN = Span(START_MS, START_MS + 3_600_000)
QUOTA = quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, user="alice")

Events = Sequence[tuple[int, int, int, int]]
"""Client, gateway, time and wait of each."""

events = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 2), st.integers(0, 5_000), st.sampled_from([0, 0, 1, 300, 2_000, 9**9])
    ),
    max_size=40,
)


def union(found: Events, end_ms: int) -> dict[int, int]:
    """The time that each client waited, by the function of the reports on tables."""
    columns = np.array(found, np.int64).reshape(-1, 4).T
    clients, gateways, at_ms, waits_ms = columns
    waits = union_of_waits(clients, clients * 10 + gateways, at_ms, waits_ms, end_ms)
    total = np.zeros(3, np.int64)
    np.add.at(total, waits.clients, waits.end_ms - waits.begin_ms)
    parts = waits.by_period(700)
    assert (parts.begin_ms // 700 == (parts.end_ms - 1) // 700).all()
    assert (parts.end_ms - parts.begin_ms).sum() == total.sum()
    return dict(enumerate(total.tolist()))


@given(events, st.integers(1, 10_000))
def test_a_client_waits_as_long_in_tables_as_event_by_event_and_never_longer_than_the_span(
    found: Events, end_ms: int
) -> None:
    waited = {client: Waited() for client in range(3)}
    for client, gateway, at_ms, wait_ms in sorted(found, key=lambda each: each[2]):
        if at_ms < end_ms:
            waited[client].add(str(gateway), at_ms, wait_ms)
    for each in waited.values():
        each.until(end_ms)

    totals = union(found, end_ms)

    assert totals == {client: each.total_ms for client, each in waited.items()}
    assert all(total <= end_ms for total in totals.values())


@given(events)
def test_a_client_waits_in_the_milliseconds_that_a_wait_covers_up_to_the_next_request_of_its_gateway(
    found: Events,
) -> None:
    covered: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for client, gateway, at_ms, wait_ms in found:
        later = [other[2] for other in found if other[:2] == (client, gateway) and other[2] > at_ms]
        covered[client] |= set(range(at_ms, min(at_ms + wait_ms, *later, 6_000)))

    assert union(found, 6_000) == {client: len(times) for client, times in covered.items()}


def held(at_ms: int, wait_ms: int | None, instance: str = "broker-1", **said: str) -> bytes:
    entity = {"user": "alice"}
    waits = [] if wait_ms is None else [{"quota": QUOTA.kind.value, "entity": entity, "ms": wait_ms}]
    return event(at_ms + START_MS - 1_800_000_000_000, throttled_by=waits, instance=instance, bytes=1, **said)


def throttled_ms(folder: Path, by: By = By.CLIENT) -> list[int]:
    column: list[int] = usage(report_tables(folder), SPAN, by, Per.HOUR, Tenants())[0]["throttled_ms"].to_pylist()
    return column


def minutes(tables: Tables) -> tuple[list[int], list[int]]:
    """The minutes throttled of each client by `sluice slo`, and of each counter by the console."""
    week = WeekMinutes(tables)
    week.renew(START + timedelta(hours=1))
    return [client.minutes for client in slo(tables, SPAN, 5, 10).worst], list(week.minutes.values())


@pytest.mark.parametrize(
    ("found", "by_client", "by_user"),
    [
        # An hour was left of it with each of a hundred requests, which the client sent all the same.
        ([*(held(number * 100, 3_400_000) for number in range(100)), held(10_000, None)], [10_000], [10_000]),
        # Waits of gateways at the same time count once.
        ([*(held(0, 60_000, f"broker-{number}") for number in range(3)), held(90_000, None)], [60_000], [60_000]),
        # Clients of a user that wait at the same time make the user wait once.
        ([held(0, 3_600_000), held(0, 3_600_000, client_id="other")], [3_600_000, 3_600_000], [3_600_000]),
    ],
    ids=["nobody served", "gateways", "clients"],
)
def test_waits_at_the_same_time_count_once_and_those_that_nobody_served_not(
    tmp_path: Path, found: list[bytes], by_client: list[int], by_user: list[int]
) -> None:
    write_tables(tmp_path, [], found, START)

    assert (throttled_ms(tmp_path), throttled_ms(tmp_path, By.USER)) == (by_client, by_user)


@pytest.mark.parametrize("value", [None, 1e6])
def test_a_wait_ends_when_its_limit_is_raised_or_removed(tmp_path: Path, value: float | None) -> None:
    tables = write_tables(tmp_path, [QUOTA], [held(0, 3_600_000)], START - timedelta(hours=1))
    new = [] if value is None else [QuotaEntry(QUOTA.entity, QUOTA.kind, value)]
    QuotasAdmin(tables.quotas).alter(lambda _: new, "me", START + timedelta(seconds=16))

    assert throttled_ms(tmp_path) == [16_000]
    assert minutes(tables) == ([1], [1])


def test_a_wait_goes_on_when_another_limit_is_raised_or_this_one_is_lowered(tmp_path: Path) -> None:
    others = quota(QUOTA.kind, 1.0, user="bob")
    tables = write_tables(tmp_path, [QUOTA, others], [held(0, 60_000)], START - timedelta(hours=1))
    lower = QuotaEntry(QUOTA.entity, QUOTA.kind, 0.5)
    QuotasAdmin(tables.quotas).alter(lambda _: [lower], "me", START + timedelta(seconds=16))

    assert throttled_ms(tmp_path) == [60_000]
