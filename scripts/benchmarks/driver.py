"""A Spark driver that runs queries on command, one after another: python -m scripts.benchmarks.driver

Commands and answers are lines of JSON on standard input and output. It ends with its input, so also with its parent.
The enforce and audit queries are the job's own, started as sluice.streaming.job starts them.
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

from scripts.benchmarks.copy import start_copy, start_stock_session
from scripts.benchmarks.cpu_clock import descendants_cpu_s, jvm_cpu_s
from scripts.testbed.job import Json
from sluice.configs.settings import Settings, load_settings
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import check_origin, with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import EnforceQuery
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.runtime.progress import summarize
from sluice.streaming.runtime.session import start_session

_POLL_SECONDS = 0.02


class Driver:
    """One Spark session, and what runs in it: a query or both. The first commands are `session` and `start`."""

    _spark: SparkSession
    _query: StreamingQuery

    def __init__(self) -> None:
        self._stop: Callable[[], object] = lambda: None
        self._cpu_before: dict[str, float] = {}
        self._python_before_s = self._began_s = 0.0

    def session(self, settings: str, stock: bool = False) -> Json:
        """Start the session that all queries share: the job's, or one with Spark's own defaults."""
        loaded = load_settings(Path(settings))
        self._spark = start_stock_session(loaded) if stock else start_session(loaded)
        return {"spark": self._spark.version}

    def start(
        self,
        query: str,
        settings: str,
        checkpoint: str = "",
        padding_bytes: int = 0,
        tuned: bool = False,
        audited: bool = False,
    ) -> Json:
        """Start `enforce`, `audit`, `both` of them or `copy`; checkpoint, padding and `tuned` are for the copy.

        Of both, the batches are those of the audit query, the last to have done with an event. An `audited`
        enforce query has the audit query beside it too, and the batches are its own.
        """
        loaded = with_pages(load_settings(Path(settings)))
        self._cpu_before, self._began_s = jvm_cpu_s(self._jvm()), time.monotonic()
        self._python_before_s = descendants_cpu_s(self._jvm())
        if query == "copy":
            running = start_copy(self._spark, loaded, checkpoint, padding_bytes, tuned)
            self._query, self._stop = running, running.stop
            return {}
        stops = []
        if query in ("enforce", "both"):
            stops.append(self._start_enforce(loaded))
        if query in ("audit", "both") or audited:
            audit = AuditQuery(self._spark, loaded)
            started = audit.start()
            self._query = self._query if audited else started
            stops.append(audit.stop)
        self._stop = lambda: [stop() for stop in stops]
        return {}

    def drain(self, events: int) -> Json:
        """Stop the query once it has committed this many events."""
        while sum(batch["events"] for batch in self._batches()) < events:
            self._check()
            time.sleep(_POLL_SECONDS)
        return self.stop()

    def stop(self) -> Json:
        """Stop what runs between two micro-batches.

        Returns the batches, the seconds since the start, and the CPU seconds of Java by group and of the workers.
        """
        self._check()
        took_s = time.monotonic() - self._began_s
        self._stop()
        cpu = jvm_cpu_s(self._jvm())
        spent = {group: seconds - self._cpu_before.get(group, 0.0) for group, seconds in cpu.items()}
        python_s = descendants_cpu_s(self._jvm()) - self._python_before_s
        return {"batches": self._batches(), "took_s": took_s, "jvm_cpu_s": spent, "python_cpu_s": python_s}

    def state_bytes(self, settings: str) -> Json:
        """Total bytes of the pages' payloads in the enforce query's checkpoint."""
        checkpoint = Checkpoint(load_settings(Path(settings)).enforce.checkpoint).location
        state = self._spark.read.format("statestore").load(checkpoint)
        row = state.selectExpr("sum(length(value.groupState.payload))").first()
        return {"bytes": row[0] if row else 0}

    def _start_enforce(self, settings: Settings) -> Callable[[], None]:
        """Start the enforce query; returns what stops it."""
        folder = Checkpoint(settings.enforce.checkpoint)
        check_origin(folder, settings)
        watch = QuotaWatch(ensure_quotas_table(settings), QuotaSnapshots(folder), settings.quotas.poll_ms)
        enforce = EnforceQuery(self._spark, settings, watch)
        watch.start()
        self._query = enforce.start()

        def stop() -> None:
            watch.stop()
            enforce.stop()

        return stop

    def _jvm(self) -> int:
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way to its JVM
        return int(gateway.proc.pid)  # type: ignore[union-attr] # a started context has its gateway

    def _batches(self) -> list[Json]:
        progresses = [progress for progress in self._query.recentProgress if progress["numInputRows"]]
        return [{**summarize(progress), "state": _state(progress)} for progress in progresses]

    def _check(self) -> None:
        if not self._query.isActive:
            raise RuntimeError(f"query {self._query.name} ended: {str(self._query.exception())[-800:]}")


def _state(progress: Any) -> Json:
    """The state store's metrics of the batch: commit and load times in ms, memory and SST sizes in bytes."""
    operators = progress["stateOperators"]
    return {"memory_bytes": operators[0]["memoryUsedBytes"], **operators[0]["customMetrics"]} if operators else {}


def main() -> None:
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of Spark's Java must not mix with the answers
    commands: SimpleQueue[Json] = SimpleQueue()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    driver = Driver()
    while True:
        command = commands.get()
        try:
            answer = getattr(driver, command.pop("do"))(**command)
        except Exception as error:  # the benchmark shows any error and ends
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[-800:]}"}
        print(json.dumps(answer), file=answers)


def _read(commands: "SimpleQueue[Json]") -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGINT)  # nobody reads answers any more; the JVM ends with this process


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
