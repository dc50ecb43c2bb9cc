"""`sluice explain`: why a request was answered as it was."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from recorded import decided, event_at, report_tables, write_decisions, write_tables
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice_insight.reports.explained import last_throttled
from sluice_reading.holds_table import HoldsTable
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_reading.times import to_ms
from tests.builders import hold_of, member
from tests.commands import invoke

T = datetime(2026, 11, 2, 10, tzinfo=UTC)
MUTATIONS = QuotaKind.CONTROLLER_MUTATION_RATE
HOSTILE = "eve\x1b[2J\u202e"


def quota(value: float, entity: QuotaEntity | None = None) -> QuotaEntry:
    return QuotaEntry(entity or QuotaEntity(user="alice"), MUTATIONS, value)


def creates(at: datetime, user: str = "alice", partitions: int = 600) -> bytes:
    return event_at(at, user, "CreateTopics", mutations=[{"topic": "b", "partitions": partitions}], api_version=7)


@pytest.fixture
def tables(here: Path) -> Tables:
    """Alice's limit was lowered from 10 to 5; she empties her bucket, is refused, and others are not."""
    found = report_tables(here)
    table = QuotasAdmin(found.quotas)
    table.create([quota(10)], changed_by="carol", at=T - timedelta(days=2))
    lowered = [quota(5), quota(50, QuotaEntity(user=DEFAULT))]
    table.alter(lambda _: lowered, changed_by="bob", at=T - timedelta(days=1))
    events = [creates(T), creates(T + timedelta(seconds=1), partitions=1), event_at(T, "zoe", "Metadata")]
    write_decisions(found.decisions, decided([*events, creates(T, HOSTILE, 9)], Quotas(lowered, version=1)))
    return found


def throttled(tables: Tables, user: str, client_id: str | None, at: datetime, count: int) -> list[str]:
    """The ids of the last throttled requests."""
    return [row["decision_id"] for row in last_throttled(tables, user, client_id, at, count)]


def explain(*arguments: str, code: int = 0) -> str:
    ended = invoke("explain", *arguments, code=code)
    return ended.output if code == 0 else ended.error


@pytest.mark.usefixtures("tables")
def test_a_decision_is_explained_with_its_charge_and_the_change_behind_its_limit() -> None:
    assert explain("quota-requests-0-1") == (
        "quota-requests-0-1: refused for 1 min 48 s (controller_mutation_rate);"
        " the job: REJECT until 2026-11-02T10:01:49.000+00:00\n"
        "  request: CreateTopics of user 'alice' and client-id 'app' at 2026-11-02T10:00:01.000+00:00\n"
        "  decided: at 2026-11-02T10:00:01.000+00:00 under version 1 of the quotas,"
        " because of controller_mutation_rate\n"
        "  * controller_mutation_rate of user 'alice': over the limit, asks for 1 min 48 s, decides\n"
        "      charged 0, rate 19.4/s, limit 5/s (level: user), -540 tokens left\n"
        "      set by bob at 2026-11-01T10:00:00+00:00 with version 1: 10/s -> 5/s\n"
    )


@pytest.mark.usefixtures("tables")
def test_as_json_it_has_the_decision_and_the_quota_behind_each_charge() -> None:
    (charge,) = json.loads(explain("quota-requests-0-1", "--json"))["charges"]

    assert charge["decides"]
    assert charge["quota_set"] == {
        "entity": {"user": "alice"},
        "version": 1,
        "changed_by": "bob",
        "changed_at": "2026-11-01T10:00:00+00:00",
        "old": 10.0,
        "new": 5.0,
    }


@pytest.mark.usefixtures("tables")
def test_a_default_quota_is_named_by_its_level_and_a_hostile_name_can_not_control_the_terminal() -> None:
    answer = explain("quota-requests-0-3")

    assert "limit 50/s (level: default user)" in answer
    assert "set by bob at 2026-11-01T10:00:00+00:00 with version 1: no quota -> 50/s" in answer
    assert "\\x1b[2J\\u202e" in answer
    assert all(sign.isprintable() or sign == "\n" for sign in answer)
    assert "no quota counts" in explain("quota-requests-0-2")


def test_decisions_of_one_id_on_topics_that_were_made_again_are_told_apart(tables: Tables) -> None:
    """The newest comes first; a client's list has each of them once."""
    for days, topic_id in ((1, "second"), (2, "third")):
        events = [creates(T + timedelta(days=days))] * 2
        again = [each | {"source_topic_id": topic_id} for each in decided(events, Quotas([quota(5)]))]
        write_decisions(tables.decisions, again)

    ids = [line.strip() for line in explain("quota-requests-0-1").splitlines() if "topic of requests" in line]
    found = last_throttled(tables, "alice", "app", T + timedelta(days=3), 9)

    assert ids == ["topic of requests: the one with the id third", "topic of requests: the one with the id second"]
    assert explain("quota-requests-0-1").count("quota-requests-0-1: refused for 1 min ") == 3
    assert [row["source_topic_id"] for row in found if row["decision_id"] == "quota-requests-0-1"] == [
        "third",
        "second",
        None,
    ]


def test_a_client_has_its_last_throttled_requests_before_a_time(tables: Tables) -> None:
    late = T + timedelta(days=3)
    write_decisions(tables.decisions, decided([creates(T - timedelta(days=3), partitions=900)] * 2, Quotas([quota(5)])))

    newest = throttled(tables, "alice", "app", late, 5)

    assert newest == ["quota-requests-0-1", "quota-requests-0-1"]  # the second is of the other simulation
    assert throttled(tables, "alice", None, T, 5) == ["quota-requests-0-1"]
    assert throttled(tables, "alice", "other", late, 5) == []
    assert throttled(tables, "alice", "app", datetime.min.replace(tzinfo=UTC), 5) == []


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("client", [["--user", "alice"], []])
def test_without_an_id_the_last_throttled_request_of_the_client_or_of_anybody_is_explained(client: list[str]) -> None:
    assert explain(*client, "--at", "2026-11-02T11:00").startswith("quota-requests-0-1: refused for 1 min 48 s")


@pytest.mark.usefixtures("tables")
def test_an_unknown_decision_says_how_fresh_the_tables_are() -> None:
    assert "no rows; the audit query last wrote" in explain("quota-requests-0-99", code=1)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", ["foo-0-1", "it's-0-1"])
def test_a_decision_of_another_topic_is_no_question_of_freshness(name: str) -> None:
    said = explain(name, code=1)

    assert f"no decision {name}: this job's requests are in topic quota-requests" in said
    assert "no rows" not in said


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("arguments", [["quota-requests-0-99"], ["--user", "alice"]])
def test_a_clock_behind_the_jobs_is_said(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """The newest requests would seem not to be there, and the tables to be of the future."""

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Behind":
            return cls.fromtimestamp(datetime.now(tz).timestamp() - 7200, tz)

    for module in ("explain", "freshness"):
        monkeypatch.setattr(f"sluice_insight.commands.{module}.datetime", Behind)

    said = invoke("explain", *arguments, code=None).error

    assert "or more behind the job's, which last wrote at 20" in said
    assert " ago" not in said


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("kind", ["user", "client-id"])
def test_a_name_of_the_other_kind_is_found_and_said(kind: str) -> None:
    name, other = {"user": ("app", "client-id"), "client-id": ("alice", "user")}[kind]
    ended = invoke("explain", f"--{kind}", name, "--at", "2026-11-02T11:00")

    assert ended.output.startswith("quota-requests-0-1: refused for 1 min 48 s")
    assert f"sluice: no {kind} '{name}' was throttled; these are requests of {other} '{name}'" in ended.error


@pytest.mark.usefixtures("tables")
def test_a_client_without_throttled_requests_is_told_from_an_unknown_one() -> None:
    known, unknown = explain("--user", "zoe", code=1), explain("--user", "nobody", code=1)

    assert "sluice: user 'zoe' was not throttled; the last request is of 2026-11-02T10:00:00.000+00:00\n" in known
    limit = "controller_mutation_rate=50.0 of the default user-principal"
    assert f"sluice: no decision names user 'nobody'; its requests would get {limit}\n" in unknown


@pytest.mark.parametrize(
    "arguments",
    [["x-0-1", "--user", "alice"], ["x-0-1", "--at", "2026-01-01"], ["--tenant", "shop", "--user", "alice"]],
)
def test_an_id_and_a_client_exclude_each_other(arguments: list[str]) -> None:
    assert explain(*arguments, code=2) != ""


def test_a_decision_is_explained_without_the_quotas_if_they_can_not_be_read(here: Path) -> None:
    write_decisions(report_tables(here).decisions, decided([creates(T)], Quotas([quota(5)])))

    assert "the quotas can't be read: no quotas table" in explain("quota-requests-0-0")


def test_a_quotas_table_made_anew_since_names_no_author_of_an_earlier_limit(here: Path) -> None:
    """Its versions begin with 0 again, so one of them has the number that the decision names."""
    found = report_tables(here)
    write_decisions(found.decisions, decided([creates(T), creates(T, partitions=1)], Quotas([quota(5)], version=0)))
    QuotasAdmin(found.quotas).create([quota(5)], changed_by="mallory", at=T + timedelta(days=1))

    told = explain("quota-requests-0-1")

    assert "version 0 was made after the decision" in told
    assert "mallory" not in told


def test_a_wait_that_a_gateway_applied_in_line_counts_as_throttled(tmp_path: Path) -> None:
    held = [{"quota": "request_percentage", "entity": {"user": "zoe"}, "ms": 800}]
    tables = write_tables(tmp_path, [quota(5)], [event_at(T, "zoe", "Metadata", throttled_by=held)], T)

    assert throttled(tables, "zoe", "app", T, 1) == ["quota-requests-0-0"]


def test_a_client_that_an_operator_has_stopped_is_explained_with_who_did_it_and_why(here: Path) -> None:
    """A hold that had ended before the request, and one of another client, aren't told."""
    waits = [{"quota": "operator", "entity": {"user": "zoe", "client_id": "app"}, "ms": 10_000}]
    tables = write_tables(here, [quota(5)], [event_at(T, "zoe", "Produce", throttled_by=waits)], T)
    holds, now_ms = HoldsTable(tables.quotas), to_ms(T)
    holds.append(hold_of(Tags(client_id="app"), now_ms - 900_000, 600_000, reason="long ago"))
    holds.append(hold_of(Tags("zoe"), now_ms - 60_000, 600_000))
    holds.append(hold_of(Tags("eve"), now_ms - 60_000, 600_000, reason="so does she"))
    holds.append(hold_of(Tags("zoe", "app"), now_ms + 1, 600_000, reason="later"))

    stopped = [line for line in explain("--user", "zoe").splitlines() if line.startswith("  stopped: ")]

    assert stopped == ["  stopped: user 'zoe' until 2026-11-02 10:09:00, by carol: it floods"]


def test_what_a_proxy_refused_is_explained_as_such_and_usage_counts_it_as_throttled(here: Path) -> None:
    waits = [{"quota": "connection_rate", "entity": {"user": "mallory"}, "ms": 800}]
    refused = event_at(T, "mallory", "Refused", client_id="", requests=107, throttled_by=waits)
    write_tables(here, [quota(5)], [event_at(T, "mallory", "Connect"), refused], T)

    assert explain("--user", "mallory") == (
        "quota-requests-0-1: refused by its gateway (connection_rate); the job: ALLOW\n"
        "  request: Refused of user 'mallory' at 2026-11-02T10:00:00.000+00:00\n"
        "  decided: at 2026-11-02T10:00:00.000+00:00 under version 0 of the quotas\n"
        "  applied inline: 800 ms for connection_rate of user 'mallory'\n"
        "  charges: none; what is refused counts nowhere\n"
    )
    span = ["--from", "2026-11-02", "--to", "2026-11-03", "--format", "json"]
    used = json.loads(invoke("usage", "--by", "user", *span).output)
    assert (used["requests"], used["throttled_requests"], used["throttled_ms"]) == (108, 107, 800)


def test_the_last_request_that_waited_for_a_limit_of_a_tenant_is_explained(here: Path) -> None:
    """Whichever member sent it, and whether the decision asked for the wait or a gateway applied it."""
    shop = member(tenant="shop", user="shop-*")
    limits = [quota(5, QuotaEntity(tenant="shop")), quota(5)]
    later, held = T + timedelta(seconds=9), [{"quota": "stored_bytes", "entity": {"tenant": "bank"}, "ms": 800}]
    own = [creates(T, "shop-1"), creates(T + timedelta(seconds=1), "shop-2", partitions=1), creates(T, "alice")]
    events = [*own, event_at(later, "eve", "Metadata", throttled_by=held)]
    write_tables(here, [shop, *limits], events, T)

    answer = explain("--tenant", "shop")

    assert answer.startswith(
        "quota-requests-0-1: refused for 1 min 48 s (controller_mutation_rate); the job: REJECT until "
    )
    assert "of user 'shop-2' and client-id 'app'" in answer
    assert "  * controller_mutation_rate of tenant 'shop': over the limit, asks for 1 min 48 s, decides" in answer
    assert "limit 5/s (level: tenant)" in answer
    assert "      set by seed at 2026-11-02T10:00:00+00:00 with version 0: no quota -> 5/s\n" in answer
    assert "applied inline: 800 ms for stored_bytes of tenant 'bank'" in explain("--tenant", "bank")
    misspelt = explain("--tenant", "shpo", code=1)
    assert "sluice: no request waited for a limit of tenant 'shpo'\n" in misspelt
    assert "sluice: tenant 'shpo' has no members; did you mean 'shop'?" in misspelt


def test_a_decision_is_explained_with_how_far_limits_gave_way(here: Path) -> None:
    tables = report_tables(here)
    note = {"number": 7, "factor": 0.75, "reason": "broker-2: queue wait 34 ms"}
    refused = decided([creates(T), creates(T)], Quotas([quota(5)]))
    write_decisions(tables.decisions, [each | {"gateway": "broker-2", "elastic": note} for each in refused])

    assert (
        "  limits gave way: broker-2 was tightened: queue wait 34 ms; 75 % of its shares were admitted (state 7)\n"
    ) in explain("--user", "alice")


@pytest.mark.parametrize(
    ("answered", "felt"),
    [
        ({"ms": 2_943, "gateway": "broker-2"}, "throttled for 2.9 s by broker-2 (producer_byte_rate); the job: ALLOW"),
        ({"ms": 37_788, "gateway": None}, "throttled for 37.8 s by its gateway (producer_byte_rate); the job: ALLOW"),
        ({"ms": None, "gateway": "broker-2"}, "not throttled; the job: ALLOW"),
    ],
)
def test_it_begins_with_what_the_client_waited_and_units_are_those_of_usage(
    here: Path, answered: dict[str, Any], felt: str
) -> None:
    """A broker throttles by its share before the job has decided, so most decisions on what it throttled are ALLOW."""
    ms = answered["ms"]
    waits = [] if ms is None else [{"quota": "producer_byte_rate", "entity": {"client_id": "app"}, "ms": ms}]
    entity = QuotaEntity(client_id="app")
    limit = QuotaEntry(entity, QuotaKind.PRODUCER_BYTE_RATE, 1_048_576.0)
    touched = [{"topic": "orders", "partition": 0, "bytes": 5_242_880}]
    said: dict[str, Any] = {"gateway": answered["gateway"], "topic_partitions": touched, "throttled_by": waits}
    known = {name: value for name, value in said.items() if value is not None}
    write_tables(here, [limit], [event_at(T, "", "Produce", **known)], T)

    answer = explain("quota-requests-0-0")

    assert answer.startswith(f"quota-requests-0-0: {felt}")
    assert "  request: Produce of client-id 'app' at " in answer
    assert "      charged 5.24 MB, rate 524 kB/s, limit 1.05 MB/s (level: client-id)\n" in answer


@pytest.mark.parametrize("name", ["req-000000000001", "quota-requests-0-01"])
def test_what_is_no_decision_id_is_said_to_be_none(name: str) -> None:
    assert f"{name!r} is no decision id; expected topic-partition-offset" in explain(name, code=2)
