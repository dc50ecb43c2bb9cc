"""Stopping a query between two micro-batches, so that none is cut short and written again."""

import time
from threading import Event

from pyspark.sql.streaming.query import StreamingQuery

from streaming.errors import JobError

_COMMIT_SECONDS = 60
_LOOK_SECONDS = 0.02


class BatchGate:
    """Every micro-batch passes it when it begins; once the gate is closed none begins any more."""

    def __init__(self) -> None:
        self._closed = Event()
        self._last_begun: int | None = None

    def enter(self, batch_id: int) -> None:
        """Called first thing in a micro-batch. Raises JobError, which ends the query, when the gate is closed."""
        if self._closed.is_set():
            raise JobError("stopping between two micro-batches")
        self._last_begun = batch_id

    def stop(self, query: StreamingQuery) -> None:
        """Close the gate, wait until the current micro-batch is committed, and stop the query."""
        self._closed.set()
        deadline = time.monotonic() + _COMMIT_SECONDS
        while query.isActive and not self._committed(query) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        query.stop()

    def _committed(self, query: StreamingQuery) -> bool:
        """Whether the last micro-batch that was begun is committed too."""
        if self._last_begun is None:
            return True
        progress = query.lastProgress
        return progress is not None and progress["batchId"] >= self._last_begun
