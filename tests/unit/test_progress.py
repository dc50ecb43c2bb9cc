"""Summaries of micro-batches, and the status file."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from sluice.streaming.queries.supervision import QueryProgress, summarize
from sluice.streaming.runtime.health import write_status


def progress(latest: str | None = None, end: str | None = None) -> dict[str, Any]:
    return {
        "name": "enforce",
        "batchId": 4,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 10,
        "durationMs": {"triggerExecution": 120},
        "sources": [{"latestOffset": latest, "endOffset": end}],
    }


class Reports:
    """Spark's reports on a query."""

    def __init__(self) -> None:
        self.read = 0
        """Reports that were brought over from Java, but for the newest."""
        self._reports: list[dict[str, Any]] = []

    def add(self, batch_id: int, events: int) -> None:
        """The next report, a second after the one before."""
        timestamp = f"2026-01-01T00:00:{len(self._reports):02}.000Z"
        self._reports.append(progress() | {"batchId": batch_id, "numInputRows": events, "timestamp": timestamp})

    @property
    def lastProgress(self) -> Any:  # noqa: N802 # Spark's name
        return self._reports[-1] if self._reports else None

    def newest(self, _: StreamingQuery, batch_id: int) -> list[Any]:
        """As `java_bridge.newest_reports` reads them."""
        newer = [report for report in self._reports if report["batchId"] > batch_id]
        self.read += len(newer)
        return newer


@pytest.fixture
def reports() -> Reports:
    return Reports()


def ids(followed: QueryProgress) -> list[int]:
    return [batch["batch_id"] for batch in followed.new_batches()]


def followed(reports: Reports) -> QueryProgress:
    return QueryProgress(cast(StreamingQuery, reports), reports.newest)


def test_each_micro_batch_with_events_is_there_once(reports: Reports) -> None:
    """Also those that ended one after another between two polls."""
    query = followed(reports)
    assert ids(query) == []
    reports.add(0, events=10)
    assert ids(query) == [0]
    assert ids(query) == []
    for number in (1, 2, 3):
        reports.add(number, events=10)
    assert ids(query) == [1, 2, 3]


def test_the_first_micro_batch_after_an_idle_time_is_there(reports: Reports) -> None:
    """While it is idle, Spark reports the number that the next micro-batch has then."""
    query = followed(reports)
    reports.add(0, events=10)
    assert ids(query) == [0]
    for _ in range(2):
        reports.add(1, events=0)
        assert ids(query) == []

    reports.add(1, events=10)

    assert ids(query) == [1]


@pytest.mark.parametrize(("added", "found"), [([(0, 10), (1, 10), (2, 0)], [0, 1]), ([(57, 10)], [57])])
def test_a_micro_batch_before_an_idle_time_is_there_and_so_is_one_after_a_checkpoint(
    reports: Reports, added: list[tuple[int, int]], found: list[int]
) -> None:
    query = followed(reports)
    for number, events in added:
        reports.add(number, events=events)

    assert ids(query) == found


def test_no_report_is_read_twice(reports: Reports) -> None:
    """Micro-batches may be shorter than the time between two polls, and Spark has up to 100 reports."""
    query = followed(reports)
    for number in range(50):
        reports.add(number, events=10)
        ids(query)
    assert reports.read == 0

    for number in range(50, 53):
        reports.add(number, events=10)
    assert ids(query) == [50, 51, 52]
    assert reports.read == 3


def test_the_time_of_the_newest_report_is_known_of_idle_queries_too(reports: Reports) -> None:
    """It says that the query lives."""
    query = followed(reports)
    reports.add(0, events=10)
    ids(query)
    reports.add(1, events=0)
    ids(query)

    assert query.newest_at == "2026-01-01T00:00:01.000Z"


@pytest.mark.parametrize(
    ("latest", "end", "lag"),
    [
        ('{"requests": {"0": 50, "1": 7}}', '{"requests": {"0": 20, "1": 7}}', 30),
        ('{"requests": {"0": 50}}', '{"requests": {}}', 50),
        ("null", '{"requests": {"0": 20}}', 0),  # Spark's report on a batch that is repeated after a crash
        (None, None, 0),
    ],
)
def test_lag_is_what_lies_behind_the_end_of_the_batch(latest: str | None, end: str | None, lag: int) -> None:
    """In events, over all partitions; 0 if Spark doesn't report it."""
    assert summarize(progress(latest, end))["lag"] == lag


def test_a_status_file_is_replaced_whole(tmp_path: Path) -> None:
    """No draft is left in the folder."""
    write_status(tmp_path / "status.json", {"state": "running"})
    write_status(tmp_path / "status.json", {"state": "stopped"})

    assert json.loads((tmp_path / "status.json").read_text()) == {"state": "stopped"}
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def test_a_status_file_is_for_its_owner_alone(tmp_path: Path, usual_umask: None) -> None:  # noqa: ARG001 -- a state
    write_status(tmp_path / "status.json", {"state": "running"})

    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o600
