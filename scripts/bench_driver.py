"""A Spark driver that runs queries on command, one after another: python -m scripts.bench_driver

Commands and answers are lines of JSON on standard input and output; it ends with its input, as when its parent dies.
The enforce and audit queries are the job's own, started as streaming.job starts them.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from configs.settings import Settings, load_settings
from scripts.bench_copy import start_copy
from scripts.bench_cpu_clock import jvm_cpu_s
from streaming.audit import AuditQuery
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots, check_origin
from streaming.enforce import EnforceQuery
from streaming.progress import summarize
from streaming.quota_watch import QuotaWatch, ensure_quotas_table
from streaming.session import start_session

_LOOK_SECONDS = 0.02

Json = dict[str, Any]


class Driver:
    """One session, and the query that runs in it now."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._stop: Callable[[], None] = lambda: None
        self._cpu_before: dict[str, float] = {}

    def session(self, settings: str) -> Json:
        """Start the session, which later queries share."""
        self._spark = start_session(load_settings(Path(settings)))
        return {"spark": self._spark.version}

    def start(
        self, query: str, settings: str, checkpoint: str = "", padding_bytes: int = 0, tuned: bool = False
    ) -> Json:
        """Start a query: `enforce`, `audit` or `copy`; the latter three arguments are the copy's."""
        loaded = load_settings(Path(settings))
        self._cpu_before = jvm_cpu_s(self._jvm())
        if query == "copy":
            running = start_copy(self._session(), loaded, checkpoint, padding_bytes, tuned)
            self._query, self._stop = running, running.stop
        elif query == "audit":
            audit = AuditQuery(self._session(), loaded)
            self._query, self._stop = audit.start(), audit.stop
        else:
            self._start_enforce(loaded)
        return {}

    def drain(self, events: int) -> Json:
        """Wait until the query has committed so many events, and stop it."""
        while sum(batch["events"] for batch in self._batches()) < events:
            self._check()
            time.sleep(_LOOK_SECONDS)
        return self.stop()

    def stop(self) -> Json:
        """Stop the query between two micro-batches; answers what its batches took and the JVM's CPU time in s."""
        self._check()
        self._stop()
        cpu = jvm_cpu_s(self._jvm())
        spent = {group: seconds - self._cpu_before.get(group, 0.0) for group, seconds in cpu.items()}
        return {"batches": self._batches(), "jvm_cpu_s": spent}

    def state_bytes(self, settings: str) -> Json:
        """Bytes of all shards' payloads in the enforce query's checkpoint."""
        checkpoint = CheckpointFolder(load_settings(Path(settings)).enforce.checkpoint).checkpoint
        state = self._session().read.format("statestore").load(checkpoint)
        row = state.selectExpr("sum(length(value.groupState.payload))").first()
        return {"bytes": row[0] if row else 0}

    def _start_enforce(self, settings: Settings) -> None:
        folder = CheckpointFolder(settings.enforce.checkpoint)
        check_origin(folder, settings)
        watch = QuotaWatch(ensure_quotas_table(settings), QuotaSnapshots(folder), settings.quotas.poll_ms)
        enforce = EnforceQuery(self._session(), settings, watch)
        watch.start()
        self._query = enforce.start()

        def stop() -> None:
            watch.stop()
            enforce.stop()

        self._stop = stop

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise RuntimeError("no session yet")
        return self._spark

    def _jvm(self) -> int:
        gateway = self._session().sparkContext._gateway  # noqa: SLF001 - PySpark has no public way to its JVM
        return int(gateway.proc.pid)  # type: ignore[union-attr] # a started context has its gateway

    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise RuntimeError("no query yet")
        return self._query

    def _batches(self) -> list[Json]:
        progresses = [progress for progress in self._running().recentProgress if progress["numInputRows"]]
        return [{**summarize(progress), "state": _state(progress)} for progress in progresses]

    def _check(self) -> None:
        query = self._running()
        if not query.isActive:
            raise RuntimeError(f"query {query.name} ended: {str(query.exception())[-800:]}")


def _state(progress: Any) -> Json:
    """What the state store says of the batch: commit and load times in ms, memory and SST sizes in bytes."""
    operators = progress["stateOperators"]
    return {"memory_bytes": operators[0]["memoryUsedBytes"], **operators[0]["customMetrics"]} if operators else {}


def main() -> None:
    """Answer commands until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark's Java prints must not mix with the answers
    commands: SimpleQueue[Json] = SimpleQueue()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    driver = Driver()
    while True:
        command = commands.get()
        try:
            answer = getattr(driver, command.pop("do"))(**command)
        except Exception as error:  # whatever it is, the bench shows it and ends
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[-800:]}"}
        print(json.dumps(answer), file=answers)


def _read(commands: "SimpleQueue[Json]") -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGINT)  # nobody wants an answer any more; the JVM ends with this process


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
