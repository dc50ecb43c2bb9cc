"""What the job tells of itself: one line of JSON a micro-batch, and a status file for whoever looks on."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("sluice.progress")


class QueryProgress:
    """Follows one query's micro-batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last_batch_id = -1

    def new_batches(self) -> Iterator[dict[str, Any]]:
        """A summary of each micro-batch with events that ended since the last call."""
        for progress in self._query.recentProgress:
            if progress["batchId"] > self._last_batch_id:
                self._last_batch_id = progress["batchId"]
                if progress["numInputRows"]:
                    yield summarize(progress)


def summarize(progress: Any) -> dict[str, Any]:
    """A progress report of Spark in a few numbers; `lag` is in events not yet read."""
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


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace the status file in one step, so that a reader sees a whole one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(status))
    draft.replace(path)


def _lag(source: Any) -> int:
    """Events in the source's topics behind the batch's end; Spark doesn't know them for a repeated batch."""
    latest, end = (json.loads(source[name] or "null") or {} for name in ("latestOffset", "endOffset"))
    return sum(
        offset - end.get(topic, {}).get(partition, 0)
        for topic, offsets in latest.items()
        for partition, offset in offsets.items()
    )
