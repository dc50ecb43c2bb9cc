"""The job as a child process with topics of its own, and what it publishes, for the end-to-end tests."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from sluice.state.decisions.leader_epochs import Fence
from sluice_demo.counts import ends, records
from sluice_demo.job import Json, Sections, SluiceJob, quotas_in, storage_in, wait_until

__all__ = ["AUDITED", "GENERATED_CODE", "QUICK_JAVA", "READS_DELTA", "TOPICS", "JobProcess", "Json", "wait_until"]

TOPICS = ("requests", "decisions", "dead_letters", "limits", "waits", "sums", "claims")
"""The settings that name a job's topics."""

QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""Disables Java's second compiler, which takes more time than everything else in a short test."""

READS_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Properties of a session that reads and writes Delta tables; the job does that without Spark."""

GENERATED_CODE = {"spark.sql.codegen.factoryMode": "FALLBACK"}
"""Section `spark` of a job that runs the code that Spark generates for expressions, as in production."""

SMALL_ARROW_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": "4k"}
"""Section `spark` of a job whose tasks send Python several batches of Arrow, though its micro-batches are small."""

_INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Section `spark` of the others: a small micro-batch is shorter without generated code."""

AUDITED = {"trigger_s": 1}
"""Section `audit` of a job whose tables a test reads."""

_NOT_AUDITED = {"trigger_s": 86_400}
"""Section `audit` of the others: a micro-batch of the audit query takes more time than most tests."""


class JobProcess(SluiceJob):
    """`sluice run` in a folder, with its own topics on the broker; can be killed and started again.

    It writes answers to Delta only when it starts, unless `audit` is AUDITED, and interprets Spark's plans, unless
    `spark` is GENERATED_CODE.
    """

    def __init__(self, folder: Path, bootstrap_servers: str, quotas: Sequence[Json], /, **sections: Json) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Tests share a broker, so the names hold that of the test's own folder.
        owner = re.sub(r"[^\w.-]", "_", f"{folder.parent.name}-{folder.name}", flags=re.ASCII)
        topics = {name: f"{owner}-{name}" for name in TOPICS}
        own: Sections = {
            "kafka": {"bootstrap.servers": bootstrap_servers},
            "topics": {**topics, "partitions": 1},
            "audit": _NOT_AUDITED,
            "spark": QUICK_JAVA | _INTERPRETED,
        }
        storage = storage_in(Path(os.path.relpath(folder)))  # as the default paths are, of another folder than Java's
        super().__init__(folder, storage, quotas_in(folder, quotas), own, sections)

    def log(self) -> list[Json]:
        """The log entries of the last start."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines() if line.startswith("{")]

    def batch_sizes(self) -> list[int]:
        """Requests in each micro-batch since the last start."""
        batches = [entry for entry in self.log() if entry["message"] == "batch"]
        return [batch["events"] for batch in batches if batch["query"] == "enforce"]

    def publish(self, values: Iterable[bytes | None], timestamp_ms: int | None = None) -> None:
        """Send request events, in order."""
        servers = self.settings.kafka["bootstrap.servers"]
        with KafkaProducer(bootstrap_servers=servers, max_request_size=8 * 1024 * 1024) as producer:
            for value in values:
                producer.send(self.settings.topics.requests, value=value, key=b"test", timestamp_ms=timestamp_ms)
            producer.flush()

    def count(self, *names: str) -> int:
        """Number of records in the topics."""
        return sum(sum(ends(self.settings, name).values()) for name in names)

    def topic(self, name: str) -> list[Any]:
        """All records of a topic, in order."""
        return list(records(self.settings, name))

    def decisions(self) -> list[Json]:
        """Every decision in the topic that counts."""
        fence = Fence()
        return [
            json.loads(record.value)
            for record in self.topic(self.settings.topics.decisions)
            if fence.passes_record(record)
        ]

    def dead_letters(self) -> list[Json]:
        """Every dead letter in the topic."""
        return [json.loads(record.value) for record in self.topic(self.settings.topics.dead_letters)]

    def answered(self, count: int, seconds: float = 120) -> None:
        """Wait until this many events have a decision or a dead letter. Raises RunError if the job ends before."""
        topics = self.settings.topics

        def are_answered() -> bool:
            has_ended = self.child is not None and not self.alive  # asked before they are counted: they may be its last
            is_done = self.count(topics.decisions, topics.dead_letters) >= count
            if has_ended and not is_done:
                self.running()
            return is_done

        wait_until(are_answered, seconds)

    def stop_after_a_micro_batch(self, requests: int) -> int:
        """Stop when it has answered something more of so many requests; how many are answered then."""
        topics = self.settings.topics
        before = self.count(topics.decisions, topics.dead_letters)
        wait_until(lambda: self.count(topics.decisions, topics.dead_letters) > before, 120)
        self.stop()
        answered = self.count(topics.decisions, topics.dead_letters)
        assert answered < requests
        return answered
