"""`sluice usage`: what clients, tenants and topics used, for chargeback."""

import csv
import io
import json
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorded import event_at, write_tables
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.tenants import Tenants
from sluice_insight.commands import freshness
from sluice_insight.commands import rows as rows_module
from sluice_insight.commands.rows import csv_safe, write_csv
from sluice_insight.texts import NO_TENANT
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.members import with_members
from tests.builders import quota
from tests.commands import invoke

pytestmark = pytest.mark.usefixtures("small_clients")

T = datetime(2026, 11, 2, 10, tzinfo=UTC)
SPAN = ("--from", "2026-11-02", "--to", "2026-11-03")
MS = 1_000_000
FORMULA = '=HYPERLINK("http://x")'


def parts(**sizes: int) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": 0, "bytes": size} for topic, size in sizes.items()]


@pytest.fixture
def tables(here: Path) -> Tables:
    """Alice has a quota on mutations; bob and the formula have none; none has one on bytes or request time."""
    quotas = [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user="alice")]
    create: dict[str, Any] = {"mutations": [{"topic": "new", "partitions": 300}], "api_version": 7}
    held = [{"quota": "request_percentage", "entity": {"user": "bob"}, "ms": ms} for ms in (300, 800)]
    events = [
        event_at(T, "alice", "Produce", topic_partitions=parts(orders=100, clicks=50), request_time_ns=2 * MS),
        event_at(T, "alice", "Fetch", client_id="other", bytes=70, network_time_ns=3 * MS),
        event_at(T, "alice", "Fetch", bytes=1000, withheld=True),
        event_at(T, "alice", "CreateTopics", **create),
        event_at(T, "alice", "CreateTopics", **create),  # refused
        event_at(T, "alice", "CreateTopics", validate_only=True, **create),
        event_at(
            T + timedelta(hours=1), "bob", "Produce", topic_partitions=parts(orders=7), requests=3, throttled_by=held
        ),
        event_at(T, "bob", "Fetch", topic_partitions=parts(orders=9000), cluster_action=True),
        event_at(T, FORMULA, "Metadata"),
        event_at(T + timedelta(days=1), "bob", "Produce", bytes=1),  # after the span
    ]
    return write_tables(here, quotas, events, T)


def usage(*arguments: str, code: int = 0) -> str:
    ended = invoke("usage", *SPAN, *arguments, code=code)
    return ended.output if code == 0 else ended.error


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in usage("--format", "json", *arguments).splitlines()]


@pytest.mark.usefixtures("tables")
def test_users_without_any_quota_have_their_usage_too() -> None:
    formula, alice, bob = rows("--by", "user")

    day = {"start": "2026-11-02T00:00:00Z"}
    assert formula["requests"] == 1
    refused_ms = alice.pop("throttled_ms")
    assert refused_ms > 0
    assert alice == day | {
        "user": "alice", "requests": 6, "bytes_in": 150, "bytes_out": 70, "request_time_ms": 5.0, "mutations": 300,
        "throttled_requests": 1,
    }  # fmt: skip
    assert bob == day | {
        "user": "bob", "requests": 4, "bytes_in": 7, "bytes_out": 0, "request_time_ms": 0.0, "mutations": 0,
        "throttled_requests": 3, "throttled_ms": 800,
    }  # fmt: skip


def test_an_event_with_several_lists_counts_once(here: Path) -> None:
    """Lists of other lengths don't multiply each other, nor what belongs to the whole event."""
    waits = [{"quota": "request_percentage", "entity": {"user": "carol"}, "ms": ms} for ms in (40, 900, 70, 20)]
    mutations = [{"topic": "new", "partitions": 5}, {"topic": "orders", "partitions": 6}]
    lists: dict[str, Any] = {"topic_partitions": parts(orders=1, clicks=2, views=4), "mutations": mutations}
    carol = event_at(T, "carol", "Produce", requests=5, request_time_ns=MS, throttled_by=waits, **lists)
    write_tables(here, [], [carol, event_at(T, "carol", "Produce", bytes=100)], T)

    (used,) = rows("--by", "user")
    topics = {row["topic"]: (row["bytes_in"], row["mutations"]) for row in rows("--by", "topic")}

    assert used == {
        "start": "2026-11-02T00:00:00Z", "user": "carol", "requests": 6, "bytes_in": 107, "bytes_out": 0,
        "request_time_ms": 1.0, "mutations": 11, "throttled_requests": 5, "throttled_ms": 900,
    }  # fmt: skip
    assert topics == {"orders": (1, 6), "clicks": (2, 0), "views": (4, 0), "new": (0, 5)}


def test_decisions_that_name_no_topic_are_the_reason_why_topics_have_no_rows(here: Path) -> None:
    """A broker's events don't; the age of the table would be a wrong one."""
    write_tables(here, [], [event_at(T, "carol", "Produce", bytes=70)], T)

    said = invoke("usage", "--by", "topic", *SPAN).error

    assert "no decision of this span names a topic: brokers don't" in said
    assert "the audit query last wrote" not in said


def test_bytes_that_another_event_has_for_the_client_are_the_topics_alone(here: Path) -> None:
    of_topics = event_at(T, "carol", "Produce", bytes=0, topic_partitions=parts(orders=70))
    write_tables(here, [], [event_at(T, "carol", "Produce", bytes=70), of_topics], T)

    assert [row["bytes_in"] for row in rows("--by", "user")] == [70]
    assert [row["bytes_in"] for row in rows("--by", "topic")] == [70]


def test_rows_are_of_what_the_quotas_in_force_are_set_on(here: Path) -> None:
    """Where nobody logs in, a sum by user is one row without a name."""
    quotas = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, client_id="app")]
    write_tables(here, quotas, [event_at(T, "", "Metadata"), event_at(T, "", "Metadata", client_id="b")], T)

    assert [(row["user"], row["client_id"]) for row in rows()] == [("", "app"), ("", "b")]
    said = invoke("usage", *SPAN, "--by", "user").error
    assert "sluice: no request has a user; --by client has the client-ids" in said


@pytest.mark.usefixtures("tables")
def test_usage_by_client_and_hour_is_in_order_of_time() -> None:
    found = rows("--by", "client", "--per", "hour")

    assert [(row["start"][11:13], row["user"], row["client_id"], row["requests"]) for row in found] == [
        ("10", FORMULA, "app", 1),
        ("10", "alice", "app", 5),
        ("10", "alice", "other", 1),
        ("10", "bob", "app", 1),
        ("11", "bob", "app", 3),
    ]


@pytest.mark.usefixtures("tables")
def test_topics_have_their_bytes_and_mutations_and_the_tenant_of_the_most_specific_member_the_usage(
    tmp_path: Path,
) -> None:
    topics = {row.pop("topic"): (row["bytes_in"], row["bytes_out"], row["mutations"]) for row in rows("--by", "topic")}
    file = tmp_path / "tenants.yaml"
    file.write_text("[{tenant: shop, users: [al*], client_ids: [app]}, {tenant: rest, users: [alice, bob]}]")
    tenants = {row["tenant"]: row["requests"] for row in rows("--by", "tenant", "--tenants", str(file))}

    assert topics == {"orders": (107, 0, 0), "clicks": (50, 0, 0), "new": (0, 0, 300)}
    assert tenants == {"shop": 5, "rest": 5, NO_TENANT: 1}


@pytest.mark.usefixtures("tables")
def test_a_table_csv_and_parquet_have_the_same_rows() -> None:
    """Parquet has typed columns, a table amounts in units that people read, and in CSV no name can be a formula."""
    header, *lines = usage().splitlines()
    first, *_ = csv.DictReader(io.StringIO(usage("--format", "csv")))
    table = pq.read_table(io.BytesIO(usage("--format", "parquet").encode(errors="surrogateescape")))

    assert header.split()[:3] == ["start", "user", "requests"]
    assert header.split()[4:7] == ["bytes_out", "request_time", "mutations"]
    assert [line.split()[2] for line in lines] == [FORMULA, "alice", "bob"]
    assert re.split(r" {2,}", lines[1])[:6] == ["2026-11-02 00:00", "alice", "6", "150 B", "70 B", "5 ms"]
    assert first["user"] == "'" + FORMULA
    assert table.schema.field("start").type == pa.timestamp("ms", "UTC")
    assert table.schema.field("request_time_ms").type == pa.float64()
    assert table.column("bytes_in").to_pylist() == [0, 150, 7]


class Terminal(io.StringIO):
    """A standard output that a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["bob", "payments-service-of-the-north", "n" * 200])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_fits_the_terminal_and_lacks_columns_rather_than_the_ends_of_names(
    here: Path, monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    """The columns of the amount that was asked for are kept longest."""
    write_tables(here, [], [event_at(T, name, "Produce", client_id=name, bytes=70)], T)
    monkeypatch.setattr(rows_module, "terminal_width", lambda: width)

    for arguments in (("--by", "user"), ("--by", "client"), ("--by", "client", "--sort", "throttled")):
        heading, row = usage(*arguments).splitlines()

        assert max(map(len, (heading, row))) <= width
        assert ("…" in row) == (len(name) > 60 or (len(name) > 20 and width == 80 and "client" in arguments))
        assert ("throttled  " in f"{heading}  ") >= ("--sort" in arguments)
        assert ("share" in heading) == ("--sort" in arguments)


@pytest.mark.parametrize(
    ("out", "name", "written"),
    [
        # Python before 3.13 writes a lone carriage return as it is, which a spreadsheet takes for the end of a row.
        (io.StringIO(), "eve\r=cmd", '"eve\r=cmd","1"'),
        (io.StringIO(), "eve\x1b[2J\u202e", "eve\x1b[2J\u202e,1"),
        (Terminal(), "eve\x1b[2J\u202e", "eve\\x1b[2J\\u202e,1"),
    ],
)
def test_in_csv_a_name_can_not_begin_a_row_nor_control_a_terminal(out: io.StringIO, name: str, written: str) -> None:
    write_csv(("user", "requests"), [(name, 1), ("bob", 2)], out)

    assert out.getvalue() == f"user,requests\n{written}\nbob,2\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("  @x", "'  @x"),
        ("a-b", "a-b"),
        ("a;b", "a;b"),
        ("a;\t;-1", "a;'\t;'-1"),
    ],
)
def test_in_csv_no_part_of_a_name_can_be_a_formula(name: str, shown: str) -> None:
    """A spreadsheet takes a semicolon for the end of a cell where commas are decimal."""
    assert csv_safe(name) == shown


@pytest.mark.usefixtures("tables")
def test_who_used_most_is_first_with_a_share_of_the_total_of_each_period() -> None:
    """A share of nothing used is none."""
    shares = {"bytes": (220 / 227, 7 / 227), "requests": (6 / 11, 4 / 11), "throttled_requests": (3 / 4, 1 / 4)}
    for amount, (first, second) in shares.items():
        found = rows("--sort", amount, "--top", "2")
        assert [row["share"] for row in found] == pytest.approx([first, second])
    by_hour = rows("--sort", "requests", "--top", "1", "--per", "hour")
    (whole,) = rows("--sort", "requests", "--top", "1", "--per", "span")

    assert [row["user"] for row in rows("--top", "1")] == ["alice"], "by bytes, unless something else is asked"
    assert [row["user"] for row in rows("--sort", "throttled_requests")] == ["bob", "alice", FORMULA]
    assert [(row["start"][11:13], row["user"], row["share"]) for row in by_hour] == [
        ("10", "alice", 0.75),
        ("11", "bob", 1.0),
    ]
    assert (whole["start"], whole["user"], whole["requests"]) == ("2026-11-02T00:00:00Z", "alice", 6)
    assert [row["share"] for row in rows("--sort", "mutations", "--per", "hour")] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("by", "sort"), [("user", "size"), ("topic", "requests")])
def test_an_amount_that_rows_dont_have_is_refused(by: str, sort: str) -> None:
    said = invoke("usage", "--by", by, "--sort", sort, code=2).error

    assert f"--sort is '{sort}'; expected one of " in said
    assert "bytes" in said


def test_a_long_name_makes_no_wide_table_and_is_whole_in_csv(here: Path) -> None:
    """Clients choose their client-ids: one of 32 KB would pad every row of a report."""
    long = "x" * 30_000
    write_tables(here, [], [event_at(T, long, "Metadata"), event_at(T, "bob", "Metadata")], T)

    assert max(map(len, usage().splitlines())) < 200
    assert long in usage("--format", "csv")
    assert rows()[1]["user"] == long


@pytest.mark.usefixtures("tables")
def test_figures_that_end_before_the_span_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a job that is dead would say that the clients have stopped."""
    monkeypatch.setattr(freshness, "_FRESH", timedelta(0))

    for command in (("usage", "--from", "2020-01-01"), ("explain",)):
        said = invoke(*command, code=None).error
        assert re.search("nothing was written since 20.*, or this machine's clock is ahead of the job's", said)


@pytest.mark.usefixtures("tables")
def test_a_span_without_rows_says_how_fresh_the_tables_are() -> None:
    said = invoke("usage", "--from", "2025-01-01", "--to", "2025-01-02").error

    assert "no rows; the audit query last wrote" in said


def test_long_names_of_clients_dont_fill_memory() -> None:
    """A client that chooses client-ids can send any number of them, of 32 KB each."""
    tenants = Tenants([QuotaEntity(tenant="a", client_id="a*")])

    tracemalloc.start()
    try:
        found = {tenants.of("", f"a{number:030000d}") for number in range(300)}
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == {"a"}
    assert kept_bytes < 1_000_000


def test_tenants_are_those_of_the_quotas_table(tables: Tables) -> None:
    assert "there is no tenant" in invoke("usage", "--by", "tenant", code=2).error
    table = QuotasAdmin(tables.quotas)
    members = [QuotaEntity(tenant="shop", user="al*", client_id="app"), QuotaEntity(tenant="rest", user="alice")]
    table.alter(lambda entries: with_members(entries, members), "carol", datetime.now(UTC))

    found = {row["tenant"]: row["requests"] for row in rows("--by", "tenant")}

    assert found.keys() == {"shop", "rest", NO_TENANT}
    assert "expected --by tenant" in invoke("usage", "--by", "user", "--tenants", "x", code=2).error
