"""The page of `own-view` in a real browser: a team logs in, and meets its own clients alone, whatever it asks for."""

from collections.abc import Iterator, Mapping

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from console_facts import HOSTILE
from recorded import START_MS, event, write_tables
from sluice.process.http_server import HttpServer
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.console.own import KafkaLogins, OwnView, Sessions, own_app
from sluice_insight.console.slow import SlowPage
from sluice_insight.slow.sources import Recorded
from sluice_lab.testbed.browser import running_browser
from sluice_reading.times import from_ms
from tests.builders import member, quota

HOSTILE_USER = "<img src=x onerror=document.title='owned'>"
PASSWORDS = {"alice": "pw-Alice-1", "bob": "pw-Bob-2", HOSTILE_USER: "pw-Odd-3"}
THEIRS = ("bob", "bobs-client", "their-tenant", "their-reason")
NAMES = [name for name in HOSTILE if len(name) < 300 and "\0" not in name]

expect.set_options(timeout=30_000)


class Logins(KafkaLogins):
    """Kafka's part, by a table of passwords."""

    def _accepts(self, login: Mapping[str, object]) -> bool:
        return PASSWORDS.get(str(login.get("sasl_plain_username")), "-") == login.get("sasl_plain_password")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The view over tables in which each user has clients of its own, a tenant, and a hold with a reason."""
    folder = tmp_path_factory.mktemp("own")
    limits = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1e3, user=name) for name in PASSWORDS]
    tenants = [member("our-tenant", user="alice"), member("their-tenant", user="bob")]
    clients = {"alice": ["alices-client", *NAMES], "bob": ["bobs-client"], HOSTILE_USER: ["odd-client"]}
    events = [
        event(at_ms, user, name, bytes=9_000)
        for user, names in clients.items()
        for name in names
        for at_ms in range(0, 60_000, 1_000 if name in names[:1] else 30_000)
    ]
    tables = write_tables(folder, [*limits, *tenants], events, from_ms(START_MS))
    holds = [Override("hold", entity=CountedEntity(tenant="their-tenant"), reason="their-reason", consumers=True)]
    OverridesTable(str(folder / "overrides"), {}).append([("operator", Overrides(1, START_MS, 600_000, holds))])

    kafka = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    page = SlowPage(Recorded(tables, str(folder / "overrides")))
    view = OwnView(Logins(kafka), page, Sessions(), is_secure=False, clock=lambda: START_MS + 60_000)
    server = HttpServer(own_app(view, any_host=False), "127.0.0.1", 0, max_connections=20, cure="")
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def context(browser: Browser, address: str) -> Iterator[BrowserContext]:
    """A fresh browser, which asks nobody else, and in which no name acts."""
    asked, faults = list[str](), list[str]()
    with browser.new_context() as context:
        context.on("request", lambda request: asked.append(request.url))
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("dialog", lambda dialog: faults.append(dialog.message))
        yield context
    assert [url for url in asked if not url.startswith(address)] == []
    assert faults == []


def logged_in(context: BrowserContext, address: str, user: str) -> Page:
    page = context.new_page()
    page.goto(address)
    expect(page).to_have_url(f"{address}login")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORDS[user])
    page.get_by_role("button", name="Open").click()
    expect(page).to_have_url(address)
    return page


def assert_own_alone(page: Page) -> None:
    text = page.content()
    assert [name for name in THEIRS if name in text] == []
    expect(page).to_have_title("Your clients · Sluice")


def test_a_team_logs_in_and_finds_the_cause_by_its_own_client(context: BrowserContext, address: str) -> None:
    page = logged_in(context, address, "alice")
    expect(page.locator("main")).to_contain_text("Logged in as alice")
    page.get_by_role("link", name="alices-client").click()
    expect(page.locator("#answer")).to_contain_text("producer_byte_rate 1 kB/s of user 'alice'")
    expect(page.locator("caption")).to_contain_text("our-tenant")
    expect(page.locator("nav li")).to_have_count(0)
    assert_own_alone(page)
    page.get_by_role("button", name="Log out").click()
    page.goto(address)
    expect(page).to_have_url(f"{address}login")


def test_names_that_try_to_act_are_text(context: BrowserContext, address: str) -> None:
    page = logged_in(context, address, "alice")
    links = page.locator("p a[href*=client_id]")
    expect(links).to_have_count(1 + len(NAMES))
    for number in range(1 + len(NAMES)):
        links.nth(number).click()
        expect(page.locator("#answer")).to_be_visible()
        expect(page.locator("main img, main script, main h1 + h1")).to_have_count(0)
        assert_own_alone(page)
    context.clear_cookies()
    odd = logged_in(context, address, HOSTILE_USER)
    expect(odd.locator("main")).to_contain_text(HOSTILE_USER)
    expect(odd.locator("main img")).to_have_count(0)
    expect(odd).to_have_title("Your clients · Sluice")


def test_a_script_of_the_page_reads_no_secret(context: BrowserContext, address: str) -> None:
    page = logged_in(context, address, "alice")
    assert page.evaluate("document.cookie") == ""
    assert {each["name"] for each in context.cookies()} == {"sluice_own"}
