"""`sluice balance`: what a client's counters hold, as far as no Spark is needed."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from sluice.configs.settings import load_settings
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.arithmetic.counter import Charge
from sluice.state.errors import StateError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership, QuotaKind
from sluice.state.quotas.resolution import SHADOW_KEY_PREFIX, Quotas
from sluice.state.store.pages import Page
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin, write_origin
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice_toolbox.balances import Balances, store_imported
from sluice_toolbox.client_balances import Balance, Client, balances
from sluice_toolbox.read_state import counters_of_page
from tests.builders import quota
from tests.commands import invoke
from tests.stored_pages import SETTINGS, bytes_of, charged, names, stored

T = 1_700_000_000_000
BYTES, MUTATIONS = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE
HOSTILE = "=cmd\x1b[2J|<b>\u202e"
LONG = "x" * 257
QUOTAS = Quotas([quota(MUTATIONS, 5.0, user="alice"), quota(BYTES, 1.0, user="bob")])


def held(page: Page, client: Client, now_ms: int = T, quotas: Quotas | None = QUOTAS) -> list[Balance]:
    """The balances of a client when all counters are in one page."""
    return balances([bytes_of(page)], 1, client, quotas, SETTINGS, now_ms)


def test_tokens_are_those_of_now() -> None:
    """A burst of 55 and 60 taken at 5 a second: -5, and a second later 0."""
    page = charged((Tags("alice"), MUTATIONS, 5.0, 60.0, T))

    (then,), (later,) = (held(page, Client("alice", None), T + after_ms) for after_ms in (0, 1000))

    assert (then.tokens, then.throttle_ms, then.rate, then.limit) == (-5.0, 1000, 2.0, 5.0)
    assert (later.tokens, later.throttle_ms) == (0.0, 0)


def test_a_rate_falls_when_its_windows_are_over() -> None:
    page = charged((Tags("bob"), BYTES, 1.0, 20.0, T))

    (then,), (later,) = (held(page, Client("bob", None), T + after_ms) for after_ms in (0, 20_000))

    assert (then.rate, then.throttle_ms) == (2.0, 10_000)
    assert (later.rate, later.throttle_ms, later.last_event_ms) == (0.0, 0, T)


def test_the_limit_is_the_one_in_force_now_or_else_that_of_the_last_charge() -> None:
    """Without a limit now there are no tokens, as in a decision."""
    page = charged((Tags("alice"), MUTATIONS, 10.0, 0.0, T), (Tags("eve"), MUTATIONS, 10.0, 0.0, T))

    (alice,), (eve,) = held(page, Client("alice", None)), held(page, Client("eve", None))
    (unknown,) = held(page, Client("eve", None), quotas=None)

    assert (alice.limit, alice.tokens) == (5.0, 55.0)
    assert (eve.limit, eve.tokens) == (None, None)
    assert (unknown.limit, unknown.tokens) == (10.0, 110.0)


def test_both_names_mean_what_that_client_may_be_charged_to() -> None:
    """Whole names count: no prefix, and no topic of the name."""
    whose = [Tags("alice"), Tags("alice", "app"), Tags("", "app"), Tags("alice", "app2"), Tags("alic", "app")]
    page = charged(*((tags, BYTES, 1.0, 1.0, T) for tags in [*whose, Tags(topic="alice", partition=0)]))

    both, user, client = (held(page, Client(*name)) for name in (("alice", "app"), ("alice", None), (None, "app")))

    assert [one.tags for one in both] == [Tags("", "app"), Tags("alice"), Tags("alice", "app")]
    assert [one.tags for one in user] == [Tags("alice"), Tags("alice", "app"), Tags("alice", "app2")]
    assert [one.tags for one in client] == [Tags("", "app"), Tags("alic", "app"), Tags("alice", "app")]


def test_a_clients_tenant_is_among_its_counters_and_no_other() -> None:
    page = charged(*((Tags(tenant=name), BYTES, 1.0, 20.0, T) for name in ("shop", "bank")))
    quotas = Quotas([quota(BYTES, 2.0, tenant=DEFAULT)])

    (shop,) = held(page, Client("bob", None, "shop"), quotas=quotas)

    assert (shop.tags, shop.limit, shop.rate) == (Tags(tenant="shop"), 2.0, 2.0)


def test_a_shadow_quotas_counter_is_told_apart() -> None:
    page = Page()
    page.counters(SHADOW_KEY_PREFIX + Tags("bob").key()).charge(Charge(BYTES, "user", 3.0, False, [1.0]), T, SETTINGS)
    shadow = Quotas([quota(BYTES, 3.0, user="bob", shadow=True)])

    (found,), (without,) = held(page, Client("bob", None), quotas=shadow), held(page, Client("bob", None))

    assert (found.shadow, found.limit) == (True, 3.0)
    assert without.limit is None


def test_a_page_is_a_row_for_each_quota_of_an_entity() -> None:
    """Tokens are those of the bucket as it is stored: 55 less 60, at that moment."""
    of_topic = (Tags(topic="a.b", partition=3), BYTES, 1.0, 20.0, T)
    page = charged((Tags("alice"), MUTATIONS, 5.0, 60.0, T), (Tags("", "app"), BYTES, 1.0, 20.0, T), of_topic)

    alice, topic, app = sorted(counters_of_page(bytes_of(page)) or (), key=lambda row: (row["client_id"], row["topic"]))

    nobody = {"user": "", "client_id": "", "topic": "", "partition": -1, "tenant": ""}
    nobody |= {"shadow": False, "last_event_ms": T}
    assert (topic["topic"], topic["partition"], topic["user"]) == ("a.b", 3, "")
    sample = {"start_ms": T, "last_event_ms": T}
    of_bucket = {"samples": [sample | {"value": 60.0}], "tokens": -5.0, "tokens_ms": T}
    assert alice == nobody | {"user": "alice", "quota": "controller_mutation_rate"} | of_bucket
    unlimited = {"tokens": None, "tokens_ms": None}
    samples = {"samples": [sample | {"value": 20.0}]}
    assert app == nobody | {"client_id": "app", "quota": "producer_byte_rate"} | samples | unlimited


@given(user=names, client_id=names)
def test_a_row_of_the_state_has_the_names_of_any_client(user: str, client_id: str) -> None:
    (row,) = counters_of_page(bytes_of(charged((Tags(user, client_id), BYTES, 1.0, 20.0, T)))) or []

    assert (row["user"], row["client_id"]) == (user, client_id)


def test_sqls_null_has_no_counters_and_other_bytes_are_refused_in_one_line() -> None:
    assert counters_of_page(None) is None
    with pytest.raises(StateError, match="cut short"):
        counters_of_page(b"\1")


def test_a_gateways_clock_may_be_ahead() -> None:
    (found,) = held(charged((Tags("bob"), BYTES, 1.0, 20.0, T + 5000)), Client("bob", None), now_ms=T)

    assert found.rate == 2.0


class Place:
    """A folder with settings and a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "settings.yaml"
        sections = {"state": {"pages": 8}, "enforce": {"checkpoint": str(folder / "checkpoint")}}
        self.file.write_text(yaml.safe_dump(sections))
        self.settings = load_settings(self.file)
        self.checkpoint = Checkpoint(self.settings.enforce.checkpoint)

    def balance(self, *arguments: str) -> str:
        """The output of `sluice balance`."""
        return invoke("balance", *arguments, "--config", self.file).output

    def refusal(self, *arguments: str) -> str:
        """The error of `sluice balance`."""
        return invoke("balance", *arguments, "--config", self.file, code=None).error_line

    def counters(self, *arguments: str) -> dict[str, Any]:
        """The same, as JSON."""
        answer: dict[str, Any] = json.loads(self.balance("--json", *arguments))
        return answer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Alice, a hostile name, one too long for tags and a tenant were charged now, and their balances imported."""
    place = Place(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    charges = [
        (Tags("alice"), MUTATIONS, 5.0, 5000.0, now_ms),
        (Tags(HOSTILE, HOSTILE), BYTES, 1.0, 100.0, now_ms),
        (Tags(bounded_name(LONG), bounded_name(LONG)), BYTES, 1.0, 100.0, now_ms),
        (Tags(tenant="shop"), BYTES, 1.0, 100.0, now_ms),
    ]
    store_imported(place.checkpoint, Balances(Origin.of(place.settings), {0: 17}, stored(charges, 8)))
    return place


def test_balances_that_are_imported_are_shown_before_the_first_micro_batch(place: Place) -> None:
    answer = place.counters("--user", "alice")
    (alice,) = answer["counters"]

    assert (answer["micro_batch"], answer["quota_version"]) == (-1, None)
    assert (alice["entity"], alice["quota"], alice["mode"]) == (
        {"user": "alice"},
        "controller_mutation_rate",
        "enforce",
    )
    assert -5000 < alice["tokens"] < 0 < alice["throttle_ms"]


def test_limits_are_those_of_the_newest_snapshot(place: Place) -> None:
    for version, limit in ((3, 7.0), (4, 9.0)):
        QuotaSnapshots(place.checkpoint).save(version, [quota(MUTATIONS, limit, user="alice")])

    answer = place.counters("--user", "alice")

    assert (answer["quota_version"], answer["counters"][0]["limit"]) == (4, 9.0)


def test_the_counters_of_a_client_are_shown_with_those_of_its_tenant(place: Place) -> None:
    member = QuotaEntry(QuotaEntity(tenant="shop", user="al*"), Membership.MEMBER, 1.0)
    QuotaSnapshots(place.checkpoint).save(3, [member, quota(BYTES, 7.0, tenant="shop")])

    counters = place.counters("--user", "alice", "--client-id", "app")["counters"]

    assert {str(each["entity"]): each["limit"] for each in counters} == {
        "{'tenant': 'shop'}": 7.0,
        "{'user': 'alice'}": None,
    }


def test_a_hostile_name_is_found_and_printed_escaped(place: Place) -> None:
    shown = place.balance("--user", HOSTILE, "--client-id", HOSTILE)

    assert r"user '=cmd\x1b[2J|<b>\u202e' and client-id '=cmd\x1b[2J|<b>\u202e'" in shown
    assert "\x1b" not in shown


def test_a_name_of_the_other_kind_is_found_and_said(place: Place) -> None:
    """The wrong option would give a confident wrong answer: that the whole of each limit is left."""
    ended = invoke("balance", "--client-id", "alice", "--config", place.file)

    assert "controller_mutation_rate" in ended.output
    assert "sluice: no counter has the client-id 'alice'; these have the user 'alice'" in ended.error


def test_a_name_that_counters_keep_as_a_hash_is_found_by_itself(place: Place) -> None:
    (found,) = place.counters("--user", LONG, "--client-id", LONG)["counters"]

    assert found["entity"] == {"user": bounded_name(LONG), "client_id": bounded_name(LONG)}


def test_a_client_without_counters_has_its_whole_limit(place: Place) -> None:
    assert "the whole of each limit is left" in place.balance("--user", "nobody")
    assert place.counters("--user", "nobody")["counters"] == []


def test_a_job_that_decided_nothing_yet_has_no_balances(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "name the enforce.checkpoint of a job that has run" in place.refusal("--user", "alice")
    write_origin(place.checkpoint, Origin.of(place.settings))
    assert "its job has committed no micro-batch" in place.refusal("--user", "alice")


@pytest.mark.parametrize("arguments", [(), ("--user", "")])
def test_somebody_must_be_named(place: Place, arguments: tuple[str, ...]) -> None:
    assert "give --user, --client-id or both" in place.refusal(*arguments)


def test_settings_with_other_windows_are_refused(place: Place) -> None:
    """The rates would be wrong."""
    place.file.write_text(place.file.read_text() + "quota: {quota.window.num: 3}\n")

    assert "give the settings of its job" in place.refusal("--user", "alice")


def test_limits_of_the_table_count_while_no_job_has_taken_them(place: Place, tmp_path: Path) -> None:
    """A limit was missing although it was in force, until the first job after an import."""
    place.file.write_text(place.file.read_text() + f"delta: {{quotas: {tmp_path}/quotas}}\n")
    QuotasTable(str(tmp_path / "quotas")).create([quota(MUTATIONS, 7.0, user="alice")], "ops", datetime.now(UTC))

    assert place.counters("--user", "alice")["counters"][0]["limit"] == 7.0
