"""Queries over the tables without Java: their errors, and every query in the pages."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from recorded import DECISIONS, decided, event_at, without, write_decisions
from sluice.configs.settings import load_settings
from sluice.jvm.jars import REPOSITORY
from sluice.sinks.tables.quota_metrics import quota_metrics_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice_reading.errors import QueryError
from sluice_reading.query import Tables, last_written
from tests.builders import Json, quota
from tests.commands import invoke

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
    shadow = metrics | {"mode": "shadow", "throttled_count": 0, "violated_count": 2}
    write_deltalake(
        SETTINGS.delta.quota_metrics,
        pa.Table.from_pylist([metrics, by_topic, shadow], schema=quota_metrics_table("unused").columns),
    )
    unreadable = {"topic": ["quota-decisions"], "field": ["value"], "reason": ["is null"], "read_at": [now]}
    write_deltalake(SETTINGS.delta.unreadable, pa.table(unreadable))
    QuotasTable(SETTINGS.delta.quotas).create(QUOTAS, changed_by="test", at=now)
    return here


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

    said = invoke("explain", "quota-requests-0-1", code=1).error.splitlines()[-1]

    assert said == "sluice: no rows; the audit query has written nothing yet"


@pytest.mark.parametrize("command", ["explain --user alice", "usage", "slo", "advise", "whatif --quotas quotas.yaml"])
def test_a_table_that_is_not_there_yet_is_one_line_that_says_what_makes_it(command: str, here: Path) -> None:
    (here / "settings.yaml").write_text(f"delta: {{decisions: {here}/decisions}}\n")
    (here / "quotas.yaml").write_text("- {entity: {user: null}, quotas: {producer_byte_rate: 1000}}\n")

    ended = invoke(*command.split(), "--config", "settings.yaml", code=1)

    assert ended.error.splitlines()[-1] == (
        f"sluice: error: nothing is recorded yet: there is no table for decisions ({here}/decisions); a running job"
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
def test_a_query_that_needs_too_much_memory_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_reading.query.MOST_MEMORY", "4M")
    tables = Tables(SETTINGS.delta.decisions, SETTINGS.delta.quotas, {})

    with pytest.raises(QueryError, match="needs more than 4M of memory; ask for fewer decisions at once"):
        [*tables.rows("SELECT array_agg(n) FROM (SELECT unnest(range(0, 1000000)) AS n FROM decisions)")]


_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SQL = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = [
    (page.name, query)
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    for query in _SQL.findall(page.read_text())
]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("page", "query"), _PRINTED)
def test_each_query_in_the_pages_has_rows_by_the_function_that_the_page_of_metrics_shows(page: str, query: str) -> None:
    assert page  # names the test
    (program,) = _PYTHON.findall((REPOSITORY / "docs/reference.md").read_text())
    names: Json = {}
    exec(program, names)  # noqa: S102 - the page's own

    assert len(names["query"](query)) > 0


def test_the_pages_have_queries() -> None:
    assert [page for page, _ in _PRINTED].count("reference.md") == 2
    assert len(_PRINTED) >= 5
