"""What the user of the console sees, in a real browser: search, sort, live news, the form, dark and light."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.testbed.browser import Browser
from sluice.insight.console.pages import Facts
from sluice.insight.console.server import ConsoleOptions, console_server
from sluice.insight.reports.tenants import read_tenants
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.unit.test_console import HOSTILE, facts_of
from tests.unit.test_live_model import decision

USERS = ("alice", "bob", "carol")


def take(facts: Facts, *decisions: dict[str, Any]) -> None:
    facts.model.take_all([json.dumps(each).encode() for each in decisions], now_ms())


@pytest.fixture
def facts() -> Facts:
    entry = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1000.0)
    at_ms = now_ms()
    found = facts_of(entries=(entry,))
    rates = dict(zip(USERS, (950.0, 400.0, 1500.0), strict=True))
    take(found, *(decision(at_ms, user=user, charge={"rate": rate}) for user, rate in rates.items()))
    return found


@contextmanager
def opened(facts: Facts, path: str = "", **options: Any) -> Iterator[tuple[Browser, str]]:
    """The page in a browser. At the end nothing was asked of any other host, and the page reported no fault."""
    server = console_server(facts, ConsoleOptions(port=0))
    server.start()
    try:
        with Browser(**options) as browser:
            browser.open(server.url + path)
            yield browser, server.url
            assert browser.requests
            assert [url for url in browser.requests if not url.startswith(server.url)] == []
            assert browser.messages == []
    finally:
        server.stop()


NAMES = "Array.from(document.querySelectorAll('#clients tbody th bdi'), cell => cell.textContent)"


def test_a_click_on_a_heading_sorts_and_a_search_finds(facts: Facts) -> None:
    with opened(facts) as (browser, _):
        assert browser.run(NAMES) == ["carol", "alice", "bob"]
        browser.run("document.querySelector('#clients thead a').click()")
        browser.wait_for(f"JSON.stringify({NAMES}) === {json.dumps(json.dumps(sorted(USERS), separators=(',', ':')))}")
        assert browser.run("document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "ascending"
        browser.run("document.querySelector('input[type=search]').focus()")
        browser.write("CAR")
        browser.press("Enter")
        browser.wait_for(f"JSON.stringify({NAMES}) === '[\"carol\"]'")
        assert "search=CAR" in browser.run("location.search")


def test_a_tenant_is_chosen_and_stays_in_the_address(facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("[{tenant: shop, users: [a*, c*]}]")
    facts = replace(facts, tenants=read_tenants(tmp_path / "tenants.yaml"))
    with opened(facts) as (browser, _):
        browser.run("document.querySelector('select[name=tenant]').value = 'shop'")
        browser.run("document.querySelector('form button').click()")
        browser.wait_for(f'JSON.stringify({NAMES}) === \'["carol","alice"]\'')
        assert "tenant=shop" in browser.run("location.search")
        browser.run("document.querySelector('#clients thead a').click()")
        browser.wait_for(f'JSON.stringify({NAMES}) === \'["alice","carol"]\'')
        assert browser.run("document.querySelector('select[name=tenant]').value") == "shop"


@pytest.mark.alone
def test_a_decision_is_on_the_page_within_two_seconds_without_a_reload_and_the_focus_stays(facts: Facts) -> None:
    with opened(facts) as (browser, _):
        browser.wait_for("document.getElementById('status').textContent === 'Live'")
        browser.run("window.sameDocument = true; document.querySelector('a[href=\"/client?user=bob\"]').focus()")
        take(facts, decision(now_ms(), user="dave", charge={"rate": 990.0}, wait_ms=60_000))
        began_s = time.monotonic()
        browser.wait_for(f"{NAMES}.includes('dave')")
        assert time.monotonic() - began_s < 2.0
        assert browser.run("window.sameDocument")
        assert browser.run("document.activeElement.textContent") == "bob"
        assert browser.run("document.querySelector('td.wait').textContent").endswith(" s")


def test_live_news_can_be_paused(facts: Facts) -> None:
    with opened(facts) as (browser, _):
        browser.wait_for("document.getElementById('status').textContent === 'Live'")
        browser.run("document.getElementById('pause').click()")
        assert browser.run("document.getElementById('status').textContent") == "Paused"
        take(facts, decision(now_ms(), user="dave"))
        browser.run("document.getElementById('pause').click()")
        browser.wait_for(f"{NAMES}.includes('dave')")


def test_the_form_says_whether_a_request_would_be_limited(facts: Facts) -> None:
    with opened(facts, "check") as (browser, _):
        for name, text in (("user", "alice"), ("size", "60000")):
            browser.run(f"document.querySelector('input[name={name}]').select()")
            browser.write(text)
        browser.press("Enter")
        browser.wait_for("document.getElementById('answer')?.textContent === 'Yes: it would wait.'")


def test_the_keyboard_leads_from_a_client_to_the_reason_of_its_wait(facts: Facts) -> None:
    take(facts, decision(now_ms(), user="alice", wait_ms=12_000, decision_id="requests-0-7"))
    with opened(facts, "?search=alice") as (browser, _):
        for _ in range(60):
            if browser.run("document.activeElement.getAttribute('href')") == "/client?user=alice":
                break
            browser.press("Tab")
        browser.press("Enter")
        browser.wait_for(
            "document.querySelector('h1').textContent.includes('alice') && document.querySelector('svg.chart') !== null"
        )
        browser.run("document.querySelector('a[href^=\"/request?id=\"]').click()")
        browser.wait_for("document.getElementById('answer')?.textContent.startsWith('It waits 12.0 s')")


@pytest.mark.parametrize("dark", [True, False])
def test_it_is_dark_where_the_system_is(facts: Facts, dark: bool) -> None:
    with opened(facts, dark=dark) as (browser, _):
        colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")


def test_a_phone_needs_no_scrolling_to_the_side(facts: Facts) -> None:
    with opened(facts, width=390, height=800) as (browser, _):
        assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_hostile_names_do_nothing_also_when_they_come_live(facts: Facts) -> None:
    with opened(facts) as (browser, _):
        browser.wait_for("document.getElementById('status').textContent === 'Live'")
        take(facts, *(decision(now_ms(), user=name, gateway=name, api=name) for name in HOSTILE))
        browser.wait_for(f"{NAMES}.length === {len(USERS) + len(HOSTILE)}")
        assert browser.run("document.title") == "Clients · Sluice"
        assert browser.run("document.querySelectorAll('script').length") == 1
        assert browser.run("document.querySelectorAll('#live img, #live script, #live h1').length") == 0
