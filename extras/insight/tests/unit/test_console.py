"""The console's pages over HTTP: contents, access, and hostile names."""

import asyncio
import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console_facts import HOSTILE, facts_of
from sluice.process.clock import now_ms
from sluice.process.format import moment, printable
from sluice.process.http_server import HttpServer
from sluice.state.arithmetic.sampled_rate import SampledRate, wait_for_rate_ms
from sluice.state.contract.gateway_topics import Measured, Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ElasticKey, QuotaKind, Window
from sluice.state.quotas.limits import (
    overrides_key,
    overrides_value,
)
from sluice.state.shares.load import BrokerLimits, DiskFloor
from sluice.state.troubles import Facts as Seen
from sluice.state.troubles import Flow, JobSeen, Trouble
from sluice_insight.console.app import MAX_STREAMS, Pages, create_app
from sluice_insight.console.check import rate_wait_ms
from sluice_insight.console.clients import ClientsQuery
from sluice_insight.console.pages import PAGES, Facts
from sluice_insight.console.security import cookie_name
from sluice_insight.console.server import MAX_CONNECTIONS, ConsoleOptions, console_server, token_of
from sluice_insight.errors import ConsoleError
from sluice_insight.texts import NO_TENANT
from sluice_reading.job_probe import JobAnswer
from sluice_reading.quotas_admin import QuotaChange
from sluice_reading.quotas_admin import QuotaRow as SetQuota
from tests.builders import AT_MS, decision, heartbeat_of, member, quota, unlimited_of

PREFIXED = "https://ops.example/sluice/"
"""Where a proxy shows the console."""

FORM = {"Content_Type": "application/x-www-form-urlencoded"}
TOKEN = "0123456789abcdef-token"  # noqa: S105 # of this test alone


class Answered:
    """An answer: status, headers and text."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()


Get = Callable[..., Answered]


@contextmanager
def console(facts: Facts, token: str | None = None) -> Iterator[HttpServer]:
    server = console_server(facts, ConsoleOptions(port=0, token=token))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving(facts: Facts, token: str | None = None) -> Iterator[Get]:
    with console(facts, token) as server:
        address = server.url.removeprefix("http://").rstrip("/")

        def get(path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answered:
            connection = http.client.HTTPConnection(address, timeout=120)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            return Answered(connection.getresponse())

        yield get


class Structure(HTMLParser):
    """Counts tags, and collects scripts, handlers and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


WAITS = [{"quota": "connection_count", "entity": {"user": "alice"}, "ms": 1_000}]
REFUSED: dict[str, Any] = {"api": "Refused", "charges": [], "throttled_by": WAITS}
OF_ALICE = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")
OF_ALL = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user=DEFAULT)
CLIENT = ("alice", "producer_byte_rate", "100 %", "800 B/s", "1 kB/s", "200 B/s", "number throttled")


@pytest.mark.parametrize(
    ("said", "entries", "path", "shown"),
    [
        ({"wait_ms": 90_000}, (), "/", ("throttled in the last minute: 1", *CLIENT)),
        (
            {"wait_ms": 5_000},
            (OF_ALL,),
            "/client?user=alice",
            ("limit 1 kB/s", ": 800 B/s of 1 kB/s, by the decision", "default user", " s in all"),
        ),
        (
            {"wait_ms": 12_000},
            (),
            "/request?id=requests-0-1",
            ("Throttled for 12.0 s, because its rate is over the limit of producer_byte_rate.", "under version 3"),
        ),
        # An unknown request is named.
        ({}, (), "/request?id=requests-0-99", ("requests-0-99",)),
        # What a proxy refused has its limit as the reason.
        (REFUSED, (), "/request?id=requests-0-1", ("The gateway refused it, by connection_count.",)),
        (REFUSED, (), "/client?user=alice&quota=connection_count", ("connection_count",)),
        # Without tenants an address with one shows all clients.
        ({}, (), "/?tenant=shop", ("1 of 1 counters",)),
        ({}, (OF_ALICE,), "/check?user=alice&api=Produce&size=100", ("No, by the last decisions.",)),
        ({}, (OF_ALICE,), "/check?user=alice&api=Produce&size=60000", ("Yes: it would be throttled.",)),
        ({}, (OF_ALICE,), "/check?user=bob&api=Produce&size=60000", ("no limit",)),
    ],
)
def test_a_page_shows(said: dict[str, Any], entries: tuple[QuotaEntry, ...], path: str, shown: tuple[str, ...]) -> None:
    facts = facts_of(decision(now_ms() - 3_000, **said), entries=entries)
    with serving(facts) as get:
        page = get(path)

    assert page.status == 200
    assert [each for each in shown if each not in page.text] == []
    assert "Tenant" not in page.text
    assert facts.model.known == 1, "a check charges nothing"


def test_shadow_quotas_stand_beside_the_enforced_ones() -> None:
    at_ms = now_ms()
    with serving(facts_of(decision(at_ms), decision(at_ms, charge={"mode": "shadow"}))) as get:
        page = get("/")
    assert page.text.count('<tr id="c') == 2
    assert page.text.count('<span class="tag">shadow</span>') == 1


def test_sort_search_filters_and_page_are_in_the_address() -> None:
    users = [decision(AT_MS, user=f"user-{number:03}", charge={"rate": float(number * 5)}) for number in range(120)]
    with serving(facts_of(*users, clock=lambda: AT_MS)) as get:

        def names(path: str) -> list[str]:
            return re.findall(r"<bdi>(user-\d+)</bdi>", get(path).text)

        assert names("/")[:2] == ["user-119", "user-118"]
        assert names("/?sort=name&page=2")[0] == "user-050"
        assert names("/?sort=name&order=desc&page=3") == [f"user-{number:03}" for number in range(19, -1, -1)]
        assert names("/?search=USER-007") == ["user-007"]
        assert len(names("/?band=50")) == 20
        assert names("/?quota=consumer_byte_rate") == []


STRANGE = "<b>&'{{ 7 * 7 }}"
TENANTS = (
    member(tenant="shop", user="shop-*"),
    member(tenant=STRANGE, user="etl", client_id="report-*"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, tenant=DEFAULT),
)


def test_clients_are_shown_with_their_tenants_and_by_tenant() -> None:
    """A counter of a user alone has an empty client-id; a topic has no tenant."""
    at_ms, hostile = now_ms(), STRANGE
    entities = [{"user": "shop-a"}, {"user": "etl"}, {"user": "etl", "client_id": "report-1"}, {"topic": "shop-a"}]
    facts = facts_of(*(decision(at_ms, charge={"entity": entity}) for entity in entities), entries=TENANTS)
    with serving(facts) as get:

        def shown(path: str) -> list[tuple[str, str]]:
            row = r'<bdi>([^<]*)</bdi></a></th><td class="tenant" data-label="Tenant">(?:<a[^>]*><bdi>)?([^<]*)<'
            cells = re.findall(row, get(path).text)
            return sorted((unescape(who), unescape(tenant)) for who, tenant in cells)

        assert shown("/") == [
            ("etl", NO_TENANT), ("etl / client-id report-1", hostile), ("shop-a", "shop"), ("topic shop-a", NO_TENANT),
        ]  # fmt: skip
        assert shown("/?tenant=shop") == [("shop-a", "shop")]
        assert shown("/?" + urlencode({"tenant": hostile})) == [("etl / client-id report-1", hostile)]
        assert shown("/?tenant=nobody") == []
        chosen = get("/?tenant=shop").text.partition('<form class="filters" method="get" action="./"')[2]
        assert '<option value="shop" selected>shop</option>' in chosen.partition('<select name="tenant">')[2]
        assert "tenant=shop" in re.findall(r'href="([^"]*sort=rate[^"]*)"', get("/?tenant=shop").text)[0]


def test_a_tenant_has_a_page_with_its_members_limit_and_usage() -> None:
    charge = {"entity": {"tenant": STRANGE}, "matched": "default tenant", "limit": 1000.0}
    with serving(facts_of(decision(now_ms(), charge=charge), entries=TENANTS)) as get:
        (link,) = set(re.findall(r'href="(client\?tenant=[^"]*)"', get("/").text))
        page = unescape(get(f"/{unescape(link)}").text)
        quotas = unescape(get("/quotas").text)

    assert f"Tenant <bdi>{STRANGE}</bdi>" in page
    assert "user 'etl' with client-id 'report-*'" in page
    assert "default tenant" in page
    assert "default tenant" in quotas


HELD_TENANT = Override("hold", entity=CountedEntity(tenant=STRANGE), reason="all is taken")
STORED = (Measured(STRANGE, 3_000_000, 2e6), Measured("bank", 500, 1000.0))


def say(facts: Facts, decider: str, *overrides: Override, measured: Sequence[Measured] = (), age_ms: int = 0) -> None:
    """Say what a decider of the job says."""
    said = Overrides(7, now_ms() - age_ms, 60_000, [*overrides], [*measured])
    facts.limits.take(overrides_key(decider), overrides_value(said))


def test_a_tenant_without_a_limit_has_a_page_with_its_budget_that_its_clients_lead_to() -> None:
    own = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="etl")
    charge = {"entity": {"user": "etl", "client_id": "report-1"}}
    facts = facts_of(decision(now_ms(), charge=charge), entries=(TENANTS[1], own))
    say(facts, "stored_bytes", HELD_TENANT, measured=STORED)
    with serving(facts) as get:
        (link,) = re.findall(r'href="(client\?tenant=[^"]*)"', get("/").text)
        page = unescape(get(f"/{unescape(link)}").text)
        storage = re.findall(r'href="(client\?tenant=[^"]*)"', get("/overview").text)

    assert f"Tenant <bdi>{STRANGE}</bdi>" in page
    assert "Its topics take 3 MB of 2 MB." in page
    assert f"Producers of tenant '{STRANGE}' are throttled: all is taken" in page
    assert storage == [link, "client?tenant=bank"]


def test_a_client_is_shown_the_changes_of_its_tenants_limits_and_of_no_others() -> None:
    facts, at = facts_of(entries=TENANTS), datetime(2026, 1, 1, tzinfo=UTC)
    of_tenants = [quota(QuotaKind.PRODUCER_BYTE_RATE, 7.0, tenant=name) for name in ("shop", "bank")]
    facts.week.changes = [QuotaChange(1, "carol", None, at, each.entity, each.kind, None, each) for each in of_tenants]
    with serving(facts) as get:
        page = get("/client?user=shop-7").text

    assert page.count(">carol<") == 1
    assert "tenant shop" in page
    assert "tenant bank" not in page


def test_a_request_is_checked_against_its_own_limit_and_its_tenants() -> None:
    own = quota(QuotaKind.PRODUCER_BYTE_RATE, 5000.0, user="shop-a")
    with serving(facts_of(entries=(*TENANTS, own))) as get:
        page = unescape(get("/check?api=Produce&user=shop-a&size=100000").text)

    assert "tenant shop" in page
    assert page.count("producer_byte_rate") >= 2


def test_skipped_records_are_shown() -> None:
    facts = facts_of(decision(now_ms()))
    with serving(facts) as get:
        assert "passed over" not in get("/overview").text
        facts.followers[0].reader.unreadable = 2
        assert "2 records of the topic quota-decisions can't be read and were passed over" in get("/overview").text


def test_a_topic_that_cant_be_read_is_named_on_every_page() -> None:
    facts = facts_of(decision(now_ms()))
    facts.followers[0].last_error.is_new(OSError("gone\x1b"))
    with serving(facts) as get:
        for path in ("/", "/overview", "/quotas", "/check", "/request"):
            assert "topic quota-decisions: gone" in get(path).text, path


@pytest.mark.parametrize(
    "path", ["/?page=-1", "/?page=9999999999", "/?sort=x&order=y&band=z&quota=q&mode=m", "/?page=²"]
)
def test_an_address_that_makes_no_sense_shows_the_page_as_it_is_by_default(path: str) -> None:
    with serving(facts_of(decision(now_ms()))) as get:
        assert get(quote(path, safe="/?=&-")).status == 200


@given(
    st.dictionaries(st.sampled_from(["sort", "order", "search", "quota", "mode", "band", "tenant", "page"]), st.text())
)
def test_the_state_of_the_page_survives_its_own_address(parameters: dict[str, str]) -> None:
    from urllib.parse import parse_qsl

    query = ClientsQuery.read(parameters)
    given_again = dict(parse_qsl(query.address(page=query.page)[1:]))
    again = ClientsQuery.read(given_again)
    assert again.address(page=again.page) == query.address(page=query.page)


def test_a_rate_of_mutations_above_the_limit_within_the_burst_is_no_fault() -> None:
    kind = QuotaKind.CONTROLLER_MUTATION_RATE
    charge = {"quota": kind, "entity": {"user": "alice"}, "limit": 5.0, "rate": 5.8, "tokens": 35.0}
    with serving(facts_of(decision(now_ms(), charges=[charge]))) as get:
        pages = [get("/").text, get(f"/client?user=alice&quota={kind}").text]
    for page in pages:
        assert re.search(r'class="band band-0">\s*[1-3]?[0-9] %', page)
        assert 'class="bar"' in page
        assert 'class="over"' not in page


def test_the_chart_of_a_client_has_the_limits_of_their_time_and_marks_of_who_changed_them() -> None:
    """Bars of before a limit was lowered aren't over it."""
    at_ms, old, new = AT_MS, quota(QuotaKind.PRODUCER_BYTE_RATE, 1e6, user="alice"), OF_ALICE
    charges = [(second, 1e6 if second > 120 else 1000.0) for second in range(300, 0, -2)]
    decisions = [
        decision(at_ms - second * 1000, charge={"value": limit * 2, "rate": limit * 1.2, "limit": limit})
        for second, limit in charges
    ]
    facts = facts_of(*decisions, entries=(OF_ALICE,), clock=lambda: at_ms)
    at = datetime.fromtimestamp(at_ms / 1000 - 120, UTC)
    facts.week.changes = [QuotaChange(2, f"dave{STRANGE}", None, at, new.entity, new.kind, old, new)]
    with serving(facts) as get:
        page = unescape(get("/client?user=alice").text)

    assert page.count('class="over"') == 0
    assert len(set(re.findall(r'<line class="limit" [^>]*y1="([\d.]+%)"', page))) == 2, "a step"
    assert f"{at:%H:%M} dave{STRANGE} set 1 kB/s" in page
    assert re.search(r'band band-90">100 %', page), "the mean, although the sampled rate is 120 %"


def test_a_client_that_waits_below_its_quota_is_told_that_its_broker_was_tightened() -> None:
    note = {"number": 7, "factor": 0.5, "reason": "broker-2: bytes in 124 % of capacity"}
    waits = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 2_000}]
    held = decision(now_ms() - 5_000, gateway="broker-2", throttled_by=waits, charge={"rate": 400.0}, elastic=note)
    with serving(facts_of(held, entries=(OF_ALICE,))) as get:
        page = unescape(get("/client?user=alice").text)

    assert page.count("broker-2 was tightened: bytes in 124 % of capacity") == 2
    assert "2.0 s: <bdi>broker-2 was tightened" in page


def test_a_tenants_page_names_the_members_that_waited_and_what_each_uses() -> None:
    of_tenant = {"entity": {"tenant": "shop"}, "matched": "tenant"}
    own = {"entity": {"user": "shop-b"}}
    facts = facts_of(
        decision(now_ms() - 2_000, user="shop-a", wait_ms=1_000, charge=of_tenant),
        decision(now_ms() - 1_000, user="shop-b", charge=own),
        entries=TENANTS,
    )
    changed = [QuotaChange(1, "carol", None, datetime.now(UTC), each.entity, each.kind, None, each) for each in TENANTS]
    facts.week.changes = changed[:1]
    with serving(facts) as get:
        page = unescape(get("/client?tenant=shop").text)

    assert "<bdi>shop-a / client-id app</bdi>" in page, "who waited"
    assert re.search(r'<th scope="row" class="name"><a href="client\?user=shop-b"><bdi>shop-b</bdi>', page)
    assert "member <bdi>user 'shop-*'</bdi>" in page
    assert ">member<" not in page


def test_a_client_without_a_counter_of_its_own_has_that_which_it_is_counted_for() -> None:
    facts = facts_of(decision(now_ms()), entries=(OF_ALICE,))
    with serving(facts) as get:
        member_of, unknown = get("/client?user=alice&client_id=app").text, get("/client?user=nobody").text

    assert 'counted for <a href="client?user=alice"><bdi>alice</bdi></a>' in member_of
    assert "Nothing was charged to this name" in unknown
    assert "No quota would limit its requests" in unknown
    assert "<figure>" not in unknown


def test_a_request_is_in_words_and_its_times_are_times() -> None:
    with serving(facts_of(decision(1_767_225_612_345, user="", client_id="", wait_ms=12_000))) as get:
        page = get("/request?id=requests-0-1").text

    for shown in ("(no name)", "2026-01-01 00:00:12", "Throttle time, by the job", "12.0 s"):
        assert shown in page
    assert "timestamp_ms" not in page
    assert "1767225612345" not in page


def test_clients_come_before_topics_in_the_order_of_names() -> None:
    of_topic = {"entity": {"topic": "orders", "partition": 1}, "limit": None}
    with serving(facts_of(decision(now_ms(), charge=of_topic), decision(now_ms(), user="zoe"))) as get:
        names = re.findall(r'title="([^"]*)"', get("/?sort=name").text)

    assert names == ["zoe", "topic orders, partition 1"]


def test_a_quota_leads_to_its_clients_and_names_its_author() -> None:
    facts = facts_of(entries=(OF_ALICE,))
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    facts.week.authors = {(OF_ALICE.entity, OF_ALICE.kind, OF_ALICE.mode): SetQuota(OF_ALICE, "carol", at)}
    with serving(facts) as get:
        page = unescape(get("/quotas").text)

    assert 'href="./?sort=usage&order=desc&search=alice&quota=producer_byte_rate"' in page
    assert "<bdi>carol</bdi>" in page
    assert "2026-01-02 03:04" in page


def test_each_page_has_an_icon_also_before_the_login() -> None:
    with serving(facts_of(), TOKEN) as get:
        assert 'rel="icon" href="assets/icon.svg"' in get("/login").text
        icon = get("/assets/icon.svg")

    assert (icon.status, icon.headers["Content-Type"]) == (200, "image/svg+xml")


def test_quotas_have_one_row_each_with_what_their_counters_use() -> None:
    entries = (
        quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user=DEFAULT),
        quota(QuotaKind.CONSUMER_BYTE_RATE, 5.0, user="bob", client_id=DEFAULT),
        quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 300.0, user=DEFAULT),
    )
    at_ms = now_ms()
    alice, carol = (decision(at_ms, user=user, charge={"matched": "default user"}) for user in ("alice", "carol"))
    with serving(facts_of(alice, carol, entries=entries)) as get:
        rows = re.findall(r'<tr><th scope="row".*?</tr>', unescape(get("/quotas").text))
    texts = [re.sub(r"<[^>]+>", " ", row).split() for row in rows]
    assert texts[0][:4] == ["the", "default", "user-principal", "producer_byte_rate"]
    assert texts[0][-5:] == ["0", "80", "%", "—", "—"]
    assert "2" in texts[0]
    assert texts[0][4:8] == ["300", "B/s", "1", "kB/s"], "reservation and limit"
    assert texts[1][:6] == ["user-principal", "'bob',", "the", "default", "client-id", "consumer_byte_rate"]
    assert len(texts) == 2


def test_the_overview_counts_decisions_dead_letters_and_gateways() -> None:
    heartbeat = {"staleness_ms": 40, "counters": 7, "shares": []}
    facts = facts_of(
        decision(now_ms()),
        decision(now_ms(), api="GatewayHeartbeat", gateway="gate-7", heartbeat=heartbeat, charges=[]),
    )
    facts.dead_letters.take(b'{"error": {"field": "api", "problem": "is missing"}}')
    with serving(facts) as get:
        page = get("/overview")
    for shown in ("gate-7", "is missing", "decisions a second", "ALLOW"):
        assert shown in page.text


def test_the_overview_has_the_load_of_brokers_and_says_which_disk_holds_producers() -> None:
    log_dirs = [{"path": f"/data{STRANGE}", "free_bytes": 5_000_000, "total_bytes": 100_000_000}]
    load = {"broker_id": 2, "bytes_in_per_s": 1_500_000.0, "handler_idle": 0.25, "log_dirs": log_dirs}
    heartbeat = {"staleness_ms": 40, "counters": 7, "shares": [], "load": load}
    facts = facts_of(decision(now_ms(), api="GatewayHeartbeat", gateway="gate-7", heartbeat=heartbeat, charges=[]))
    facts.model.gateways.limits = BrokerLimits(floor=DiskFloor(free_percent=10))
    with serving(facts) as get:
        page = unescape(get("/overview").text)
    for shown in ("broker 2", "handlers 75 %", "1.5 MB/s", "5 MB of 100 MB free", "that of the busiest, 75 %"):
        assert shown in page
    assert "A disk is low: broker 2: /data<b>&'{{ 7 * 7 }} has 5.0 MB of 100.0 MB free." in page


def test_the_overview_names_the_heaviest_clients_without_a_limit_of_all_gateways() -> None:
    beats = (heartbeat_of(name, f"{name}-1", unlimited=[unlimited_of(STRANGE)]) for name in ("b-1", "b-2"))
    facts = facts_of(*beats)
    with serving(facts) as get:
        page = unescape(get("/overview").text)
    assert (
        f"Without a limit, the heaviest: <bdi>user 'ANONYMOUS' and client-id '{STRANGE}' 48 MB/s in, 0 B/s out" in page
    )


def test_the_overview_says_how_far_limits_give_way_as_long_as_the_job_says_so() -> None:
    tight = Override("tighten", 0.75, gateway="b-2-1f", reason=f"b-2{STRANGE}: queue wait 34 ms")
    facts, pages = facts_of(), []
    with serving(facts) as get:
        for age_ms in (0, 120_000):
            say(facts, "elastic", tight, age_ms=age_ms)
            pages.append(unescape(get("/overview").text))

    assert f"75 % of the shares are let through at b-2{STRANGE}: queue wait 34 ms" in pages[0]
    assert "let through" not in pages[1]


def test_the_overview_has_storage_budgets_and_says_whose_producers_are_held() -> None:
    facts = facts_of()
    low_disk = f"broker 2: /data{STRANGE} has 5 bytes free"
    pages = []
    with serving(facts) as get:
        for age_ms in (0, 61_000):  # gateways hold nobody by what the job said a minute ago
            say(facts, "stored_bytes", HELD_TENANT, measured=STORED, age_ms=age_ms)
            say(facts, "disk_guard", Override("hold", reason=low_disk), age_ms=age_ms)
            pages.append(unescape(get("/overview").text))
    assert f"All producers are throttled: {low_disk}" in pages[0]
    for shown in (f"Producers of tenant '{STRANGE}' are throttled", "3 MB", "150 %", "bank", "50 %"):
        assert shown in pages[0]
    assert "are throttled" not in pages[1]


def test_the_pages_of_a_client_that_an_operator_stopped_say_who_did_it_and_until_when() -> None:
    """Under each of its names, until the end of the hold; those of others don't.

    A user has the client-ids that waited.
    """
    charge = {"entity": {"client_id": "app"}}
    facts = facts_of(decision(now_ms(), "eve", charge=charge), decision(now_ms(), "eve", wait_ms=900))
    reason = f"carol: {STRANGE}"
    with serving(facts) as get:

        def told(until_ms: int) -> list[bool]:
            stop = Override(
                "hold", entity=CountedEntity(client_id="app"), reason=reason, until_ms=until_ms, consumers=True
            )
            say(facts, "operator", stop)
            pages = (
                *("overview", "client?client_id=app", "client?user=eve&client_id=app", "client?user=eve"),
                *("client?client_id=other", "client?user=bob", "client?user=eve&client_id=other"),
            )
            said = f"Producers and consumers of client-id 'app' are stopped until {moment(until_ms)}: {reason}."
            texts = [unescape(get(f"/{page}").text).replace("<bdi>", "").replace("</bdi>", "") for page in pages]
            of_some = [page for page, text in zip(pages, texts, strict=True) if "Some of these requests: " in text]
            assert of_some in ([], ["client?user=eve"])
            return [said in text for text in texts]

        assert told(now_ms() + 600_000) == [True, True, True, True, False, False, False]
        assert told(now_ms() - 1) == [False] * 7


def test_a_hold_is_on_no_page_of_a_client_whose_requests_it_doesnt_stop() -> None:
    """Waits of other members of its tenant are on its page too, and a pair of names waits as a pair."""
    entries = (
        *(member("shop", user=user) for user in ("alice", "bob")),
        quota(QuotaKind.PRODUCER_BYTE_RATE, 9.0, tenant="shop"),
    )
    of_tenant = {"entity": {"tenant": "shop"}}
    facts = facts_of(
        decision(now_ms(), "alice"),
        decision(now_ms(), "bob", client_id="x", wait_ms=900, charge=of_tenant),
        decision(now_ms(), "alice", client_id="y", wait_ms=900, charge=of_tenant),
        entries=entries,
    )
    with serving(facts) as get:

        def is_told(page: str, **held: Any) -> bool:
            say(facts, "operator", Override("hold", entity=CountedEntity(**held), reason="floods", consumers=True))
            return "floods" in get(f"/client?{page}").text

        assert not is_told("user=alice", client_id="x")
        assert not is_told("tenant=shop", user="bob", client_id="y")
        assert is_told("tenant=shop", user="bob", client_id="x")
        assert is_told("user=alice", user="alice", client_id="never seen")
        assert is_told("client_id=z", user="alice", client_id="z")
        assert is_told("user=bob", client_id="x")


@pytest.mark.parametrize("kind", [QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE])
def test_under_the_smallest_limit_the_longest_throttle_time_is_shown(kind: QuotaKind) -> None:
    entry = quota(kind, 5e-324, user="alice")
    charge = {"quota": kind, "entity": {"user": "alice"}, "limit": 5e-324, "rate": 1.0, "tokens": 1.0}
    with serving(facts_of(decision(now_ms(), charges=[charge]), entries=(entry,))) as get:
        page = get("/check?user=alice&api=CreateTopics&size=999999999999999&request_ms=999999999999999")
    assert page.status == 200
    assert "596 h 31 min" in page.text


@given(
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 5_000)), min_size=1, max_size=30),
    st.integers(0, 50_000),
    st.integers(1, 5_000),
)
def test_the_throttle_time_that_kafka_computes_lies_within_the_bounds(
    steps: list[tuple[int, int]], amount: int, limit: int
) -> None:
    window, rate, now = Window(samples=11, window_ms=1000), SampledRate(), 1_000_000
    for pause_ms, value in steps:
        now += pause_ms
        rate.record(float(value), window, now)
    last, _ = rate.observe(window, now)
    least_ms, most_ms = rate_wait_ms(last, amount, limit, window)
    rate.record(float(amount), window, now)
    after, span_ms = rate.observe(window, now)
    wait_ms = max(0, wait_for_rate_ms(after, limit, span_ms))
    assert least_ms - 1 <= wait_ms <= most_ms + 1


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:20]))
def test_hostile_names_are_shown_and_do_nothing(name: str) -> None:
    at_ms = now_ms()
    entity = {"user": name, "client_id": name}
    applied = [{"quota": "producer_byte_rate", "entity": entity, "ms": 700}]
    share = {"quota": name, "entity": entity, "limit": 9.0, "share": 3.0, "charged": 2.0}
    heartbeat = {"staleness_ms": 1, "counters": 1, "shares": [share]}
    said = {"client_id": name, "gateway": name, "api": name, "decision_id": name, "throttled_by": applied}
    facts = facts_of(
        decision(at_ms, name, charge={"entity": entity, "matched": name}, wait_ms=9_000, **said),
        decision(at_ms, name, api="GatewayHeartbeat", gateway=name, instance=name, heartbeat=heartbeat, charges=[]),
        decision(at_ms, verdict=name),
        entries=(quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=name, client_id=name),),
    )
    facts.dead_letters.take(json.dumps({"error": {"field": name, "problem": name}}).encode())
    with serving(facts) as get:
        plain = get("/")
        clients = {each for each in Structure(plain.text).addresses if each.startswith("client")}
        [address] = {f"/{each}" for each in clients if "alice" not in each}
        asked = urlencode(dict.fromkeys(("user", "client_id", "search", "id", "topic"), name[:2_000]))
        request = f"/request?id={quote(name[:300])}"
        for path in ("/", "/overview", "/quotas", address, request, f"/check?{asked}", f"/?{asked}"):
            page = get(path)
            assert page.status == 200, path
            found = Structure(page.text)
            assert found.tags["script"] == 1, path
            assert found.tags["img"] == 1, path
            assert found.tags["b"] == page.text.count("<div><b>"), path
            assert found.tags["h1"] == 1, path
            assert not found.handlers, path
            assert all(urljoin(PREFIXED, each).startswith(PREFIXED) for each in found.addresses), path
            text = "".join(found.texts)
            assert not any(sign in text for sign in "\u202e\x1b\x00\r"), path
            assert len(page.text) < 300_000, path
            assert "Set-Cookie" not in page.headers
        if len(name) < 100:
            assert printable(name) in "".join(Structure(get(address).text).texts)


def test_a_client_with_a_long_name_has_a_page_too() -> None:
    name = "n" * 30_000
    with serving(facts_of(decision(now_ms(), user=name))) as get:
        [address] = {f"/{each}" for each in Structure(get("/").text).addresses if each.startswith("client?")}
        page = get(address)
    assert len(address) < 100
    assert "producer_byte_rate" in page.text


def test_every_table_has_a_caption_and_every_field_a_label() -> None:
    with serving(facts_of(decision(now_ms(), wait_ms=5))) as get:
        pages = ("/", "/overview", "/quotas", "/client?user=alice", "/request?id=requests-0-1", "/check?user=alice")
        for path in pages:
            text = get(path).text
            found = Structure(text)
            assert found.tags["table"] == found.tags["caption"], path
            fields = re.findall(r"<(?:input|select)\b(?![^>]*hidden)[^>]*>", text)
            assert len(fields) <= found.tags["label"], path
            assert len(re.findall(r'<svg class="(?!gauge)', text)) == text.count('role="img" aria-label='), path


def test_events_renew_the_page_when_a_decision_comes() -> None:
    facts = facts_of(decision(now_ms()))
    with console(facts) as server:
        connection = http.client.HTTPConnection(server.url[7:-1], timeout=120)
        connection.request("GET", "/events?of=clients&sort=name")
        stream = connection.getresponse()
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        first = next(line for line in stream if line.startswith(b"data: "))
        facts.model.on_record(json.dumps(decision(now_ms(), user="bob")).encode(), now_ms())
        fresh = next(line for line in stream if line.startswith(b"data: ") and b"bob" in line)
    assert b"bob" not in first
    assert "<bdi>bob</bdi>" in json.loads(fresh[6:])


def test_no_more_live_pages_open_than_the_limit_however_many_are_asked_for_at_once() -> None:
    """All 50 ask before the first event of any of them is made."""
    closing = ThreadEvent()
    console = create_app(facts_of(), None, closing, ["127.0.0.1"])
    scope = {
        "type": "http", "method": "GET", "path": "/events", "query_string": b"of=overview",
        "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    statuses: list[int] = []

    async def ask(all_asked: asyncio.Event) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if len(statuses) == 50:
                    closing.set()
                    all_asked.set()
                await all_asked.wait()

        async def receive() -> Any:
            await asyncio.Event().wait()

        await console(dict(scope), receive, send)

    async def ask_all() -> None:
        all_asked = asyncio.Event()
        await asyncio.wait_for(asyncio.gather(*(ask(all_asked) for _ in range(50))), 60)

    asyncio.run(ask_all())

    assert Counter(statuses) == {200: MAX_STREAMS, 503: 50 - MAX_STREAMS}


def test_the_job_is_told_in_words() -> None:
    facts = facts_of()
    facts.health.answer = {"ok": True, "reason": None, "queries": {"enforce": {"state": "running", "restarts": 0}}}
    facts.health.answer["foreign_decisions"] = {"count": 0, "jobs": []}
    with serving(facts) as get:
        text = get("/overview").text

    facts_of_job = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert facts_of_job == {
        "ok": "yes",
        "queries: enforce: state": "running",
        "queries: enforce: restarts": "0",
        "foreign decisions: count": "0",
    }


def test_the_first_minute_says_that_nothing_is_recorded_yet() -> None:
    facts = facts_of(decision(now_ms()))
    next(iter(facts.week.renewals()))
    with serving(facts) as get:
        text = get("/").text

    assert "no figures of 7 days: nothing recorded yet</caption>" in text


def test_behind_a_path_prefix_every_address_leads_to_the_console() -> None:
    with serving(facts_of(decision(now_ms(), wait_ms=5)), TOKEN) as get:
        left, seen = {PREFIXED}, set[str]()
        while left:
            address = left.pop()
            seen.add(address)
            path = f"/{address.removeprefix(PREFIXED)}"
            page = get(path, Authorization=f"Bearer {TOKEN}")
            assert page.status == 200, address
            if "text/html" in page.headers["Content-Type"]:
                found = {urljoin(address, each).partition("#")[0] for each in Structure(page.text).addresses}
                found |= {urljoin(address, unescape(each)) for each in re.findall(r'data-events="([^"]*)"', page.text)}
                assert all(each.startswith(PREFIXED) for each in found), address
                left |= {each for each in found - seen if "/events?" not in each and "sort=" not in each}
        for path in ("", "client?user=alice", "a/b"):
            to_login = get(f"/{path}", Accept="text/html").headers["Location"]
            assert urljoin(PREFIXED + path, to_login) == f"{PREFIXED}login"
        answer = get("/login", "POST", urlencode({"token": TOKEN}), **FORM)
        assert urljoin(f"{PREFIXED}login", answer.headers["Location"]) == PREFIXED
        assert "path" not in answer.headers["Set-Cookie"].lower()  # so browsers send it to this prefix alone
    assert {f"{PREFIXED}{each}" for each in ("assets/console.js", "quotas", "client?user=alice")} <= seen


def test_a_request_to_another_host_name_is_refused() -> None:
    with serving(facts_of()) as get:
        assert get("/", Host="evil.example").status == 421
        for malformed in ("[::1]x", "[::1", "[::1]:80:90", "localhost:80.evil.example", "localhost:8089\t:"):
            assert get("/", Host=malformed).status == 421, malformed
        assert get("/", Host="localhost:8089").status == 200
        assert get("/", Host="[::1]:8089").status == 200


def test_idle_connections_keep_no_request_out() -> None:
    with console(facts_of(decision(now_ms()))) as server, ExitStack() as stack:
        for number in range(MAX_CONNECTIONS + 50):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120))
            with suppress(OSError):  # it may have been closed already
                silent.sendall(b"GET / HT" if number % 2 else b"")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.status, b"alice" in answer.read()) == (200, True)


def test_pages_may_load_and_run_nothing_from_outside() -> None:
    with serving(facts_of(decision(now_ms()))) as get:
        page = get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "://" not in page.text
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "<style" not in page.text
    assert " style=" not in page.text


def test_with_a_token_nothing_is_shown_without_it() -> None:
    with serving(facts_of(decision(now_ms())), TOKEN) as get:
        for path in ("/", "/events?of=clients", "/assets/console.js", "/client?user=alice", "/nothing"):
            assert get(path).status == 401, path
            assert get(path, Authorization="Bearer wrong").status == 401, path
        assert get("/", Accept="text/html").headers["Location"] == "login"
        assert "alice" in get("/", Authorization=f"Bearer {TOKEN}").text


def test_the_token_gives_a_cookie_that_scripts_and_other_sites_never_see() -> None:
    with serving(facts_of(decision(now_ms())), TOKEN) as get:
        assert get("/login", "POST", "token=wrong", **FORM).status == 403
        cookie = get("/login", "POST", urlencode({"token": TOKEN}), **FORM).headers["Set-Cookie"]
        assert "alice" in get("/", Cookie=cookie.partition(";")[0]).text
        assert get("/", Cookie=f"{cookie_name(TOKEN)}={TOKEN}").status == 401
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie


def test_a_browser_stays_logged_in_to_two_consoles_of_one_host() -> None:
    kept = {}
    for token in (TOKEN, TOKEN[::-1]):
        with serving(facts_of(decision(now_ms())), token) as get:
            cookie = get("/login", "POST", urlencode({"token": token}), **FORM).headers["Set-Cookie"]
        name, _, value = cookie.partition(";")[0].partition("=")
        kept[name] = value
    jar = "; ".join(f"{name}={value}" for name, value in kept.items())

    for token in (TOKEN, TOKEN[::-1]):
        with serving(facts_of(decision(now_ms())), token) as get:
            assert "alice" in get("/", Cookie=jar).text


def test_a_token_comes_from_a_file_and_is_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nsecond line\n")
    assert token_of(None, file) == TOKEN
    with pytest.raises(ConsoleError, match="expected at least 16"):
        token_of("short", None)
    with pytest.raises(ConsoleError, match="can't be read: No such file"):
        token_of(None, tmp_path / "missing")


DEAD = Seen(job=JobSeen(is_locked=False), flow=Flow(now_ms(), now_ms() - 145_000, 1_595))


@pytest.mark.parametrize("path", [path for path, _, _ in PAGES.values()])
def test_every_page_says_on_top_that_no_job_runs(path: str) -> None:
    """Also the part that is renewed, and above all figures."""
    facts = facts_of(decision(now_ms() - 3_000))
    facts.now.seen = DEAD
    with serving(facts) as get:
        page = get(path).text
    (name,) = (name for name, (each, _, _) in PAGES.items() if each == path)

    for text in (page[page.index('<div id="live"') :], Pages(facts).part(name, {})):
        assert '<p class="trouble" role="alert">no job runs, 1595 requests wait since ' in text.partition("<table")[0]


def test_figures_of_then_are_dashes_on_all_pages() -> None:
    """None of them is 0: that of a client which waits would say that it is idle."""
    facts = facts_of(decision(now_ms() - 3_000), entries=(OF_ALICE,))
    figures = {path: ("800 B/s", "200 B/s") for path in ("/", "/client?user=alice")}
    others = ("/overview", "/quotas", "/check?user=alice&api=Produce&size=10")
    with serving(facts) as get:
        live = {path: get(path).text for path in (*figures, *others)}
        facts.now.seen = DEAD
        dead = {path: get(path).text for path in (*figures, *others)}

    for path, shown in figures.items():
        assert [each for each in shown if each not in live[path].replace("of 1 kB/s", "")] == []
        assert [each for each in shown if each in dead[path]] == []
    assert "throttled in the last minute: 0" in live["/"]
    assert "throttled in the last minute: —" in dead["/"]
    assert re.search(r"<b>\d+</b><span>decisions a second", live["/overview"])
    assert "; now 0" not in dead["/overview"]
    usage = re.compile(r'<td class="number">(\d+|—)</td><td class="number"><span class="band[^>]*>([^<]*)<')
    assert usage.findall(live["/quotas"]) == [("0", "80 %")]
    assert usage.findall(dead["/quotas"]) == [("—", "—")]
    assert "Unknown: the decisions are of then." in dead[others[2]]
    assert "800 B/s" in live[others[2]]
    assert "800 B/s" not in dead[others[2]]
    assert "<b>—</b><span>decisions a second" in dead["/overview"]


def test_troubles_that_the_job_reports_are_on_the_page_and_warnings_in_another_colour() -> None:
    facts = facts_of(decision(now_ms() - 3_000))
    missing = Trouble("plugin_missing", "fail", "broker 2 of 3 is without <b>")
    facts.now.probe.said = JobAnswer([missing, Trouble("hold", "warn", "x")])
    with serving(facts) as get:
        page = get("/quotas").text

    assert '<p class="trouble" role="alert">broker 2 of 3 is without &lt;b&gt;</p>' in page
    assert '<p class="trouble warns" role="alert">x</p>' in page


def test_a_table_that_the_console_cannot_read_is_on_each_page_unless_the_job_names_more(tmp_path: Path) -> None:
    """The page of clients alone said so, as a note, and the others nothing."""
    facts = facts_of(decision(now_ms() - 3_000), table=str(tmp_path))
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("no commit")
    next(facts.week.renewals())
    with serving(facts) as get:
        own = get("/overview").text
        facts.now.probe.said = JobAnswer([Trouble("table_unreadable", "fail", "two tables")])
        told = get("/overview").text

    assert f'<p class="trouble" role="alert">the table {tmp_path} can&#39;t be read: ' in own
    assert '<p class="trouble" role="alert">two tables</p>' in told
    assert str(tmp_path) not in told


def test_a_held_client_has_the_end_of_its_hold_in_its_row_and_a_tightened_one_the_limit_in_force() -> None:
    """The row was green, with all of its limit left, in the minute in which the client was stopped."""
    facts = facts_of(decision(now_ms() - 3_000), entries=(OF_ALICE,))
    until_ms = now_ms() + 60_000
    hold = Override("hold", entity=CountedEntity(user="alice"), reason="eve: it floods", until_ms=until_ms)
    say(facts, "operator", hold)
    say(facts, "elastic", Override("tighten", 0.6, gateway="b-1", reason="bytes in"))
    words = (f"held until {moment(until_ms)[-8:]} UTC (eve: it floods)", "about 600 B/s in force, tightened")
    with serving(facts) as get:
        for path in ("/", "/client?user=alice"):
            assert [each for each in words if each not in get(path).text] == []
