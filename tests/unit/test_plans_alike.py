"""A client without a quota by its names is planned like another one with the same traits, but for the names."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.settings import load_settings
from sluice.state.contract.records import Request
from sluice.state.decisions.charge_plan import ChargePlan, plan_charges
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce import planning
from sluice.streaming.enforce.planning import PipelineSettings, Planned, Planner
from sluice.streaming.enforce.wire import Source
from tests.builders import quota
from tests.strategies import events, quota_entries, quota_settings

SETTINGS = PipelineSettings.of(load_settings(environment={}))._replace(pages=7)
NAMES = st.sampled_from(
    [
        "",
        "alice",
        "bob|x",
        "<default>",
        "app",
        "app two",
        "u-1",
        "u-2",
        "🦊 fox",
        "🦊2fox",
        "a" * 256,
        "a" * 257,
        "ü" * 257,
    ]
)
clients = st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6)


def planned(planner: Planner, value: bytes, user: str, client_id: str) -> Planned:
    """The rows or records of the event, as if this client had sent it."""
    request = msgspec.json.decode(value, type=Request)
    request.user, request.client_id, request.timestamp_ms = user, client_id, 5
    return planner.plan(request, Source("requests", 0, 9, 5), 7, planner.batch(7))


@given(quota_entries, quota_settings, st.lists(events().filter(lambda event: b'"client_id"' in event)), clients)
def test_no_client_before_it_changes_a_clients_plan(
    entries: list[QuotaEntry], quota_settings: QuotaSettings, sent: list[bytes], clients: list[tuple[str, str]]
) -> None:
    """Quotas by name and on defaults, on trial, of tenants: in any order of the clients."""
    quotas, settings = Quotas(entries), SETTINGS._replace(quota=quota_settings)
    planner = Planner(quotas, settings)
    for value in sent:
        for user, client_id in clients:
            alone = planned(Planner(quotas, settings), value, user, client_id)
            assert planned(planner, value, user, client_id) == alone


def test_only_a_client_with_a_quota_by_its_names_is_planned_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that a client invents costs no search for its quotas."""
    plans = list[Request]()

    def counted(request: Request, quotas: Quotas, settings: QuotaSettings) -> ChargePlan:
        plans.append(request)
        return plan_charges(request, quotas, settings)

    monkeypatch.setattr(planning, "plan_charges", counted)
    kind, every = QuotaKind.PRODUCER_BYTE_RATE, QuotaEntity(user=DEFAULT)
    members = [QuotaEntity(tenant="shop", user="shop-*")]
    entries = [
        quota(kind, 5.0, every),
        quota(kind, 7.0, QuotaEntity(user="own")),
        quota(kind, 9.0, QuotaEntity(tenant=DEFAULT)),
    ]
    planner = Planner(Quotas([*entries, *(QuotaEntry(each, Membership.MEMBER, 1.0) for each in members)]), SETTINGS)

    for number in range(50):
        for name in (f"user-{number}", f"shop-{number}", "own"):
            planned(planner, b'{"api":"Produce","bytes":5}', name, "app" if name != "own" else f"app-{number}")

    assert sorted({(request.user or "").partition("-")[0] for request in plans}) == ["own", "shop", "user"]
    assert len([request for request in plans if request.user != "own"]) == 2
