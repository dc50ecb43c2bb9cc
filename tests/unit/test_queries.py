"""`sluice sql`: queries over the tables without Java, and every query in the pages, as printed."""

import csv
import io
import json
import re
import shlex
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.configs.settings import load_settings
from sluice.sinks.tables.query import last_written
from sluice.sinks.tables.quota_metrics import quota_metrics_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from tests.builders import Json, quota
from tests.commands import invoke
from tests.recorded import DECISIONS, decided, event_at, without, write_decisions

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = load_settings(environment={})

QUOTAS = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice"),
    quota(QuotaKind.REQUEST_PERCENTAGE, 50.0, user="alice"),
    quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1000.0, topic="orders"),
    quota(QuotaKind.REQUEST_PERCENTAGE, 1.0, user="greedy"),
]
HELD = [{"quota": "request_percentage", "entity": {"user": "greedy"}, "ms": 800}]
PARTITIONS = [{"topic": "orders", "partition": 0, "bytes": 100}, {"topic": "clicks", "partition": 1, "bytes": 50}]


@pytest.fixture
def now() -> datetime:
    """Taken for each test: a query about the last minutes must find the rows, however long the tests before it took."""
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def tables(now: datetime, here: Path) -> Path:
    """Tables at the default paths of a folder, which is the current one: a few decisions, metrics and quotas."""
    events = [
        event_at(now, "alice", "Produce", topic_partitions=PARTITIONS, request_time_ns=20_000_000),
        event_at(now, "bob", "Produce", topic_partitions=PARTITIONS, request_time_ns=10_000_000),
        event_at(now, "bob", "Fetch", topic_partitions=PARTITIONS),
        event_at(now, "bob", "Metadata"),
        event_at(now, "greedy", "Metadata", request_time_ns=1_000_000_000, throttled_by=HELD),
    ]
    write_decisions(SETTINGS.delta.decisions, decided(events, Quotas(QUOTAS)))
    metrics: Json = {"quota": "producer_byte_rate", "window_start": now, "window_s": 60, "date": now.date()}
    metrics |= {"user": "alice", "rate": 500.0, "limit": 1000.0, "value": 100.0, "throttled_count": 2}
    by_topic = metrics | {"quota": "producer.byte.rate", "user": None, "topic": "orders", "partition": 0, "limit": None}
    write_deltalake(
        SETTINGS.delta.quota_metrics,
        pa.Table.from_pylist([metrics, by_topic], schema=quota_metrics_table("unused").columns),
    )
    unreadable = {"topic": ["quota-decisions"], "field": ["value"], "reason": ["is null"], "read_at": [now]}
    write_deltalake(SETTINGS.delta.unreadable, pa.table(unreadable))
    QuotasTable(SETTINGS.delta.quotas).create(QUOTAS, changed_by="test", at=now)
    return here


def sql(*arguments: str) -> str:
    return invoke("sql", *arguments).output


def rows(query: str) -> list[Json]:
    return [json.loads(line) for line in sql(query, "--format", "json").splitlines()]


def refused(*arguments: str, code: int = 2) -> str:
    """The one line of an error, which ends the command with exit 2, or 1 where the query is right."""
    ended = invoke("sql", *arguments, code=code)
    said, error = ended.error.splitlines()
    assert said.startswith("sluice: settings: ")
    assert ended.output == ""
    return error


@pytest.mark.usefixtures("tables")
def test_the_tables_are_known_by_the_names_of_their_settings() -> None:
    assert rows("SELECT count(*) AS n FROM decisions") == [{"n": 5}]
    assert rows("SELECT quota, rate FROM quota_metrics WHERE user = 'alice';") == [
        {"quota": "producer_byte_rate", "rate": 500.0}
    ]
    assert [row["value"] for row in rows('SELECT "value" FROM quotas ORDER BY 1')] == [1.0, 50.0, 1000.0, 1000.0]


@pytest.mark.usefixtures("tables")
def test_usage_counts_each_amount_once_also_for_clients_without_a_quota() -> None:
    """Two counters were charged for alice's bytes, and none of its own for bob's."""
    used = rows(
        "SELECT user, client_id, count(*) AS requests, sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out,"
        " sum(request_points) AS points, sum(mutations) AS mutations FROM usage GROUP BY user, client_id ORDER BY user"
    )

    assert used == [
        dict(user="alice", client_id="app", requests=1, bytes_in=150, bytes_out=None, points=2, mutations=None),
        dict(user="bob", client_id="app", requests=3, bytes_in=150, bytes_out=150, points=1, mutations=None),
        dict(user="greedy", client_id="app", requests=1, bytes_in=None, bytes_out=None, points=100, mutations=None),
    ]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("output_format", ["table", "csv", "json"])
def test_an_answer_without_rows_says_when_the_audit_query_last_wrote(output_format: str) -> None:
    ended = invoke("sql", "SELECT * FROM usage WHERE user = 'x'", "--format", output_format)

    said = ended.error.splitlines()[1]
    assert re.fullmatch(
        r"sluice: no rows; the audit query last wrote \d+ s ago, at \S+: newer decisions are not in the tables yet",
        said,
    )
    assert "no rows" not in ended.output


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("query", ["SELECT * FROM quotas LIMIT 0", "SELECT 1 FROM decisions", "SELECT 1 LIMIT 0"])
def test_an_answer_with_rows_or_about_no_table_of_the_audit_query_says_nothing(query: str) -> None:
    assert len(invoke("sql", query).error.splitlines()) == 1  # which settings


def test_maintenance_adds_no_rows(tmp_path: Path) -> None:
    path = str(tmp_path)
    for user in ("alice", "bob"):
        write_deltalake(path, pa.table({"user": [user]}), mode="append")
    written_at = last_written([path], {})

    DeltaTable(path).optimize.compact()

    assert [commit["operation"] for commit in DeltaTable(path).history()] == ["OPTIMIZE", "WRITE", "WRITE"]
    assert last_written([path], {}) == written_at


@pytest.mark.usefixtures("here")
def test_an_empty_table_was_never_written() -> None:
    DeltaTable.create(SETTINGS.delta.decisions, DECISIONS)

    said = invoke("sql", "SELECT * FROM decisions").error.splitlines()[1]

    assert said == "sluice: no rows; the audit query has written nothing yet"


CREATE: Json = {"mutations": [{"topic": "t", "partitions": 3}, {"topic": "u", "partitions": 2}], "api_version": 7}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("quotas", "said", "query", "used"),
    [
        (  # what was delivered, and every request of a sum; heartbeats are no use
            QUOTAS,
            [
                ("Fetch", {"topic_partitions": PARTITIONS}),
                ("Fetch", {"topic_partitions": PARTITIONS, "withheld": True}),
                ("Fetch", {"bytes": 70, "requests": 2}),
                ("Fetch", {"bytes": 80, "requests": 3, "withheld": True}),
                ("Produce", {"bytes": 90, "requests": 4}),
                ("GatewayHeartbeat", {"heartbeat": {"staleness_ms": 1, "counters": 1}}),
            ],
            "SELECT api, requests, bytes_in, bytes_out FROM usage ORDER BY requests, bytes_out, bytes_in",
            [
                dict(api="Fetch", requests=1, bytes_in=None, bytes_out=0),
                dict(api="Fetch", requests=1, bytes_in=None, bytes_out=150),
                dict(api="Fetch", requests=2, bytes_in=None, bytes_out=70),
                dict(api="Fetch", requests=3, bytes_in=None, bytes_out=0),
                dict(api="Produce", requests=4, bytes_in=90, bytes_out=None),
            ],
        ),
        (  # without any quota nothing is charged: what the event said counts, but not what was only validated
            [],
            [
                ("Metadata", {"request_time_ns": 10_000_000, "network_time_ns": 5_000_000}),
                ("CreateTopics", CREATE),
                ("CreateTopics", CREATE | {"validate_only": True}),
                ("DeleteTopics", {"mutations_charged": 4}),
            ],
            "SELECT api, request_points AS points, mutations FROM usage ORDER BY api, mutations DESC NULLS LAST",
            [
                dict(api="CreateTopics", points=None, mutations=5),
                dict(api="CreateTopics", points=None, mutations=None),
                dict(api="DeleteTopics", points=None, mutations=4),
                dict(api="Metadata", points=1.5, mutations=None),
            ],
        ),
    ],
)
def test_usage_counts_what_was_used(
    now: datetime, quotas: list[QuotaEntry], said: list[tuple[str, Json]], query: str, used: list[Json]
) -> None:
    shutil.rmtree(SETTINGS.delta.decisions)
    events = [event_at(now, "carol", api, **amounts) for api, amounts in said]
    write_decisions(SETTINGS.delta.decisions, decided(events, Quotas(quotas)))

    assert rows(query) == used


@pytest.mark.usefixtures("tables")
def test_in_csv_a_name_can_not_be_a_formula() -> None:
    query = "SELECT DISTINCT '=1+1' AS name, -1.5 AS n FROM decisions"

    assert sql(query, "--format", "csv") == "name,n\n'=1+1,-1.5\n"


@pytest.mark.usefixtures("tables")
def test_rows_are_printed_as_a_table_csv_or_json() -> None:
    query = "SELECT user, 1.5 AS n, null AS none, [1, 2] AS list FROM decisions WHERE user = 'alice'"

    assert sql(query) == "user     n  none  list\nalice  1.5        [1,2]\n1 row\n"
    assert list(csv.reader(io.StringIO(sql(query, "--format", "csv")))) == [
        ["user", "n", "none", "list"],
        ["alice", "1.5", "", "[1,2]"],
    ]
    assert rows(query) == [{"user": "alice", "n": 1.5, "none": None, "list": [1, 2]}]


@pytest.mark.usefixtures("tables")
def test_times_days_bytes_and_numbers_that_json_lacks_can_be_printed(now: datetime) -> None:
    row, _ = rows("SELECT window_start, date, now() AS now, X'ff' AS bytes, double 'NaN' AS nan FROM quota_metrics")

    assert datetime.fromisoformat(row["window_start"]) == now
    assert date.fromisoformat(row["date"]) == now.date()
    assert datetime.fromisoformat(row["now"]).replace(tzinfo=UTC) - now < timedelta(hours=1)
    assert (row["bytes"], row["nan"]) == ("/w==", None)


@pytest.mark.usefixtures("tables")
def test_a_terminal_executes_nothing_that_a_name_says() -> None:
    assert "\x1b" not in sql("SELECT chr(27) AS escape FROM decisions")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "the query fails"),
        ("", "the query fails"),
        ("SELECT nope FROM decisions", "nope"),
        ("SELECT 1; SELECT 2", "the query fails"),
        ("SELECT * FROM nowhere", "; the tables are decisions, quota_metrics, "),
        ("SELECT * FROM decision d WHERE 'table x' = 'not found'", "; the tables are decisions, "),
        ("SELECT 1/0", "the query fails"),
        ("SELECT CAST('x' AS INT) FROM decisions", "the query fails"),
        ("DROP TABLE decisions", "the query fails"),
        ("INSERT INTO quotas SELECT * FROM quotas", "the query fails"),
        ("DELETE FROM quotas", "the query fails"),
        ("COPY quotas TO 'quotas.csv'", "the query fails"),
        ("COPY (SELECT * FROM quotas) TO 'quotas.csv'", "the query fails"),
        ("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'", "the query fails"),
        ("EXPLAIN ANALYZE INSERT INTO quotas SELECT * FROM quotas", "the query fails"),
    ],
)
def test_what_is_no_query_is_one_line_and_changes_nothing(tables: Path, query: str, said: str) -> None:
    before = sorted(tables.rglob("*"))

    assert said in refused(query)

    assert sorted(tables.rglob("*")) == before
    assert DeltaTable(SETTINGS.delta.quotas).version() == 0


@pytest.mark.parametrize(
    ("command", "table"),
    [
        (["sql", "SELECT * FROM dead_letters"], "dead_letters"),
        (["explain", "--user", "alice"], "decisions"),
        (["usage"], "decisions"),
        (["slo"], "decisions"),
    ],
)
def test_a_table_that_is_not_there_yet_is_one_line_that_says_what_makes_it(
    command: list[str], table: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text(f"delta: {{{table}: {tmp_path}/{table}}}\n")

    ended = invoke(*command, "--config", tmp_path / "settings.yaml", code=1)

    assert ended.error_line == (
        f"sluice: error: nothing is recorded yet: there is no table for {table} ({tmp_path}/{table}); a running job"
        " writes its first rows some 10 s after the first decision: start it, or name the settings of the one you mean"
        " (--config)"
    )


@pytest.mark.parametrize("lacking", ["amounts", "throttled_by", "amounts.withheld"])
@pytest.mark.parametrize(
    "command",
    [["usage"], ["slo"], ["explain", "--user", "alice"], ["explain", "quota-requests-0-1"], ["advise"]],
    ids=" ".join,
)
def test_a_table_of_an_earlier_release_is_one_line_that_says_what_to_do(
    command: list[str], lacking: str, tmp_path: Path
) -> None:
    """Each command names a column that it needs."""
    write_deltalake(str(tmp_path / "decisions"), pa.Table.from_pylist([], schema=without(DECISIONS, lacking)))
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"delta: {{decisions: {tmp_path}/decisions, quotas: {tmp_path}/quotas}}\n")

    ended = invoke(*command, "--config", settings, code=None)

    if (" ".join(command), lacking) in WITHOUT:
        assert "no rows" in ended.error or ended.code == 0
        return
    assert ended.code == 2
    assert ended.error.splitlines()[-1] == (
        f"sluice: error: the table {tmp_path}/decisions is of an earlier release and has no column {lacking}; the job"
        " of this release adds it when it starts"
    )


WITHOUT = [
    *(("slo", lacking) for lacking in ("amounts", "amounts.withheld")),
    *(("explain --user alice", lacking) for lacking in ("amounts", "amounts.withheld")),
    *((command, "amounts.withheld") for command in ("explain quota-requests-0-1", "advise")),
]
"""Commands that don't need some columns."""


@pytest.mark.usefixtures("tables")
def test_a_table_cuts_long_texts_and_csv_has_them_whole() -> None:
    query = "SELECT user, repeat('x', 30000) AS long FROM decisions"

    assert max(map(len, sql(query).splitlines())) < 80
    assert "x" * 30_000 in sql(query, "--format", "csv")


@pytest.mark.usefixtures("tables")
def test_a_query_that_needs_too_much_memory_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.sinks.tables.query.MOST_MEMORY", "4M")

    error = refused("SELECT array_agg(n) FROM (SELECT unnest(range(0, 1000000)) AS n FROM decisions)")

    assert error == (
        "sluice: error: the query needs more than 4M of memory; ask for a shorter time (WHERE timestamp_ms >= ...) or"
        " fewer columns, or for sums by `sluice usage`"
    )


@pytest.mark.usefixtures("tables")
def test_columns_can_be_described() -> None:
    assert {"decision_id", "charges"} <= {row["column_name"] for row in rows("DESCRIBE decisions")}


def test_a_damaged_table_is_one_line(tables: Path) -> None:
    for commit in (tables / SETTINGS.delta.decisions / "_delta_log").iterdir():
        commit.write_text("no commit")

    assert "decisions can't be read" in refused("SELECT * FROM decisions", code=1)


def test_a_table_whose_file_is_gone_is_one_line(tables: Path) -> None:
    for file in (tables / SETTINGS.delta.decisions).rglob("*.parquet"):
        file.unlink()

    assert "are in the log of" in refused("SELECT * FROM decisions", "--format", "json", code=1)


_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"""^\$ (sluice sql "(?:[^"\\]|\\.)*"[^\n]*)""", re.MULTILINE | re.DOTALL)
_PRINTED = [
    (page.name, command)
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    for block in _CONSOLE.findall(page.read_text())
    for command in _COMMAND.findall(block)
]
"""Each query, without what the page shows as its answer."""


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("page", "command"), _PRINTED)
def test_each_query_in_the_pages_works_as_printed(page: str, command: str) -> None:
    assert page  # names the test
    _, _, *arguments = shlex.split(command)

    assert not sql(*arguments).endswith("\n0 rows\n")


@pytest.mark.usefixtures("tables")
def test_the_page_about_metrics_has_queries_that_work() -> None:
    """The Python too; and no SQL that isn't run here."""
    text = (REPOSITORY / "docs/metrics.md").read_text()
    assert "```sql" not in text
    assert [page for page, _ in _PRINTED].count("metrics.md") >= 3
    (program,) = _PYTHON.findall(text)

    names: Json = {}
    exec(program, names)  # noqa: S102 - the page's own
    assert names["rows"]["used"].tolist() == [0.5]
