"""The progress of queries: a summary of each micro-batch."""

import json
import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("sluice.progress")


class QueryProgress:
    """The micro-batches of one query."""

    def __init__(self, query: StreamingQuery) -> None:
        self.newest_at: str | None = None
        """Time of Spark's newest report, None before the first. An idle query has one about every 10 s."""
        self._query = query
        self._last_batch_id = -1

    def new_batches(self) -> Iterator[dict[str, Any]]:
        """A summary of each micro-batch that had events and ended since the last call."""
        newest = self._query.lastProgress
        if newest is None or newest["timestamp"] == self.newest_at:
            return
        self.newest_at = newest["timestamp"]
        # Spark has its last 100 reports as one list. To read it takes a tenth of a second of Python and of Java each.
        missed = newest["batchId"] > self._last_batch_id + 1
        for progress in self._query.recentProgress if missed else [newest]:
            # An idle query's reports have the number of the micro-batch that comes next.
            if progress["numInputRows"] and progress["batchId"] > self._last_batch_id:
                self._last_batch_id = progress["batchId"]
                yield summarize(progress)


def summarize(progress: Any) -> dict[str, Any]:
    """The numbers of Spark's progress report that the job publishes; `lag` counts the events not yet read."""
    source = progress["sources"][0]
    return {
        "query": progress["name"],
        "batch_id": progress["batchId"],
        "started_at": progress["timestamp"],
        "events": progress["numInputRows"],
        "batch_ms": progress["durationMs"].get("triggerExecution"),
        "stages_ms": dict(progress["durationMs"]),
        "lag": _lag(source),
    }


def _lag(source: Any) -> int:
    """Events in the source's topics after the batch's end; 0 for a repeated batch, for which Spark doesn't know it."""
    latest, end = (json.loads(source[name] or "null") or {} for name in ("latestOffset", "endOffset"))
    return sum(
        offset - end.get(topic, {}).get(partition, 0)
        for topic, offsets in latest.items()
        for partition, offset in offsets.items()
    )
