"""Clients that `usage`, `advise` and `whatif` leave out alike: Kafka's own, Sluice's own, and the smallest."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recorded import event_at, write_tables
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.reports.left_out import LeftOut, Names, Sent, left_out
from tests.builders import quota
from tests.commands import invoke

MANY, FEW = Sent(100, 0), Sent(99, 999_999)
KAFKA = {"client.id": "quotas", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
LOGIN = {"sasl.jaas.config": 'x required username="own" password="p";'}


@pytest.mark.parametrize(
    ("name", "sent", "is_own"),
    [
        (("", "raft-client-3"), MANY, True),
        (("", "broker-1-fetcher-0"), MANY, True),
        (("", "3"), MANY, True),
        (("", "3"), Sent(100, 1), False),
        (("", "3"), Sent(100, 0, waited=True), False),
        (("", "quotas-sums"), MANY, True),
        (("own", "reader"), MANY, True),
        (("alice", "quotasapp"), MANY, False),
    ],
)
def test_who_is_kafkas_or_sluices_own_has_no_row(name: Names, sent: Sent, is_own: bool) -> None:
    """A client may have a number for its client-id; no broker moves bytes that count."""
    assert left_out({name: sent}, KAFKA | LOGIN) == (frozenset([name] if is_own else []), frozenset())


@pytest.mark.parametrize(("sent", "is_small"), [(FEW, True), (MANY, False), (Sent(1, 1_000_000), False)])
def test_who_sent_little_has_no_row_and_many_bytes_make_up_for_few_requests(sent: Sent, is_small: bool) -> None:
    assert left_out({("alice", "app"): sent}, {}) == (frozenset(), frozenset([("alice", "app")] if is_small else []))


def test_a_row_of_several_clients_is_judged_by_those_that_are_nobodys_own() -> None:
    half, own = Sent(50, 0), Sent(1000, 0)
    clients: Mapping[Names, Sent] = {
        ("alice", "a"): half, ("alice", "b"): half, ("bob", "a"): half, ("bob", "sluice"): own, ("kafka", "2"): own
    }  # fmt: skip

    assert left_out(clients, {}, lambda user, _: (user,)) == LeftOut(frozenset([("kafka",)]), frozenset([("bob",)]))


# --- the commands ------------------------------------------------------------------------------------------------

T = datetime(2026, 11, 2, 10, tzinfo=UTC)
SPAN = ("--from", "2026-11-02", "--to", "2026-11-03")
SAID = "left out: 2 of brokers, controllers and Sluice, 1 with under 100 requests and 1 MB"


@pytest.fixture
def settings(here: Path) -> Path:
    """Alice sends a lot; a controller, Sluice itself and bob's ten requests are recorded beside her."""
    events = [event_at(T + timedelta(seconds=second), "alice", "Produce", bytes=9000) for second in range(200)]
    events += [event_at(T, "", "Requests", client_id="raft-client-3", requests=200, request_time_ns=9)]
    events += [event_at(T, "", "Fetch", client_id="sluice-1-sums", requests=200, bytes=9)]
    events += [event_at(T, "bob", "Produce", requests=10, bytes=10)]
    write_tables(here, [quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")], events, T)
    (here / "quotas.yaml").write_text("- {entity: {user: alice}, quotas: {producer_byte_rate: 2000}}\n")
    return here


@pytest.mark.usefixtures("settings")
def test_usage_whatif_and_advise_leave_out_the_same_clients_and_say_how_many() -> None:
    used = invoke("usage", "--by", "client", *SPAN, "--format", "json")
    tried = invoke("whatif", "--quotas", "quotas.yaml", "--processes", "1", *SPAN)
    found = json.loads(invoke("whatif", "--quotas", "quotas.yaml", "--processes", "1", *SPAN, "--json").output)
    advised = invoke("advise", "--by", "user/client-id", "--processes", "1", *SPAN).output

    assert [json.loads(line)["user"] for line in used.output.splitlines()] == ["alice"]
    assert SAID in used.error
    assert [client["user"] for client in found["clients"]] == ["alice"]
    assert found["left_out"] == {"own": 2, "small": 1}
    assert SAID in tried.output
    assert "entity:\n    user: alice\n" in advised
    assert advised.count("entity:") == 1
    assert SAID in advised


def test_no_limit_is_proposed_from_a_few_requests_of_a_busy_client(here: Path) -> None:
    """Its byte rate is known from 200 requests, its rate of mutations from one."""
    events = [event_at(T + timedelta(seconds=second), "alice", "Produce", bytes=9000) for second in range(200)]
    created: dict[str, Any] = {"mutations": [{"topic": "new", "partitions": 3}]}
    write_tables(here, [], [*events, event_at(T, "alice", "CreateTopics", **created)], T)

    advised = invoke("advise", "--processes", "1", *SPAN).output

    assert "producer_byte_rate:" in advised
    assert "controller_mutation_rate:" not in advised


# --- holds and limits in force -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (Override("hold", entity=CountedEntity(user="alice"), reason="eve: it floods"), "held (eve: it floods)"),
        (
            Override("tighten", 0.75, gateway="b-1"),
            "producer_byte_rate 1 kB/s (about 750 B/s in force, tightened)",
        ),
    ],
)
def test_usage_until_now_says_in_a_clients_row_who_is_held_and_which_limit_is_in_force(
    settings: Path, override: Override, said: str
) -> None:
    table = OverridesTable(str(settings / "sluice-data" / "delta" / "overrides"), {})
    table.append([("x", Overrides(1, 5, 1, [override]))])

    until_now = invoke("usage", "--by", "client", "--from", "2026-11-02").output
    before = invoke("usage", "--by", "client", *SPAN).output

    assert [line.rstrip().endswith(said) for line in until_now.splitlines()] == [False, True]
    assert "in force" not in before
