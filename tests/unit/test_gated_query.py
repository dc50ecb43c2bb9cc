"""Stopping a query between two micro-batches: when the last one that was started counts as committed."""

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame

from sluice.streaming.errors import JobError
from sluice.streaming.queries.gated_query import GatedQuery


class Running:
    """A streaming query that runs until it is stopped, with these reports of its progress."""

    def __init__(self, name: str, *reports: dict[str, Any] | None) -> None:
        self.name = name
        self.isActive = True
        self.reports = iter(reports)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        for report in self.reports:
            return report
        raise OSError("one call to Java failed")

    def stop(self) -> None:
        self.isActive = False


class Query(GatedQuery):
    """A query that Spark starts beside those that are `left`."""

    def __init__(
        self, *left: Running, started: Running | None = None, may_begin: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__("enforce", "/nowhere", 0, may_begin)
        self.batch, self.written = cast(DataFrame, MagicMock()), list[int]()
        self._plan = MagicMock()
        self._plan.sparkSession.streams.active = left
        self.stream = self._plan.writeStream.queryName.return_value
        self.started = self.stream.foreachBatch.return_value.option.return_value.trigger.return_value.start
        self.started.return_value = started or Running("enforce")

    def _rows(self) -> DataFrame:
        return cast(DataFrame, self._plan)

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        assert rows is self.batch
        self.written.append(batch_id)

    def begin(self, batch_id: int) -> None:
        """Spark begins a micro-batch."""
        (begin,) = self.stream.foreachBatch.call_args.args
        begin(self.batch, batch_id)


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
    running = Running("enforce", progress, {"batchId": 7, "durationMs": {"addBatch": 5}})
    query = Query(started=running)
    query.start()
    query.begin(7)

    query.stop()
    assert len(list(running.reports)) == committed
    assert not running.isActive


def test_a_micro_batch_waits_until_it_may_begin() -> None:
    answers = iter([False, False, True])
    query = Query(may_begin=lambda: next(answers))
    query.start()
    query.begin(7)

    assert query.written == [7]
    assert next(answers, None) is None


def test_a_query_that_is_stopped_while_it_waits_begins_nothing() -> None:
    query = Query(may_begin=lambda: bool(query.stop()))  # type: ignore[func-returns-value] # stops it
    query.start()

    with pytest.raises(JobError, match="stopping between two micro-batches"):
        query.begin(7)
    assert query.written == []


def test_a_query_whose_progress_cant_be_read_is_stopped() -> None:
    query = Query(started=(running := Running("enforce")))
    query.start()
    query.begin(7)

    with pytest.raises(OSError, match="one call"):
        query.stop()

    assert not running.isActive


def test_no_micro_batch_begins_after_a_start_whose_answer_was_lost() -> None:
    """Spark may have started the query all the same."""
    query = Query()
    query.started.side_effect = OSError
    with pytest.raises(OSError):  # noqa: PT011 - it has no words
        query.start()
    query.stop()

    with pytest.raises(JobError, match="stopping"):
        query.begin(7)


def test_a_start_stops_what_is_left_of_the_query_before() -> None:
    left, other = Running("enforce"), Running("audit")

    Query(left, other).start()

    assert (left.isActive, other.isActive) == (False, True)
