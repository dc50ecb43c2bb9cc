"""Stopping a query between two micro-batches: when the last one that was started counts as committed."""

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.streaming.errors import JobError
from sluice.streaming.queries.gated_query import GatedQuery


class Query(GatedQuery):
    """A query that isn't started."""

    def _rows(self) -> DataFrame:
        raise NotImplementedError

    def _write_batch(self, rows: DataFrame, batch_id: int) -> None:
        raise NotImplementedError


class Reported:
    """A streaming query whose last progress report is given."""

    def __init__(self, progress: dict[str, Any] | None) -> None:
        self.lastProgress = progress


@pytest.mark.parametrize(
    ("progress", "committed"),
    [
        (None, False),
        ({"batchId": 6, "durationMs": {"addBatch": 5, "triggerExecution": 9}}, False),
        ({"batchId": 7, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}, False),  # idle, before batch 7
        ({"batchId": 7, "durationMs": {"addBatch": 5, "triggerExecution": 9}}, True),
        ({"batchId": 8, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}, True),  # idle, after batch 7
    ],
)
def test_only_an_executed_micro_batch_is_committed(progress: dict[str, Any] | None, committed: bool) -> None:
    """An idle query reports the number of the micro-batch that comes next."""
    query = Query("enforce", "/nowhere", 0)
    query._last_begun = 7

    assert query._committed(cast(StreamingQuery, Reported(progress))) is committed


def test_a_micro_batch_waits_until_it_may_begin() -> None:
    answers, written, batch = iter([False, False, True]), list[int](), cast(DataFrame, MagicMock())

    class Waiting(Query):
        def _write_batch(self, rows: DataFrame, batch_id: int) -> None:
            assert rows is batch
            written.append(batch_id)

    query = Waiting("enforce", "/nowhere", 0, lambda: next(answers))
    query._begin_batch(batch, 7)

    assert written == [7]
    assert next(answers, None) is None


def test_a_query_that_is_stopped_while_it_waits_begins_nothing() -> None:
    query = Query("enforce", "/nowhere", 0, lambda: query._closed.set() or False)  # type: ignore[func-returns-value] # stops it

    with pytest.raises(JobError, match="stopping between two micro-batches"):
        query._begin_batch(cast(DataFrame, MagicMock()), 7)
    assert query._last_begun is None


class BrokenProgress:
    """A streaming query that runs until it is stopped, and whose progress can't be read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.isActive = True

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise OSError("one call to Java failed")

    def stop(self) -> None:
        self.isActive = False


def test_a_query_whose_progress_cant_be_read_is_stopped() -> None:
    running = BrokenProgress("enforce")
    query = Query("enforce", "/nowhere", 0)
    query._query, query._last_begun = cast(StreamingQuery, running), 7

    with pytest.raises(OSError, match="one call"):
        query.stop()

    assert not running.isActive


def test_no_micro_batch_begins_after_a_start_whose_answer_was_lost() -> None:
    """Spark may have started the query all the same."""
    query = Query("enforce", "/nowhere", 0)
    query.stop()

    with pytest.raises(JobError, match="stopping"):
        query._begin_batch(cast(DataFrame, MagicMock()), 7)


def test_a_start_stops_what_is_left_of_the_query_before() -> None:
    left, other = BrokenProgress("enforce"), BrokenProgress("audit")

    class Startable(Query):
        def _rows(self) -> DataFrame:
            rows = MagicMock()
            rows.sparkSession.streams.active = [left, other]
            return cast(DataFrame, rows)

    Startable("enforce", "/nowhere", 0).start()

    assert (left.isActive, other.isActive) == (False, True)
