"""A query that is stopped between two micro-batches, so that none is cut short and written again."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.state.errors import SluiceError
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import JobError

_COMMIT_TIMEOUT_S = 60
_POLL_S = 0.02


class GatedQuery(ABC):
    """A `foreachBatch` query. Every micro-batch passes a gate when it begins; once that is closed, none begins."""

    def __init__(
        self, name: str, checkpoint: str, trigger_ms: int, may_begin: Callable[[], bool] = lambda: True
    ) -> None:
        """With `trigger_ms` 0 a micro-batch begins as soon as the one before has ended; each waits for `may_begin`."""
        self._name = name
        self._checkpoint = checkpoint
        self._trigger_ms = trigger_ms
        self._may_begin = may_begin
        self._query: StreamingQuery | None = None
        self._closed = Event()
        self._last_begun: int | None = None
        self.error: SluiceError | None = None
        """The error that has ended it, if it is one of Sluice's own: of Python's errors Spark has the text alone."""

    def start(self) -> StreamingQuery:
        """Start the query on its checkpoint, after what is left of one of its name whose stop failed."""
        rows = self._rows()
        for left in rows.sparkSession.streams.active:
            if left.name == self._name:
                left.stop()
        self._query = (
            rows.writeStream.queryName(self._name)
            .foreachBatch(self._begin_batch)
            .option("checkpointLocation", Checkpoint(self._checkpoint).location)
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .start()
        )
        return self._query

    def stop(self) -> None:
        """Close the gate, wait until the current micro-batch is committed, and stop the query."""
        self._closed.set()
        if self._query is None:
            return
        deadline = time.monotonic() + _COMMIT_TIMEOUT_S
        try:
            while self._query.isActive and not self._committed(self._query) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:  # also if its progress can't be read
            self._query.stop()

    @abstractmethod
    def _rows(self) -> DataFrame:
        """The streaming plan, whose rows `write_batch` is given."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""

    def _begin_batch(self, rows: DataFrame, batch_id: int) -> None:
        while not self._closed.is_set() and not self._may_begin():
            self._closed.wait(_POLL_S)
        if self._closed.is_set():
            raise JobError("stopping between two micro-batches")  # ends the query
        self._last_begun = batch_id
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        try:
            self.write_batch(rows, batch_id)
        except SluiceError as error:
            self.error = error
            raise

    def _committed(self, query: StreamingQuery) -> bool:
        """True if the last micro-batch that was started is committed too."""
        if self._last_begun is None:
            return True
        progress = query.lastProgress
        if progress is None:
            return False
        # An idle query reports the number of its next micro-batch, which has executed nothing yet.
        executed = "addBatch" in progress["durationMs"]
        return bool(progress["batchId"] > self._last_begun or (progress["batchId"] == self._last_begun and executed))
