"""Reports, the console and the live model say one figure for the time that clients and counters waited."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import DECISIONS, START_MS, event, simulated, write_decisions, write_tables
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.tenants import Tenants
from sluice_insight.console.tables import WeekMinutes
from sluice_insight.live import CounterId, LiveModel
from sluice_insight.reports.explained import last_throttled
from sluice_insight.reports.recorded_waits import RecordedWaits, wait_ends
from sluice_insight.reports.slo import slo
from sluice_insight.reports.span import By, Per, Span
from sluice_insight.reports.usage import usage
from sluice_insight.waits import WaitEnd, WaitEnds, raised_limits
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import Json, member

START = datetime.fromtimestamp(START_MS / 1000, UTC)
HOUR = Span(START_MS, START_MS + 3_600_000)
PRODUCE, MUTATIONS = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE
ALICE = QuotaEntity(user="alice")
SHOP = QuotaEntity(tenant="shop")
QUOTAS = [
    QuotaEntry(ALICE, PRODUCE, 100.0),
    QuotaEntry(SHOP, PRODUCE, 50.0),
    member(tenant="shop", user="alice"),
    member(tenant="shop", user="bob"),
]
OF_ALICE = CounterId(PRODUCE, False, "alice", "", None, -1)
OF_SHOP = CounterId(PRODUCE, False, "", "", None, -1, "shop")


def live_model(decisions: Iterable[Json]) -> LiveModel:
    model = LiveModel()
    read(model, decisions)
    return model


def read(model: LiveModel, decisions: Iterable[Json]) -> None:
    model.on_records([json.dumps(each).encode() for each in decisions], HOUR.end_ms)


def live_minutes(model: LiveModel) -> dict[CounterId, int]:
    minutes = {counter.key: counter.throttled_minutes(HOUR.end_ms - 1) for counter in model.counters()}
    return {counter: found for counter, found in minutes.items() if found}


def console_minutes(tables: Tables) -> Mapping[CounterId, int]:
    week = WeekMinutes(tables)
    week.renew(START + timedelta(hours=1))
    return week.minutes


def reported(tables: Tables) -> tuple[list[int], list[int]]:
    """The milliseconds that each client waited by `sluice usage`, and its minutes by `sluice slo`."""
    waited_ms = usage(tables, HOUR, By.CLIENT, Per.SPAN, Tenants())[0]["throttled_ms"].to_pylist()
    return waited_ms, [client.minutes for client in slo(tables, HOUR, 5, 10).worst]


def unmute(at_ms: int, *entities: dict[str, str]) -> Json:
    """The decision that answers an unmute, by which these counters of produced bytes are reset."""
    charge = {"quota": PRODUCE, "matched": "user", "limit": 1.0, "value": 0.0, "rate": 0.0, "throttle_ms": 0}
    charges = [charge | {"entity": entity, "violated": False} for entity in entities]
    (decision,) = simulated([event(at_ms, client_id="")], [])
    return decision | {"decision_id": f"requests-9-{at_ms}", "api": "Unmute", "charges": charges}


def test_a_client_waits_for_its_tenant_and_its_own_counter_for_its_own_wait_alone(tmp_path: Path) -> None:
    """3 000 bytes are 20 s above 100 bytes/s in windows of 10 s, and 50 s above the 50 of shop."""
    decisions = simulated([event(10_000, bytes=3_000)], QUOTAS)
    tables = write_tables(tmp_path, QUOTAS, [], START)
    write_decisions(tables.decisions, decisions)
    model = live_model(decisions)

    assert {wait.key: wait.wait_ms for wait in model.waits()} == {OF_ALICE: 20_000, OF_SHOP: 50_000}
    assert reported(tables) == ([50_000], [1])
    later = simulated([event(45_000, bytes=3_000)], QUOTAS)
    write_decisions(tables.decisions, later)
    read(model, later)
    assert console_minutes(tables) == live_minutes(model) == {OF_ALICE: 2, OF_SHOP: 2}


def test_an_unmute_ends_the_waits_of_the_counters_that_it_resets(tmp_path: Path) -> None:
    """The tenant's counter is reset in minute 1, the client's own wait is over by then."""
    decisions = [*simulated([event(10_000, bytes=12_000)], QUOTAS), unmute(70_000, {"tenant": "shop"})]
    tables = write_tables(tmp_path, QUOTAS, [], START)
    write_decisions(tables.decisions, decisions)

    assert console_minutes(tables) == live_minutes(live_model(decisions)) == {OF_ALICE: 2, OF_SHOP: 2}
    assert reported(tables) == ([110_000], [2])
    assert not wait_ends(tables, Span(START_MS, START_MS + 69_000)), "it comes later"


@pytest.mark.parametrize(
    ("entity", "waited_ms", "minutes"),
    [(SHOP, 110_000, {OF_ALICE: 2, OF_SHOP: 2}), (ALICE, 230_000, {OF_ALICE: 2, OF_SHOP: 4})],
    ids=["tenant", "client"],
)
def test_a_raised_limit_ends_the_waits_for_it_and_no_others(
    tmp_path: Path, entity: QuotaEntity, waited_ms: int, minutes: dict[CounterId, int]
) -> None:
    """Without it alice waits from 10 s to 120 s for her own limit, and to 240 s for that of shop."""
    decisions = simulated([event(10_000, bytes=12_000)], QUOTAS)
    tables = write_tables(tmp_path, QUOTAS, [], START)
    write_decisions(tables.decisions, decisions)
    raised = [QuotaEntry(entity, PRODUCE, 1e6) if quota.entity == entity else quota for quota in QUOTAS]
    quotas = QuotasAdmin(tables.quotas)
    quotas.alter(lambda _: raised, "me", START + timedelta(seconds=70))

    model = live_model(decisions)
    next(WeekMinutes(tables, lambda changes: model.end_waits(raised_limits(changes))).renewals())

    assert reported(tables)[0] == [waited_ms]
    assert console_minutes(tables) == live_minutes(model) == minutes


def test_the_wait_for_mutations_that_a_controller_asks_for_is_in_all_of_them(tmp_path: Path) -> None:
    """The same node tells of request time a second later, as brokers do, which doesn't end it; an admitted one does."""
    node: dict[str, Any] = {"gateway": "2", "instance": "2-0a1b2c3d", "bytes": None}
    wait = {"quota": MUTATIONS, "entity": {"user": "alice"}, "ms": 50_000}
    asked = event(10_000, api="Mutations", mutations_charged=0, throttled_by=[wait], **node)
    time = event(11_000, api="Requests", request_time_ns=1, throttled_by=[], **node)
    admitted = event(40_000, api="Mutations", mutations_charged=1, throttled_by=[], **node)
    quotas = [QuotaEntry(ALICE, MUTATIONS, 1.0)]
    tables = write_tables(tmp_path, quotas, [], START)
    decisions = simulated([asked, time, admitted], quotas)
    write_decisions(tables.decisions, decisions)

    of_alice = CounterId(MUTATIONS, False, "alice", "", None, -1)
    assert reported(tables) == ([30_000], [1])
    assert console_minutes(tables) == live_minutes(live_model(decisions)) == {of_alice: 1}
    [last] = last_throttled(tables, "alice", None, START + timedelta(minutes=1), 5)
    assert (last["verdict"], last["throttled_by"][0]["ms"]) == ("ALLOW", 50_000)


def test_a_topic_that_was_made_again_has_the_figures_of_its_second_life(tmp_path: Path) -> None:
    first, second = (simulated([event(at_ms, bytes=12_000)], QUOTAS) for at_ms in (10_000, 900_000))
    model = live_model(first)
    model.forget()
    read(model, second)
    tables = write_tables(tmp_path, QUOTAS, [], START)
    write_decisions(tables.decisions, second)

    assert console_minutes(tables) == live_minutes(model)
    assert sum(wait.wait_ms for wait in model.waits() if wait.key == OF_SHOP) == reported(tables)[0][0]


AT_S = st.integers(0, 200)
EVENTS = st.tuples(
    AT_S,
    st.sampled_from(["alice", "bob"]),
    st.sampled_from([None, "i-1", "i-2"]),
    st.integers(0, 8_000),
    st.sampled_from([0, 700, 90_000]),
)
ENDS = st.tuples(AT_S, st.sampled_from([{"user": "alice"}, {"tenant": "shop"}]), st.booleans())


@given(st.lists(EVENTS, max_size=15), st.lists(ENDS, max_size=3), st.integers(201, 400))
def test_the_live_model_has_for_each_counter_what_the_tables_have(
    found: list[tuple[int, str, str | None, int, int]], ended: list[tuple[int, dict[str, str], bool]], now_s: int
) -> None:
    """Gateways that charge inline or don't, unmutes and raised limits, in any order."""
    sent = []
    for at_s, user, instance, size, ms in sorted(found, key=itemgetter(0)):
        waits = [{"quota": PRODUCE, "entity": {"user": user}, "ms": ms}] if ms else []
        inline: dict[str, Any] = {} if instance is None else {"instance": instance, "throttled_by": waits}
        sent.append(event(at_s * 1000, user, bytes=size, **inline))
    decisions = simulated(sent, QUOTAS)
    unmutes = [unmute(at_s * 1000, entity) for at_s, entity, is_unmute in ended if is_unmute]
    ends = [end(at_s, entity) for at_s, entity, _ in ended]
    now_ms = START_MS + now_s * 1000
    model = LiveModel()
    model.end_waits(end(at_s, entity) for at_s, entity, is_unmute in ended if not is_unmute)
    read(model, sorted([*decisions, *unmutes], key=itemgetter("timestamp_ms")))

    recorded = RecordedWaits(WaitEnds(ends))
    recorded.take_of_counters(pa.RecordBatch.from_pylist(decisions, DECISIONS))

    names, union = recorded.union(now_ms)
    last_ms = np.maximum(union.end_ms - np.maximum(union.begin_ms, now_ms - 59_000), 0)
    waited_ms = np.bincount(union.clients, last_ms, len(names)).tolist()
    minutes = recorded.minutes(Span(START_MS, now_ms))
    seen = {counter.key.names(): counter for counter in model.counters()}
    assert [seen[name].waited_ms(now_ms) for name in names] == waited_ms
    assert [seen[name].throttled_minutes(now_ms) for name in names] == [len(minutes[name]) for name in names]


def end(at_s: int, entity: dict[str, str]) -> WaitEnd:
    names = (PRODUCE.value, entity.get("user", ""), "", "", "", entity.get("tenant", ""))
    return WaitEnd(START_MS + at_s * 1000, names)
