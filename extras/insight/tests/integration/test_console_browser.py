"""The console in a real browser: search, sort, live updates, the form, dark and light."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from console_facts import HOSTILE, facts_of
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from sluice_insight.console.pages import Facts
from sluice_insight.console.server import ConsoleOptions, console_server
from sluice_lab.testbed.browser import running_browser
from tests.builders import decision, member, quota

USERS = ("alice", "bob", "carol")

expect.set_options(timeout=30_000)


def take(facts: Facts, *decisions: dict[str, Any]) -> None:
    facts.model.on_records([json.dumps(each).encode() for each in decisions], now_ms())


@pytest.fixture
def facts() -> Facts:
    entry = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")
    at_ms = now_ms()
    found = facts_of(entries=(entry,))
    rates = dict(zip(USERS, (950.0, 400.0, 1500.0), strict=True))
    take(found, *(decision(at_ms, user=user, charge={"rate": rate}) for user, rate in rates.items()))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens pages. At the end nothing was asked of any other host, and no page reported a fault."""
    requests: list[str] = []
    messages: list[str] = []
    with ExitStack() as stack:

        def open_page(facts: Facts, path: str = "", **options: Any) -> Page:
            server = console_server(facts, ConsoleOptions(port=0))
            server.start()
            stack.callback(server.stop)
            page = stack.enter_context(browser.new_context(**options)).new_page()
            page.on("request", lambda request: requests.append(request.url.removeprefix(server.url)))
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.goto(server.url + path)
            return page

        yield open_page
    assert requests
    assert [url for url in requests if "://" in url] == []
    assert messages == []


def names(page: Page) -> Locator:
    return page.locator("#clients tbody th bdi")


def wait_until_live(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("Live")


def test_a_click_on_a_heading_sorts_and_a_search_finds(facts: Facts, opened: Opened) -> None:
    page = opened(facts)
    expect(names(page)).to_have_text(["carol", "alice", "bob"])
    page.locator("#clients thead a").first.click()
    expect(names(page)).to_have_text(sorted(USERS))
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    page.locator("input[type=search]").fill("CAR")
    page.keyboard.press("Enter")
    expect(names(page)).to_have_text(["carol"])
    assert "search=CAR" in page.url


def test_every_column_is_on_a_screen_of_1280_pixels(facts: Facts, opened: Opened) -> None:
    """The longest values that are usual: a shadow quota of controllers, a level of two names, an hour of throttling."""
    charge = {"quota": "controller_mutation_rate", "matched": "user+default client-id", "tokens": -1_234.5}
    entity = {"user": "payments-service", "client_id": "reporting-job"}
    take(facts, decision(now_ms(), user="payments-service", wait_ms=3_599_000, charge=charge | {"entity": entity}))
    known = [*facts.limits.entries.values(), member(tenant="billing-and-payments", user="payments-*")]
    for entry in known:
        facts.limits.take(limit_key(entry), limit_value(entry, 9))
    facts.limits.take(VERSION_KEY, version_end(9, len(known)))
    page = opened(facts, viewport={"width": 1280, "height": 800})
    wait_until_live(page)

    expect(page.locator("#clients tbody tr")).to_have_count(4)
    expect(page.locator("#clients thead th").nth(1)).to_have_text("Tenant")
    wide, seen = page.locator(".scroll").first.evaluate("each => [each.scrollWidth, each.clientWidth]")
    assert wide <= seen


def test_a_decision_comes_onto_the_page_without_a_reload_and_the_focus_stays(facts: Facts, opened: Opened) -> None:
    page = opened(facts)
    wait_until_live(page)
    page.evaluate("window.sameDocument = true")
    page.locator('a[href="client?user=bob"]').focus()
    take(facts, decision(now_ms(), user="dave", charge={"rate": 990.0}, wait_ms=60_000))
    expect(names(page).filter(has_text="dave")).to_be_visible()
    assert page.evaluate("window.sameDocument")
    expect(page.locator(":focus")).to_have_text("bob")
    expect(page.locator("td.throttled").first).to_have_text(re.compile(" s$"))


def test_live_news_can_be_paused(facts: Facts, opened: Opened) -> None:
    page = opened(facts)
    wait_until_live(page)
    page.locator("#pause").click()
    expect(page.locator("#status")).to_have_text("Paused")
    take(facts, decision(now_ms(), user="dave"))
    expect(names(page).filter(has_text="dave")).to_have_count(0)
    page.locator("#pause").click()
    expect(names(page).filter(has_text="dave")).to_be_visible()


def test_the_form_says_whether_a_request_would_be_limited(facts: Facts, opened: Opened) -> None:
    page = opened(facts, "check")
    for name, text in (("user", "alice"), ("size", "60000")):
        page.locator(f"input[name={name}]").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("Yes: it would be throttled.")


def test_the_keyboard_leads_from_a_client_to_the_reason_of_its_wait(facts: Facts, opened: Opened) -> None:
    take(facts, decision(now_ms(), user="alice", wait_ms=12_000, decision_id="requests-0-7"))
    page = opened(facts, "?search=alice")
    for _ in range(60):
        if page.evaluate("document.activeElement.getAttribute('href')") == "client?user=alice":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("alice")
    expect(page.locator("svg.chart").first).to_be_visible()
    page.locator('a[href^="request?id="]').first.click()
    expect(page.locator("#answer")).to_have_text(re.compile(r"^Throttled for 12\.0 s"))


@pytest.mark.parametrize(("scheme", "colour"), [("dark", "rgb(12, 13, 16)"), ("light", "rgb(246, 247, 249)")])
def test_it_is_dark_where_the_system_is(facts: Facts, opened: Opened, scheme: str, colour: str) -> None:
    expect(opened(facts, color_scheme=scheme).locator("body")).to_have_css("background-color", colour)


def test_a_phone_needs_no_scrolling_to_the_side(facts: Facts, opened: Opened) -> None:
    page = opened(facts, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_hostile_names_do_nothing_also_when_they_come_live(facts: Facts, opened: Opened) -> None:
    page = opened(facts)
    wait_until_live(page)
    take(facts, *(decision(now_ms(), user=name, gateway=name, api=name) for name in HOSTILE))
    expect(names(page)).to_have_count(len(USERS) + len(HOSTILE))
    expect(page).to_have_title("Clients · Sluice")
    expect(page.locator("script")).to_have_count(1)
    expect(page.locator("#live").locator("img, script, h1")).to_have_count(0)
