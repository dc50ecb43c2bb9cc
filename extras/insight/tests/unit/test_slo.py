"""`sluice slo`: minutes throttled a week, by client."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from recorded import event_at, write_tables
from tests.builders import member
from tests.commands import invoke

T = datetime(2026, 11, 2, 10, tzinfo=UTC)
WAIT = st.tuples(st.integers(0, 30), st.integers(0, 20))


def held(at: datetime, user: str, *waits_ms: int) -> bytes:
    waits = [{"quota": "request_percentage", "entity": {"user": user}, "ms": ms} for ms in waits_ms]
    return event_at(at, user, "Metadata", throttled_by=waits)


@pytest.fixture
def in_folder(here: Path) -> None:
    """Bob waits in 4 minutes of an hour, some of them twice; carol in none; \x1b in one."""
    events = [
        held(T, "bob", 60_001),  # minutes 0 and 1
        held(T + timedelta(seconds=70), "bob", 100, 50),  # minute 1 again
        held(T + timedelta(seconds=179), "bob", 1_001),  # minutes 2 and 3
        event_at(T, "carol", "Metadata"),
        event_at(T, "", "Metadata", client_id=""),  # a sum of several clients, which are none
        held(T + timedelta(minutes=59, seconds=59), "\x1b", 600_000),  # beyond the end of the span
    ]
    write_tables(here, [], events, T)


def slo(*arguments: str, since: str = "2026-11-02T10:00") -> str:
    span = ("--from", since, "--to", "2026-11-02T11:00")
    return invoke("slo", *span, *arguments).output


@pytest.mark.usefixtures("in_folder")
def test_minutes_that_waits_touch_count_once_and_are_scaled_to_a_week() -> None:
    found: dict[str, Any] = json.loads(slo("--json", "--objective-minutes", "168"))

    assert (found["clients"], found["within"]) == (3, 2)
    assert [(client["user"], client["minutes"], client["minutes_a_week"]) for client in found["worst"]] == [
        ("bob", 4, 4.0 * 168),
        ("\x1b", 1, 168.0),
    ]


@pytest.mark.usefixtures("in_folder")
def test_the_worst_clients_are_listed_and_no_name_controls_the_terminal() -> None:
    assert slo().splitlines() == [
        "1 of 3 clients (33.33 %) were throttled 5 minutes a week or less",
        "recorded: 1 h 0 min of the 1 h 0 min asked for, since 2026-11-02T10:00:00Z",
        "client                minutes a week  seen  of those recorded",
        "bob / client-id app            672.0     4                7 %",
        "\\x1b / client-id app           168.0     1                2 %",
    ]


def test_a_tenants_minutes_are_those_of_any_of_its_members(here: Path) -> None:
    """Two members wait in one minute and one of them in the next; eve is in no tenant."""
    members = [member(tenant="shop", user="shop-*")]
    members.append(member(tenant="bank", user="carol"))
    events = [
        held(T, "shop-1", 100),
        held(T + timedelta(seconds=1), "shop-2", 100),
        held(T + timedelta(seconds=61), "shop-2", 100),
        held(T, "eve", 100),
        event_at(T, "carol", "Metadata"),
    ]
    write_tables(here, members, events, T)

    found = json.loads(slo("--by", "tenant", "--json"))

    assert (found["tenants"], found["within"]) == (2, 1)
    assert [(each["tenant"], each["minutes"]) for each in found["worst"]] == [("shop", 2)]
    assert "tenant shop" in slo("--by", "tenant")


def test_brokers_and_controllers_are_left_out_and_few_minutes_are_called_few(here: Path) -> None:
    """A client that waited counts whatever its name is."""
    own = [event_at(T, "", "Metadata", client_id=name) for name in ("1", "raft-client-2", "broker-1-fetcher-0")]
    waits = [{"quota": "request_percentage", "entity": {"client_id": "7"}, "ms": 100}]
    clients = [
        event_at(T + timedelta(minutes=2), "", "Metadata", client_id="7", throttled_by=waits),
        event_at(T, "", "Metadata", client_id="raft-client-x"),
    ]
    write_tables(here, [], [*own, *clients], T)

    found = json.loads(slo("--json", since="2026-10-27T11:00"))

    assert (found["clients"], found["brokers_and_controllers"]) == (2, 3)
    assert (found["recorded_from"], found["recorded_to"]) == ("2026-11-02T10:00:00Z", "2026-11-02T10:02:00Z")
    _, recorded, _, worst = slo(since="2026-10-27T11:00").splitlines()
    assert recorded == (
        "recorded: 3 min of the 144 h 0 min asked for, since 2026-11-02T10:00:00Z; 3 brokers and controllers left out"
    )
    assert worst.split() == ["client-id", "7", "168.0", "1", "33", "%"]


def test_a_span_that_is_recorded_in_part_is_judged_by_that_part(here: Path) -> None:
    """After five minutes nobody was within five minutes a week who waited in four of them."""
    write_tables(here, [], [held(T, "bob", 200_000), event_at(T, "carol", "Metadata")], T)

    span = ("--from", "2026-10-26T10:05", "--to", "2026-11-02T10:05")
    found = json.loads(invoke("slo", *span, "--json").output)

    assert (found["clients"], found["within"]) == (2, 1)
    assert [(each["minutes"], each["minutes_a_week"]) for each in found["worst"]] == [(4, 4 * 7 * 24 * 60 / 5)]


@pytest.mark.usefixtures("in_folder")
def test_a_span_without_clients_has_no_share() -> None:
    ended = invoke("slo", "--from", "2025-01-01", "--to", "2025-01-02", "--json")

    assert json.loads(ended.output)["share"] is None
    assert "no rows; the audit query last wrote" in ended.error


@pytest.mark.usefixtures("in_folder")
def test_a_span_that_would_begin_before_all_time_is_refused() -> None:
    said = invoke("slo", "--to", "0001-01-01", code=2).error
    assert said.endswith("sluice: error: --to 0001-01-01 has no time 7 days before it; give --from too\n")


def test_a_choice_that_is_none_is_said_without_words_of_a_library() -> None:
    ended = invoke("slo", "--by", "shop", code=2)

    expected = "Invalid value for '--by': 'shop' is not one of 'user', 'client', 'tenant', 'topic'."
    assert ended.error_line == f"sluice: error: {expected}"
